"""Which convolutions are left to torch on the CPU, because its libraries compute them faster.

What was measured is told in docs/performance.md. `compiled.fallbacks` lists what was left to torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from babytriton.ops.refusals import Unsupported
from babytriton.ops.site import Site
from babytriton.ops.sizes import is_symbolic
from babytriton.ops.value import Value

# Multiplications from which on torch is the faster.
CONVOLUTION = 1 << 15


def keep_convolution(site: Site, input: Value, weight: Value) -> None:
    """Nothing, where our kernel is as fast for a convolution.

    Raises:
        Unsupported: torch's library is faster.
    """
    if _is_ours(site, input) or _products(site, weight.meta.shape[1:]) < CONVOLUTION:
        return
    raise Unsupported("torch's library is faster for a convolution of this size")


def _products(site: Site, each: Sequence[int]) -> int:
    """How many multiplications a result takes of which each element adds up a number."""
    return math.prod(site.shape) * math.prod(each)


def _is_ours(site: Site, operand: Value) -> bool:
    """Whether there is no choice: on a GPU, for other dtypes, and where sizes are not known."""
    known = (torch.float32, torch.float64)
    sizes = [*site.shape, *operand.meta.shape]
    return (
        site.builder.device.type != "cpu"
        or operand.meta.dtype not in known
        or any(is_symbolic(size) for size in sizes)
    )
