"""Timing several ways to compute the same, in turns, so that a noisy machine is fair to all."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

ROUNDS = 15
SHORTEST = 0.02  # seconds that a timing lasts, and the calls before it
PAUSE = 0.05  # seconds before these


@dataclass(frozen=True)
class Way:
    """A function and what it is called with.

    A call by way of another function would add its own time to that of a microsecond.
    """

    fn: Callable[..., Any]
    arguments: tuple[Any, ...] = ()

    def __call__(self) -> Any:
        return self.fn(*self.arguments)

    def seconds(self, calls: int) -> float:
        """Of one call, as the mean of several.

        The threads of what ran before go on looking for work, and keep a core, for up to ten
        milliseconds; then calls that are not timed wake up its own.
        """
        fn, arguments = self.fn, self.arguments
        time.sleep(PAUSE)
        ready = time.perf_counter() + SHORTEST
        while time.perf_counter() < ready:
            fn(*arguments)
        start = time.perf_counter()
        for _ in range(calls):
            fn(*arguments)
        return (time.perf_counter() - start) / calls

    def calls(self) -> int:
        """How many calls a timing needs to last long enough."""
        return max(1, int(SHORTEST / max(min(self.seconds(1) for _ in range(3)), 1e-7)))

    def lasting(self, seconds: float) -> Way:
        """A call of it, after which nothing is done until so much time has passed."""
        fn = self.fn

        def call(*arguments: Any) -> None:
            end = time.perf_counter() + seconds
            fn(*arguments)
            while time.perf_counter() < end:
                pass

        return Way(call, self.arguments)


@dataclass(frozen=True)
class Timing:
    """Seconds a call of each way, medians over the rounds."""

    seconds: Mapping[str, float]

    def ratio(self, other: str, ours: str = "ours") -> float | None:
        """How many times longer the other way takes than ours; None where it was not timed."""
        found = self.seconds.get(other)
        return None if found is None else found / self.seconds[ours]


def in_turns(ways: Mapping[str, Way], rounds: int = ROUNDS) -> Timing:
    """Time each way, one after the other, round after round.

    Args:
        ways: by name, each of which has been called before.
        rounds: how often each is timed.
    """
    calls = {name: way.calls() for name, way in ways.items()}
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            found[name].append(way.seconds(calls[name]))
    return Timing({name: statistics.median(seconds) for name, seconds in found.items()})


def call_by_call(*ways: Way, calls: int) -> list[float]:
    """Seconds of one call of each way, medians, where a call of each follows one of the other."""
    found: list[list[float]] = [[] for _ in ways]
    time.sleep(PAUSE)
    ready = time.perf_counter() + SHORTEST
    while time.perf_counter() < ready:
        for way in ways:
            way()
    for _ in range(calls):
        for way, seconds in zip(ways, found):
            start = time.perf_counter()
            result = way()
            seconds.append(time.perf_counter() - start)
            del result
    return [statistics.median(seconds) for seconds in found]


def beside(way: Way, others: Sequence[Way], rounds: int = ROUNDS) -> list[float]:
    """How many times as long a way takes call by call in turns with others, as by itself.

    Args:
        way: whose calls are timed; it has been called before.
        others: one of which is called between two calls of it.
        rounds: how often it is timed with each, and by itself.
    """
    calls = [min(way.calls(), other.calls()) for other in others]
    alone: list[float] = []
    turns: list[list[float]] = [[] for _ in others]
    for _ in range(rounds):
        alone += call_by_call(way, calls=max(calls))
        for other, count, seconds in zip(others, calls, turns):
            seconds.append(call_by_call(way, other, calls=count)[0])
    return [statistics.median(seconds) / statistics.median(alone) for seconds in turns]


def check(
    name: str, found: Any, exact: torch.Tensor, dtype: torch.dtype, magnitude: float = 0.0
) -> None:
    """Refuse a result that is not what torch computes in float64, rounded.

    Args:
        name: of what is checked.
        found: a tensor, or what becomes one.
        exact: computed in float64.
        dtype: that the result was computed in.
        magnitude: of the largest sum of absolute values, where numbers are added up.

    Raises:
        AssertionError: it differs by more than a hundred roundings of the largest number, or one
            of that sum.
    """
    if not exact.is_floating_point():
        assert torch.equal(torch.as_tensor(found), exact), name
        return
    epsilon = torch.finfo(dtype).eps
    torch.testing.assert_close(
        torch.as_tensor(found).double(),
        exact,
        rtol=100 * epsilon,
        atol=epsilon * max(100 * max(1.0, exact.abs().max().item()), magnitude),
        msg=lambda text: f"{name}: {text}",
    )
