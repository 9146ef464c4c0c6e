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
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import torch

from babytriton.ops.numerics import opmath
from babytriton.ops.refusals import Unsupported
from babytriton.ops.site import Site
from babytriton.ops.sizes import is_one, is_symbolic
from babytriton.ops.value import Value
from babytriton.targets import SHORT_VECTORS, Target, features

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

FEW_IN_PIECES, FEW_ACROSS, LONG_PIECE, PIECES, BESIDE = 1 << 12, 1 << 10, 128, 512, 4
"""How many results a product with sums as long has at most for our kernels to add these up in
pieces on a GPU, and where an operand lies across them; how long a piece is at least, and how many
there are at most; and how many times more bytes operands have than all pieces leave."""

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
    is_deep = site.dtype == torch.bfloat16 and _has_few_long_sums(math.prod(across), int(depth))
    is_deep = is_deep and work >= DEEP_IF_UNALIGNED
    if not (is_large or is_deep) or min(across) <= FEW or _fused(site.builder.target):
        return 0
    return -int(own) % ALIGNED


@dataclass(frozen=True)
class Cut:
    """How sums are cut into pieces.

    Attributes:
        label: of the axis that is cut.
        length: of a piece, along it.
    """

    label: Hashable
    length: int


def cut_of_sums(site: Site, labels: Sequence[Hashable], *operands: Operand) -> Cut | None:
    """How few long sums of products are cut into pieces on a GPU, if our kernels are to do that.

    A block of threads adds up all of a sum otherwise, and few blocks do not fill a GPU. On an H200
    64x32768 by 32768x64 in float32 took 23 microseconds, and 29 by cuBLAS; 16x65536 by 65536x16
    took 17.7 and 26. Of halves cuBLAS took less, where they are its.

    Args:
        site: the call that is the product.
        labels: of the axes of its result.
        operands: of it.
    """
    if site.builder.device.type != "cuda" or len(operands) != 2:
        return None
    sizes = _sizes(operands)
    if any(map(is_symbolic, sizes.values())) or any(len({*own}) < len(own) for _, own in operands):
        return None  # of diagonals
    summed = {label: int(n) for label, n in sizes.items() if label not in labels}
    results = math.prod(int(sizes.get(label, 1)) for label in labels)
    depth, numbers = math.prod(summed.values()), [math.prod(map(int, own)) for own, _ in operands]
    is_along = all(own[-1] in summed for _, own in operands)
    if depth < DEEP_SUMS or not 0 < results <= (FEW_IN_PIECES if is_along else FEW_ACROSS):
        return None
    if min(depth * results // count for count in numbers) <= FEW or not _is_ours(site, *operands):
        return None
    left = results * opmath(site.dtype).itemsize
    count = min(PIECES, max(sum(numbers) * site.dtype.itemsize // (BESIDE * left), 1))
    label = max(summed, key=summed.__getitem__)
    least = -(-max(LONG_PIECE, -(-depth // count)) // (depth // summed[label]))
    # Along memory pieces begin where vectors do; and there is no rest, if some length leaves none.
    is_innermost = any(own[-1] == label for _, own in operands)
    unit = min(LONG_PIECE, 1 << (least.bit_length() - 1)) if is_innermost else 1
    lengths = range(-(-least // unit) * unit, 2 * least + unit, unit)
    whole = (length for length in lengths if summed[label] % length == 0)
    return Cut(label, next(whole, lengths[0]))


def _is_ours(site: Site, *operands: Operand) -> bool:
    """Whether kernels of ours compute a product, in pieces if need be."""
    if site.dtype == torch.float32:
        return True
    try:
        keep_product(site, *operands)
    except Unsupported:
        return False
    return True


def _sizes(operands: Sequence[Operand]) -> dict[Hashable, Any]:
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
    sizes = _sizes(operands)
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
    arch = Target("cpu").resolved().arch
    return torch.backends.mkl.is_available() and SHORT_VECTORS in features(arch)


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
