"""The tape: which bindings depend on what gradients are asked of, and how each was made."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tvm import relax

from babytriton.diagnostics import Span
from babytriton.ops.value import Scalar, Value, map_values, values_in

if TYPE_CHECKING:
    from babytriton.ops.builder import Builder


class Step(Protocol):
    """Something a program did, whose gradient can be emitted."""

    @property
    def results(self) -> Sequence[Value]:
        """What it made."""

    @property
    def span(self) -> Span | None:
        """The user's expression that it was made for."""

    def pull(
        self, builder: Builder, grads: Sequence[Value | None]
    ) -> Sequence[tuple[Value, Value | None]]:
        """Emit the gradients of its operands.

        Args:
            builder: emits them.
            grads: those of its results; ``None`` where nothing depends on one.

        Returns:
            Operands and their gradients.
        """


class Tape:
    """The steps of a program, in order.

    Attributes:
        steps: of the part of the program that is being emitted.
    """

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._followed: dict[relax.Var, Value] = {}
        self._paused = 0
        self.is_off = False
        """Whether the user's code says that no gradients are recorded."""

    @property
    def running(self) -> bool:
        """Whether steps are being noted at all."""
        return bool(self._followed) and not (self._paused or self.is_off)

    def follow(self, value: Value) -> None:
        """From now on, note what is computed from a tensor of floats."""
        if value.meta.dtype.is_floating_point and isinstance(value.made, relax.Var):
            self._followed[value.made] = still(value)

    def find(self, expr: Any) -> Value | None:
        """The tensor that an expression is, if it depends on what gradients are asked of."""
        return self._followed.get(expr) if isinstance(expr, relax.Var) else None

    def records(self, expr: Any) -> bool:
        """Whether steps are noted that compute something from an expression."""
        return self.running and self.find(expr) is not None

    def follows(self, value: Value) -> bool:
        """Whether a tensor does; numbers of Python do not, as in torch."""
        return not isinstance(value, Scalar) and self.find(value.expr) is not None

    def depends(self, operands: Any) -> bool:
        """Whether a step with these nested arguments is to be noted."""
        return self.running and any(map(self.follows, values_in(operands)))

    def note(self, step: Step) -> None:
        """Append a step, one of whose operands is followed."""
        if not self.running:
            return
        self.steps.append(step)
        for result in step.results:
            self.follow(result)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Inside, nothing is noted: for what has a gradient as a whole, or is to have none."""
        self._paused += 1
        try:
            yield
        finally:
            self._paused -= 1

    @contextlib.contextmanager
    def resumed(self) -> Iterator[None]:
        """Inside, steps are noted whatever is paused or off around."""
        before = self._paused, self.is_off
        self._paused, self.is_off = 0, False
        try:
            yield
        finally:
            self._paused, self.is_off = before

    @contextlib.contextmanager
    def switched(self, *, off: bool) -> Iterator[None]:
        """Inside, the user's code asks for no gradients, or for what it asks whatever is around."""
        before, self.is_off = self.is_off, off
        try:
            yield
        finally:
            self.is_off = before

    def replace(self, step: Step) -> None:
        """Append a step that is noted whether or not gradients are recorded."""
        self.steps.append(step)
        for result in step.results:
            self.follow(result)

    @contextlib.contextmanager
    def part(self) -> Iterator[list[Step]]:
        """Inside, steps are noted apart from those of the program around it."""
        around, self.steps = self.steps, []
        try:
            yield self.steps
        finally:
            self.steps = around


def still(value: Value) -> Value:
    """A value as it is now, whatever is written to its memory later."""
    if isinstance(value, Scalar):
        return value
    found = Value(value.emitter, value.expr, value.meta)
    found.device = value.device
    return found


def all_still(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The arguments of a call as they are now."""
    return map_values((args, dict(kwargs)), still)
