"""Whether tensors share memory; those that lie between each other, as columns do, may not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch

# Attempts to find an element that two tensors share, after which they are said to.
_MOST = 1000


def overlap(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors have an element in one place of memory, or may have."""
    first, last = _extent(left)
    start, end = _extent(right)
    if end <= first or last <= start:
        return False
    item = left.element_size()
    distance, rest = divmod(start - first, item)
    if rest or item != right.element_size():
        return True
    # An element of both is where sums of strides are the same: at steps of `left`, and from the
    # last to the first at those of `right`, that is a sum of steps which are all positive.
    steps: Counter[int] = Counter()
    for tensor in (left, right):
        for size, stride in zip(tensor.shape, tensor.stride()):
            steps[stride] += size - 1
            if tensor is right:
                distance += stride * (size - 1)
    found = _Sums([(stride, most) for stride, most in steps.items() if stride and most])
    return found.reach(distance)


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """The addresses that a tensor's elements lie between."""
    if tensor.numel() == 0:
        return 0, 0
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride()))
    start = tensor.data_ptr()
    return start, start + (last + 1) * tensor.element_size()


class _Sums:
    """Sums of steps, each taken up to so many times.

    Args:
        steps: how long they are, and how often each may be taken.
    """

    def __init__(self, steps: Sequence[tuple[int, int]]) -> None:
        self._steps = sorted(steps, reverse=True)
        self._left = _MOST

    def reach(self, distance: int, place: int = 0) -> bool:
        """Whether some sum of the steps from a place on is a distance; True if it is open."""
        if place == len(self._steps):
            return distance == 0
        step, most = self._steps[place]
        behind = sum(size * times for size, times in self._steps[place + 1 :])
        fewest = max(0, -(-(distance - behind) // step))
        for times in range(fewest, min(most, distance // step) + 1):
            self._left -= 1
            if self._left < 0 or self.reach(distance - step * times, place + 1):
                return True
        return False
