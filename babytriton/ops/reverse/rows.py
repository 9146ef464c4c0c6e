"""Steps that are calls of rows, copies to other devices, and what has no gradient."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from babytriton.diagnostics import Span
from babytriton.ops.refusals import NoGradient, Random, RowFailed, Unsupported
from babytriton.ops.reverse.torch_steps import Grads, TorchStep
from babytriton.ops.table import Callee, Op
from babytriton.ops.value import Scalar, Value

if TYPE_CHECKING:
    from babytriton.ops.builder import Builder

NO_RULE = "its row in the operator table has no gradient"


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
