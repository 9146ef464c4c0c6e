"""Gradients of products of matrices and vectors: products again, in the dtype of the operands."""

from __future__ import annotations

import math
from typing import Any

import torch

from babytriton.ops.gradients.contraction import contracted, of_factors
from babytriton.ops.gradients.precision import wide


def matmul(grad: Any, result: Any, input: Any, other: Any) -> Any:
    """Of a product by the rules of ``torch.matmul``; what was broadcast is summed on the way."""
    left, right = input.ndim, other.ndim
    rows, columns = ["row"][: left - 1], ["column"][: right - 1]
    ours, theirs = range(2 - left, 0), range(2 - right, 0)
    batch = max(ours, theirs, key=len)
    return of_factors(
        (grad, [*batch, *rows, *columns]),
        (input, [*ours, *rows, "k"]),
        (other, [*theirs, "k", *columns]),
    )


def mv(grad: Any, result: Any, input: Any, vec: Any) -> Any:
    """Of a matrix by a vector."""
    return matmul(grad, result, input, vec)


def bmm(grad: Any, result: Any, input: Any, mat2: Any, out_dtype: Any = None) -> Any:
    """Of a matrix by a matrix, or of a batch of them."""
    return matmul(grad.to(input.dtype), result, input, mat2)


def dot(grad: Any, result: Any, input: Any, tensor: Any) -> Any:
    """Of the sum of the products of two vectors."""
    return grad * tensor, grad * input


def inner(grad: Any, result: Any, input: Any, other: Any) -> Any:
    """Of a product over the last axes of both."""
    if input.ndim == 0 or other.ndim == 0:
        return grad * other, grad * input
    left, right = [*range(1, input.ndim)], [*range(-1, -other.ndim, -1)]
    return of_factors((grad, [*left, *right]), (input, [*left, 0]), (other, [*right, 0]))


def vecdot(grad: Any, result: Any, x: Any, y: Any, *, dim: int = -1) -> Any:
    """Of the sum of the products of two tensors along a dimension."""
    spread = grad.unsqueeze(dim)
    return spread * y, spread * x


# ---------------------------------------------------------------- products that add


def _times(grad: Any, factor: float) -> Any:
    return grad if factor == 1 else grad * factor


def addmm(
    grad: Any, result: Any, input: Any, mat1: Any, mat2: Any, *, beta: float = 1, alpha: float = 1
) -> Any:
    """Of ``beta * input + alpha * (mat1 @ mat2)``."""
    left, right = matmul(grad, result, mat1, mat2)
    return _times(grad, beta), _times(left, alpha), _times(right, alpha)


def addmv(
    grad: Any, result: Any, input: Any, mat: Any, vec: Any, *, beta: float = 1, alpha: float = 1
) -> Any:
    """Of ``beta * input + alpha * (mat @ vec)``."""
    return addmm(grad, result, input, mat, vec, beta=beta, alpha=alpha)


def baddbmm(
    grad: Any,
    result: Any,
    input: Any,
    batch1: Any,
    batch2: Any,
    *,
    beta: float = 1,
    alpha: float = 1,
) -> Any:
    """Of ``beta * input + alpha * (batch1 @ batch2)``."""
    return addmm(grad, result, input, batch1, batch2, beta=beta, alpha=alpha)


def addbmm(
    grad: Any,
    result: Any,
    input: Any,
    batch1: Any,
    batch2: Any,
    *,
    beta: float = 1,
    alpha: float = 1,
) -> Any:
    """Of ``beta * input + alpha * (batch1 @ batch2).sum(0)``."""
    left, right = of_factors((grad, "ij"), (batch1, "bik"), (batch2, "bkj"))
    return _times(grad, beta), _times(left, alpha), _times(right, alpha)


def addr(
    grad: Any, result: Any, input: Any, vec1: Any, vec2: Any, *, beta: float = 1, alpha: float = 1
) -> Any:
    """Of ``beta * input`` and ``alpha`` times the products of all pairs."""
    left, right = of_factors((grad, "ij"), (vec1, "i"), (vec2, "j"))
    return _times(grad, beta), _times(left, alpha), _times(right, alpha)


def linear(grad: Any, result: Any, input: Any, weight: Any, bias: Any = None) -> Any:
    """Of ``input @ weight.T + bias``: one product for the weight, whatever the input's rank."""
    batch = [*range(input.ndim - 1)]
    out = ["n"] if weight.ndim == 2 else []
    left, right = (input, [*batch, "k"]), (weight, [*out, "k"])
    return *of_factors((grad, [*batch, *out]), left, right), grad


def bilinear(
    grad: Any, result: Any, input1: Any, input2: Any, weight: Any, bias: Any = None
) -> Any:
    """Of ``input1 @ weight[o] @ input2`` for each ``o``, and of what is added to it."""
    batch = [*range(input1.ndim - 1)]
    left, right, three = (input1, [*batch, "i"]), (input2, [*batch, "j"]), (weight, "oij")
    half = [*batch, "o", "j"]
    product = (contracted([left, three], half), half)
    of_half, of_right = of_factors((grad, [*batch, "o"]), product, right)
    of_left, of_weight = of_factors((of_half, half), left, three)
    return of_left, of_right, of_weight, grad


# ---------------------------------------------------------------- others


@wide
def cdist(
    grad: Any, result: Any, x1: Any, x2: Any, p: float = 2.0, compute_mode: str | None = None
) -> Any:
    """Of the distances of all pairs; 0 where two points are one, as for torch.

    The formulas are those of ``aten/src/ATen/native/cpu/DistanceOpsKernel.cpp``.
    """
    if p == 0:
        return torch.zeros_like(x1), torch.zeros_like(x2)
    apart = x1.unsqueeze(-2) - x2.unsqueeze(-3)
    distance, slope = result.unsqueeze(-1), grad.unsqueeze(-1)
    if p == 1:
        each = slope * torch.sign(apart)
    elif p == math.inf:
        each = torch.where(apart.abs() == distance, slope * torch.sign(apart), 0.0)
    elif p == 2:
        each = torch.where(distance == 0, 0.0, slope / distance) * apart
    else:
        power = torch.sign(apart) * apart.abs() ** (p - 1) / distance ** (p - 1)
        same = (distance == 0) | (apart == 0) if p < 1 else distance == 0
        each = slope * torch.where(same, 0.0, power)
    return each.sum(-2), -each.sum(-3)


def linalg_cross(grad: Any, result: Any, input: Any, other: Any, *, dim: int = -1) -> Any:
    """Of the vectors that stand on pairs of vectors."""
    return torch.linalg.cross(other, grad, dim=dim), torch.linalg.cross(grad, input, dim=dim)


def cross(grad: Any, result: Any, input: Any, other: Any, dim: int | None = None) -> Any:
    """The same along the first dimension of size 3, where none is given."""
    if dim is None:
        dim = next(i for i, n in enumerate(result.shape) if n == 3)
    return linalg_cross(grad, result, input, other, dim=dim)
