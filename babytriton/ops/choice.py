"""What is left to torch, because its libraries compute it faster than our kernels.

On the CPU these are convolutions, products of bfloat16 where the processor has instructions for
them, and large products on Intel's processors, whose own library torch has; what was measured is
told in docs/performance.md. On GPUs they are large products too: those are what cuBLAS, cuDNN and
torch's attention have tensor cores for. There a target may ask for our own products.
`compiled.fallbacks` lists what was left to torch.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from functools import cache
from typing import Any, TypeAlias

import torch

from babytriton.ops.refusals import Unsupported
from babytriton.ops.site import Site
from babytriton.ops.sizes import is_one, is_symbolic
from babytriton.ops.value import Value
from babytriton.processors import SHORT_VECTORS, features, present
from babytriton.targets import Target

Operand: TypeAlias = tuple[Sequence[Any], Sequence[Hashable]]
"""The sizes of an operand's axes, and labels of these."""

CONVOLUTION = 1 << 15
"""Multiplications from which on torch's library computes a convolution."""

PRODUCT = 1 << 20
"""Multiplications from which on torch's library computes a product on a GPU."""

LARGE, DEEP, LARGE_IF_DEEP, NARROW = 1 << 30, 2048, 1 << 26, 32
"""Multiplications from which on Intel's library computes a product of float32; how long sums are
for which it does so from fewer on, and from how many; and of fewer rows or columns it computes
none."""

FEW_ROWS, LARGE_IF_FEW_ROWS = 128, 1 << 27
"""Likewise, of up to how many rows, where copies of the other operand are much of our work."""

TENSOR_CORES = 80
"""The oldest architecture of GPUs for which our kernels have tensor cores."""

ALIGNED = 8
"""Halves of a vector that cuBLAS loads, where the rows of an operand are multiples of it."""

LARGE_IF_UNALIGNED, LONG_IF_UNALIGNED, DEEP_IF_UNALIGNED = 1 << 30, 512, 1 << 25
"""Multiplications from which on a product is worth copies of such operands with zeros behind each
row; how many rows and columns it has then, at least; and multiplications of few long sums."""

FEW_SUMS, DEEP_SUMS = 1 << 16, 1 << 13
"""How many results are few, and how long their sums are at least to be long ones: cuBLAS does not
share these among thread blocks where it adds something to them itself."""

FEW, FEW_ON_CPU = 4, 8
"""How often a kernel may multiply each number of an operand for the product to be as much work as
reading that operand: a matrix by a vector or a few."""


def keep_convolution(site: Site, input: Value, weight: Value) -> None:
    """Nothing, where our kernel is as fast for a convolution.

    Raises:
        Unsupported: torch's library is faster.
    """
    device = site.builder.device.type
    if device not in ("cpu", "cuda"):
        return
    if device == "cpu" and not _torch_is_fast_for(input.meta.dtype):
        return
    sizes = [*site.shape, *weight.meta.shape[1:], *input.meta.shape]
    if any(is_symbolic(size) for size in sizes):
        raise Unsupported("torch's library is faster for a convolution that may be large")
    if is_large_convolution(site.shape, weight.meta.shape):
        raise Unsupported("torch's library is faster for a convolution of this size")


def is_large_convolution(result: Sequence[int], weight: Sequence[int]) -> bool:
    """Whether a convolution whose result and weight have these shapes takes torch's library."""
    return math.prod([*result, *weight[1:]]) >= CONVOLUTION


def keep_product(site: Site, *operands: Operand) -> None:
    """Nothing, where our kernel is as fast for a sum of products, or is asked for.

    Those that have no tensor cores for ours, and sizes that a call tells, are left to torch either
    way. As :func:`keep_product_on` otherwise.
    """
    sizes = [n for shape, _ in operands for n in shape]
    if site.dtype not in _fused(site.builder.target) or any(map(is_symbolic, sizes)):
        keep_product_on(site.builder.device, site.dtype, *operands)


def zeros_behind(site: Site, own: Any, rows: Sequence[Any], depth: Any, *columns: Any) -> int:
    """How many zeros make rows of an operand of a large product on a GPU multiples of a vector.

    cuBLAS took four times as long for 4096x4096x1003 in halves as for 4096x4096x1024, and eight
    times as long for 7x1000003 by 1000003x7 in bfloat16 as in float16.

    Args:
        site: the call that is the product.
        own: the numbers of such a row.
        rows, columns: the sizes of the product's first and last axes.
        depth: how long its sums are.
    """
    device, sizes = site.builder.device.type, [*rows, depth, *columns]
    is_half = site.dtype in (torch.float16, torch.bfloat16)
    if device != "cuda" or not is_half or any(map(is_symbolic, sizes)):
        return 0
    across = [math.prod(map(int, own)) for own in (rows, columns)]
    work = math.prod(across) * int(depth)
    is_large = work >= LARGE_IF_UNALIGNED and min(across) >= LONG_IF_UNALIGNED
    is_deep = work >= DEEP_IF_UNALIGNED and _has_few_long_sums(math.prod(across), int(depth))
    is_slow = is_large or (is_deep and site.dtype == torch.bfloat16 and min(across) > FEW)
    return -int(own) % ALIGNED if is_slow and not _fused(site.builder.target) else 0


