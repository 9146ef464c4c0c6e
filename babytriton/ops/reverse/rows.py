"""Steps that are calls: of a row with a gradient, and of torch itself."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from babytriton.diagnostics import Span
from babytriton.ops.generators import Generators, may_draw
from babytriton.ops.meta import apply, tensors_of
from babytriton.ops.refusals import RANDOM, NoGradient, Random, RowFailed, Unsupported
from babytriton.ops.table import Callee, Op
from babytriton.ops.trees import leaves_in, map_leaves
from babytriton.ops.value import Scalar, Value, values_in

if TYPE_CHECKING:
    from babytriton.ops.builder import Builder

NO_RULE = "its row in the operator table has no gradient"
Grads = Sequence[tuple[Value, Value | None]]


@dataclass(frozen=True)
class RowStep:
    """A call of a row that says what its gradient is.

    Attributes:
        op: the row.
        fn: the callable of it.
        args, kwargs: of the call, as they were then.
        results: of the call.
        single: whether they are one tensor, and not a tuple of them.
        span: of the call.
    """

    op: Op
    fn: Callee
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    results: tuple[Value, ...]
    single: bool
    span: Span | None

    def pull(self, builder: Builder, grads: Sequence[Value | None]) -> Grads:
        """Emit the gradients of the arguments."""
        rule = self.op.gradient
        if rule is None:
            raise NoGradient(self.op.name, NO_RULE, self.span)
        pairs = zip(grads, self.results)
        filled = [_zeros(builder, result) if grad is None else grad for grad, result in pairs]
        several = (tuple(filled), self.results)
        grad, result = (filled[0], self.results[0]) if self.single else several
        try:
            bound = _signature(rule).bind(grad, result, *self.args, **self.kwargs)
        except TypeError as error:
            if not self.op.registered:
                raise
            raise RowFailed(f"the gradient of {self.op.name}", str(error)) from None
        bound.apply_defaults()  # so that a gradient stands where its argument does
        try:
            found = rule(*bound.args, **bound.kwargs)
        except Unsupported as unsupported:
            random = isinstance(unsupported, Random)
            step = TorchStep(self.fn, self.args, self.kwargs, self.results, self.span, random)
            return step.pull(builder, grads)
        given = list(bound.arguments.values())[2:]
        is_list = isinstance(found, list) and not isinstance(given[0], (tuple, list))
        parts = tuple(found) if is_list or isinstance(found, tuple) else (found,)
        if self.op.registered and len(parts) > len(given):
            why = f"it gives {len(parts)} gradients of {len(given)} arguments"
            raise RowFailed(f"the gradient of {self.op.name}", why)
        return list(_pairs(given, parts))


def _zeros(builder: Builder, result: Value) -> Any:
    """The gradient of a result that nothing depends on; None of what is no float."""
    is_float = result.meta.dtype.is_floating_point
    return builder.call(torch.zeros_like, (result,), {}) if is_float else None


@cache
def _signature(rule: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(rule)


def _pairs(given: Sequence[Any], found: Sequence[Any]) -> list[tuple[Value, Value | None]]:
    """The tensors among arguments, each with what a rule gives for it."""
    pairs: list[tuple[Value, Value | None]] = []
    for argument, grad in zip(given, found):
        if grad is None:
            continue
        if isinstance(argument, (tuple, list)):
            pairs += _pairs(argument, grad)
        elif isinstance(argument, Value) and not isinstance(argument, Scalar):
            pairs.append((argument, grad))
    return pairs


@dataclass(frozen=True)
class TorchStep:
    """A call that runs through torch, whose gradient is torch's own.

    Attributes:
        fn: what torch runs.
        args, kwargs: of the call, as they were then.
        results: of the call.
        span: of the call.
        random: whether it draws random numbers, so that running it again gives others.
    """

    fn: Callee
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    results: tuple[Value, ...]
    span: Span | None
    random: bool = False

    def pull(self, builder: Builder, grads: Sequence[Value | None]) -> Grads:
        """Emit a call of torch that gives the gradients of the arguments."""
        name = getattr(self.fn, "__name__", type(self.fn).__name__)
        if self.random:
            raise NoGradient(name, RANDOM, self.span)
        operands = values_in((self.args, self.kwargs))
        wanted = tuple(i for i, x in enumerate(operands) if builder.tape.follows(x))
        have = tuple(i for i, grad in enumerate(grads) if grad is not None)
        given = [grad for grad in grads if grad is not None]
        metas = [torch.empty_like(operands[i].meta) for i in wanted]
        unknown = self.fn not in builder.table and may_draw(self.fn)
        fn = TorchGradient(self.fn, wanted, have, unknown)
        args = (given, self.args, dict(self.kwargs))
        found = builder.through_torch(fn, args, metas, "the gradient of what torch runs")
        return [(operands[i], grad) for i, grad in zip(wanted, found)]


@dataclass(frozen=True)
class TorchGradient:
    """The gradient of a callable as a callable itself, which torch's autograd computes.

    Attributes:
        fn: the callable.
        wanted: the numbers of the tensors among its arguments to give gradients of.
        have: the numbers of its results that gradients are given for.
        may_draw: whether it may draw random numbers, so that it is watched.
    """

    fn: Callee
    wanted: tuple[int, ...]
    have: tuple[int, ...]
    may_draw: bool = True

    @property
    def __name__(self) -> str:
        return f"gradient_of_{getattr(self.fn, '__name__', type(self.fn).__name__)}"

    def __call__(
        self, grads: Sequence[torch.Tensor], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> list[torch.Tensor]:
        """The gradients of the wanted tensors, themselves with gradients where any is recorded."""
        every = leaves_in((list(grads), args, dict(kwargs)), torch.Tensor)
        again = any(tensor.requires_grad for tensor in every)
        inputs: list[torch.Tensor] = []

        def own(tensor: torch.Tensor) -> torch.Tensor:
            wants = len(inputs) in self.wanted
            # Of its own: the same tensor twice is two arguments.
            inputs.append(tensor.view_as(tensor) if tensor.requires_grad else tensor.detach())
            if wants and not inputs[-1].requires_grad:
                inputs[-1].requires_grad_()
            return inputs[-1]

        with torch.enable_grad():
            args, kwargs = map_leaves((args, dict(kwargs)), torch.Tensor, own)
            results = self._run(args, dict(kwargs))
            wanted = [inputs[i] for i in self.wanted]
            pairs = [(results[i], grad) for i, grad in zip(self.have, grads)]
            pairs = [(result, grad) for result, grad in pairs if result.requires_grad]
            if not pairs:  # such as what torch.Tensor.data gives
                return [torch.zeros_like(x) for x in wanted]
            chosen, given = zip(*pairs)
            return list(
                torch.autograd.grad(
                    chosen, wanted, given, create_graph=again, materialize_grads=True
                )
            )

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
        """The callable's results, where it draws no random numbers."""
        if not self.may_draw:
            return tensors_of(apply(self.fn, args, kwargs))
        before = Generators.now(leaves_in((args, kwargs), torch.Tensor))
        results = tensors_of(apply(self.fn, args, kwargs))
        if before.have_moved():
            name = getattr(self.fn, "__name__", type(self.fn).__name__)
            raise RuntimeError(
                f"`{name}` draws random numbers, which are others when it is run again for its "
                "gradient: detach() its result, or draw the numbers apart from it"
            )
        return results


@dataclass(frozen=True)
class CopyStep:
    """A tensor that holds the same numbers as another one, perhaps on another device."""

    operand: Value
    results: tuple[Value, ...]
    span: Span | None

    def pull(self, builder: Builder, grads: Sequence[Value | None]) -> Grads:
        """Emit the gradient, moved to where the operand is."""
        [grad] = grads
        assert grad is not None
        with builder.interior(self.span, self.operand.device):
            return [(self.operand, builder.moved(grad))]


@dataclass(frozen=True)
class UnknownStep:
    """Something that has no gradient.

    Attributes:
        name: of it.
        why: it has none.
        operands, results: of it.
        span: of the user's expression.
    """

    name: str
    why: str
    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    span: Span | None

    def pull(self, builder: Builder, grads: Sequence[Value | None]) -> Grads:
        """Refuse.

        Raises:
            NoGradient: always.
        """
        raise NoGradient(self.name, self.why, self.span)
