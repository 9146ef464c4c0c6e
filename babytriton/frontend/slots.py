"""What a loop hands from step to step: a tensor or a number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from babytriton.frontend.joining import expression
from babytriton.frontend.program import Program
from babytriton.ops.counting import state_variable
from babytriton.ops.value import NUMBERS, Scalar, Value
from babytriton.types import TensorType


class Slot:
    """A tensor or number that each step gets from the one before.

    Attributes:
        name: of the variable.
        initial: what the first step gets, as an expression.
        var: the same as the body of the loop has it.
        inside: the same as a step sees it.
        result: what the next step gets, as an expression; compiling a step sets it.
        leaf: the same as a value, for what a name stands for.

    Args:
        program: being compiled.
        name: of the variable.
        initial: as a value.
        follow: whether gradients flow to it from a later step, though to nothing before the loop.
        later: what steps are known to leave, whose layout may be another.
    """

    def __init__(
        self,
        program: Program,
        name: str,
        initial: Any,
        follow: bool = False,
        later: Sequence[Any] = (),
    ) -> None:
        tape = program.builder.tape
        self.name = name
        self.initial = expression(program, initial)
        self._model = initial
        self.later = later
        self.var = state_variable(name, _type_of(initial))
        self.inside = self._value(program, self.var)
        is_followed = follow or tape.find(self.initial) is not None
        if tape.running and is_followed and not isinstance(self.inside, Scalar):
            tape.follow(self.inside)
        self.result: Any = None
        self.leaf: Any = None

    def after(self, program: Program, expr: Any) -> Any:
        """What it is after the loop."""
        return self._value(program, expr)

    def _value(self, program: Program, expr: Any) -> Any:
        if isinstance(self._model, Value) and not isinstance(self._model, Scalar):
            return program.builder.memory.one_of([self._model, *self.later], expr)
        return program.builder.number(expr, _kind_of(self._model)(1))


def _kind_of(value: Any) -> type:
    return value.kind if isinstance(value, Scalar) else type(value)


def _type_of(value: Any) -> TensorType:
    if isinstance(value, Value) and not isinstance(value, Scalar):
        return TensorType.of(value.meta)
    return TensorType((), NUMBERS[_kind_of(value)])
