"""Parts of a program that run under a condition, or many times.

Each part becomes a private function of the program: TVM fuses operators inside functions, and not
inside the branches of an If. What a part uses from around it becomes its last parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

import torch
from tvm import relax
from tvm.ir import GlobalVar, PrimType, Var
from tvm.relax.script import builder as R
from tvm.relax.utils import copy_with_new_vars
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import ir as I

from babytriton.ops.reverse.regions import BranchStep, CountedStep, Loop, WhileStep
from babytriton.ops.reverse.tape import Step
from babytriton.ops.site import relax_type
from babytriton.types import TensorType

if TYPE_CHECKING:
    from babytriton.ops.builder import Builder

DEPTH = 62
"""Of the recursion that makes a loop without a known count: it ends after 2**62 steps at most."""


class Region:
    """What is emitted inside a ``with`` block is kept apart from the program around it.

    Attributes:
        blocks: what was emitted.
        steps: of that, what gradients flow through.
        draws: whether it draws random numbers.
    """

    def __init__(self) -> None:
        self.blocks: Sequence[relax.BindingBlock] = ()
        self.steps: Sequence[Step] = ()
        self.draws = False
        self._frame = R.SeqExpr()

    def __enter__(self) -> Region:
        self._frame.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Closed in any case: TVM takes an open frame for its own mistake.
        self._frame.__exit__(None, None, None)
        self.blocks = self._frame.binding_blocks

    def before(self, other: Region) -> Region:
        """Both regions as one, this one first."""
        joined = Region()
        joined.blocks = [*self.blocks, *other.blocks]
        joined.steps = [*self.steps, *other.steps]
        joined.draws = self.draws or other.draws
        return joined

    def quiet(self) -> Region:
        """The region without the calls that it makes for what they do, such as printing."""
        copied = Region()
        copied.blocks = [
            relax.BindingBlock([b for b in block.bindings if not _has_effect(b)])
            for block in self.blocks
        ]
        copied.steps, copied.draws = self.steps, self.draws
        return copied


def _has_effect(binding: relax.Binding) -> bool:
    return isinstance(binding.value, relax.Call) and isinstance(binding.value.op, relax.ExternFunc)


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
        return carried(name, TensorType((), torch.int64))

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


def carried(name: str, type: TensorType) -> Var:
    """A tensor that a loop takes from step to step, as its body sees it."""
    return Var(name, relax_type(type))


def counter() -> Var:
    """The number of the step of a counted loop, an int64, as its body sees it."""
    return Var("step", PrimType("int64"))


class Regions:
    """Emits branches and loops into the open Relax function.

    Args:
        builder: of the program.
    """

    def __init__(self, builder: Builder) -> None:
        self._builder = builder
        self.used = False
        """Whether the program has such parts."""

    @contextmanager
    def part(self) -> Iterator[Region]:
        """Inside, what is emitted becomes a region."""
        draws = self._builder.draws
        with Region() as region, self._builder.tape.part() as steps:
            yield region
        region.steps, region.draws = steps, self._builder.draws > draws

    def branch(
        self,
        condition: relax.Expr,
        then: tuple[Region, Sequence[relax.Expr]],
        orelse: tuple[Region, Sequence[relax.Expr]],
    ) -> list[Var]:
        """Run one of two regions.

        Args:
            condition: a bool tensor without dimensions.
            then: the region for a true condition, and its results.
            orelse: the region for a false one, and as many results of the same types.

        Returns:
            The results of the region that ran.
        """
        if not then[1]:
            self.branch(condition, (then[0], [_nothing()]), (orelse[0], [_nothing()]))
            return []
        calls = [
            self.define(name, [], *part).call([])
            for name, part in (("then", then), ("orelse", orelse))
        ]
        with R.If(condition) as chosen:
            with R.Then():
                _emit("branch", calls[0])
            with R.Else():
                _emit("branch", calls[1])
        results = fields(chosen.var, len(then[1]))
        if self._builder.tape.running:
            step = BranchStep.of(self._builder, condition, (then, orelse), results)
            self._builder.tape.note(step)
        return results

    def counted_loop(
        self,
        count: relax.Expr,
        step: Var,
        states: Sequence[Var],
        initial: Sequence[relax.Expr],
        body: tuple[Region, Sequence[relax.Expr]],
    ) -> list[Var]:
        """Run a region a number of times that is known when the loop begins.

        The steps from ``low`` to ``high`` are the first half of them, then the second: so the
        recursion is as deep as the logarithm of their number.

        Args:
            count: of the steps, an int64.
            step: the number of the step as the region sees it, from 0.
            states: what the region takes from step to step.
            initial: the values of ``states`` before the first step.
            body: the region, and the values of ``states`` for the next step.

        Returns:
            The values of ``states`` after the last step.
        """
        if not states:
            state = carried("nothing", TensorType((), torch.bool))
            self.counted_loop(count, step, [state], [_nothing()], (body[0], [state]))
            return []
        part = self.define("body", [step, *states], *body)
        steps = self.steps(part, True, states, Sizes())
        start, end = relax.prim_value(0), relax.prim_value(count)
        results = fields(R.emit(steps.call([start, end, *initial])), len(states))
        if self._builder.tape.running:
            loop = Loop.of(self._builder, states, initial, *body)
            after, span = loop.chosen(self._builder, results), self._builder.span
            self._builder.tape.note(CountedStep(loop, step, steps, Sizes(), end, after, span))
        return results

    def steps(
        self, part: Function, numbered: bool, states: Sequence[Var], numbers: Numbers
    ) -> Function:
        """A function that runs the steps from one number to another.

        Args:
            part: runs a step.
            numbered: whether it takes the number of the step first.
            states: what it takes from step to step.
            numbers: of the steps.
        """
        low, high = numbers.variable("low"), numbers.variable("high")
        driver = self.declare("steps", [low, high, *states], part)
        with Region() as region, R.If(numbers.less(low, high, 2)) as single:
            with R.Then():
                with R.If(numbers.less(low, high, 1)) as none:
                    with R.Then():
                        _emit("state", relax.Tuple(states))
                    with R.Else():
                        step = [numbers.number(low)] if numbered else []
                        _emit("state", part.call([*step, *states]))
                _emit("states", none.var)
            with R.Else():
                middle = numbers.middle(low, high)
                first = R.emit(driver.call([numbers.number(low), middle, *states]))
                halfway = fields(first, len(states))
                _emit("states", driver.call([middle, numbers.number(high), *halfway]))
        driver.define(region, single.var)
        return driver

    def steps_back(
        self,
        steps: Function,
        part: Function,
        numbered: bool,
        states: Sequence[Var],
        pulled: Sequence[Var],
        numbers: Numbers,
    ) -> Function:
        """A function that goes back through the steps from one number to another.

        Of the steps from ``low`` to ``high`` it goes back through the second half, whose first
        state it computes from ``low`` on, and then through the first one: so no state is kept for
        longer than it is needed, as many are at a time as the logarithm of the number of steps,
        and each step is run that many times (A. Griewank, Achieving logarithmic growth of temporal
        and spatial complexity in reverse automatic differentiation, 1992).

        Args:
            steps: runs the steps between two numbers.
            part: goes back through a step: of the state before it and what is ``pulled``, gives
                the latter before the step.
            numbered: whether it takes the number of the step first.
            states: what the loop takes from step to step.
            pulled: what is taken back from step to step.
            numbers: of the steps.
        """
        low, high = numbers.variable("low"), numbers.variable("high")
        driver = self.declare("steps_back", [low, high, *states, *pulled], part, steps)
        with Region() as region, R.If(numbers.less(low, high, 2)) as single:
            with R.Then():
                with R.If(numbers.less(low, high, 1)) as none:
                    with R.Then():
                        _emit("pull", relax.Tuple(pulled))
                    with R.Else():
                        step = [numbers.number(low)] if numbered else []
                        _emit("pull", part.call([*step, *states, *pulled]))
                _emit("pulled", none.var)
            with R.Else():
                start, end = numbers.number(low), numbers.number(high)
                middle = numbers.middle(low, high)
                halfway = fields(R.emit(steps.call([start, middle, *states])), len(states))
                second = R.emit(driver.call([middle, end, *halfway, *pulled]))
                _emit(
                    "pulled",
                    driver.call([start, middle, *states, *fields(second, len(pulled))]),
                )
        driver.define(region, single.var)
        return driver

    def while_loop(
        self,
        states: Sequence[Var],
        initial: Sequence[relax.Expr],
        body: tuple[Region, Sequence[relax.Expr]],
    ) -> list[Var]:
        """Run a region for as long as the first of its states, a bool tensor, is true.

        Args:
            states: what the region takes from step to step; the first says whether to go on.
            initial: the values of ``states`` before the first step.
            body: the region, and the values of ``states`` for the next step.

        Returns:
            The values of ``states`` after the last step.
        """
        part = self.define("body", states, *body)
        depth = Var("depth", PrimType("int64"))
        driver = self.declare("steps", [depth, *states], part)
        with Region() as region, R.If(depth < 1) as single:
            with R.Then():
                _emit("states", part.call(states))
            with R.Else():
                less = relax.prim_value(depth - 1)
                first = R.emit(driver.call([less, *states]))
                halfway = fields(first, len(states))
                with R.If(halfway[0]) as again:
                    with R.Then():
                        _emit("state", driver.call([less, *halfway]))
                    with R.Else():
                        _emit("state", relax.Tuple(halfway))
                _emit("states", again.var)
        driver.define(region, single.var)
        with R.If(initial[0]) as any_step:
            with R.Then():
                _emit("state", driver.call([relax.prim_value(DEPTH), *initial]))
            with R.Else():
                _emit("state", relax.Tuple(initial))
        results = fields(any_step.var, len(states))
        if self._builder.tape.running:
            loop = Loop.of(self._builder, states, initial, *body)
            after, span = loop.chosen(self._builder, results), self._builder.span
            self._builder.tape.note(WhileStep(loop, part, Counts(self), after, span))
        return results

    def run(self, call: relax.Call, count: int) -> list[Var]:
        """Run a function; gives the parts of its result."""
        return fields(R.emit(call), count)

    def define(
        self, name: str, parameters: Sequence[Var], region: Region, results: Sequence[relax.Expr]
    ) -> Function:
        """A function of a region; what that uses from around it follows the parameters."""
        free = free_in(region, relax.Tuple(results), parameters)
        types = relax.TupleType([result.ty for result in results])
        function = self._new(name, [*parameters, *free], types, free)
        function.define(region, relax.Tuple(results))
        return function

    def declare(
        self, name: str, parameters: Sequence[Var], body: Function, *others: Function
    ) -> Function:
        """A function that calls others and itself, and passes on what they need."""
        free = list(body.free)
        for var in (var for other in others for var in other.free):
            if not any(var.same_as(known) for known in free):
                free.append(var)
        return self._new(name, [*parameters, *free], body.results, free)

    def _new(
        self, name: str, parameters: Sequence[Var], results: relax.TupleType, free: Sequence[Var]
    ) -> Function:
        self.used = True
        name, is_pure = self._builder.unique(name), self._builder.effects == 0
        empty = relax.Function.create_empty(list(parameters), results, is_pure=is_pure)
        return Function(I.decl_function(name, empty), name, parameters, results, free, is_pure)


@dataclass(frozen=True)
class Function:
    """A private function of the program; its last parameters are what it uses from around it."""

    variable: GlobalVar
    name: str
    parameters: Sequence[Var]
    results: relax.TupleType
    free: Sequence[Var]
    is_pure: bool

    def define(self, region: Region, result: relax.Expr) -> None:
        body = relax.SeqExpr(region.blocks, result)
        function = relax.Function(list(self.parameters), body, self.results, self.is_pure)
        # A variable belongs to one function, and these are those of the function around.
        I.def_function(self.name, copy_with_new_vars(function))

    def call(self, arguments: Sequence[relax.Expr]) -> relax.Call:
        return relax.Call(self.variable, [*arguments, *self.free])


def free_in(region: Region, result: relax.Expr, bound: Sequence[Var]) -> list[Var]:
    """What a region and its result use from around them."""
    found = relax.analysis.free_vars(relax.SeqExpr(region.blocks, result))
    return [var for var in found if not any(var.same_as(known) for known in bound)]


def _nothing() -> relax.Expr:
    """The result of what has none: TVM's virtual machine finds no register for an empty tuple."""
    return relax.const(False, "bool")


def _emit(name: str, expr: relax.Expr) -> Var:
    """Emit under a name: what both branches of an If bind last must have the same one."""
    found = R.emit(expr)
    IRBuilder.name(name, found)
    return found


def fields(result: Var, count: int) -> list[Var]:
    """The parts of a tuple."""
    return [R.emit(relax.TupleGetItem(result, i)) for i in range(count)]
