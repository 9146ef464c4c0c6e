"""Norms of vectors, along dimensions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from tvm import te, tirx

from babytriton.ops import numerics
from babytriton.ops.axes import Axes
from babytriton.ops.gradients import norms as gradients
from babytriton.ops.reductions import extreme
from babytriton.ops.refusals import Unsupported
from babytriton.ops.site import Site
from babytriton.ops.table import Op
from babytriton.ops.value import Value
from babytriton.types import dtype_of

T = torch.Tensor


def vector_norm(site: Site, input: Value, p: float, dim: Any = None, keepdim: bool = False) -> Any:
    """The p-norm of the elements over some dimensions."""
    axes = Axes.of(input, dim, keepdim)
    name = dtype_of(site.dtype).name

    def fn(x: te.Tensor) -> te.Tensor:
        wide = dtype_of(numerics.opmath(site.dtype)).name

        def magnitude(x: Any) -> Any:
            return te.abs(x.astype(wide))

        if math.isinf(p):
            return extreme("norm", axes, x, p > 0, magnitude, dtype=name)
        if p == 0:
            return _powers(axes, x, lambda x: numerics.is_true(x).astype(wide), lambda s: s, name)
        if p == 1:
            return _powers(axes, x, magnitude, lambda s: s, name)
        if p == 2:
            return _powers(axes, x, lambda x: x.astype(wide) * x.astype(wide), te.sqrt, name)
        power = tirx.const(p, wide)
        root = tirx.const(1 / p, wide)
        return _powers(
            axes,
            x,
            lambda x: numerics.power(magnitude(x), power),
            lambda s: numerics.power(s, root),
            name,
        )

    return site.te("norm", fn, site.expr(input, site.dtype))


def _powers(
    axes: Axes, x: te.Tensor, element: Callable[[Any], Any], root: Callable[[Any], Any], dtype: str
) -> te.Tensor:
    total = axes.reduce("powers", lambda *i: element(x(*i)))
    return axes.each("norm", lambda *i: root(total(*i)).astype(dtype))


def _vector_norm(
    site: Site,
    x: Value,
    ord: float = 2,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> Any:
    return vector_norm(site, x, float(ord), dim, keepdim)


def _norm(
    site: Site,
    input: Value,
    p: Any = "fro",
    dim: Any = None,
    keepdim: bool = False,
    out: Any = None,
    dtype: Any = None,
) -> Any:
    if p == "nuc":
        raise Unsupported("the nuclear norm needs singular values")
    return vector_norm(site, input, 2.0 if p in ("fro", None) else float(p), dim, keepdim)


def _linalg_norm(
    site: Site,
    A: Value,
    ord: Any = None,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> Any:
    return vector_norm(site, A, gradients.power_of(A, ord, dim), dim, keepdim)


def _matrix_norm(
    site: Site, A: Value, ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False, **_: Any
) -> Any:
    if ord != "fro":
        raise Unsupported("a matrix norm other than Frobenius's")
    return vector_norm(site, A, 2.0, dim, keepdim)


def _dist(input: Any, other: Any, p: float = 2) -> Any:
    return torch.linalg.vector_norm(input - other, p)


ROWS: tuple[Op, ...] = (
    Op("norm", (torch.norm, T.norm), _norm, gradient=gradients.norm),
    Op("linalg.norm", (torch.linalg.norm,), _linalg_norm, gradient=gradients.linalg_norm),
    Op(
        "linalg.vector_norm",
        (torch.linalg.vector_norm,),
        _vector_norm,
        gradient=gradients.vector_norm,
    ),
    Op(
        "linalg.matrix_norm",
        (torch.linalg.matrix_norm,),
        _matrix_norm,
        gradient=gradients.matrix_norm,
    ),
    Op("dist", (torch.dist, T.dist), decompose=_dist),
)
