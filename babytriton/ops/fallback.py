"""Calls that run through torch from inside the compiled graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from babytriton.diagnostics import Span
from babytriton.ops.meta import apply, tensors_of
from babytriton.ops.table import Callee
from babytriton.ops.value import Scalar, Value, map_values
from babytriton.types import TensorType

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
    """What a fallback runs: a torch callable with holes where its tensors go."""

    fn: Callee
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    results: tuple[TensorType, ...]

    def __call__(self, tensors: Sequence[Any]) -> list[torch.Tensor]:
        """Run on tensors in the order the values have in the arguments."""
        given = iter(tensors)

        def fill(value: Value) -> Any:
            # A Python number of the run time travels as a tensor of one element.
            return next(given).item() if isinstance(value, Scalar) else next(given)

        args, kwargs = map_values((self.args, dict(self.kwargs)), fill)
        return tensors_of(apply(self.fn, args, kwargs))
