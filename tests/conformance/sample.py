"""A sample: one use of one row of the operator table, and the inputs it is tried on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
BOOL = (torch.bool,)
NUMBERS = FLOATS + INTEGERS
ALL = NUMBERS + BOOL


@dataclass(frozen=True)
class Tensor:
    """An input tensor to be drawn: uniform between ``low`` and ``high``, ends included.

    Attributes:
        shape: of the tensor.
        low: smallest value; 0 for unsigned dtypes if it is negative.
        high: largest value.
        dtype: if it is not the dtype that the sample is tried in.
        special: whether NaN, infinities and zeros of both signs are sprinkled in (floats only).
    """

    shape: tuple[int, ...]
    low: float = -3.0
    high: float = 3.0
    dtype: torch.dtype | None = None
    special: bool = False

    def draw(self, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
        """A tensor of this description in ``dtype``."""
        dtype = self.dtype or dtype
        if dtype == torch.bool:
            return torch.rand(self.shape, generator=generator) < 0.5
        if not dtype.is_floating_point:
            low = max(int(self.low), 0) if dtype == torch.uint8 else int(self.low)
            return torch.randint(low, int(self.high) + 1, self.shape, generator=generator).to(dtype)
        numbers = torch.rand(self.shape, generator=generator, dtype=torch.float64)
        drawn = (numbers * (self.high - self.low) + self.low).to(dtype)
        if self.special and drawn.numel():
            flat = drawn.view(-1)
            for i, value in enumerate((float("nan"), float("inf"), -float("inf"), 0.0, -0.0)):
                flat[(i * 7 + 1) % flat.numel()] = value
        return drawn


def t(*shape: int, **kwargs: Any) -> Tensor:
    """Short for :class:`Tensor`, for tables."""
    return Tensor(shape, **kwargs)


@dataclass(frozen=True)
class Sample:
    """One use of one row.

    Attributes:
        op: the row's name.
        fn: plain Python that uses it; run undecorated it gives what is expected.
        inputs: :class:`Tensor` descriptions and Python values, its arguments.
        dtypes: the dtypes that inputs are drawn in.
        gpu: whether it is tried on the GPU target as well.
        rtol, atol: tolerances, where torch's defaults for the dtype do not serve, each with a
            reason beside it in the table.
    """

    op: str
    fn: Callable[..., Any]
    inputs: tuple[Any, ...]
    dtypes: tuple[torch.dtype, ...] = FLOATS
    gpu: bool = True
    rtol: float | None = None
    atol: float | None = None

    def arguments(self, dtype: torch.dtype, seed: int = 0) -> tuple[Any, ...]:
        """Arguments with every :class:`Tensor` drawn."""
        generator = torch.Generator().manual_seed(seed)
        return tuple(_draw(x, dtype, generator) for x in self.inputs)


def _draw(item: Any, dtype: torch.dtype, generator: torch.Generator) -> Any:
    if isinstance(item, Tensor):
        return item.draw(dtype, generator)
    if isinstance(item, (tuple, list)):
        return type(item)(_draw(part, dtype, generator) for part in item)
    return item


@dataclass(frozen=True)
class Together:
    """Samples as one program: most of the time that a small program takes is what all share.

    Attributes:
        cases: the samples, each in a dtype.
    """

    cases: tuple[tuple[Sample, torch.dtype], ...]
    arguments: tuple[tuple[Any, ...], ...] = field(init=False)
    expected: list[Expected] = field(init=False)

    def __post_init__(self) -> None:
        drawn = tuple(sample.arguments(dtype) for sample, dtype in self.cases)
        object.__setattr__(self, "arguments", drawn)
        expected = [Expected(sample, given) for (sample, _), given in zip(self.cases, drawn)]
        object.__setattr__(self, "expected", expected)

    @property
    def fn(self) -> Callable[..., Any]:
        """A function of the arguments of each case, which returns the results of each."""
        functions = [sample.fn for sample, _ in self.cases]

        def program(*drawn: tuple[Any, ...]) -> Any:
            return [fn(*arguments) for fn, arguments in zip(functions, drawn)]

        return program

    def check(self, results: list[Any]) -> None:
        """Assert that the results agree, case by case."""
        for (sample, dtype), expected, result in zip(
            self.cases, self.expected, results, strict=True
        ):
            try:
                expected.check(result)
            except AssertionError as error:
                raise AssertionError(f"{sample.op} of {sample.inputs}, {dtype}: {error}") from error


def layouts(arguments: tuple[Any, ...]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """The same arguments lying otherwise in memory."""
    yield "strided", tuple(_map(x, _strided) for x in arguments)
    yield "offset", tuple(_map(x, _offset) for x in arguments)


def _map(item: Any, fn: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(item, torch.Tensor):
        return fn(item)
    if isinstance(item, (tuple, list)):
        return type(item)(_map(part, fn) for part in item)
    return item


def _strided(x: torch.Tensor) -> torch.Tensor:
    """Every second element of a larger tensor, dimensions stored in the opposite order."""
    wide = torch.zeros([2 * n for n in reversed(x.shape)], dtype=x.dtype)
    view = wide[tuple(slice(None, None, 2) for _ in x.shape)]
    return view.permute(tuple(reversed(range(x.ndim)))).copy_(x)


def _offset(x: torch.Tensor) -> torch.Tensor:
    """Contiguous, at an address one element past the start of its memory."""
    memory = torch.zeros(x.numel() + 1, dtype=x.dtype)
    return memory[1:].view(x.shape).copy_(x)


def flatten(result: Any) -> list[Any]:
    """The leaves of nested results, in order."""
    if isinstance(result, (tuple, list)):
        return [leaf for item in result for leaf in flatten(item)]
    if isinstance(result, dict):
        return [leaf for item in result.values() for leaf in flatten(item)]
    return [result]


@dataclass(frozen=True)
class Expected:
    """What torch gives for a sample's arguments, and how far from it a result may be."""

    sample: Sample
    arguments: tuple[Any, ...]
    leaves: list[Any] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "leaves", flatten(self.sample.fn(*self.arguments)))

    def check(self, result: Any) -> None:
        """Assert that a result agrees in structure, shapes, dtypes and values."""
        found = flatten(result)
        assert len(found) == len(self.leaves)
        for i, (ours, theirs) in enumerate(zip(found, self.leaves)):
            if not isinstance(theirs, torch.Tensor):
                assert ours == theirs
                continue
            assert ours.dtype == theirs.dtype, (ours.dtype, theirs.dtype)
            assert ours.shape == theirs.shape, (ours.shape, theirs.shape)
            try:
                self._close(ours, theirs)
            except AssertionError:
                self._judge(i, ours, theirs)

    def _close(self, ours: torch.Tensor, theirs: torch.Tensor) -> None:
        rtol, atol = self.sample.rtol, self.sample.atol
        if rtol is None and atol is None:
            torch.testing.assert_close(ours, theirs, equal_nan=True)
        else:
            limits = {"rtol": rtol or 0.0, "atol": atol or 0.0}
            torch.testing.assert_close(ours, theirs, equal_nan=True, **limits)

    def _judge(self, index: int, ours: torch.Tensor, theirs: torch.Tensor) -> None:
        """Two roundings may differ: ours may be no worse than torch's, seen from float64."""
        if not theirs.dtype.is_floating_point or theirs.dtype == torch.float64:
            self._close(ours, theirs)
        exact = flatten(self.sample.fn(*_map(self.arguments, _widen)))[index].double()
        error = (theirs.double() - exact).abs().nan_to_num(0.0)
        scale = exact.abs().nan_to_num(0.0, 0.0, 0.0) + 1.0
        # By torch's largest error: at one element torch may have been lucky.
        slack = 2 * error.max() + 4 * torch.finfo(theirs.dtype).eps * scale
        same = (ours.double() == exact) | (ours.isnan() & exact.isnan())
        inside = same | ((ours.double() - exact).abs() <= slack)
        if not bool(inside.all()):
            self._close(ours, theirs)


def _widen(x: torch.Tensor) -> torch.Tensor:
    return x.double() if x.dtype.is_floating_point else x
