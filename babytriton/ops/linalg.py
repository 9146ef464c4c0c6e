"""Products of matrices and vectors."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from tvm import relax

from babytriton.ops.choice import adds_apart, keep_product, zeros_behind
from babytriton.ops.contraction import Labels, contract, require_one_number_dtype, shapes_of
from babytriton.ops.gradients import linalg as gradients
from babytriton.ops.long_sums import cut_of
from babytriton.ops.numerics import opmath
from babytriton.ops.refusals import Unsupported
from babytriton.ops.site import Site
from babytriton.ops.table import Op
from babytriton.ops.value import Value
from babytriton.types import dtype_of

T = torch.Tensor


def _product(site: Site, x: Value, other: Value) -> relax.Expr:
    """A matrix product by the rules of ``torch.matmul``, not yet rounded to half precision."""
    dtype = require_one_number_dtype(x, other)
    left, right = (list(value.meta.shape) for value in (x, other))
    rows, columns = ["row"][: len(left) - 1], ["column"][: len(right) - 1]
    batches = [list(range(2 - len(shape), 0)) for shape in (left, right)]
    labels = [[*batches[0], *rows, "k"], [*batches[1], "k", *columns]]
    found = [_in_place(site, *operand) for operand in zip((x, other), labels)]
    is_turned = any(own != given for (_, own), given in zip(found, labels))
    result = [*max(batches, key=len), *rows, *columns]
    if is_turned or cut_of(site, result, *shapes_of(found)) is not None:
        return contract(site, "matmul", found, result)
    keep_product(site, *zip((left, right), labels))
    return relax.op.matmul(x.expr, other.expr, out_dtype=dtype_of(opmath(dtype)).name)


def _in_place(site: Site, value: Value, labels: Labels) -> tuple[relax.Expr, Labels]:
    """An operand with the labels of its axes, of what it is the transpose of if it is one."""
    expr, axes = site.builder.views.unturned(value.expr)
    *others, row, column = range(-1, len(axes))  # more than there are, of a vector
    if axes != (*others[1:], column, row):
        return value.expr, labels
    return expr, [*labels[:-2], labels[-1], labels[-2]]


def _matmul(site: Site, input: Value, other: Value) -> Any:
    if other.meta.ndim == 2 and input.meta.ndim > 1:
        (*rows, depth), (columns,) = input.meta.shape, other.meta.shape[1:]
        is_along = _innermost(site, input) == -1, _innermost(site, other) == -2
        after = zeros_behind(site, depth, rows, depth, columns) if any(is_along) else 0
        beside = 0 if is_along[1] else zeros_behind(site, columns, rows, depth, columns)
        if after or beside:
            given: list[Any] = [_with_zeros(site, input, after)]
            given.append(_with_zeros(site, other, beside, after))
            product: Any = torch.matmul(*given)
            return (product[..., :columns] if beside else product).expr
    return site.cast(_product(site, input, other), site.dtype)


def _innermost(site: Site, value: Value) -> int:
    """The dimension along which a tensor lies in memory, from the last one."""
    _, axes = site.builder.views.unturned(value.expr)
    return axes.index(len(axes) - 1) - len(axes)


def _with_zeros(site: Site, value: Value, *after: int) -> Any:
    """A tensor with zeros behind its last dimension, the one before that, and so on.

    It lies as it did, if these are two.
    """
    given: Any = value
    if not any(after):
        return given
    if _innermost(site, value) == -2:
        last, before = (*after, 0)[:2]
        return _padded(given.transpose(-1, -2), (before, last)).transpose(-1, -2)
    return _padded(given, after)


def _padded(given: Any, after: Sequence[int]) -> Any:
    return F.pad(given, [n for own in after for n in (0, own)])


def _mv(site: Site, input: Value, vec: Value) -> Any:
    return site.cast(_product(site, input, vec), site.dtype)


def _bmm(site: Site, input: Value, mat2: Value, *, out_dtype: torch.dtype | None = None) -> Any:
    if out_dtype is not None:
        raise Unsupported("out_dtype")
    return site.cast(_product(site, input, mat2), site.dtype)


def _dot(site: Site, input: Value, tensor: Value) -> Any:
    return site.cast(_product(site, input, tensor), site.dtype)


def _inner(site: Site, input: Any, other: Any) -> Any:
    """Over the last axes of both; torch multiplies where one of them is a number."""
    if input.meta.ndim == 0 or other.meta.ndim == 0:
        return torch.mul(input, other)
    require_one_number_dtype(input, other)
    left, right = range(1, input.meta.ndim), range(-1, -other.meta.ndim, -1)
    operands = [(input.expr, [*left, 0]), (other.expr, [*right, 0])]
    return site.cast(contract(site, "inner", operands, [*left, *right]), site.dtype)


def _vecdot(site: Site, x: Value, y: Value, *, dim: int = -1) -> Any:
    require_one_number_dtype(x, y)
    # Aligned from the right, as broadcasting is.
    ranks = range(-max(x.meta.ndim, y.meta.ndim), 0)
    summed = dim if dim < 0 else dim - len(ranks)
    kept = [axis for axis in ranks if axis != summed]
    operands = [(v.expr, range(-v.meta.ndim, 0)) for v in (x, y)]
    return site.cast(contract(site, "vecdot", operands, kept), site.dtype)


# ---------------------------------------------------------------- products that add


def _plus(site: Site, addend: Value, product: relax.Expr, beta: float, alpha: float) -> Any:
    """``beta * addend + alpha * product``, rounded once.

    What counts for nothing is not read, as in BLAS: its NaN does not spread.
    """
    dtype = opmath(site.dtype)
    name = dtype_of(dtype).name
    terms = [(product, alpha), (site.expr(addend, dtype), beta)]
    scaled = [
        x if factor == 1 else site.emit(relax.op.multiply(x, relax.const(factor, name)))
        for x, factor in terms
        if factor != 0
    ]
    if not scaled:
        return relax.op.zeros(site.shape, dtype_of(site.dtype).name)
    if len(scaled) == 2:
        return site.cast(relax.op.add(*scaled), site.dtype)
    return site.cast(relax.op.broadcast_to(scaled[0], site.shape), site.dtype)


def _constant(site: Site, beta: float, alpha: float) -> None:
    fractions = any(float(x) != int(x) for x in (beta, alpha))
    if fractions and not site.dtype.is_floating_point:
        raise Unsupported("a fractional factor of integers")


def _add_product(site: Site, input: Value, x: Value, y: Value, beta: float, alpha: float) -> Any:
    require_one_number_dtype(input, x, y)
    _constant(site, beta, alpha)
    try:
        product = _product(site, x, y)
    except Unsupported:
        is_flat = x.meta.ndim == y.meta.ndim == 2
        if not is_flat or not adds_apart(site, x.meta.shape[:1], *y.meta.shape):
            raise
        given: list[Any] = [x, y]
        sums: Any = torch.mm(*given)
        return _plus(site, input, sums.expr, beta, alpha)
    return _plus(site, input, site.emit(product), beta, alpha)


def _addmm(
    site: Site, input: Value, mat1: Value, mat2: Value, *, beta: float = 1, alpha: float = 1
) -> Any:
    return _add_product(site, input, mat1, mat2, beta, alpha)


def _addmv(
    site: Site, input: Value, mat: Value, vec: Value, *, beta: float = 1, alpha: float = 1
) -> Any:
    return _add_product(site, input, mat, vec, beta, alpha)


def _baddbmm(
    site: Site, input: Value, batch1: Value, batch2: Value, *, beta: float = 1, alpha: float = 1
) -> Any:
    return _add_product(site, input, batch1, batch2, beta, alpha)


def _addbmm(
    site: Site, input: Value, batch1: Value, batch2: Value, *, beta: float = 1, alpha: float = 1
) -> Any:
    require_one_number_dtype(input, batch1, batch2)
    _constant(site, beta, alpha)
    operands = [(batch1.expr, "bik"), (batch2.expr, "bkj")]
    return _plus(site, input, contract(site, "addbmm", operands, "ij"), beta, alpha)


def _addr(
    site: Site, input: Value, vec1: Value, vec2: Value, *, beta: float = 1, alpha: float = 1
) -> Any:
    require_one_number_dtype(input, vec1, vec2, error=Unsupported)
    _constant(site, beta, alpha)
    if alpha == 0:
        raise Unsupported("a product that counts for nothing but its NaN")
    product = contract(site, "outer", [(vec1.expr, "i"), (vec2.expr, "j")], "ij")
    return _plus(site, input, product, beta, alpha)


def _linear(site: Site, input: Value, weight: Value, bias: Value | None = None) -> Any:
    """``input @ weight.T + bias``, reading the weight as it lies."""
    dtype = require_one_number_dtype(input, weight, bias)
    (*rows, depth), columns = input.meta.shape, weight.meta.shape[:-1]
    is_along = any(_innermost(site, value) == -1 for value in (input, weight))
    after = zeros_behind(site, depth, rows, depth, *columns) if is_along else 0
    given: list[Any] = [input, weight, bias]
    if after:
        given[:2] = (_with_zeros(site, x, after) for x in given[:2])
        padded: Any = F.linear(*given)
        return padded.expr
    batch = list(range(input.meta.ndim - 1))
    out: list[Any] = ["n"] if weight.meta.ndim == 2 else []
    operands = [(input.expr, [*batch, "k"]), (weight.expr, [*out, "k"])]
    try:
        product = contract(site, "linear", operands, [*batch, *out])
    except Unsupported:
        if bias is None or not adds_apart(site, rows, depth, *columns):
            raise
        sums: Any = F.linear(*given[:2])
        return (sums + bias).expr
    if bias is not None:
        product = relax.op.add(product, site.expr(bias, opmath(dtype)))
    return site.cast(product, site.dtype)


def _bilinear(
    site: Site, input1: Value, input2: Value, weight: Value, bias: Value | None = None
) -> Any:
    dtype = require_one_number_dtype(input1, input2, weight, bias)
    batch = list(range(input1.meta.ndim - 1))
    left: list[tuple[Any, Labels]] = [(input1.expr, [*batch, "i"]), (weight.expr, "oij")]
    half: Any = contract(site, "bilinear_left", left, [*batch, "o", "j"])
    right: list[tuple[Any, Labels]] = [(half, [*batch, "o", "j"]), (input2.expr, [*batch, "j"])]
    product = contract(site, "bilinear", right, [*batch, "o"], opmath(dtype))
    if bias is not None:
        product = relax.op.add(product, site.expr(bias, opmath(dtype)))
    return site.cast(product, site.dtype)


# ---------------------------------------------------------------- in terms of other rows


def _outer(input: Value, vec2: Value) -> Any:
    return input.unsqueeze(-1) * vec2


def _kron(input: Value, other: Value) -> Any:
    rank = max(input.ndim, other.ndim)
    left = (1,) * (rank - input.ndim) + tuple(input.shape)
    right = (1,) * (rank - other.ndim) + tuple(other.shape)
    spread = input.reshape([n for size in left for n in (size, 1)])
    tiled = other.reshape([n for size in right for n in (1, size)])
    return (spread * tiled).reshape([a * b for a, b in zip(left, right)])


def _multi_dot(tensors: Sequence[Value]) -> Any:
    """The products in the order that takes the fewest multiplications."""
    shapes = [tuple(x.meta.shape) for x in tensors]
    if len(tensors) == 1:
        return tensors[0].clone()
    first = shapes[0] if len(shapes[0]) == 2 else (1, *shapes[0])
    sizes = [*first, *(shape[1] if len(shape) == 2 else 1 for shape in shapes[1:])]

    @cache
    def best(start: int, end: int) -> tuple[int, int]:
        """The cost of the product of ``start`` to ``end``, and where to cut it."""
        if end - start == 1:
            return 0, start
        ends = sizes[start] * sizes[end]
        return min(
            (best(start, cut)[0] + best(cut, end)[0] + ends * sizes[cut], cut)
            for cut in range(start + 1, end)
        )

    def product(start: int, end: int) -> Any:
        if end - start == 1:
            return tensors[start]
        cut = best(start, end)[1]
        return torch.matmul(product(start, cut), product(cut, end))

    return product(0, len(tensors))


def _chain_matmul(*matrices: Value) -> Any:
    return _multi_dot(matrices)


def _matrix_power(input: Any, n: int) -> Any:
    if n <= 0:
        raise Unsupported("an inverse is a LAPACK routine" if n else "it is a constant")
    # Square and multiply, as torch does.
    power, squared = None, input
    while True:
        if n % 2:
            power = squared if power is None else torch.matmul(power, squared)
        n //= 2
        if n == 0:
            return power
        squared = torch.matmul(squared, squared)


def _cdist(
    site: Site, x1: Value, x2: Value, p: float = 2.0, compute_mode: str | None = None
) -> Any:
    """The differences themselves; torch may use a matrix product, which is less accurate."""
    apart = x1.unsqueeze(-2) - x2.unsqueeze(-3)
    if p == 0:
        return (apart != 0).sum(-1).to(site.dtype)
    if p == float("inf"):
        return apart.abs().amax(-1)
    if p == 1:
        return apart.abs().sum(-1)
    if p == 2:
        return (apart * apart).sum(-1).sqrt()
    return (apart.abs() ** p).sum(-1) ** (1.0 / p)


# ---------------------------------------------------------------- by element


def _linalg_cross(site: Site, input: Value, other: Value, *, dim: int = -1) -> Any:
    axis = dim % len(site.shape)
    dtype = opmath(site.dtype)

    def body(tensors: Any, *index: Any) -> Any:
        def at(tensor: Any, step: int) -> Any:
            where = list(index)
            where[axis] = (index[axis] + step) % 3
            missing = len(where) - len(tensor.shape)
            sizes = [int(n) for n in tensor.shape]
            element = tensor(*(0 if n == 1 else i for n, i in zip(sizes, where[missing:])))
            return element.astype(dtype_of(dtype).name)

        x, y = tensors
        return at(x, 1) * at(y, 2) - at(x, 2) * at(y, 1)

    x, y = site.expr(input, site.dtype), site.expr(other, site.dtype)
    return site.cast(site.compute("cross", site.shape, body, x, y), site.dtype)


def _cross(site: Site, input: Value, other: Value, dim: int | None = None) -> Any:
    if dim is None:
        dim = next(i for i, n in enumerate(site.shape) if n == 3)
    return _linalg_cross(site, input, other, dim=dim)


_LAPACK = "a LAPACK routine"

ROWS: tuple[Op, ...] = (
    Op(
        "matmul",
        (torch.matmul, T.matmul, operator.matmul, torch.linalg.matmul),
        _matmul,
        gradient=gradients.matmul,
    ),
    Op("mv", (torch.mv, T.mv), _mv, gradient=gradients.mv),
    Op("mm", (torch.mm, T.mm, torch.bmm, T.bmm), _bmm, gradient=gradients.bmm),
    Op("dot", (torch.dot, T.dot, torch.vdot, T.vdot), _dot, gradient=gradients.dot),
    Op("inner", (torch.inner, T.inner), _inner, gradient=gradients.inner),
    Op("vecdot", (torch.linalg.vecdot,), _vecdot, gradient=gradients.vecdot),
    Op("addmm", (torch.addmm, T.addmm), _addmm, gradient=gradients.addmm),
    Op("addmv", (torch.addmv, T.addmv), _addmv, gradient=gradients.addmv),
    Op("baddbmm", (torch.baddbmm, T.baddbmm), _baddbmm, gradient=gradients.baddbmm),
    Op("addbmm", (torch.addbmm, T.addbmm), _addbmm, gradient=gradients.addbmm),
    Op("addr", (torch.addr, T.addr), _addr, gradient=gradients.addr),
    Op("linear", (F.linear,), _linear, gradient=gradients.linear),
    Op("bilinear", (F.bilinear,), _bilinear, gradient=gradients.bilinear),
    Op("outer", (torch.outer, T.outer, torch.ger, T.ger), decompose=_outer),
    Op("kron", (torch.kron, T.kron), decompose=_kron),
    Op("multi_dot", (torch.linalg.multi_dot,), decompose=_multi_dot),
    Op("chain_matmul", (torch.chain_matmul,), decompose=_chain_matmul),
    Op(
        "matrix_power",
        (torch.matrix_power, T.matrix_power, torch.linalg.matrix_power),
        decompose=_matrix_power,
    ),
    Op("cdist", (torch.cdist,), _cdist, gradient=gradients.cdist),
    Op("cross", (torch.cross, T.cross), _cross, gradient=gradients.cross),
    Op("linalg.cross", (torch.linalg.cross,), _linalg_cross, gradient=gradients.linalg_cross),
    Op("inv", (torch.inverse, T.inverse, torch.linalg.inv), why=_LAPACK),
    Op("det", (torch.det, T.det, torch.linalg.det), why=_LAPACK),
    Op("solve", (torch.linalg.solve,), why=_LAPACK),
    Op("cholesky", (torch.cholesky, T.cholesky, torch.linalg.cholesky), why=_LAPACK),
    Op("svd", (torch.svd, T.svd, torch.linalg.svd), why=_LAPACK),
    Op("qr", (torch.qr, T.qr, torch.linalg.qr), why=_LAPACK),
)
