"""Steps that are branches and loops of the run time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from tvm import relax

from babytriton.diagnostics import Span
from babytriton.ops.refusals import NoGradient
from babytriton.ops.reverse.rows import UnknownStep
from babytriton.ops.reverse.sweep import sweep
from babytriton.ops.value import Value

if TYPE_CHECKING:
    from babytriton.ops.builder import Builder
    from babytriton.ops.regions import Function, Numbers, Region

Grads = Sequence[tuple[Value, Value | None]]
Part = tuple["Region", Sequence[relax.Expr]]
"""A region and its results."""


def _of_type(builder: Builder, expr: relax.Expr, model: Value) -> Value:
    """An expression of the type of a value."""
    found = Value(builder, expr, model.meta)
    found.device = model.device
    return found


def _followed_in(
    builder: Builder, parts: Sequence[Part], bound: Sequence[relax.Var]
) -> list[Value]:
    """What regions use from around them that gradients flow to."""
    from babytriton.ops.regions import free_in

    found: list[Value] = []
    for region, results in parts:
        for var in free_in(region, relax.Tuple(results), bound):
            value = builder.tape.find(var)
            if value is not None and not any(value is known for known in found):
                found.append(value)
    return found


def _pulled(
    builder: Builder,
    part: Part,
    grads: Sequence[Value | None],
    wanted: Sequence[Value],
    start: Sequence[Value | None],
) -> Part:
    """A region that runs a region again, and goes back through it.

    Args:
        builder: emits it.
        part: the region.
        grads: of its results.
        wanted: what to give the gradients of.
        start: what is added to each of these, if anything.

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
            for value, base in zip(wanted, start):
                grad: Any = adjoints.get(value.made)
                if grad is None:
                    grad = builder.call(torch.zeros_like, (value,), {}) if base is None else base
                elif base is not None:
                    grad = grad + base
                exprs.append(grad.expr)
    return region.quiet().before(back), exprs


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
        found = [_of_type(builder, results[i], model) for i, model in models.items()]
        followed = _followed_in(builder, parts, ())
        return cls(condition, parts, numbers, tuple(found), tuple(followed), builder.span)

    def pull(self, builder: Builder, grads: Sequence[Value | None]) -> Grads:
        """Emit a branch that gives the gradients of what either part uses."""
        start = [None] * len(self.followed)
        parts = []
        for region, exprs in self.parts:
            chosen = [exprs[i] for i in self.numbers]
            parts.append(_pulled(builder, (region, chosen), grads, self.followed, start))
        found = builder.regions.branch(self.condition, *parts)
        pairs = zip(self.followed, found)
        return [(value, _of_type(builder, expr, value)) for value, expr in pairs]


