"""Steps that are calls of torch, whose gradients are torch's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from tvm import relax

from babytriton.diagnostics import Span
from babytriton.ops.refusals import RANDOM, NoGradient
from babytriton.ops.table import Callee, called
from babytriton.ops.torch_graphs import KEEPER, TorchGradient, draws_unseen
from babytriton.ops.value import Value, values_in
from babytriton.ops.views import Read

if TYPE_CHECKING:
    from babytriton.ops.builder import Builder

Grads = Sequence[tuple[Value, Value | None]]


@dataclass(frozen=True)
class Record:
    """A call that torch records.

    Attributes:
        keeper: the tensor that keeps its graph.
        reads: what it is given for its tensors, and so what is saved of it.
    """

    keeper: relax.Expr
    reads: Sequence[Read]


@dataclass(frozen=True)
class TorchStep:
    """A call that runs through torch, whose gradient is torch's own.

    Attributes:
        fn: what torch runs.
        args, kwargs: of the call, as they were then.
        results: of the call.
        span: of the call.
        random: whether it draws random numbers, so that running it again gives others.
        record: torch's own of the call; ``None`` where it is to be run again.
    """

    fn: Callee
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    results: tuple[Value, ...]
    span: Span | None
    random: bool = False
    record: Record | None = None

    def pull(self, builder: Builder, grads: Sequence[Value | None]) -> Grads:
        """Emit a call of torch that gives the gradients of the arguments."""
        if self.random and self.record is None:
            raise NoGradient(called(self.fn), RANDOM, self.span)
        operands = values_in((self.args, self.kwargs))
        wanted = tuple(i for i, x in enumerate(operands) if builder.tape.follows(x))
        have = tuple(i for i, grad in enumerate(grads) if grad is not None)
        given = [grad for grad in grads if grad is not None]
        metas = [torch.empty_like(operands[i].meta) for i in wanted]
        random = self.random or draws_unseen(self.fn, builder.table)
        fn = TorchGradient(self.fn, wanted, have, random)
        args: tuple[Any, ...] = (given, self.args, dict(self.kwargs))
        reads: Sequence[Read] = ()
        if self.record is not None:
            keeper = self.record.keeper
            args = (*args, Value(builder, keeper, builder.meta(KEEPER)))
            reads = (*self.record.reads, Read.of(keeper))
        found = builder.through_torch(fn, args, metas, "the gradient of what torch runs", reads)
        return [(operands[i], grad) for i, grad in zip(wanted, found)]
