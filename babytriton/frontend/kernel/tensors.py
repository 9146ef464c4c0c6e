"""Tensors of a kernel, and their elements: what an index means, and whether it is in range."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from tvm import ir, sym, tirx
from tvm_ffi import structural_walk

from babytriton.frontend.kernel.program import Loop, index
from babytriton.frontend.kernel.scalars import reads


@dataclass(frozen=True, eq=False)
class Tensor:
    """A tensor argument, or the part of it that fewer indices than dimensions leave.

    Attributes:
        name: as the user calls it.
        buffer: the whole tensor.
        dtype: of its elements.
        sizes: of the whole tensor.
        prefix: the indices given so far.
    """

    name: str
    buffer: tirx.Buffer
    dtype: torch.dtype
    sizes: tuple[int, ...]
    prefix: tuple[ir.Expr, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the dimensions without an index."""
        return self.sizes[len(self.prefix) :]

    @property
    def ndim(self) -> int:
        """How many dimensions have no index."""
        return len(self.shape)

    def numel(self) -> int:
        """How many elements there are."""
        return int(torch.Size(self.shape).numel())

    def size(self, dim: int | None = None) -> Any:
        """The shape, or the size of one dimension."""
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        """As :attr:`ndim`."""
        return self.ndim

    def __len__(self) -> int:
        return self.shape[0]


ATTRIBUTES = ("shape", "ndim", "dtype", "numel", "size", "dim")
"""What of a tensor is known while a kernel is compiled, besides its length."""


@dataclass(frozen=True)
class Bounds:
    """What is known of an index: its least and greatest value, and if both do occur."""

    low: int
    high: int
    attained: bool


class Ranges:
    """What is known of the loop variables at a place."""

    def __init__(self) -> None:
        self.analyzer = sym.Analyzer()
        self._loops: list[Loop] = []

    def enter(self, loop: Loop) -> None:
        """Learn the range of a loop's variable."""
        self.analyzer.bind(loop.var, ir.Range(index(0), loop.extent))
        if isinstance(loop.extent, tirx.IntImm):
            self._loops.append(loop)

    def of(self, expr: ir.Expr) -> Bounds:
        """The bounds of an index."""
        found = self.analyzer.const_int_bound(expr)
        low, high = int(found.min_value), int(found.max_value)
        return Bounds(low, high, self._is_linear(expr))

    def _is_linear(self, expr: ir.Expr) -> bool:
        """Whether an index is linear in loops of constant extents: its bounds are then attained."""
        variables = [loop.var for loop in self._loops]
        if reads(expr):
            return False
        used: list[Any] = []
        structural_walk(expr, [(ir.Var, used.append)], order="post")
        if not all(any(x.same_as(y) for y in variables) for x in used):
            return False
        found = sym.detect_linear_equation(expr, variables)
        return bool(len(found) == len(variables) + 1) or not variables
