"""Loops whose steps the run counts, and the way back through them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from tvm import relax
from tvm.ir import GlobalVar, Op, PrimType, Var
from tvm.relax.script import builder as R

from babytriton.diagnostics import Span
from babytriton.ops.counting import Count, Counts, Numbers, Sizes, state_variable
from babytriton.ops.regions import Function, Part, Region, emit_as, fields, nothing
from babytriton.ops.reverse.regions import Grads, followed_in, of_type, pulled
from babytriton.ops.value import Value
from babytriton.types import TensorType

if TYPE_CHECKING:
    from babytriton.ops.builder import Builder

DEPTH = 62
"""Of the recursion that makes a loop without a known count: it ends after 2**62 steps at most."""


def counted_loop(
    builder: Builder,
    count: relax.Expr,
    step: Var,
    states: Sequence[Var],
    initial: Sequence[relax.Expr],
    body: Part,
) -> list[Var]:
    """Run a region a number of times that is known when the loop begins.

    Args:
        builder: emits it.
        count: of the steps, an int64.
        step: the number of the step as the region sees it, from 0.
        states: what the region takes from step to step.
        initial: the values of ``states`` before the first step.
        body: the region, and the values of ``states`` for the next step.

    Returns:
        The values of ``states`` after the last step.
    """
    if not states:
        state = state_variable("nothing", TensorType((), torch.bool))
        counted_loop(builder, count, step, [state], [nothing()], (body[0], [state]))
        return []
    found = Steps.of(builder, Sizes(), step, states, body)
    return found.run(relax.prim_value(0), relax.prim_value(count), initial)


def while_loop(
    builder: Builder,
    states: Sequence[Var],
    initial: Sequence[relax.Expr],
    body: Part,
) -> list[Var]:
    """Run a region for as long as the first of its states, a bool tensor, is true.

    Args:
        builder: emits it.
        states: what the region takes from step to step; the first says whether to go on.
        initial: the values of ``states`` before the first step.
        body: the region, and the values of ``states`` for the next step.

    Returns:
        The values of ``states`` after the last step.
    """
    part = builder.regions.define("body", states, *body)
    depth = Var("depth", PrimType("int64"))
    driver = builder.regions.declare("steps", [depth, *states], part)
    with Region() as region, R.If(depth < 1) as single:
        with R.Then():
            emit_as("states", part.call(states))
        with R.Else():
            less = relax.prim_value(depth - 1)
            first = R.emit(driver.call([less, *states]))
            halfway = fields(first, len(states))
            with R.If(halfway[0]) as again:
                with R.Then():
                    emit_as("state", driver.call([less, *halfway]))
                with R.Else():
                    emit_as("state", relax.Tuple(halfway))
            emit_as("states", again.var)
    driver.define(region, single.var)
    with R.If(initial[0]) as any_step:
        with R.Then():
            emit_as("state", driver.call([relax.prim_value(DEPTH), *initial]))
        with R.Else():
            emit_as("state", relax.Tuple(initial))
    results = fields(any_step.var, len(states))
    if builder.tape.running:
        numbers = Counts(builder.regions)
        step = WhileStep.of(builder, states, initial, body, numbers, results)
        builder.tape.note(step)
    return results


_LARGE = re.compile(r"relax\.(matmul|call_pure_packed|nn\.|image\.|sort|argsort|topk|to_vdevice)")
"""Operators that are no work on elements."""


def works_on_elements(region: Region) -> bool:
    """Whether a region is likely to work on elements of tensors, each for itself.

    The kernel of a loop shows whether it does; this is asked before there are kernels.
    """
    for block in region.blocks:
        for binding in block.bindings:
            value = getattr(binding, "value", None)
            if isinstance(value, relax.If):
                return False
            if not isinstance(value, relax.Call):
                continue
            if isinstance(value.op, GlobalVar):
                return False
            if isinstance(value.op, Op) and _LARGE.match(str(value.op.name)):
                return False
    return True


class Steps:
    """A function that runs the steps of a loop from one number to another.

    It runs the first half of them, then the second: so the recursion is as deep as the logarithm of
    their number. The function that goes back through the steps is another of these, and so is the
    one that goes back through that.

    Args:
        builder: emits it.
        name: of the function.
        count: how the steps are counted.
        parameters: what the function takes besides the numbers.
        body: a region for one step, and what the function gives of that.
        others: functions that it calls besides that for one step.

    Attributes:
        carried: the numbers of what it gives that gradients flow through, with their types.
        taken: the numbers of the parameters that gradients flow to, and these.
        followed: what it uses from around it that gradients flow to.
    """

    def __init__(
        self,
        builder: Builder,
        name: str,
        count: Count,
        parameters: Sequence[Var],
        body: Part,
        others: Sequence[Function] = (),
    ) -> None:
        regions = builder.regions
        self._builder, self._name, self._count = builder, name, count
        self._parameters, self._body = parameters, body
        self._back: Steps | None = None
        found = [(i, builder.tape.find(var)) for i, var in enumerate(parameters)]
        self.taken = [(i, value) for i, value in found if value is not None]
        self.followed = followed_in(builder, [body], parameters)
        self.carried = self.taken
        self._single = regions.define("body", [*count.step, *parameters], *body)
        bounds = count.low, count.high
        self._function = regions.declare(name, [*bounds, *parameters], self._single, *others)

    @classmethod
    def of(
        cls,
        builder: Builder,
        numbers: Numbers,
        step: Var | None,
        states: Sequence[Var],
        body: Part,
    ) -> Steps:
        """The steps of a loop.

        Args:
            builder: emits them.
            numbers: of the steps.
            step: the number of the step as the body sees it, where it takes one.
            states: what the body takes from step to step.
            body: the region, and the values of ``states`` for the next step.
        """
        found = cls(builder, "steps", Count.of(numbers, step), states, body)
        found._define()
        return found

    def run(self, low: relax.Expr, high: relax.Expr, arguments: Sequence[relax.Expr]) -> list[Var]:
        """Emit a call.

        Args:
            low: the number of the first step.
            high: that of the one after the last.
            arguments: for the parameters.
        """
        builder = self._builder
        results = fields(R.emit(self._call(low, high, arguments)), len(self._body[1]))
        if builder.tape.running and self.carried:
            operands = [of_type(builder, arguments[i], model) for i, model in self.taken]
            found = [of_type(builder, results[i], model) for i, model in self.carried]
            builder.tape.note(
                StepsStep(self, low, high, arguments, tuple(operands), tuple(found), builder.span)
            )
        return results

    def back(self) -> Steps:
        """The function that goes back through the steps.

        It takes the gradients of what is ``carried`` besides the parameters, and gives those of
        what is ``taken`` and ``followed``. Of the steps between two numbers it goes back through
        the second half, whose first state it computes from the first step on, and then through the
        first one: so no state is kept for longer than it is needed, as many are at a time as the
        logarithm of the number of steps, and each step is run that many times (A. Griewank,
        Achieving logarithmic growth of temporal and spatial complexity in reverse automatic
        differentiation, 1992).

        Raises:
            NoGradient: a step has none.
        """
        if self._back is None:
            # Known before it is defined: it calls itself.
            self._back = found = _StepsBack(self)
            found._define()
        return self._back

    def _call(
        self, low: relax.Expr, high: relax.Expr, arguments: Sequence[relax.Expr]
    ) -> relax.Call:
        return self._function.call([low, high, *arguments])

    def _define(self) -> None:
        """Define the function."""
        count, parameters = self._count, self._parameters
        with Region() as region, R.If(count.is_less(2)) as few:
            with R.Then():
                with R.If(count.is_less(1)) as none:
                    with R.Then():
                        emit_as("result", self._of_none())
                    with R.Else():
                        emit_as("result", self._single.call([*count.numbers_of_step, *parameters]))
                emit_as("results", none.var)
            with R.Else():
                emit_as("results", self._of_halves())
        self._function.define(region, few.var)

    def _of_none(self) -> relax.Expr:
        """What the function gives of no step."""
        return relax.Tuple(self._parameters)

    def _of_halves(self) -> relax.Expr:
        """What it gives of two steps and more."""
        with self._builder.tape.paused():
            first, middle, high = self._first_half()
        return self._call(middle, high, first)

    def _first_half(self) -> tuple[list[Var], relax.Expr, relax.Expr]:
        """Emit the first half of the steps: what it gives, and the bounds of the second one."""
        low, middle, high = self._count.halves()
        return self.run(low, middle, self._parameters), middle, high

    def _none(self) -> Part:
        """No step as a region."""
        with self._builder.regions.part() as region:
            pass
        return region, self._parameters

    def _halves(self) -> Part:
        """Both halves as a region."""
        # Noted even where no gradients of gradients are: the way back is made of it.
        with self._builder.tape.resumed(), self._builder.regions.part() as region:
            first, middle, high = self._first_half()
            results = self.run(middle, high, first)
        return region, results


class _StepsBack(Steps):
    """The way back through the steps of another function, which has regions for what it does.

    Args:
        steps: that function.
    """

    def __init__(self, steps: Steps) -> None:
        builder = steps._builder
        params = [Var("grad", model.made.ty) for _, model in steps.carried]
        pairs = zip(params, steps.carried)
        self._steps = steps
        self._grads = [of_type(builder, var, model) for var, (_, model) in pairs]
        self._wanted = [*(value for _, value in steps.taken), *steps.followed]
        is_again = builder.tape.running
        if is_again:
            for grad in self._grads:
                builder.tape.follow(grad)
        self._nothing = self._through(steps._none())
        parameters = [*steps._parameters, *params]
        of_none = builder.regions.define("nothing", parameters, *self._nothing)
        body, others = self._through(steps._body), (of_none, steps._function)
        super().__init__(builder, f"{steps._name}_back", steps._count, parameters, body, others)
        self.carried = list(enumerate(self._wanted)) if is_again else []
        self._none_function = of_none

    def _through(self, part: Part) -> Part:
        """A region of the other function's, and the way back through it."""
        region, results = part
        chosen = [results[i] for i, _ in self._steps.carried]
        return pulled(self._steps._builder, (region, chosen), self._grads, self._wanted)

    def _of_none(self) -> relax.Expr:
        return self._none_function.call(self._parameters)

    def _of_halves(self) -> relax.Expr:
        count = self._count
        return self._halves_function.call([*count.bounds, *self._parameters])

    def _define(self) -> None:
        self._both = self._through(self._steps._halves())
        bounds = self._count.low, self._count.high
        regions = self._builder.regions
        self._halves_function = regions.define("halves", [*bounds, *self._parameters], *self._both)
        super()._define()

    def _none(self) -> Part:
        return self._nothing

    def _halves(self) -> Part:
        return self._both


