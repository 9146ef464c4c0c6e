"""Gradients of reading elements by tensors of indices: sums over those that read the same one.

These sums are as exact as torch's own, which adds up in the tensor's dtype as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from babytriton.ops.gradients.classification import of_class
from babytriton.ops.gradients.positions import positions
from babytriton.ops.gradients.precision import wide
from babytriton.ops.refusals import Unsupported


def added_at(grad: Any, shape: Sequence[Any], dim: int, index: Any) -> Any:
    """Zeros of a shape, to which slices are added at places of a dimension.

    Args:
        grad: the slices, with the dimensions of ``index`` in place of that one.
        shape: of the result.
        dim: the dimension.
        index: the places, counted from the start.
    """
    flat = math.prod(index.shape)
    source = grad.reshape([*shape[:dim], flat, *shape[dim + 1 :]])
    return grad.new_zeros(list(shape)).index_add(dim, index.reshape(-1), source)


def index_select(grad: Any, result: Any, input: Any, dim: int, index: Any) -> Any:
    """Of slices at places of a dimension."""
    if input.ndim == 0:
        return grad.reshape(())
    return torch.zeros_like(input).index_add(dim, index.reshape(-1), grad)


def gather(
    grad: Any, result: Any, input: Any, dim: int, index: Any, *, sparse_grad: bool = False
) -> Any:
    """Of elements at places of a dimension.

    Where a slice has one such element, each of the input knows by its place whether it is that, and
    nothing is added up.
    """
    if input.ndim and index.ndim:
        dim %= input.ndim
        others = [[*x.shape[:dim], *x.shape[dim + 1 :]] for x in (index, input)]
        if index.shape[dim] == 1 and others[0] == others[1]:
            return of_class(grad.squeeze(dim), result, input, index.squeeze(dim), dim)
    return torch.zeros_like(input).scatter_add(dim, index, grad)


def take(grad: Any, result: Any, input: Any, index: Any) -> Any:
    """Of elements at places of all dimensions as one."""
    flat = torch.zeros_like(input).reshape(-1)
    found = torch.index_put(flat, (index.reshape(-1),), grad.reshape(-1), accumulate=True)
    return found.reshape(input.shape)


def embedding(
    grad: Any,
    result: Any,
    input: Any,
    weight: Any,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    """Of rows of a table; the padding's row has none, and each use counts less if asked."""
    if padding_idx is not None:
        row = padding_idx + weight.shape[0] if padding_idx < 0 else padding_idx
        grad = torch.where((input == row).unsqueeze(-1), 0.0, grad)
    return None, _used(grad, weight, input, scale_grad_by_freq)


def _used(grad: Any, weight: Any, input: Any, scale_grad_by_freq: bool) -> Any:
    """The gradient of a table from that of the rows that were used."""
    index = input.reshape(-1)
    if scale_grad_by_freq:
        uses = index.new_zeros(weight.shape[0]).index_add(0, index, torch.ones_like(index))
        grad = grad / uses.index_select(0, index).reshape(input.shape).unsqueeze(-1)
    return added_at(grad, weight.shape, 0, index)


@wide
def embedding_bag(
    grad: Any,
    result: Any,
    input: Any,
    weight: Any,
    offsets: Any = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Any:
    """Of sums and means of rows of a table, in bags that are rows or that offsets tell apart."""
    if mode == "max" or padding_idx is not None:
        raise Unsupported("maxima in bags, and padding in them")
    if offsets is None:
        lengths: Any = input.shape[1]
        rows = grad.unsqueeze(1).expand(*input.shape, weight.shape[1])
    else:
        starts = offsets.narrow(0, 0, grad.shape[0])
        bags = torch.searchsorted(starts, positions(grad, input.shape[0]), right=True) - 1
        counts = torch.zeros_like(starts).index_add(0, bags, torch.ones_like(bags))
        lengths = counts.index_select(0, bags).unsqueeze(-1)
        rows = grad.index_select(0, bags)
    if mode == "mean":
        rows = rows / lengths
    of_factors = None
    if per_sample_weights is not None:
        of_factors = (rows * F.embedding(input, weight)).sum(-1)
        rows = rows * per_sample_weights.unsqueeze(-1)
    of_weight = _used(rows, weight, input, scale_grad_by_freq)
    return None, of_weight, None, None, None, None, None, None, of_factors
