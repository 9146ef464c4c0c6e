"""Softmax: each is one TensorIR function of several stages, or for gradients several in parts.

In parts, a number or two for each row are all that the way back needs beside the input, where that
is cheaper to keep than the result.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from tvm import te, tirx

from babytriton.ops import numerics
from babytriton.ops.axes import Axes, softmax_dim
from babytriton.ops.gradients import softmax as gradients
from babytriton.ops.moments import widened
from babytriton.ops.parts import part, plain
from babytriton.ops.refusals import IllTyped
from babytriton.ops.site import Site, compute
from babytriton.ops.table import Op, stops
from babytriton.ops.value import Value
from babytriton.types import dtype_of

T = torch.Tensor


def _softmax(site: Site, input: Value, dim: int | None = None, *_: Any, **__: Any) -> Any:
    # What else callers pass is a dtype, which site.dtype tells, and _stacklevel.
    return _normalized_exponentials(site, "softmax", input, dim, 1)


def _softmin(site: Site, input: Value, dim: int | None = None, *_: Any, **__: Any) -> Any:
    return _normalized_exponentials(site, "softmin", input, dim, -1)


def _log_softmax(site: Site, input: Value, dim: int | None = None, *_: Any, **__: Any) -> Any:
    _require_floats(site.dtype)
    axes = _softmax_axes(input, dim)

    def fn(x: te.Tensor) -> te.Tensor:
        x = widened(x, site.dtype)
        shifted, _, total = exponentials(x, axes)
        name = dtype_of(site.dtype).name
        log_total = axes.each("log_total", lambda *i: te.log(total(*i)))
        return compute(
            axes.shape,
            lambda *i: (shifted(*i) - axes.at(log_total, i)).astype(name),
            "log_softmax",
        )

    return site.te("log_softmax", fn, site.expr(input, site.dtype))


def _normalized_exponentials(
    site: Site, name: str, input: Value, dim: int | None, sign: int
) -> Any:
    _require_floats(site.dtype)
    axes = _softmax_axes(input, dim)

    def fn(x: te.Tensor) -> te.Tensor:
        x = widened(x, site.dtype)
        _, exponential, total = exponentials(negated(x) if sign < 0 else x, axes)
        dtype = dtype_of(site.dtype).name
        # The total is 1 or more: a division a row, and a product a number.
        share = axes.each("share", lambda *i: tirx.const(1, x.dtype) / total(*i))
        return compute(
            axes.shape, lambda *i: (exponential(*i) * axes.at(share, i)).astype(dtype), name
        )

    return site.te(name, fn, site.expr(input, site.dtype))


def _require_floats(dtype: torch.dtype) -> None:
    """Refuse other results, which meta tensors do not."""
    if not dtype.is_floating_point:
        raise IllTyped(f"not implemented for {str(dtype).removeprefix('torch.')}")


def negated(x: te.Tensor) -> te.Tensor:
    """``-x``."""
    return te.compute(x.shape, lambda *i: -x(*i), name="negated")


def exponentials(x: te.Tensor, axes: Axes) -> tuple[te.Tensor, te.Tensor, te.Tensor]:
    """``x`` less its row's maximum, the exponentials of that, and their sums.

    te.max drops NaN and stops at the least finite float. Both are harmless here: a row with NaN,
    with inf, or of -inf alone becomes NaN through its sum, as in torch.
    """
    top = axes.reduce("top", lambda *i: x(*i), te.max)
    shifted = compute(axes.shape, lambda *i: x(*i) - axes.at(top, i), "shifted")
    exponential = compute(axes.shape, lambda *i: te.exp(shifted(*i)), "exponential")
    total = axes.reduce("total", lambda *i: exponential(*i))
    return shifted, exponential, total


def _softmax_axes(input: Value, dim: int | None) -> Axes:
    return Axes.of(input, softmax_dim(dim, input.meta.ndim))


# In parts, for gradients


def _softmax_by_parts(input: Any, dim: int | None = None, *rest: Any, **options: Any) -> Any:
    x, shifted, dim = _shifted(input, dim, *rest, **options)
    exponential = shifted.exp()
    return shares_of_row(x, exponential, 1 / exponential.sum(dim, keepdim=True), dim)


def _softmin_by_parts(input: Any, *args: Any, **options: Any) -> Any:
    return _softmax_by_parts(-input, *args, **options)


def _log_softmax_by_parts(input: Any, dim: int | None = None, *rest: Any, **options: Any) -> Any:
    x, shifted, dim = _shifted(input, dim, *rest, **options)
    log_total = shifted.exp().sum(dim, keepdim=True).log()
    return log_shares_of_row(x, shifted, log_total, dim)


def _shifted(
    input: Any, dim: int | None, *rest: Any, dtype: torch.dtype | None = None, **_: Any
) -> tuple[Any, Any, int]:
    """The input in the dtype of the result; it less the maximum of its row; the rows' dimension.

    Callers pass a dtype by position, too, after _stacklevel or without one.
    """
    (dtype,) = [x for x in rest if isinstance(x, torch.dtype)] or [dtype or input.dtype]
    _require_floats(dtype)
    dim = softmax_dim(dim, input.ndim)
    x = input.to(dtype)
    # What comes of it has its share in the gradient of a part.
    still = x.detach().to(numerics.opmath(dtype))
    return x, still - top_of_row(still, dim), dim


@part
def top_of_row(input: Any, dim: int) -> Any:
    """The maximum of each row, which is 1 long then; numbers of a row with NaN do not matter.

    What is computed of it is NaN for such a row, as :func:`exponentials` says.

    Args:
        input: of a dtype to compute in.
        dim: that rows lie along.
    """
    return input.amax(dim, keepdim=True)


def _top_of_row(site: Site, input: Value, dim: int) -> Any:
    axes = Axes.of(input, dim, True)
    return site.te("top", lambda x: axes.reduce("top", lambda *i: x(*i), te.max), input.expr)


@part
def shares_of_row(input: Any, exponential: Any, share: Any, dim: int) -> Any:
    """``exponential * share``, in the dtype of the input.

    Args:
        input: what the exponentials are of, less the maximum of each row.
        exponential: these, in the dtype to compute in.
        share: the inverse of what those of a row sum up to; a row is 1 long.
        dim: that rows lie along.
    """
    return (exponential * share).to(input.dtype)


@part
def log_shares_of_row(input: Any, shifted: Any, log_total: Any, dim: int) -> Any:
    """``shifted - log_total``, in the dtype of the input.

    Args:
        input: what is shifted.
        shifted: it less the maximum of each row, in the dtype to compute in.
        log_total: the logarithm of what the exponentials of a row sum up to; a row is 1 long.
        dim: that rows lie along.
    """
    return (shifted - log_total).to(input.dtype)


ROWS: tuple[Op, ...] = (
    Op(
        "softmax",
        (torch.softmax, T.softmax, torch.special.softmax, F.softmax),
        _softmax,
        derive=_softmax_by_parts,
    ),
    Op(
        "log_softmax",
        (torch.log_softmax, T.log_softmax, torch.special.log_softmax, F.log_softmax),
        _log_softmax,
        derive=_log_softmax_by_parts,
    ),
    Op("softmin", (F.softmin,), _softmin, derive=_softmin_by_parts),
)

PARTS: tuple[Op, ...] = (
    Op("top_of_row", (top_of_row,), _top_of_row, gradient=stops),
    Op(
        "shares_of_row",
        (shares_of_row,),
        decompose=plain(shares_of_row),
        gradient=gradients.shares_of_row,
    ),
    Op(
        "log_shares_of_row",
        (log_shares_of_row,),
        decompose=plain(log_shares_of_row),
        gradient=gradients.log_shares_of_row,
    ),
)