@dataclass(frozen=True)
class StepsStep:
    """A run of a loop's steps from one number to another.

    Attributes:
        steps: the function that runs them.
        low, high: the numbers.
        arguments: of the function besides these.
        operands: of the arguments, those that gradients flow to.
        results: what gradients flow through.
        span: of the loop.
    """

    steps: Steps
    low: relax.Expr
    high: relax.Expr
    arguments: Sequence[relax.Expr]
    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    span: Span | None

    def pull(self, builder: Builder, grads: Sequence[Value | None]) -> Grads:
        """Emit the way back through the steps."""
        given = [
            builder.call(torch.zeros_like, (result,), {}) if grad is None else grad
            for grad, result in zip(grads, self.results)
        ]
        arguments = [*self.arguments, *(grad.expr for grad in given)]
        found = self.steps.back().run(self.low, self.high, arguments)
        operands = (*self.operands, *self.steps.followed)
        pairs = zip(operands, found)
        return [(value, of_type(builder, expr, value)) for value, expr in pairs]


@dataclass(frozen=True)
class WhileStep:
    """A loop whose number of steps shows as it runs: on the way back it is run again to count them.

    Attributes:
        states: what it takes from step to step, as its body sees it.
        initial: that before the first step.
        body: its region, and what that gives the next step.
        numbers: how the steps are counted on the way back.
        results: the states after the last step that gradients flow through.
        span: of the loop.
    """

    states: Sequence[relax.Var]
    initial: Sequence[relax.Expr]
    body: Part
    numbers: Numbers
    results: tuple[Value, ...]
    span: Span | None

    @classmethod
    def of(
        cls,
        builder: Builder,
        states: Sequence[relax.Var],
        initial: Sequence[relax.Expr],
        body: Part,
        numbers: Numbers,
        results: Sequence[relax.Expr],
    ) -> WhileStep:
        """The step for a loop that was just emitted."""
        found = [(i, builder.tape.find(state)) for i, state in enumerate(states)]
        after = [of_type(builder, results[i], model) for i, model in found if model is not None]
        return cls(states, initial, body, numbers, tuple(after), builder.span)

    def pull(self, builder: Builder, grads: Sequence[Value | None]) -> Grads:
        """Emit the loop once more, with a counter, and the way back through the steps."""
        regions, zero = builder.regions, self.numbers.number(0)
        region, results = self.body
        counter = self.numbers.variable("count")
        with builder.tape.paused():
            with regions.part() as counting:
                more = builder.emit(relax.op.add(counter, self.numbers.number(1)))
            counted = region.before(counting), [*results, more]
            *_, count = while_loop(builder, [*self.states, counter], [*self.initial, zero], counted)
        steps = Steps.of(builder, self.numbers, None, self.states, self.body)
        operands = tuple(of_type(builder, self.initial[i], model) for i, model in steps.taken)
        run = StepsStep(steps, zero, count, self.initial, operands, self.results, self.span)
        return run.pull(builder, grads)
