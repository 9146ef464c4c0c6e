"""What gradients are computed in, and for."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from babytriton.ops.value import Scalar, Value, map_values

Rule = Callable[..., Any]


def wide(rule: Rule) -> Rule:
    """A rule that computes in float32 where its tensors are of half precision, as torch's do."""

    @functools.wraps(rule)
    def wider(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = map_values((args, kwargs), _widened)
        return rule(*args, **kwargs)

    return wider


def _widened(value: Value) -> Any:
    half = value.meta.dtype in (torch.float16, torch.bfloat16)
    return value.to(torch.float32) if half else value


def is_tensor(argument: Any) -> bool:
    """Whether an argument is a tensor, and not a number."""
    return isinstance(argument, Value) and not isinstance(argument, Scalar)
