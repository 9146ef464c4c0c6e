"""Sums of products over labelled axes: what matrix products, einsum and attention are made of."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from tvm import relax, te

from babytriton.ops.choice import keep_product
from babytriton.ops.numerics import opmath
from babytriton.ops.refusals import IllTyped, Unsupported
from babytriton.ops.site import Site, compute
from babytriton.ops.sizes import int64, is_one
from babytriton.ops.value import Value
from babytriton.types import dtype_of

Labels = Sequence[Hashable]
"""The names of a tensor's axes, one an axis; a string serves where letters do."""


def require_one_number_dtype(
    *operands: Value | None, error: type[Exception] = IllTyped
) -> torch.dtype:
    """The dtype that all operands have.

    Args:
        operands: of a product.
        error: where they have several. Of those torch complains when it runs most products, and not
            of meta tensors; others it computes.

    Raises:
        Unsupported: torch refuses the product of bools when it runs.
    """
    dtypes = dict.fromkeys(operand.meta.dtype for operand in operands if operand is not None)
    if len(dtypes) != 1:
        found = " and ".join(dtype_of(dtype).name for dtype in dtypes)
        raise error(f"expected operands of one dtype, but got {found}")
    (dtype,) = dtypes
    if dtype == torch.bool:
        raise Unsupported("torch has no product of bool matrices")
    return dtype


def contract(
    site: Site,
    name: str,
    operands: Sequence[tuple[relax.Expr, Labels]],
    labels: Labels,
    dtype: torch.dtype | None = None,
) -> relax.Var:
    """The product of tensors, summed over the axes that the result does not have: one kernel.

    An axis of size 1 broadcasts, and a label twice in one operand reads its diagonal. Reading
    the operands where they lie saves the transposed copies that a matmul would want.

    Args:
        site: the call to emit into.
        name: of the kernel.
        operands: each tensor and the labels of its axes.
        labels: of the result's axes.
        dtype: of the sum and the result; that torch computes in if not given.
    """
    exprs = [expr for expr, _ in operands]
    acc = dtype_of(dtype or opmath(getattr(torch, str(exprs[0].ty.dtype)))).name
    sizes: dict[Hashable, Any] = {}
    for expr, axes in operands:
        for label, size in zip(axes, expr.ty.shape):
            if label not in sizes or is_one(sizes[label]):
                sizes[label] = size
    summed = [label for label in sizes if label not in labels]
    if len(operands) > 1 and summed:
        keep_product(site, *((list(expr.ty.shape), given) for expr, given in operands))

    def fn(*tensors: te.Tensor) -> te.Tensor:
        reduced = {x: te.reduce_axis((0, int64(sizes[x])), name="k") for x in summed}

        def body(*index: Any) -> Any:
            position = dict(zip(labels, index)) | reduced
            factors = [
                _read(tensor, axes, position, sizes).astype(acc)
                for tensor, (_, axes) in zip(tensors, operands)
            ]
            product = factors[0] if len(factors) == 1 else factors[0] * factors[1]
            return te.sum(product, axis=list(reduced.values())) if reduced else product

        return compute([sizes[label] for label in labels], body, name)

    return site.te(name, fn, *exprs)


def _read(
    tensor: te.Tensor, axes: Labels, position: dict[Hashable, Any], sizes: dict[Hashable, Any]
) -> Any:
    """The element of a tensor at labelled indices."""
    index = [
        int64(0) if is_one(n) and not is_one(sizes[label]) else position[label]
        for label, n in zip(axes, tensor.shape)
    ]
    return tensor(*index)
