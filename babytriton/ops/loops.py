"""Loops whose steps the run counts, and the way back through them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from tvm import relax
from tvm.ir import PrimType, Var
from tvm.relax.script import builder as R

from babytriton.diagnostics import Span
from babytriton.ops.regions import Function, Part, Region, Regions, emit_as, fields, nothing
from babytriton.ops.reverse.regions import Grads, followed_in, of_type, pulled
from babytriton.ops.site import relax_type
from babytriton.ops.value import Value
from babytriton.types import TensorType

if TYPE_CHECKING:
    from babytriton.ops.builder import Builder

DEPTH = 62
"""Of the recursion that makes a loop without a known count: it ends after 2**62 steps at most."""


class Numbers(Protocol):
    """How a loop counts: the numbers of its steps."""

    def variable(self, name: str) -> Var:
        """A parameter for one."""

    def number(self, value: Any) -> relax.Expr:
        """One as an argument."""

    def less(self, low: Any, high: Any, count: int) -> Any:
        """Whether there are fewer than ``count`` steps from ``low`` to ``high``."""

    def middle(self, low: Any, high: Any) -> relax.Expr:
        """A number between two."""


class Sizes:
    """Numbers that are known when the loop begins, without a look into a tensor."""

    def variable(self, name: str) -> Var:
        return Var(name, PrimType("int64"))

    def number(self, value: Any) -> relax.Expr:
        return relax.prim_value(value)

    def less(self, low: Any, high: Any, count: int) -> Any:
        return high - low < count

    def middle(self, low: Any, high: Any) -> relax.Expr:
        return relax.prim_value((low + high) // 2)


class Counts:
    """Numbers that tensors hold, int64 without dimensions.

    Args:
        regions: of the program.
    """

    def __init__(self, regions: Regions) -> None:
        self._regions = regions

    def variable(self, name: str) -> Var:
        return state_variable(name, TensorType((), torch.int64))

    def number(self, value: Any) -> relax.Expr:
        return relax.const(value, "int64") if isinstance(value, int) else value

    def less(self, low: Any, high: Any, count: int) -> Any:
        def fewer(one: Var, other: Var) -> relax.Expr:
            return relax.op.less(R.emit(relax.op.subtract(other, one)), self.number(count))

        return self._computed("fewer", fewer, low, high)

    def middle(self, low: Any, high: Any) -> relax.Expr:
        def half(one: Var, other: Var) -> relax.Expr:
            return relax.op.floor_divide(R.emit(relax.op.add(one, other)), self.number(2))

        return self._computed("middle", half, low, high)

    def _computed(
        self, name: str, fn: Callable[[Var, Var], relax.Expr], low: Any, high: Any
    ) -> relax.Expr:
        """Arithmetic in a function of its own: beside an If, TVM plans memory wrongly for it."""
        one, other = self.variable("low"), self.variable("high")
        with Region() as region:
            found = R.emit(fn(one, other))
        function = self._regions.define(name, [one, other], region, [found])
        [result] = fields(R.emit(function.call([low, high])), 1)
        return result


def state_variable(name: str, type: TensorType) -> Var:
    """A tensor that a loop takes from step to step, as its body sees it."""
    return Var(name, relax_type(type))


def counter() -> Var:
    """The number of the step of a counted loop, an int64, as its body sees it."""
    return Var("step", PrimType("int64"))


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


class Steps:
    """A function that runs the steps of a loop from one number to another.

    It runs the first half of them, then the second: so the recursion is as deep as the logarithm of
    their number. The function that goes back through the steps is another of these, and so is the
    one that goes back through that.

    Args:
        builder: emits it.
        name: of the function.
        numbers: of the steps.
        bounds: the numbers of the first step and of the one after the last, as ``halves`` sees
            them.
        step: the number of the step as ``single`` sees it, where it takes one.
        parameters: what the function takes.
        single: a region for one step, and what the function gives of that.
        none: the same for no step.
        others: functions that ``halves`` calls besides this one.

    Attributes:
        carried: the numbers of what it gives that gradients flow through, with their types.
        taken: the numbers of the parameters that gradients flow to, and these.
        followed: what it uses from around it that gradients flow to.
    """

    def __init__(
        self,
        builder: Builder,
        name: str,
        numbers: Numbers,
        bounds: tuple[Var, Var],
        step: Var | None,
        parameters: Sequence[Var],
        single: Part,
        none: Part,
        others: Sequence[Function] = (),
    ) -> None:
        regions = builder.regions
        self._builder, self._name, self._numbers = builder, name, numbers
        self._bounds, self._step, self._parameters = bounds, step, parameters
        self._single, self._none = single, none
        self._back: Steps | None = None
        self._halves: Part
        found = [(i, builder.tape.find(var)) for i, var in enumerate(parameters)]
        self.taken = [(i, value) for i, value in found if value is not None]
        self.followed = followed_in(builder, (single, none), parameters)
        self.carried = self.taken
        self._of_single = regions.define("body", [*self._numbered(step), *parameters], *single)
        self._of_none = regions.define("nothing", parameters, *none)
        self.function = regions.declare(
            name, [*bounds, *parameters], self._of_single, self._of_none, *others
        )

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
        bounds = low, high = numbers.variable("low"), numbers.variable("high")
        with builder.regions.part() as nothing:
            none = nothing, states
        found = cls(builder, "steps", numbers, bounds, step, states, body, none)
        # Noted even where no gradients of this gradient are: the way back is made of it.
        with builder.tape.resumed(), builder.regions.part() as halves:
            middle = numbers.middle(low, high)
            first = found.run(numbers.number(low), middle, states)
            second = found.run(middle, numbers.number(high), first)
        found._finish((halves, second))
        return found

    def run(self, low: relax.Expr, high: relax.Expr, arguments: Sequence[relax.Expr]) -> list[Var]:
        """Emit a call.

        Args:
            low: the number of the first step.
            high: that of the one after the last.
            arguments: for the parameters.
        """
        call = self.function.call([low, high, *arguments])
        results = fields(R.emit(call), len(self._single[1]))
        if self._builder.tape.running and self.carried:
            step = StepsStep(
                self,
                low,
                high,
                arguments,
                tuple(of_type(self._builder, arguments[i], model) for i, model in self.taken),
                tuple(of_type(self._builder, results[i], model) for i, model in self.carried),
                self._builder.span,
            )
            self._builder.tape.note(step)
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
        if self._back is not None:
            return self._back
        tape = self._builder.tape
        params = [Var("grad", model.made.ty) for _, model in self.carried]
        grads = [
            of_type(self._builder, var, model) for var, (_, model) in zip(params, self.carried)
        ]
        is_again = tape.running
        if is_again:
            for grad in grads:
                tape.follow(grad)
        wanted = [*(value for _, value in self.taken), *self.followed]

        def back_through(part: Part) -> Part:
            chosen = [part[1][i] for i, _ in self.carried]
            return pulled(self._builder, (part[0], chosen), grads, wanted)

        found = Steps(
            self._builder,
            f"{self._name}_back",
            self._numbers,
            self._bounds,
            self._step,
            [*self._parameters, *params],
            back_through(self._single),
            back_through(self._none),
            (self.function,),
        )
        found.carried = list(enumerate(wanted)) if is_again else []
        self._back = found
        found._finish(back_through(self._halves))
        return found

    def _numbered(self, number: Var | relax.Expr | None) -> list[relax.Expr]:
        return [] if self._step is None else [number]

    def _finish(self, halves: Part) -> None:
        """Define the function, now that its own calls of itself are emitted."""
        self._halves = halves
        numbers, (low, high) = self._numbers, self._bounds
        both = self._builder.regions.define("halves", [low, high, *self._parameters], *halves)
        with Region() as region, R.If(numbers.less(low, high, 2)) as few:
            with R.Then():
                with R.If(numbers.less(low, high, 1)) as none:
                    with R.Then():
                        emit_as("result", self._of_none.call(self._parameters))
                    with R.Else():
                        number = self._numbered(numbers.number(low))
                        emit_as("result", self._of_single.call([*number, *self._parameters]))
                emit_as("results", none.var)
            with R.Else():
                bounds = numbers.number(low), numbers.number(high)
                emit_as("results", both.call([*bounds, *self._parameters]))
        self.function.define(region, few.var)


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