@dataclass(frozen=True)
class Loop:
    """What a loop's steps are.

    Attributes:
        states: what it takes from step to step, as its body sees it.
        initial: that before the first step.
        region, results: its body, and what that gives the next step.
        numbers: of the states that gradients flow through.
        followed: what the body uses from around it that gradients flow to.
    """

    states: Sequence[relax.Var]
    initial: Sequence[relax.Expr]
    region: Region
    results: Sequence[relax.Expr]
    numbers: tuple[int, ...]
    followed: tuple[Value, ...]

    @classmethod
    def of(
        cls,
        builder: Builder,
        states: Sequence[relax.Var],
        initial: Sequence[relax.Expr],
        region: Region,
        results: Sequence[relax.Expr],
    ) -> Loop:
        """What is known of a loop once its body is emitted."""
        numbers = [i for i, state in enumerate(states) if builder.tape.find(state) is not None]
        followed = _followed_in(builder, [(region, results)], states)
        return cls(states, initial, region, results, tuple(numbers), tuple(followed))

    def chosen(self, builder: Builder, exprs: Sequence[relax.Expr]) -> tuple[Value, ...]:
        """Of expressions for the states, those that gradients flow through, as values."""
        models = [(exprs[i], builder.tape.find(self.states[i])) for i in self.numbers]
        return tuple(_of_type(builder, expr, model) for expr, model in models if model is not None)

    def pull(
        self,
        builder: Builder,
        grads: Sequence[Value | None],
        step: relax.Var | None,
        steps: Function,
        numbers: Numbers,
        count: relax.Expr,
    ) -> Grads:
        """Emit the way back through the steps.

        Args:
            builder: emits it.
            grads: of the states after the last step.
            step: the number of the step, where the body takes one.
            steps: the function that runs the steps from one number to another.
            numbers: of the steps.
            count: how many there are.
        """
        inside = self.chosen(builder, self.states)
        pulled = [*inside, *self.followed]
        params = [relax.Var("grad", value.made.ty) for value in pulled]
        values = [_of_type(builder, var, value) for var, value in zip(params, pulled)]
        of_states, of_others = values[: len(inside)], values[len(inside) :]
        exprs = [self.results[i] for i in self.numbers]
        start = [*([None] * len(inside)), *of_others]
        part = _pulled(builder, (self.region, exprs), of_states, pulled, start)
        taken = [*([] if step is None else [step]), *self.states, *params]
        regions = builder.regions
        back = regions.define("body_back", taken, *part)
        driver = regions.steps_back(steps, back, step is not None, self.states, params, numbers)
        zeros = [builder.call(torch.zeros_like, (value,), {}) for value in pulled]
        last = [zero if grad is None else grad for zero, grad in zip(zeros, grads)]
        first = [x.expr for x in (*last, *zeros[len(inside) :])]
        call = driver.call([numbers.number(0), count, *self.initial, *first])
        found = regions.run(call, len(pulled))
        initial = self.chosen(builder, self.initial)
        pairs = zip((*initial, *self.followed), found)
        results = [(value, _of_type(builder, expr, value)) for value, expr in pairs]
        if builder.tape.running:
            why = "a loop of the run time; a gradient of its gradient is not computed"
            operands = (*inside, *self.followed)
            made = tuple(grad for _, grad in results)
            builder.tape.note(UnknownStep("loop", why, operands, made, builder.span))
        return results


@dataclass(frozen=True)
class CountedStep:
    """A loop whose number of steps is known when it begins.

    Attributes:
        loop: its steps.
        step: the number of the step, as the body sees it.
        steps: the function that runs those from one number to another.
        count: how many there are.
        results: the states after the last step that gradients flow through.
        span: of the loop.
    """

    loop: Loop
    step: relax.Var
    steps: Function
    numbers: Numbers
    count: relax.Expr
    results: tuple[Value, ...]
    span: Span | None

    def pull(self, builder: Builder, grads: Sequence[Value | None]) -> Grads:
        """Emit the way back through the steps."""
        return self.loop.pull(builder, grads, self.step, self.steps, self.numbers, self.count)


@dataclass(frozen=True)
class WhileStep:
    """A loop whose number of steps shows as it runs: on the way back it is run again to count them.

    Attributes:
        loop: its steps.
        part: the function that runs one.
        numbers: how the steps are counted on the way back.
        results: the states after the last step that gradients flow through.
        span: of the loop.
    """

    loop: Loop
    part: Function
    numbers: Numbers
    results: tuple[Value, ...]
    span: Span | None

    def pull(self, builder: Builder, grads: Sequence[Value | None]) -> Grads:
        """Emit the loop once more, with a counter, and the way back through the steps."""
        loop, regions = self.loop, builder.regions
        counter = self.numbers.variable("count")
        with builder.tape.paused(), regions.part() as counting:
            more = builder.emit(relax.op.add(counter, self.numbers.number(1)))
        body = loop.region.before(counting), [*loop.results, more]
        with builder.tape.paused():
            *_, count = regions.while_loop(
                [*loop.states, counter], [*loop.initial, self.numbers.number(0)], body
            )
        steps = regions.steps(self.part, False, loop.states, self.numbers)
        return loop.pull(builder, grads, None, steps, self.numbers, count)
