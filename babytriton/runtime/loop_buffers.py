"""Memory that all steps of a loop write to, in the place of new tensors in each."""

from __future__ import annotations

import math
from collections import Counter

from babytriton.plan import Allocation, Launch, Loop, all_of

MOST = 1 << 20
"""Bytes of a tensor, beyond which it takes no time to speak of to allocate one."""


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

    return [
        (output, other(output.name))
        for step in loop.body.steps
        if isinstance(step, Launch)
        for output in step.outputs
        if not kept[output.name] and _is_small(output)
        if output.name not in results or not is_seen(output.name)
    ]


def _is_small(output: Allocation) -> bool:
    if output.sizes:
        return False
    count = math.prod(size for size in output.shape if isinstance(size, int))
    return count * output.dtype.torch.itemsize <= MOST
