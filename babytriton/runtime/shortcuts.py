"""Shorter ways to run the calls that are like one before.

Of the microsecond that torch takes to add two small tensors, each look at an argument from Python
is a good part. So all properties of all tensors are checked in one call of torch's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._C._dynamo import guards

from babytriton.runtime.interop import ALIGNMENT, readable


@dataclass(frozen=True)
class Shortcut:
    """A shorter way to run some calls.

    Attributes:
        admits: whether the arguments of a call, of which there are as many, are those of one.
        run: gives the result for such arguments.
    """

    admits: Callable[..., bool]
    run: Callable[..., Any]


def like(
    given: Sequence[Any], conditions: Sequence[Callable[[], bool]] = ()
) -> Callable[..., bool] | None:
    """Whether arguments are as the given ones, but for the numbers in tensors and other floats.

    None where the given ones are not tensors that kernels can read as they are, and Python values
    that hold no others.

    Args:
        given: the arguments of a call.
        conditions: what else must hold.
    """
    tensors = [i for i, x in enumerate(given) if isinstance(x, torch.Tensor)]
    values = [(i, type(x), x) for i, x in enumerate(given) if i not in tensors]
    if not tensors or any(readable(given[i]) is not given[i] for i in tensors):
        return None
    if any(kind not in _VALUES for _, kind, _ in values):
        return None
    sizes: list[Any] = [list(given[i].shape) for i in tensors]
    strides: list[Any] = [list(given[i].stride()) for i in tensors]
    every = [given[i] for i in tensors]
    check = guards.TensorGuards(
        *every, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides
    ).check
    on_gpu = [i for i in tensors if given[i].is_cuda]
    if not values and not on_gpu and not conditions:
        return check

    def admits(*others: Any) -> bool:
        for i, kind, value in values:
            other = others[i]
            # A float is an argument of the kernel; other values are part of the program.
            if type(other) is not kind or (kind is not float and other != value):
                return False
        aligned = not any(others[i].data_ptr() % ALIGNMENT for i in on_gpu)
        fits = aligned and check(*[others[i] for i in tensors])
        return fits and all(condition() for condition in conditions)

    return admits


_VALUES = (float, int, bool, str, type(None), torch.dtype, torch.device)
