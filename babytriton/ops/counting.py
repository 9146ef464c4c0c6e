"""How loops of the run time count their steps, and what they take from one to the next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from tvm import relax
from tvm.ir import PrimType, Var
from tvm.relax.script import builder as R

from babytriton.ops.regions import Region, Regions, fields
from babytriton.ops.site import relax_type
from babytriton.types import TensorType


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


@dataclass(frozen=True)
class Count:
    """The numbers of steps, as a function that runs some of them sees them.

    Attributes:
        numbers: what they are.
        low: of the first step.
        high: of the one after the last.
        step: of a step as its region sees it; none where that takes none.
    """

    numbers: Numbers
    low: Var
    high: Var
    step: tuple[Var, ...]

    @classmethod
    def of(cls, numbers: Numbers, step: Var | None) -> Count:
        """Variables for them."""
        own = () if step is None else (step,)
        return cls(numbers, numbers.variable("low"), numbers.variable("high"), own)

    @property
    def bounds(self) -> tuple[relax.Expr, relax.Expr]:
        """The first and the one after the last, as arguments."""
        return self.numbers.number(self.low), self.numbers.number(self.high)

    @property
    def numbers_of_step(self) -> list[relax.Expr]:
        """The first, as an argument of a function for one step."""
        return [self.numbers.number(self.low) for _ in self.step]

    def is_less(self, count: int) -> Any:
        """Whether there are fewer steps."""
        return self.numbers.less(self.low, self.high, count)

    def halves(self) -> tuple[relax.Expr, relax.Expr, relax.Expr]:
        """The first, the first of the second half, and the one after the last."""
        low, high = self.bounds
        return low, self.numbers.middle(self.low, self.high), high
