"""Few long sums of products on GPUs: in pieces that are added up by another kernel.

A block of threads adds up all of a sum otherwise, and few blocks do not fill a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch

from babytriton.ops.choice import DEEP_SUMS, FEW, Operand, keep_product, sizes_of
from babytriton.ops.numerics import opmath
from babytriton.ops.refusals import Unsupported
from babytriton.ops.site import Site
from babytriton.ops.sizes import is_symbolic

MOST, MOST_ACROSS = 1 << 12, 1 << 10
"""How many sums are few; and where an operand lies across them."""

LONG, PIECES = 128, 512
"""How many products a piece has at least; and how many pieces there are at most."""

BESIDE = 4
"""How many times more bytes operands have than all pieces leave, at least."""


@dataclass(frozen=True)
class Cut:
    """How sums are cut into pieces.

    Attributes:
        label: of the axis that is cut.
        length: of a piece, along it.
    """

    label: Hashable
    length: int


def cut_of(site: Site, labels: Sequence[Hashable], *operands: Operand) -> Cut | None:
    """How few long sums of products are cut into pieces on a GPU, if our kernels are to do that.

    On an H200 64x32768 by 32768x64 in float32 took 23 microseconds, and 29 by cuBLAS; 16x65536 by
    65536x16 took 17.7 and 26. Of halves cuBLAS took less, where they are its.

    Args:
        site: the call that is the product.
        labels: of the axes of its result.
        operands: of it.
    """
    if site.builder.device.type != "cuda" or len(operands) != 2:
        return None
    sizes = sizes_of(operands)
    if any(map(is_symbolic, sizes.values())) or any(len({*own}) < len(own) for _, own in operands):
        return None  # of diagonals
    summed = {label: int(n) for label, n in sizes.items() if label not in labels}
    results = math.prod(int(sizes.get(label, 1)) for label in labels)
    depth, numbers = math.prod(summed.values()), [math.prod(map(int, own)) for own, _ in operands]
    innermost = [label for _, own in operands for label in own[-1:]]
    is_along = all(label in summed for label in innermost)
    if depth < DEEP_SUMS or not 0 < results <= (MOST if is_along else MOST_ACROSS):
        return None
    if min(depth * results // count for count in numbers) <= FEW or not _is_ours(site, *operands):
        return None
    left = results * opmath(site.dtype).itemsize
    count = min(PIECES, max(sum(numbers) * site.dtype.itemsize // (BESIDE * left), 1))
    label = max(summed, key=summed.__getitem__)
    least = -(-max(LONG, -(-depth // count)) // (depth // summed[label]))
    # Along memory pieces begin where vectors do; and there is no rest, if some length leaves none.
    unit = min(LONG, 1 << (least.bit_length() - 1)) if label in innermost else 1
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
