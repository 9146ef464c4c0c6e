"""Steps that are branches and loops of the run time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from tvm import relax

from babytriton.diagnostics import Span
from babytriton.ops.refusals import NoGradient
from babytriton.ops.reverse.sweep import sweep
from babytriton.ops.value import Value

if TYPE_CHECKING:
    from babytriton.ops.builder import Builder
    from babytriton.ops.regions import Part

Grads = Sequence[tuple[Value, Value | None]]


def of_type(builder: Builder, expr: relax.Expr, model: Value) -> Value:
    """An expression of the type of a value."""
    found = Value(builder, expr, model.meta)
    found.device = model.device
    return found


def followed_in(
    builder: Builder, parts: Sequence[Part], bound: Sequence[relax.Var]
) -> tuple[Value, ...]:
    """What regions use from around them that gradients flow to."""
    from babytriton.ops.regions import free_in

    found: list[Value] = []
    for region, results in parts:
        for var in free_in(region, relax.Tuple(results), bound):
            value = builder.tape.find(var)
            if value is not None and not any(value is known for known in found):
                found.append(value)
    return tuple(found)


def pulled(
    builder: Builder, part: Part, grads: Sequence[Value | None], wanted: Sequence[Value]
) -> Part:
    """A region that runs a region again, and goes back through it.

    Args:
        builder: emits it.
        part: the region.
        grads: of its results.
        wanted: what to give the gradients of.

    Raises:
        NoGradient: the region draws random numbers, which would be others.
    """
    region, results = part
    if region.draws:
        why = (
            "a part that the run decides on is run again on the way back, and draws random "
            "numbers, or calls a function of torch that may"
        )
        raise NoGradient("random numbers", why, builder.span)
    with builder.regions.part() as back:
        known = [(expr, grad) for expr, grad in zip(results, grads) if grad is not None]
        adjoints = sweep(builder, region.steps, known)
        exprs = []
        with builder.interior(builder.span, builder.device):
            for value in wanted:
                grad: Any = adjoints.get(value.made)
                if grad is None:
                    grad = builder.call(torch.zeros_like, (value,), {})
                exprs.append(grad.expr)
    return region.before(back), exprs


@dataclass(frozen=True)
class BranchStep:
    """A branch that the run decides on: the part that ran is run again on the way back.

    Attributes:
        condition: that decides.
        parts: the region for a true condition, and the one for a false one.
        numbers: of the results that gradients flow through.
        results: those.
        followed: what the parts use from around them that gradients flow to.
        span: of the condition.
    """

    condition: relax.Expr
    parts: Sequence[Part]
    numbers: tuple[int, ...]
    results: tuple[Value, ...]
    followed: tuple[Value, ...]
    span: Span | None

    @classmethod
    def of(
        cls,
        builder: Builder,
        condition: relax.Expr,
        parts: Sequence[Part],
        results: Sequence[relax.Expr],
    ) -> BranchStep:
        """The step for a branch that was just emitted."""
        each = zip(*(exprs for _, exprs in parts))
        models = {
            i: found
            for i, exprs in enumerate(each)
            for found in map(builder.tape.find, exprs)
            if found is not None
        }
        numbers = tuple(models)
        found = [of_type(builder, results[i], model) for i, model in models.items()]
        followed = followed_in(builder, parts, ())
        return cls(condition, parts, numbers, tuple(found), followed, builder.span)

    def pull(self, builder: Builder, grads: Sequence[Value | None]) -> Grads:
        """Emit a branch that gives the gradients of what either part uses."""
        parts = []
        for region, exprs in self.parts:
            chosen = [exprs[i] for i in self.numbers]
            parts.append(pulled(builder, (region, chosen), grads, self.followed))
        found = builder.regions.branch(self.condition, *parts)
        pairs = zip(self.followed, found)
        return [(value, of_type(builder, expr, value)) for value, expr in pairs]
