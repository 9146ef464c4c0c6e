"""Elements in other places: flips, rolls, triangles, diagonals, shuffles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from tvm import relax, tirx

from babytriton.ops.gradients import rearranging as gradients
from babytriton.ops.site import Site
from babytriton.ops.table import Op
from babytriton.ops.value import Value

T = torch.Tensor


def _reindexed(site: Site, name: str, input: Value, place: Callable[..., Sequence[Any]]) -> Any:
    """Each element of the result reads the one element of ``input`` that ``place`` names."""
    return site.compute(name, site.shape, lambda x, *i: x[0](*place(*i)), input.expr)


def _dims(given: Sequence[Any], named: Sequence[int]) -> list[int]:
    """``f(x, 0, 1)``, ``f(x, (0, 1))`` or ``f(x, dims=(0, 1))``."""
    if not given:
        return [named] if isinstance(named, int) else list(named)
    return list(given) if isinstance(given[0], int) else list(given[0])


def _flip(site: Site, input: Value, *given: Any, dims: Sequence[int] = ()) -> Any:
    expr = input.expr
    for dim in _dims(given, dims) if input.meta.ndim else ():
        expr = site.emit(relax.op.flip(expr, dim % input.meta.ndim))
    return expr


def _fliplr(input: Any) -> Any:
    return input.flip(1)


def _flipud(input: Any) -> Any:
    return input.flip(0)


def _rot90(input: Any, k: int = 1, dims: Sequence[int] = (0, 1)) -> Any:
    first, second = dims
    turns: dict[int, Callable[[], Any]] = {
        0: lambda: input,
        1: lambda: input.flip(second).transpose(first, second),
        2: lambda: input.flip((first, second)),
        3: lambda: input.flip(first).transpose(first, second),
    }
    return turns[k % 4]()


def _roll(site: Site, input: Value, shifts: Any, dims: Any = ()) -> Any:
    shifts = [shifts] if isinstance(shifts, int) else list(shifts)
    dims = [dims] if isinstance(dims, int) else list(dims or ())
    if not dims:
        return input.reshape(-1).roll(shifts, 0).reshape(site.shape)
    moved = [0] * input.meta.ndim
    for shift, dim in zip(shifts, dims):
        moved[dim] += shift

    def place(*index: Any) -> list[Any]:
        return [_rolled(i, shift % n, n) for i, shift, n in zip(index, moved, site.shape)]

    return _reindexed(site, "roll", input, place)


def _rolled(i: Any, shift: int, n: int) -> Any:
    return tirx.Select(i < shift, i + (n - shift), i - shift) if shift else i


def _tril(site: Site, input: Value, diagonal: int = 0) -> Any:
    return relax.op.tril(input.expr, diagonal)


def _triu(site: Site, input: Value, diagonal: int = 0) -> Any:
    return relax.op.triu(input.expr, diagonal)


def _diagonal(site: Site, input: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    dim1, dim2 = dim1 % input.meta.ndim, dim2 % input.meta.ndim

    def place(*index: Any) -> list[Any]:
        *others, k = index
        rest = iter(others)
        on_diagonal = {dim1: k + max(-offset, 0), dim2: k + max(offset, 0)}
        return [on_diagonal[d] if d in on_diagonal else next(rest) for d in range(input.meta.ndim)]

    return _reindexed(site, "diagonal", input, place)


def _linalg_diagonal(A: Any, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Any:
    return torch.diagonal(A, offset, dim1, dim2)


def _written_diagonal(
    site: Site, base: Value | None, src: Value, offset: int, dim1: int, dim2: int
) -> Any:
    """``src`` on a diagonal, and ``base`` (zero without one) beside it."""
    ndim = len(site.shape)
    dim1, dim2 = dim1 % ndim, dim2 % ndim

    def body(tensors: Sequence[Any], *index: Any) -> Any:
        source = tensors[0]
        others = [i for d, i in enumerate(index) if d not in (dim1, dim2)]
        k = index[dim1] - max(-offset, 0)
        beside = tirx.const(0, source.dtype) if base is None else tensors[1](*index)
        # if_then_else, as beside the diagonal the read would lie outside of src.
        hit = index[dim2] - index[dim1] == offset
        return tirx.if_then_else(hit, source(*others, k), beside)

    inputs = [site.expr(src, site.dtype)] + ([] if base is None else [base.expr])
    return site.compute("write_diagonal", site.shape, body, *inputs)


def _diag_embed(site: Site, input: Value, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Any:
    return _written_diagonal(site, None, input, offset, dim1, dim2)


def _diagonal_scatter(
    site: Site, input: Value, src: Value, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Any:
    return _written_diagonal(site, input, src, offset, dim1, dim2)


def _diag(input: Any, diagonal: int = 0) -> Any:
    if input.ndim == 1:
        return torch.diag_embed(input, diagonal)
    return torch.diagonal(input, diagonal)


def _diagflat(input: Any, offset: int = 0) -> Any:
    return torch.diag_embed(input.reshape(-1), offset)


def _pixel_shuffle(input: Any, upscale_factor: int) -> Any:
    r = upscale_factor
    *batch, channels, height, width = input.shape
    split = input.reshape(-1, channels // r**2, r, r, height, width)
    return split.permute(0, 1, 4, 2, 5, 3).reshape(*batch, channels // r**2, height * r, width * r)


def _pixel_unshuffle(input: Any, downscale_factor: int) -> Any:
    r = downscale_factor
    *batch, channels, height, width = input.shape
    split = input.reshape(-1, channels, height // r, r, width // r, r)
    return split.permute(0, 1, 3, 5, 2, 4).reshape(*batch, channels * r**2, height // r, width // r)


def _channel_shuffle(input: Any, groups: int) -> Any:
    batch, channels, *rest = input.shape
    split = input.reshape(batch, groups, channels // groups, *rest)
    return split.transpose(1, 2).reshape(input.shape)


ROWS: tuple[Op, ...] = (
    Op("flip", (torch.flip, T.flip), _flip, gradient=gradients.flip),
    Op("fliplr", (torch.fliplr, T.fliplr), decompose=_fliplr),
    Op("flipud", (torch.flipud, T.flipud), decompose=_flipud),
    Op("rot90", (torch.rot90, T.rot90), decompose=_rot90),
    Op("roll", (torch.roll, T.roll), _roll, gradient=gradients.roll),
    Op("tril", (torch.tril, T.tril), _tril, gradient=gradients.tril),
    Op("triu", (torch.triu, T.triu), _triu, gradient=gradients.triu),
    Op("diag", (torch.diag, T.diag), decompose=_diag),
    Op("diagflat", (torch.diagflat, T.diagflat), decompose=_diagflat),
    Op(
        "diagonal",
        (torch.diagonal, T.diagonal, torch.diagonal_copy),
        _diagonal,
        gradient=gradients.diagonal,
    ),
    Op("linalg.diagonal", (torch.linalg.diagonal,), decompose=_linalg_diagonal),
    Op("diag_embed", (torch.diag_embed, T.diag_embed), _diag_embed, gradient=gradients.diag_embed),
    Op(
        "diagonal_scatter",
        (torch.diagonal_scatter, T.diagonal_scatter),
        _diagonal_scatter,
        gradient=gradients.diagonal_scatter,
    ),
    Op("pixel_shuffle", (F.pixel_shuffle,), decompose=_pixel_shuffle),
    Op("pixel_unshuffle", (F.pixel_unshuffle,), decompose=_pixel_unshuffle),
    Op("channel_shuffle", (torch.channel_shuffle,), decompose=_channel_shuffle),
)
