"""Padding, and windows that slide over a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from tvm import relax, te, tirx

from babytriton.ops.gradients import padding as gradients
from babytriton.ops.site import Site, compute
from babytriton.ops.sizes import int64, is_known
from babytriton.ops.table import Op
from babytriton.ops.value import Value
from babytriton.types import dtype_of

T = torch.Tensor


def _pad(
    site: Site, input: Value, pad: Sequence[int], mode: str = "constant", value: Any = None
) -> Any:
    """Padding counted from the last dimension, two numbers each; negative ones cut off."""
    before = [0] * input.meta.ndim
    after = [0] * input.meta.ndim
    for i in range(len(pad) // 2):
        before[-1 - i], after[-1 - i] = pad[2 * i], pad[2 * i + 1]
    if mode == "constant":
        return _constant_pad(site, input, before, 0 if value is None else value)
    fold = {"reflect": _reflected, "replicate": _clamped, "circular": _wrapped}[mode]

    def body(tensors: Sequence[Any], *index: Any) -> Any:
        return tensors[0](
            *(
                fold(i, b, a, n) if a or b else i
                for i, b, a, n in zip(index, before, after, input.meta.shape)
            )
        )

    return site.compute(f"pad_{mode}", site.shape, body, input.expr)


def _constant_pad(site: Site, input: Value, before: Sequence[int], value: Any) -> Any:
    sizes = input.meta.shape
    fill = tirx.const(_number(value, site.dtype), dtype_of(site.dtype).name)

    def body(tensors: Sequence[Any], *index: Any) -> Any:
        places = [i - int64(b) for i, b in zip(index, before)]
        inside = []
        for place, b, n, size in zip(places, before, sizes, site.shape):
            after = size - b - n
            # What a symbolic number is decides nothing about the program.
            inside += [] if is_known(b <= 0) else [place >= 0]
            inside += [] if is_known(after <= 0) else [place < int64(n)]
        found = tensors[0](*places)
        # if_then_else, as outside of the tensor there is nothing to read.
        return tirx.if_then_else(tirx.all(*inside), found, fill) if inside else found

    return site.compute("pad", site.shape, body, input.expr)


def _number(value: Any, dtype: torch.dtype) -> Any:
    """A Python number as a tensor of ``dtype`` would hold it."""
    return torch.tensor(value).to(dtype).item()


def _reflected(i: Any, before: int, after: int, n: int) -> Any:
    place = i - before
    place = tirx.Select(place < 0, -place, place) if before > 0 else place
    return tirx.Select(place >= n, 2 * (n - 1) - place, place) if after > 0 else place


def _clamped(i: Any, before: int, after: int, n: int) -> Any:
    place = i - before
    place = tirx.Max(place, tirx.IntImm("int64", 0)) if before > 0 else place
    return tirx.Min(place, tirx.IntImm("int64", n - 1)) if after > 0 else place


def _wrapped(i: Any, before: int, after: int, n: int) -> Any:
    """Around what negative padding on either side has left."""
    start, stop = max(-before, 0), n - max(-after, 0)
    return tirx.floormod(i - max(before, 0), stop - start) + start


def _constant_pad_nd(site: Site, input: Value, pad: Sequence[int], value: Any = 0) -> Any:
    return _pad(site, input, pad, "constant", value)


def _windows(site: Site, input: Value, dimension: int, size: int, step: int) -> Any:
    """Tensor.unfold: window ``i`` starts at ``i * step``; its elements are a new last dimension."""
    if input.meta.ndim == 0:
        return input.reshape(site.shape)
    dim = dimension % input.meta.ndim

    def body(tensors: Sequence[Any], *index: Any) -> Any:
        *places, k = index
        places[dim] = places[dim] * step + k
        return tensors[0](*places)

    return site.compute("unfold", site.shape, body, input.expr)


def _pair(x: Any) -> tuple[int, int]:
    if isinstance(x, int):
        return x, x
    return (x[0], x[0]) if len(x) == 1 else (x[0], x[1])


def _im2col(
    input: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
) -> Any:
    """F.unfold: every window of an image as a column."""
    (kh, kw), (dh, dw), (ph, pw) = _pair(kernel_size), _pair(dilation), _pair(padding)
    sh, sw = _pair(stride)
    images = input if input.ndim == 4 else input.unsqueeze(0)
    padded = F.pad(images, (pw, pw, ph, ph)) if ph or pw else images
    windows = padded.unfold(2, dh * (kh - 1) + 1, sh).unfold(3, dw * (kw - 1) + 1, sw)
    windows = windows[..., ::dh, ::dw]
    batch, channels, rows, columns = windows.shape[:4]
    found = windows.permute(0, 1, 4, 5, 2, 3).reshape(batch, channels * kh * kw, rows * columns)
    return found if input.ndim == 4 else found.squeeze(0)


def _col2im(
    site: Site,
    input: Value,
    output_size: Any,
    kernel_size: Any,
    dilation: Any = 1,
    padding: Any = 0,
    stride: Any = 1,
) -> Any:
    """F.fold: each pixel is the sum of the window elements that lie on it."""
    (kh, kw), (dh, dw), (ph, pw) = _pair(kernel_size), _pair(dilation), _pair(padding)
    (sh, sw), (height, width) = _pair(stride), _pair(output_size)
    columns = (width + 2 * pw - dw * (kw - 1) - 1) // sw + 1
    rows = (height + 2 * ph - dh * (kh - 1) - 1) // sh + 1
    wide = torch.float32 if dtype_of(site.dtype).is_half else site.dtype
    batched = site.shape if len(site.shape) == 4 else (1, *site.shape)
    windows = (batched[0], batched[1], kh, kw, rows, columns)

    def fold(x: te.Tensor) -> te.Tensor:
        zero = tirx.const(0, x.dtype)
        i, j = _reduce_axis(kh, "i"), _reduce_axis(kw, "j")

        def body(b: Any, c: Any, y: Any, z: Any) -> Any:
            down, right = y + ph - i * dh, z + pw - j * dw
            row, column = tirx.floordiv(down, sh), tirx.floordiv(right, sw)
            hit = tirx.all(
                *(down >= 0, right >= 0, row < rows, column < columns),
                *(tirx.floormod(down, sh) == 0, tirx.floormod(right, sw) == 0),
            )
            found = tirx.if_then_else(hit, x(b, c, i, j, row, column), zero)
            return te.sum(found.astype(dtype_of(wide).name), axis=[i, j])

        return compute(batched, body, "fold")

    folded = site.te("fold", fold, input.reshape(windows).expr)
    return relax.op.reshape(site.cast(folded, site.dtype), site.shape)


def _reduce_axis(n: int, name: str) -> Any:
    return te.reduce_axis((tirx.IntImm("int64", 0), tirx.IntImm("int64", n)), name)


ROWS: tuple[Op, ...] = (
    Op("pad", (F.pad,), _pad, gradient=gradients.pad),
    Op(
        "constant_pad_nd",
        (torch.constant_pad_nd,),
        _constant_pad_nd,
        gradient=gradients.constant_pad_nd,
    ),
    Op("unfold", (T.unfold, torch.unfold_copy), _windows, gradient=gradients.windows),
    Op("nn.functional.unfold", (F.unfold,), decompose=_im2col, gradient=gradients.im2col),
    Op("nn.functional.fold", (F.fold,), _col2im, gradient=gradients.col2im),
)
