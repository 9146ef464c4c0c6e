"""Calls that run through torch from inside the compiled graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from babytriton.diagnostics import Span
from babytriton.ops.meta import apply, tensors_of
from babytriton.ops.table import Callee
from babytriton.ops.trees import leaves_in, map_leaves
from babytriton.ops.value import Scalar, Value, map_values, values_in
from babytriton.types import Dim, TensorType

TORCH_CALL = "babytriton.torch_call"
"""Packed function, registered by the runtime: its first argument, applied to the others."""


@dataclass(frozen=True)
class Fallback:
    """A call that runs through torch from inside the compiled graph.

    Attributes:
        name: the callable's name.
        reason: why it did not become part of a kernel.
        span: the user's line it came from.
    """

    name: str
    reason: str
    span: Span | None

    def __str__(self) -> str:
        place = f" ({self.span.path}:{self.span.line})" if self.span else ""
        return f"{self.name}: {self.reason}{place}"


@dataclass(frozen=True)
class TorchCall:
    """What a fallback runs: a torch callable with holes where its tensors go.

    Attributes:
        fn: the callable.
        args, kwargs: its arguments, with a :class:`Value` for each tensor and a :class:`Dim` for
            each symbolic size.
        results: the types of its results.
        sizes: the names of the symbolic sizes in the arguments and the results.
    """

    fn: Callee
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    results: tuple[TensorType, ...]
    sizes: tuple[str, ...] = ()

    def __call__(self, given: Sequence[Any]) -> list[torch.Tensor]:
        """Run on the numbers of the sizes, and then the tensors, in the order of the arguments.

        Raises:
            RuntimeError: torch gives another type than the program was compiled for.
        """
        numbers = dict(zip(self.sizes, map(int, given)))

        def size(dim: Dim) -> int:
            return numbers[dim.name]

        args, kwargs = self._filled(given[len(self.sizes) :], size)
        with torch.no_grad():
            result = apply(self.fn, args, kwargs)
        found = [result] if isinstance(result, torch.Tensor) else tensors_of(result)
        for tensor, type in zip(found, self.results):
            if tensor.shape == type.shape and tensor.dtype == type.dtype:
                continue
            expected = replace(type, shape=map_leaves(type.shape, Dim, size))
            ours = TensorType.of(tensor)
            if ours != expected:
                raise RuntimeError(f"torch gave {ours} where {expected} was expected")
        return found

    def _filled(
        self, tensors: Sequence[Any], size: Callable[[Dim], int]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with their tensors and sizes."""
        if self._leading is not None:
            return (*tensors, *self.args[self._leading :]), dict(self.kwargs)
        rest = iter(tensors)

        def fill(value: Value) -> Any:
            # A Python number of the run time travels as a tensor of one element.
            return next(rest).item() if isinstance(value, Scalar) else next(rest)

        filled = map_leaves(map_values((self.args, dict(self.kwargs)), fill), Dim, size)
        return filled[0], filled[1]

    @cached_property
    def _leading(self) -> int | None:
        """How many arguments in front are tensors, if all others are as good as constants.

        None if another is or has a tensor or a size, or is a list, of which each call gets its own.
        """
        leading = 0
        while leading < len(self.args) and type(self.args[leading]) is Value:
            leading += 1
        rest = (self.args[leading:], dict(self.kwargs))
        lists = [x for x in (*rest[0], *rest[1].values()) if isinstance(x, (list, dict))]
        others = lists or values_in(rest) or leaves_in(rest, Dim)
        return None if others else leading
