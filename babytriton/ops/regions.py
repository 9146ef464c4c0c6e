"""Parts of a program that run under a condition, or many times.

Each part becomes a private function of the program: TVM fuses operators inside functions, and not
inside the branches of an If. What a part uses from around it becomes its last parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType

import torch
from tvm import relax
from tvm.ir import GlobalVar, PrimType, Var
from tvm.relax.script import builder as R
from tvm.relax.utils import copy_with_new_vars
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import ir as I

from babytriton.ops.site import relax_type
from babytriton.types import TensorType

DEPTH = 62
"""Of the recursion that makes a loop without a known count: it ends after 2**62 steps at most."""


class Region:
    """What is emitted inside a ``with`` block is kept apart from the program around it."""

    def __init__(self) -> None:
        self.blocks: Sequence[relax.BindingBlock] = ()
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


def carried(name: str, type: TensorType) -> Var:
    """A tensor that a loop takes from step to step, as its body sees it."""
    return Var(name, relax_type(type))


def counter() -> Var:
    """The number of the step of a counted loop, an int64, as its body sees it."""
    return Var("step", PrimType("int64"))


class Regions:
    """Emits branches and loops into the open Relax function.

    Args:
        unique: makes the name of a function one that no other has.
        is_pure: whether what was emitted so far only computes.
    """

    def __init__(self, unique: Callable[[str], str], is_pure: Callable[[], bool]) -> None:
        self._unique = unique
        self._is_pure = is_pure
        self.used = False
        """Whether the program has such parts."""

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
            self._define(name, [], *part).call([])
            for name, part in (("then", then), ("orelse", orelse))
        ]
        with R.If(condition) as chosen:
            with R.Then():
                _emit("branch", calls[0])
            with R.Else():
                _emit("branch", calls[1])
        return _fields(chosen.var, len(then[1]))

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
        part = self._define("body", [step, *states], *body)
        low, high = Var("low", PrimType("int64")), Var("high", PrimType("int64"))
        driver = self._declare("steps", [low, high, *states], part)
        with Region() as region, R.If(high - low < 2) as single:
            with R.Then():
                with R.If(high - low < 1) as none:
                    with R.Then():
                        _emit("state", relax.Tuple(states))
                    with R.Else():
                        _emit("state", part.call([relax.prim_value(low), *states]))
                _emit("states", none.var)
            with R.Else():
                middle = relax.prim_value((low + high) // 2)
                first = R.emit(driver.call([relax.prim_value(low), middle, *states]))
                halfway = _fields(first, len(states))
                _emit("states", driver.call([middle, relax.prim_value(high), *halfway]))
        driver.define(region, single.var)
        start, end = relax.prim_value(0), relax.prim_value(count)
        return _fields(R.emit(driver.call([start, end, *initial])), len(states))

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
        part = self._define("body", states, *body)
        depth = Var("depth", PrimType("int64"))
        driver = self._declare("steps", [depth, *states], part)
        with Region() as region, R.If(depth < 1) as single:
            with R.Then():
                _emit("states", part.call(states))
            with R.Else():
                less = relax.prim_value(depth - 1)
                first = R.emit(driver.call([less, *states]))
                halfway = _fields(first, len(states))
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
        return _fields(any_step.var, len(states))

    def _define(
        self, name: str, parameters: Sequence[Var], region: Region, results: Sequence[relax.Expr]
    ) -> _Function:
        free = _free(region, relax.Tuple(results), parameters)
        types = relax.TupleType([result.ty for result in results])
        function = self._new(name, [*parameters, *free], types, free)
        function.define(region, relax.Tuple(results))
        return function

    def _declare(self, name: str, parameters: Sequence[Var], body: _Function) -> _Function:
        """A function that calls ``body`` and itself, and passes on what ``body`` needs."""
        every = [*parameters, *body.free]
        return self._new(name, every, body.results, body.free)

    def _new(
        self, name: str, parameters: Sequence[Var], results: relax.TupleType, free: Sequence[Var]
    ) -> _Function:
        self.used = True
        name, is_pure = self._unique(name), self._is_pure()
        empty = relax.Function.create_empty(list(parameters), results, is_pure=is_pure)
        return _Function(I.decl_function(name, empty), name, parameters, results, free, is_pure)


@dataclass(frozen=True)
class _Function:
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


def _free(region: Region, result: relax.Expr, bound: Sequence[Var]) -> list[Var]:
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


def _fields(result: Var, count: int) -> list[Var]:
    return [R.emit(relax.TupleGetItem(result, i)) for i in range(count)]
