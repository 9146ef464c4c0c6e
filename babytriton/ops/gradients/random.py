"""What draws random numbers, in terms of these: they are drawn once, and are constants.

Nothing here draws other numbers, or in another order, than torch does for the same call.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from babytriton.ops.parts import part

_ALPHA = 1.7580993408473766
"""What SELU gives far below 0, negated."""


def dropout(
    input: Any,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    *,
    train: bool | None = None,
) -> Any:
    """Numbers of which some are 0, and the others larger."""
    if not _is_asked(p, training if train is None else train):
        return input
    if p == 1:
        return input * 0.0
    if input.is_cuda:
        return torch.native_dropout(input, p, True)[0]
    return input * _scaled(_kept(input, p), p, input.dtype)


def native_dropout(input: Any, p: float, train: bool | None) -> Any:
    """The same, with where they are not 0."""
    _, kept = torch.native_dropout(input.detach(), p, train)
    if train is False:
        return input * 1, kept
    scale = 0.0 if p == 1 else 1 / (1 - p)
    return input * kept.to(input.dtype) * scale, kept


def feature_dropout(input: Any, p: float, train: bool) -> Any:
    """Numbers of which those of some channels are 0, and the others larger."""
    if not _is_asked(p, train):
        return input
    if p == 1:
        return input * 0.0
    return input * _scaled(_kept(_channels(input), p), p, input.dtype)


def _alpha_dropout(drawn_for: Callable[[Any], Any]) -> Any:
    """Numbers of which some are SELU's smallest, moved so that mean and variance stay.

    Args:
        drawn_for: gives a tensor, of the input, with a number for each that is drawn.
    """

    def derive(
        input: Any,
        p: float = 0.5,
        training: bool = False,
        inplace: bool = False,
        *,
        train: bool | None = None,
    ) -> Any:
        if not _is_asked(p, training if train is None else train):
            return input
        return input * 0.0 if p == 1 else _moved(input, _kept(drawn_for(input), p), p)

    return derive


def dropout_of_channels(batched: int) -> Any:
    """``dropout1d`` and its kin, which take inputs without a batch as well.

    Args:
        batched: the number of dimensions with a batch; 0 if an input always has one.
    """

    def derive(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        if not batched or input.ndim == batched:
            return torch.feature_dropout(input, p, training)
        return torch.feature_dropout(input.unsqueeze(0), p, training).squeeze(0)

    return derive


def rrelu(
    input: Any,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    inplace: bool = False,
) -> Any:
    """The number, or a random part of it where it is not positive."""
    if not training:
        return F.leaky_relu(input, (lower + upper) / 2)
    return input * rrelu_slopes(input, lower, upper)


@part
def rrelu_slopes(input: torch.Tensor, lower: float, upper: float) -> torch.Tensor:
    """What ``rrelu`` multiplies each number by."""
    slopes = torch.empty_like(input)
    torch.ops.aten.rrelu_with_noise(input, slopes, lower, upper, True)
    return slopes


def _channels(input: Any) -> Any:
    """A tensor with one number for each channel of each input of a batch."""
    return input.new_empty([*input.shape[:2], *(1 for _ in input.shape[2:])])


alpha_dropout = _alpha_dropout(lambda input: input)
feature_alpha_dropout = _alpha_dropout(_channels)


def _is_asked(p: float, train: bool) -> bool:
    return train and p != 0


def _kept(like: Any, p: float) -> Any:
    """Where numbers stay. They are kept as what takes least memory."""
    return torch.bernoulli(like, 1 - p) != 0


def _scaled(kept: Any, p: float, dtype: torch.dtype) -> Any:
    """0, or the number that torch makes of 1 for those that stay."""
    scale = torch.ones((), dtype=dtype, device="cpu") / (1 - p)
    return kept.to(dtype) * scale.item()


def _moved(input: Any, kept: Any, p: float) -> Any:
    scale = 1 / math.sqrt((_ALPHA * _ALPHA * p + 1) * (1 - p))
    stays = kept.to(input.dtype)
    shift = (stays - 1) * (_ALPHA * scale) + _ALPHA * scale * p
    return input * (stays * scale) + shift
