"""Back through the steps of a program: the gradient of each binding that a result depends on."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from tvm import relax

from babytriton.ops.refusals import IllTyped
from babytriton.ops.reverse.tape import Step
from babytriton.ops.sizes import is_empty
from babytriton.ops.value import Value
from babytriton.types import TensorType

if TYPE_CHECKING:
    from babytriton.ops.builder import Builder

Adjoints = dict[relax.Var, Value]
"""The gradient of each binding."""


def sweep(
    builder: Builder, steps: Sequence[Step], results: Iterable[tuple[relax.Expr, Value]]
) -> Adjoints:
    """Emit the gradients of what results depend on.

    Args:
        builder: emits them.
        steps: of the program, in order.
        results: expressions that the steps made, and the gradient of each.

    Returns:
        The gradient of each expression that is met on the way back.

    Raises:
        NoGradient: a step has none.
    """
    found: Adjoints = {}
    for expr, grad in results:
        _add(builder, found, expr, grad)
    for step in reversed(list(steps)):
        grads = [found.get(result.made) for result in step.results]
        if all(grad is None for grad in grads):
            continue
        device = step.results[0].device
        with builder.interior(step.span, device):
            for operand, pulled in step.pull(builder, grads):
                if pulled is not None and builder.tape.follows(operand):
                    _add(builder, found, operand.made, _fitted(builder, pulled, operand))
    return found


def _add(builder: Builder, found: Adjoints, expr: relax.Expr, grad: Value) -> None:
    if expr in found and not is_empty(grad.meta):
        with builder.interior(builder.span, grad.device):
            grad = builder.call(operator.add, (found[expr], grad), {})
    found[expr] = grad


def _fitted(builder: Builder, grad: Value, operand: Value) -> Value:
    """A gradient summed over the dimensions that its operand was broadcast along, in its dtype."""
    shape, wanted = tuple(grad.meta.shape), tuple(operand.meta.shape)
    extra = len(shape) - len(wanted)
    if extra < 0:
        types = (TensorType.of(value.meta) for value in (grad, operand))
        raise IllTyped("a rule gives a gradient of {}, for an operand of {}".format(*types))
    inner = [i for i, n in enumerate(wanted, extra) if _is_one(n) and not _is_one(shape[i])]
    if extra or inner:
        dims = [*range(extra), *inner]
        if grad.meta.dtype in (torch.float16, torch.bfloat16):
            # The sum of what is computed would not fuse with it.
            grad = grad.to(torch.float32)
        # A sum that keeps no dimension needs no other shape afterwards.
        grad = builder.call(torch.sum, (grad, dims), {"keepdim": bool(inner)})
        grad = grad.reshape(wanted) if extra and inner else grad
    elif tuple(grad.meta.shape) != wanted and extra == 0:
        # A rule that gives one number for all elements.
        grad = grad.expand(wanted)
    return grad if grad.meta.dtype == operand.meta.dtype else grad.to(operand.meta.dtype)


def _is_one(size: object) -> bool:
    return type(size) is int and size == 1
