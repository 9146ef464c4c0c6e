"""Steps that are calls of torch, whose gradients are torch's own.

Torch records what it runs at the call, as it does for whoever calls it, and goes back through that:
what it computes is computed once, and so are the random numbers that it draws.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from babytriton.diagnostics import Span
from babytriton.ops.generators import Generators, may_draw
from babytriton.ops.refusals import RANDOM, NoGradient
from babytriton.ops.reverse.torch_graphs import Graph
from babytriton.ops.table import Callee, Op
from babytriton.ops.trees import leaves_in
from babytriton.ops.value import Value, values_in

if TYPE_CHECKING:
    from babytriton.ops.builder import Builder

Grads = Sequence[tuple[Value, Value | None]]


@dataclass(frozen=True)
class TorchStep:
    """A call that runs through torch, whose gradient is torch's own.

    Attributes:
        fn: what torch runs.
        args, kwargs: of the call, as they were then.
        results: of the call.
        span: of the call.
        random: whether it draws random numbers, so that running it again gives others.
        graph: what keeps torch's graph of the call; ``None`` where it is to be run again.
    """

    fn: Callee
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    results: tuple[Value, ...]
    span: Span | None
    random: bool = False
    graph: Value | None = None

    def pull(self, builder: Builder, grads: Sequence[Value | None]) -> Grads:
        """Emit a call of torch that gives the gradients of the arguments."""
        name = getattr(self.fn, "__name__", type(self.fn).__name__)
        if self.random and self.graph is None:
            raise NoGradient(name, RANDOM, self.span)
        operands = values_in((self.args, self.kwargs))
        wanted = tuple(i for i, x in enumerate(operands) if builder.tape.follows(x))
        have = tuple(i for i, grad in enumerate(grads) if grad is not None)
        given = [grad for grad in grads if grad is not None]
        metas = [torch.empty_like(operands[i].meta) for i in wanted]
        random = self.random or draws_unseen(self.fn, builder.table)
        fn = TorchGradient(self.fn, wanted, have, random)
        args: tuple[Any, ...] = (given, self.args, dict(self.kwargs))
        if self.graph is not None:
            args = (*args, self.graph)
        found = builder.through_torch(fn, args, metas, "the gradient of what torch runs")
        return [(operands[i], grad) for i, grad in zip(wanted, found)]


@dataclass(frozen=True)
class TorchGradient:
    """The gradient of a callable as a callable itself, which torch's autograd computes.

    Attributes:
        fn: the callable.
        wanted: the numbers of the tensors among its arguments to give gradients of.
        have: the numbers of its results that gradients are given for.
        may_draw: whether it may draw random numbers, so that it is watched if it is run again.
    """

    fn: Callee
    wanted: tuple[int, ...]
    have: tuple[int, ...]
    may_draw: bool = True

    @property
    def __name__(self) -> str:
        return f"gradient_of_{getattr(self.fn, '__name__', type(self.fn).__name__)}"

    def __call__(
        self,
        grads: Sequence[torch.Tensor],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        keeper: torch.Tensor | None = None,
    ) -> list[torch.Tensor]:
        """The gradients of the wanted tensors, themselves with gradients where any is recorded.

        Args:
            grads: of results.
            args, kwargs: of the callable.
            keeper: keeps the graph of a call with these. The callable is run again if there is
                none, where the gradients are to have gradients, and where torch was told to save
                copies of what it saves.
        """
        every = leaves_in((list(grads), args, dict(kwargs)), torch.Tensor)
        again = any(tensor.requires_grad for tensor in every)
        graph = None if again or keeper is None else Graph.kept_by(keeper)
        if graph is None:
            graph = self._run(args, dict(kwargs))
        return graph.gradients(self.wanted, self.have, grads, create_graph=again)

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Graph:
        """The callable run again, where it draws no random numbers."""
        if not self.may_draw:
            return Graph.of(self.fn, args, kwargs, self.wanted)
        before = Generators.now(leaves_in((args, kwargs), torch.Tensor))
        graph = Graph.of(self.fn, args, kwargs, self.wanted)
        if before.have_moved():
            name = getattr(self.fn, "__name__", type(self.fn).__name__)
            raise RuntimeError(
                f"`{name}` draws random numbers, which are others when it is run again for its "
                "gradient: detach() its result, or draw the numbers apart from it"
            )
        return graph


def draws_unseen(fn: Callee, table: Mapping[Callee, Op]) -> bool:
    """Whether a callable may draw random numbers without a row that says so.

    Args:
        fn: what torch runs.
        table: the row of each torch callable.
    """
    if isinstance(fn, TorchGradient):
        return fn.may_draw
    return fn not in table and may_draw(fn)
