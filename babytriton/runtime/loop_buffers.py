"""Memory that all steps of a loop write to, in the place of new tensors in each."""

from __future__ import annotations

import math
from collections import Counter

from babytriton.plan import Allocation, Launch, Loop, all_of

MOST, ALL = 1 << 20, 1 << 24
"""Bytes of a tensor, beyond which it takes no time to speak of to allocate one; and of all."""


def buffers_of(loop: Loop) -> list[tuple[Allocation, str | None]]:
    """What steps of a loop write that may have its memory once and for all.

    That is what only kernels see. What a step leaves to the next one has memory twice, which take
    turns: one step reads what the last one wrote.

    Returns:
        Each with a variable for its other memory, where it has two.
    """
    steps = list(all_of(loop.body.steps))
    kept = Counter(name for step in steps for name in step.kept)
    results = Counter(loop.body.results)
    read = {name for step in steps for name in step.arguments} | set(results)
    updated = {name for step in steps if isinstance(step, Launch) for name in step.updated}

    def other(name: str) -> str | None:
        """The variable for what is left to the next step, if that reads it."""
        if name not in results:
            return None
        state = loop.written[loop.body.results.index(name)]
        return f"{name}_other" if state in read else None

    def is_seen(name: str) -> bool:
        """Whether more than the next step's kernels may hold what a step leaves under a name."""
        state = loop.written[loop.body.results.index(name)]
        return results[name] > 1 or kept[state] > 0 or results[state] > 0 or state in updated

    found: list[tuple[Allocation, str | None]] = []
    total = 0
    for step in loop.body.steps:
        for output in step.outputs if isinstance(step, Launch) else ():
            if kept[output.name] or output.sizes:
                continue
            if output.name in results and is_seen(output.name):
                continue
            size = _bytes(output)
            if size <= MOST and total + size <= ALL:
                found.append((output, other(output.name)))
                total += size
    return found


def _bytes(output: Allocation) -> int:
    return output.dtype.torch.itemsize * math.prod(map(int, output.shape))
