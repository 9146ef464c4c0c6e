"""Views: the same elements under another shape or order of dimensions.

Kernels index through views, so a view costs nothing where it fuses with its neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tvm import relax, tirx

from babytriton.ops.gradients import shape as gradients
from babytriton.ops.gradients.elementwise import same
from babytriton.ops.refusals import Unsupported
from babytriton.ops.site import Site
from babytriton.ops.sizes import int64, same_shape
from babytriton.ops.table import Op
from babytriton.ops.value import Value
from babytriton.types import dtype_of

T: Any = torch.Tensor  # typed stubs take the properties among its attributes for their results


def _reshape(site: Site, input: Value, *_: Any, **__: Any) -> Any:
    """torch has worked the new shape out already."""
    if same_shape(input.meta.shape, site.shape):
        return input
    return relax.op.reshape(input.expr, _shape(site.out))


def _shape(meta: torch.Tensor) -> list[tirx.PrimExpr]:
    if any(isinstance(n, torch.SymInt) and n.node.shape_env.divides(n) for n in meta.shape):
        # Its index would divide by a quotient; two such in one kernel compile without end.
        raise Unsupported("a symbolic size that is a quotient")
    return [int64(n) for n in meta.shape]


def _view(site: Site, input: Value, *shape: Any, dtype: torch.dtype | None = None, **_: Any) -> Any:
    if shape and isinstance(shape[0], torch.dtype):
        dtype = shape[0]
    if dtype is None:
        return _reshape(site, input)
    old, new = dtype_of(input.meta.dtype), dtype_of(dtype)
    if old.bits != new.bits or torch.bool in (old.torch, new.torch):
        raise Unsupported("view as a dtype of another width")
    return site.compute(
        "view", site.shape, lambda x, *i: tirx.reinterpret(new.name, x[0](*i)), input.expr
    )


def _view_each(site: Site, *tensors: Any) -> list[Any]:
    """atleast_1d and its like take a tensor, several, or a sequence of them."""
    values = tensors if isinstance(tensors[0], Value) else tensors[0]
    outs = site.out if isinstance(site.out, (tuple, list)) else [site.out]
    return [relax.op.reshape(x.expr, _shape(out)) for x, out in zip(values, outs)]


def _squeeze(site: Site, input: Value, dim: int | Sequence[int] | None = None) -> Any:
    if dim is None:
        dim = range(input.meta.ndim)
    dims = [dim] if isinstance(dim, int) else list(dim)
    ones = {d % input.meta.ndim for d in dims if input.meta.ndim and input.meta.shape[d] == 1}
    return relax.op.squeeze(input.expr, sorted(ones)) if ones else input


def _unsqueeze(site: Site, input: Value, dim: int) -> Any:
    return relax.op.expand_dims(input.expr, dim)


def _permuted(input: Value, order: Sequence[int]) -> Any:
    return relax.op.permute_dims(input.expr, list(order)) if input.meta.ndim > 1 else input


def _permute(site: Site, input: Value, *order: Any, dims: Sequence[int] = ()) -> Any:
    if order:
        dims = order if isinstance(order[0], int) else order[0]
    return _permuted(input, [d % input.meta.ndim for d in dims])


def _transpose(site: Site, input: Value, dim0: int, dim1: int) -> Any:
    order = list(range(input.meta.ndim))
    if order:
        order[dim0], order[dim1] = order[dim1], order[dim0]
    return _permuted(input, order)


def _swapaxes(site: Site, input: Value, axis0: int, axis1: int) -> Any:
    return _transpose(site, input, axis0, axis1)


def _movedim(site: Site, input: Value, source: Any, destination: Any) -> Any:
    ndim = input.meta.ndim
    if ndim == 0:
        return input
    sources = [d % ndim for d in ([source] if isinstance(source, int) else source)]
    targets = [d % ndim for d in ([destination] if isinstance(destination, int) else destination)]
    others = iter(d for d in range(ndim) if d not in sources)
    placed = dict(zip(targets, sources))
    return _permuted(input, [placed[d] if d in placed else next(others) for d in range(ndim)])


def _reverse_dims(site: Site, input: Value) -> Any:
    """T, t and H: every dimension in the opposite order."""
    return _permuted(input, list(reversed(range(input.meta.ndim))))


def _swap_last_dims(site: Site, input: Value) -> Any:
    return _transpose(site, input, -2, -1)


def _as_strided(
    site: Site, input: Value, size: Any, stride: Any, storage_offset: Any = None
) -> relax.Expr:
    """Elements of the memory that a tensor lies in."""
    storage = input.storage
    if storage is None:
        raise Unsupported("the memory it lies in is not known")
    site.builder.memory.follow(input)
    if storage.meta is input.meta and input.meta.is_contiguous():
        raise Unsupported("its memory is its own, in which torch finds them")
    return site.builder.view(storage.expr, storage.meta, site.out)


def _broadcast(site: Site, input: Value, *_: Any, **__: Any) -> Any:
    return relax.op.broadcast_to(input.expr, _shape(site.out))


def _broadcast_tensors(site: Site, *tensors: Any) -> list[Any]:
    values = tensors if isinstance(tensors[0], Value) else tensors[0]
    return [relax.op.broadcast_to(x.expr, _shape(out)) for x, out in zip(values, site.out)]


def _meshgrid(*tensors: Any, indexing: str | None = None) -> Any:
    given = tensors if isinstance(tensors[0], Value) else tensors[0]
    # "xy" swaps the first two dimensions, and nothing where there is only one.
    first_two = (1, 0) if indexing == "xy" and len(given) > 1 else (0, 1)
    dims = [*first_two, *range(2, len(given))][: len(given)]
    views = []
    for dim, x in zip(dims, given):
        shape = [1] * len(given)
        shape[dim] = x.numel()
        views.append(x.reshape(shape))
    return torch.broadcast_tensors(*views)


def _cartesian_prod(*tensors: Any) -> Any:
    if len(tensors) == 1:
        return tensors[0]
    return torch.stack([grid.flatten() for grid in torch.meshgrid(*tensors, indexing="ij")], dim=1)


ROWS: tuple[Op, ...] = (
    Op("reshape", (torch.reshape, T.reshape), _reshape, gradient=gradients.reshaped),
    Op("view", (T.view, torch.view_copy), _view, gradient=gradients.reshaped),
    Op("view_as", (T.view_as,), _reshape, gradient=gradients.reshaped),
    Op("reshape_as", (T.reshape_as,), _reshape, gradient=gradients.reshaped),
    Op("flatten", (torch.flatten, T.flatten), _reshape, gradient=gradients.reshaped),
    Op("unflatten", (torch.unflatten, T.unflatten), _reshape, gradient=gradients.reshaped),
    Op("ravel", (torch.ravel, T.ravel), _reshape, gradient=gradients.reshaped),
    Op("atleast_1d", (torch.atleast_1d,), _view_each, gradient=gradients.reshaped_each),
    Op("atleast_2d", (torch.atleast_2d,), _view_each, gradient=gradients.reshaped_each),
    Op("atleast_3d", (torch.atleast_3d,), _view_each, gradient=gradients.reshaped_each),
    Op(
        "squeeze",
        (torch.squeeze, T.squeeze, torch.squeeze_copy),
        _squeeze,
        gradient=gradients.reshaped,
    ),
    Op(
        "unsqueeze",
        (torch.unsqueeze, T.unsqueeze, torch.unsqueeze_copy),
        _unsqueeze,
        gradient=gradients.reshaped,
    ),
    Op(
        "permute",
        (torch.permute, T.permute, torch.permute_copy),
        _permute,
        gradient=gradients.permuted,
    ),
    Op(
        "transpose",
        (torch.transpose, T.transpose, torch.swapdims, T.swapdims, torch.transpose_copy),
        _transpose,
        gradient=gradients.transposed,
    ),
    Op("swapaxes", (torch.swapaxes, T.swapaxes), _swapaxes, gradient=gradients.swapaxes),
    Op(
        "movedim",
        (torch.movedim, T.movedim, torch.moveaxis, T.moveaxis),
        _movedim,
        gradient=gradients.movedim,
    ),
    Op(
        "t", (torch.t, T.t, T.T, T.H, torch.t_copy), _reverse_dims, gradient=gradients.reversed_dims
    ),
    Op(
        "mT",
        (T.mT, T.mH, torch.adjoint, T.adjoint),
        _swap_last_dims,
        gradient=gradients.swapped_last_dims,
    ),
    Op("as_strided", (T.as_strided, torch.as_strided), _as_strided),
    Op("expand", (T.expand, torch.expand_copy), _broadcast, gradient=same),
    Op("expand_as", (T.expand_as,), _broadcast, gradient=same),
    Op("broadcast_to", (torch.broadcast_to, T.broadcast_to), _broadcast, gradient=same),
    Op(
        "broadcast_tensors",
        (torch.broadcast_tensors,),
        _broadcast_tensors,
        gradient=gradients.broadcast_each,
    ),
    Op("meshgrid", (torch.meshgrid,), decompose=_meshgrid),
    Op("cartesian_prod", (torch.cartesian_prod,), decompose=_cartesian_prod),
)
