"""Normalization: each is one TensorIR function of several stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from tvm import te, tirx

from babytriton.ops import numerics, standardizing
from babytriton.ops.axes import Axes
from babytriton.ops.moments import variance, widened
from babytriton.ops.refusals import IllTyped, Unsupported
from babytriton.ops.site import Site, compute
from babytriton.ops.table import Op
from babytriton.ops.value import Value
from babytriton.types import dtype_of

T = torch.Tensor


def _layer_norm(
    site: Site,
    input: Value,
    normalized_shape: Sequence[int],
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Any:
    axes = _trailing(input, normalized_shape)

    def normalized(x: te.Tensor) -> Callable[..., Any]:
        mean, found = variance(x, axes)
        scale = axes.each("scale", lambda *i: te.rsqrt(found(*i) + tirx.const(eps, str(x.dtype))))
        return lambda *i: (x(*i) - axes.at(mean, i)) * axes.at(scale, i)

    return _affine(site, "layer_norm", input, axes.dims, weight, bias, normalized)


def _rms_norm(
    site: Site,
    input: Value,
    normalized_shape: Sequence[int],
    weight: Value | None = None,
    eps: float | None = None,
) -> Any:
    axes = _trailing(input, normalized_shape)
    wide = numerics.opmath(site.dtype)
    added = torch.finfo(wide).eps if eps is None else eps

    def normalized(x: te.Tensor) -> Callable[..., Any]:
        squares = axes.reduce("squares", lambda *i: x(*i) * x(*i))
        constant = tirx.const(added, str(x.dtype))
        scale = axes.each("scale", lambda *i: te.rsqrt(axes.over_length(squares(*i)) + constant))
        return lambda *i: x(*i) * axes.at(scale, i)

    return _affine(site, "rms_norm", input, axes.dims, weight, None, normalized)


def _trailing(input: Value, normalized_shape: Sequence[int]) -> Axes:
    ndim = input.meta.ndim
    return Axes.of(input, tuple(range(ndim - len(normalized_shape), ndim)))


def _affine(
    site: Site,
    name: str,
    input: Value,
    dims: Sequence[int],
    weight: Value | None,
    bias: Value | None,
    normalized: Callable[[te.Tensor], Callable[..., Any]],
) -> Any:
    """``normalized * weight + bias``, of a dtype to compute in, rounded once.

    Args:
        site: of the call.
        name: of the kernel.
        input: what is normalized.
        dims: the dimensions that weight and bias have.
        weight: to multiply by.
        bias: to add.
        normalized: from the input, the normalized element at an index.
    """
    wide, narrow = dtype_of(numerics.opmath(site.dtype)).name, dtype_of(site.dtype).name

    def fn(x: te.Tensor, *parameters: te.Tensor) -> te.Tensor:
        element = normalized(widened(x, site.dtype))
        given = iter(parameters)
        scale = None if weight is None else next(given)
        shift = None if bias is None else next(given)

        def one(*index: Any) -> Any:
            value = element(*index)
            inner = [index[d] for d in dims]
            if scale is not None:
                value = value * scale(*inner).astype(wide)
            if shift is not None:
                value = value + shift(*inner).astype(wide)
            return value.astype(narrow)

        return compute(site.shape, one, name)

    return site.te(name, fn, input.expr, *(p.expr for p in (weight, bias) if p is not None))


def _group_norm(
    input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any
) -> Any:
    # Each group is a row of its own. Half precision is rounded once, after weight and bias.
    wide = numerics.opmath(input.dtype)
    rows = standardizing.rows_of_groups(input.to(wide), num_groups)
    normalized = F.layer_norm(rows, rows.shape[2:], eps=eps).reshape(input.shape)
    return _by_channel(normalized, weight, bias, wide).to(input.dtype)


def _by_channel(x: Any, weight: Any, bias: Any, dtype: torch.dtype) -> Any:
    shape = (1, -1) + (1,) * (x.ndim - 2)
    if weight is not None:
        x = x * weight.to(dtype).reshape(shape)
    if bias is not None:
        x = x + bias.to(dtype).reshape(shape)
    return x


def _batch_norm(
    input: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *_: Any,
) -> Any:
    if input.ndim < 2:
        raise IllTyped(f"a batch has two dimensions or more, and this tensor {input.ndim}")
    wide = numerics.opmath(input.dtype)
    if training:
        dims = [dim for dim in range(input.ndim) if dim != 1]
        variance, mean = torch.var_mean(input.to(wide), dims, correction=0)
        count = input.numel() // input.shape[1]
        standardizing.update(running_mean, mean, momentum)
        # The running variance is the unbiased one, and the batch is divided by the other.
        standardizing.update(running_var, variance * (count / (count - 1)), momentum)
        running_mean, running_var = mean, variance
    # A scale and a shift of each channel, as torch does it on the CPU.
    scale = torch.rsqrt(running_var.to(wide) + eps)
    if weight is not None:
        scale = scale * weight.to(wide)
    shift = -running_mean.to(wide) * scale
    if bias is not None:
        shift = shift + bias.to(wide)
    return _by_channel(input.to(wide), scale, shift, wide).to(input.dtype)


def _batch_norm_of_torch(
    input: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    training: bool,
    momentum: float,
    eps: float,
    *_: Any,
) -> Any:
    """``torch.batch_norm``, whose arguments have another order."""
    return F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)


def _instance_norm(
    input: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *_: Any,
) -> Any:
    if not use_input_stats:
        return F.batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    if running_mean is not None or running_var is not None:
        dims = list(range(2, input.ndim))
        detached = input.detach().to(numerics.opmath(input.dtype))
        variance, mean = torch.var_mean(detached, dims)
        standardizing.update(running_mean, mean.mean(0), momentum)
        standardizing.update(running_var, variance.mean(0), momentum)
    return F.group_norm(input, input.shape[1], weight, bias, eps)


def _local_response_norm(site: Site, input: Value, *args: Any, **kwargs: Any) -> Any:
    if not input.dtype.is_floating_point:
        raise Unsupported("the means of integers are cut to integers")
    return _divided_by_neighbours(input, *args, **kwargs)


def _divided_by_neighbours(
    input: Any, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Any:
    wide = input.to(numerics.opmath(input.dtype))
    squares = wide * wide
    around = (0, 0) * (input.ndim - 2) + (size // 2, (size - 1) // 2)
    padded = F.pad(squares, around)
    total = squares * 0
    for start in range(size):
        total = total + padded.narrow(1, start, input.shape[1])
    return (wide / (total * (alpha / size) + k) ** beta).to(input.dtype)


def _normalize(
    input: Any, p: float = 2.0, dim: Any = 1, eps: float = 1e-12, out: Any = None
) -> Any:
    norm = torch.linalg.vector_norm(input, p, dim, keepdim=True)
    return input / norm.clamp_min(eps)


def _cosine_similarity(x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8) -> Any:
    dtype = torch.promote_types(x1.dtype, x2.dtype)
    shape = torch.broadcast_shapes(x1.shape, x2.shape)
    # Expanding what has the shape already would be a copy.
    x1, x2 = (x if x.shape == shape else x.expand(shape) for x in (x1, x2))
    one, two = (x.to(dtype) / _clamped_norm(x.to(dtype), dim, eps) for x in (x1, x2))
    return (one * two).sum(dim)


def _clamped_norm(x: Any, dim: int, eps: float) -> Any:
    norm = torch.linalg.vector_norm(x, 2, dim, keepdim=True)
    # In torch the gradient passes the bound.
    return norm + (norm.clamp_min(eps) - norm).detach()


def _pairwise_distance(
    x1: Any, x2: Any, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Any:
    return torch.linalg.vector_norm(x1 - x2 + eps, p, -1, keepdim)


def _instance_norm_of_torch(
    input: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    *_: Any,
) -> Any:
    """``torch.instance_norm``, whose arguments have another order."""
    return F.instance_norm(
        input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps
    )


ROWS: tuple[Op, ...] = (
    Op(
        "layer_norm", (F.layer_norm, torch.layer_norm), _layer_norm, derive=standardizing.layer_norm
    ),
    Op("rms_norm", (F.rms_norm, torch.rms_norm), _rms_norm, derive=standardizing.rms_norm),
    Op(
        "group_norm",
        (F.group_norm, torch.group_norm),
        decompose=_group_norm,
        derive=standardizing.group_norm,
    ),
    Op(
        "batch_norm",
        (F.batch_norm,),
        decompose=_batch_norm,
        scalars=True,
        derive=standardizing.batch_norm,
    ),
    Op("torch.batch_norm", (torch.batch_norm,), decompose=_batch_norm_of_torch, scalars=True),
    Op("instance_norm", (F.instance_norm,), decompose=_instance_norm),
    Op("torch.instance_norm", (torch.instance_norm,), decompose=_instance_norm_of_torch),
    Op(
        "local_response_norm",
        (F.local_response_norm,),
        _local_response_norm,
        derive=_divided_by_neighbours,
    ),
    Op("normalize", (F.normalize,), decompose=_normalize),
    Op("cosine_similarity", (F.cosine_similarity,), decompose=_cosine_similarity),
    Op("pairwise_distance", (F.pairwise_distance,), decompose=_pairwise_distance),
)
