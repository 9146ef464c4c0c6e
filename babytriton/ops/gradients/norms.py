"""Gradients of norms of vectors."""

from __future__ import annotations

import math
from typing import Any

import torch

from babytriton.ops.axes import dims_of
from babytriton.ops.gradients.precision import wide
from babytriton.ops.gradients.reductions import shared, spread
from babytriton.ops.refusals import Unsupported


def vector_norm(
    grad: Any,
    result: Any,
    x: Any,
    ord: float = 2,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> Any:
    """Of the p-norm; at 0, where there is none, it is 0."""
    p = float(ord)
    grad, norm = (spread(value, x, dim, keepdim) for value in (grad, result))
    if not math.isinf(p):
        return _of_powers(grad, norm, x, p)
    # Those that are the norm share it evenly; NaN is. They are compared in their own dtype, which
    # is rounded.
    size = torch.abs(x)
    is_it = (size == norm) | torch.isnan(size)
    return torch.sign(x) * shared(grad, is_it, dims_of(dim, x.ndim))


@wide
def _of_powers(grad: Any, norm: Any, x: Any, p: float) -> Any:
    if p == 0:
        return torch.zeros_like(x)
    if p == 1:
        return grad * torch.sign(x)
    if p == 2:
        return x * torch.where(norm == 0, 0.0, grad / norm)
    size = torch.abs(x)
    if p < 1:
        slope = torch.where(x == 0, 0.0, size ** (p - 1))
        return torch.sign(x) * slope * (grad * norm ** (1 - p))
    scale = torch.where(norm == 0, 0.0, grad / norm ** (p - 1))
    return (torch.sign(x) * size ** (p - 1) if p < 2 else x * size ** (p - 2)) * scale


def norm(
    grad: Any,
    result: Any,
    input: Any,
    p: Any = "fro",
    dim: Any = None,
    keepdim: bool = False,
    out: Any = None,
    dtype: Any = None,
) -> Any:
    """Of ``torch.norm``.

    Raises:
        Unsupported: it is the nuclear norm.
    """
    if p == "nuc":
        raise Unsupported("the nuclear norm needs singular values")
    return vector_norm(grad, result, input, 2.0 if p in ("fro", None) else p, dim, keepdim)


def linalg_norm(
    grad: Any,
    result: Any,
    A: Any,
    ord: Any = None,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> Any:
    """Of ``torch.linalg.norm``.

    Raises:
        Unsupported: it is a norm of matrices.
    """
    return vector_norm(grad, result, A, power_of(A, ord, dim), dim, keepdim)


def matrix_norm(
    grad: Any,
    result: Any,
    A: Any,
    ord: Any = "fro",
    dim: Any = (-2, -1),
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> Any:
    """Of ``torch.linalg.matrix_norm``.

    Raises:
        Unsupported: it is not Frobenius's.
    """
    if ord != "fro":
        raise Unsupported("a matrix norm other than Frobenius's")
    return vector_norm(grad, result, A, 2.0, dim, keepdim)


def power_of(A: Any, ord: Any, dim: Any) -> float:
    """The p of the norm of vectors that ``torch.linalg.norm`` is.

    Raises:
        Unsupported: it is a norm of matrices.
    """
    if ord is None:
        return 2.0
    reduced = A.ndim if dim is None else len(dim) if isinstance(dim, (tuple, list)) else 1
    if reduced == 2 and ord != "fro":
        raise Unsupported("a matrix norm other than Frobenius's")
    return 2.0 if ord == "fro" else float(ord)
