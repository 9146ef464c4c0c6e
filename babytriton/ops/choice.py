"""Which products are left to torch on the CPU, because its libraries compute them faster.

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
# Of matrices it is by a few percent, and only where our tiles are of AVX2's registers.
MATRIX = 1 << 24
# Neither is a product with a matrix of few rows or columns, which is as fast as memory.
FEW = 16


def keep_convolution(site: Site, input: Value, weight: Value) -> None:
    """Nothing, where our kernel is as fast for a convolution.

    Raises:
        Unsupported: torch's library is faster.
    """
    if _is_ours(site, input) or _products(site, weight.meta.shape[1:]) < CONVOLUTION:
        return
    raise Unsupported("torch's library is faster for a convolution of this size")


def keep_product(site: Site, input: Value, length: int) -> None:
    """Nothing, where our kernel is as fast for a product of matrices.

    Args:
        site: of the call.
        input: an operand.
        length: how many products are added up for each element of the result.

    Raises:
        Unsupported: torch's library is faster.
    """
    if _is_ours(site, input) or torch.backends.cpu.get_cpu_capability() != "AVX2":
        return
    if _products(site, (length,)) >= MATRIX and min(site.shape[-2:], default=0) > FEW:
        raise Unsupported("torch's library is faster for a product of this size")


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