def sizes_of(operands: Sequence[Operand]) -> dict[Hashable, Any]:
    """By the labels of axes, but for those of size 1, which broadcast."""
    return {
        label: n for shape, labels in operands for label, n in zip(labels, shape) if not is_one(n)
    }


def adds_apart(site: Site, rows: Sequence[Any], depth: Any, *columns: Any) -> bool:
    """Whether what is added to a product that is torch's on a GPU is added by a kernel of ours.

    Few long sums are shared by thread blocks, but not where cuBLAS adds a bias to them: 64x32768 by
    32768x64 and a bias in float32 took 91 microseconds on an H200, and 26 by torch.compile, which
    adds the bias itself. Halves took 13 either way, and would be rounded twice.

    Args:
        site: the call that is the product.
        rows, columns: the sizes of the product's axes, without the reduced one.
        depth: how long its sums are.
    """
    sizes = [*rows, depth, *columns]
    if site.builder.device.type != "cuda" or site.dtype != torch.float32:
        return False
    if any(map(is_symbolic, sizes)) or site.dtype in _fused(site.builder.target):
        return False
    return _has_few_long_sums(math.prod(map(int, [*rows, *columns])), int(depth))


def _has_few_long_sums(results: int, depth: int) -> bool:
    return depth >= DEEP_SUMS and results <= FEW_SUMS


def _fused(target: Target) -> tuple[torch.dtype, ...]:
    """The dtypes of products that a target asks our kernels for, and which they are fast for."""
    arch = int("".join(filter(str.isdigit, target.arch or "")) or 0)
    if target.products == "torch" or arch < TENSOR_CORES:
        return ()
    halves = (torch.float16, torch.bfloat16)
    return halves if target.products == "fused" else (*halves, torch.float32)


def keep_product_on(
    device: torch.device,
    dtype: torch.dtype,
    *operands: Operand,
) -> None:
    """Nothing, where our kernel is as fast for a sum of products.

    Args:
        device: it runs on.
        dtype: of it.
        operands: the sizes of each, and labels of its axes; an axis of size 1 broadcasts.

    Raises:
        Unsupported: torch's library is faster.
    """
    if device.type not in ("cpu", "cuda") or not dtype.is_floating_point:
        return
    sizes = sizes_of(operands)
    few = FEW if device.type == "cuda" else FEW_ON_CPU
    for shape, labels in operands:
        own = [label for label, n in zip(labels, shape) if not is_one(n)]
        if _is_below([n for label, n in sizes.items() if label not in own], few + 1):
            return
    if device.type == "cpu":
        if dtype == torch.bfloat16 and multiplies_bfloat16():
            raise Unsupported("torch's library has the processor multiply bfloat16")
        if dtype == torch.float32 and has_library_of_intel() and _is_large(sizes, *operands):
            raise Unsupported("torch's library is Intel's, and faster for a product of this size")
        return
    if any(is_symbolic(n) for n in sizes.values()):
        raise Unsupported(
            "torch's library has tensor cores for products, and this may be a large one"
        )
    if not _is_below(list(sizes.values()), PRODUCT):
        raise Unsupported("torch's library has tensor cores for a product of this size")


def _torch_is_fast_for(dtype: torch.dtype) -> bool:
    """Whether torch's libraries multiply numbers of a dtype in vectors on this processor."""
    if dtype == torch.bfloat16:
        return multiplies_bfloat16()
    return dtype in (torch.float32, torch.float64)


@cache
def multiplies_bfloat16() -> bool:
    """Whether the processor has instructions for products of bfloat16, which LLVM makes none of."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


@cache
def has_library_of_intel() -> bool:
    """Whether torch multiplies by Intel's library on a processor of Intel's with AVX-512."""
    return torch.backends.mkl.is_available() and SHORT_VECTORS in features(present())


def _is_large(
    sizes: dict[Hashable, Any], *operands: tuple[Sequence[Any], Sequence[Hashable]]
) -> bool:
    """Whether that library is faster for a product of rows and columns.

    Args:
        sizes: of the axes that are longer than one, by their labels.
        operands: as of :func:`keep_product_on`.
    """
    if len(operands) != 2 or any(map(is_symbolic, sizes.values())):
        return False
    left, right = (set(labels) & set(sizes) for _, labels in operands)
    if len(left & right) != 1:
        return False  # Of products side by side, or of vectors, nothing was measured.
    (depth,) = (int(sizes[label]) for label in left & right)
    rows, columns = (math.prod(int(sizes[x]) for x in own) for own in (left - right, right - left))
    least = LARGE_IF_DEEP if depth >= DEEP else LARGE_IF_FEW_ROWS if rows <= FEW_ROWS else LARGE
    return min(rows, columns) >= NARROW and rows * columns * depth >= least


def _is_below(sizes: Sequence[Any], limit: int) -> bool:
    """Whether the product of sizes is known to be."""
    return not any(is_symbolic(n) for n in sizes) and math.prod(map(int, sizes)) < limit
