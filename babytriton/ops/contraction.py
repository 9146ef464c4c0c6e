"""Sums of products over labelled axes: what matrix products, einsum and attention are made of."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from tvm import relax, te

from babytriton.ops.choice import Operand, keep_product
from babytriton.ops.long_sums import Cut, cut_of
from babytriton.ops.numerics import opmath
from babytriton.ops.refusals import IllTyped, Unsupported
from babytriton.ops.site import Site, compute
from babytriton.ops.sizes import int64, is_one
from babytriton.ops.value import Value
from babytriton.types import dtype_of

Labels = Sequence[Hashable]
"""The names of a tensor's axes, one an axis; a string serves where letters do."""

_Position: TypeAlias = Mapping[Hashable, Any]
"""Indices, by the labels of axes."""


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
    acc = dtype_of(dtype or opmath(getattr(torch, str(operands[0][0].ty.dtype)))).name
    sizes: dict[Hashable, Any] = {}
    for expr, axes in operands:
        for label, size in zip(axes, expr.ty.shape):
            if label not in sizes or is_one(sizes[label]):
                sizes[label] = size
    sums = _Sums(site, name, operands, acc)
    shapes = shapes_of(operands)
    cut = cut_of(site, labels, *shapes)
    if cut is not None:
        return sums.in_pieces(sizes, labels, cut)
    if len(operands) > 1 and any(label not in labels for label in sizes):
        keep_product(site, *shapes)
    return sums.of(sizes, labels)


def shapes_of(operands: Sequence[tuple[relax.Expr, Labels]]) -> list[Operand]:
    """The sizes of tensors in the place of these."""
    return [(list(expr.ty.shape), axes) for expr, axes in operands]


@dataclass(frozen=True)
class _Sums:
    """Sums of products of the elements of one or two tensors.

    Attributes:
        site: the call to emit into.
        name: of the kernel.
        operands: each tensor and the labels of its axes.
        dtype: of the sums.
    """

    site: Site
    name: str
    operands: Sequence[tuple[relax.Expr, Labels]]
    dtype: str

    def of(
        self,
        sizes: Mapping[Hashable, Any],
        labels: Labels,
        at: Callable[[_Position], _Position] = lambda position: position,
    ) -> relax.Var:
        """All of the sums, in one kernel.

        Args:
            sizes: by the labels of the result's axes and of those that are summed over.
            labels: of the result's axes.
            at: gives the indices of operands, by their labels, from those.
        """
        summed = [label for label in sizes if label not in labels]

        def fn(*tensors: te.Tensor) -> te.Tensor:
            reduced = {x: te.reduce_axis((0, int64(sizes[x])), name="k") for x in summed}

            def body(*index: Any) -> Any:
                position = at(dict(zip(labels, index)) | reduced)
                factors = [
                    _read(tensor, axes, position, sizes).astype(self.dtype)
                    for tensor, (_, axes) in zip(tensors, self.operands)
                ]
                product = factors[0] if len(factors) == 1 else factors[0] * factors[1]
                return te.sum(product, axis=list(reduced.values())) if reduced else product

            return compute([sizes[label] for label in labels], body, self.name)

        return self.site.te(self.name, fn, *(expr for expr, _ in self.operands))

    def in_pieces(self, sizes: Mapping[Hashable, Any], labels: Labels, cut: Cut) -> relax.Var:
        """A kernel for the sums of pieces, one that adds these up, and one for the rest."""
        piece, size = object(), int(sizes[cut.label])
        count = size // cut.length
        done = count * cut.length

        def of_piece(position: _Position) -> _Position:
            begin = position[piece] * int64(cut.length)
            return {**position, cut.label: begin + position[cut.label]}

        def of_rest(position: _Position) -> _Position:
            return {**position, cut.label: position[cut.label] + int64(done)}

        own = {**sizes, piece: count, cut.label: cut.length}
        total = relax.op.sum(self.of(own, [piece, *labels], of_piece), axis=[0])
        if done == size:
            return self.site.emit(total)
        rest = self.of({**sizes, cut.label: size - done}, labels, of_rest)
        return self.site.emit(relax.op.add(self.site.emit(total), rest))


def _read(
    tensor: te.Tensor, axes: Labels, position: _Position, sizes: Mapping[Hashable, Any]
) -> Any:
    """The element of a tensor at labelled indices."""
    index = [
        int64(0) if is_one(n) and not is_one(sizes[label]) else position[label]
        for label, n in zip(axes, tensor.shape)
    ]
    return tensor(*index)
