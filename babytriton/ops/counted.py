"""Which of a program's tensors count along an axis, as ``torch.arange`` does.

``x[torch.arange(n), y]`` takes one element of each row: with the rows counted, a kernel reads each
where it is at the row, and what is written so has a place in each row and meets nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tvm import ir, relax

from babytriton.ops.sizes import is_one, same_shape
from babytriton.ops.value import Value

_SHAPED = [ir.Op.get(f"relax.{name}") for name in ("reshape", "expand_dims", "squeeze")]
_BROADCAST = ir.Op.get("relax.broadcast_to")


class Counted:
    """The axes along which a program's tensors count from 0, by the variables that hold them."""

    def __init__(self) -> None:
        self._axes: dict[relax.Var, int] = {}

    def add(self, var: relax.Var) -> None:
        """A tensor of one dimension that counts along it."""
        self._axes[var] = 0

    def note(self, var: relax.Var, expr: relax.Expr) -> None:
        """A tensor counts as well, if it has the elements of one that does in the same order."""
        is_call = isinstance(expr, relax.Call) and len(expr.args) > 0
        if not (is_call and expr.args[0] in self._axes):
            return
        own, source = self._axes[expr.args[0]], list(expr.args[0].ty.shape)
        shape = list(var.ty.shape)
        if is_one(source[own]):
            return  # What is broadcast of it is 0 everywhere.
        if expr.op.same_as(_BROADCAST):
            self._axes[var] = own + len(shape) - len(source)
        elif any(map(expr.op.same_as, _SHAPED)):
            of_source, long = _long_axes(source), _long_axes(shape)
            if len(of_source) == len(long) == 1:
                self._axes[var] = long[0]

    def axis(self, expr: relax.Expr) -> int | None:
        """The one along which a tensor counts; it is the same along all others."""
        return self._axes.get(expr)


def _long_axes(shape: Sequence[Any]) -> list[int]:
    """Those along which there may be more than one element."""
    return [axis for axis, size in enumerate(shape) if not is_one(size)]


@dataclass(frozen=True)
class Picks:
    """How tensors of indices pick from a tensor's dimensions.

    Attributes:
        common: the shape that they broadcast to.
        counted: dimensions that are walked along, and not picked from: each with the axis of
            ``common`` that walks it, which stands for no other and is as long.
        picked: the other dimensions that have indices.
        free: the other axes of ``common``.
    """

    common: tuple[Any, ...]
    counted: Mapping[int, int]
    picked: tuple[int, ...]
    free: tuple[int, ...]

    @classmethod
    def of(cls, shape: Sequence[Any], dims: Sequence[int], indices: Sequence[Value]) -> Picks:
        """Of a tensor of a shape, some of whose dimensions have indices."""
        common = tuple(torch.broadcast_shapes(*(tuple(index.meta.shape) for index in indices)))
        counted: dict[int, int] = {}
        for dim, index in zip(dims, indices):
            own = index.emitter.counted_axis(index)
            axis = None if own is None else own + len(common) - index.meta.ndim
            if own is None or axis is None or axis in counted.values():
                continue
            sizes = [index.meta.shape[own], common[axis]]  # of which the first may broadcast
            if same_shape(sizes, [shape[dim], shape[dim]]):
                counted[dim] = axis
        picked = tuple(dim for dim in dims if dim not in counted)
        free = tuple(axis for axis in range(len(common)) if axis not in counted.values())
        return cls(common, counted, picked, free)

    @property
    def count(self) -> Any:
        """How many places they name of each line along the picked dimensions."""
        return math.prod(self.common[axis] for axis in self.free)

    @property
    def is_one_of_each(self) -> bool:
        """Whether they name one place of each line along a dimension, so that no two meet."""
        return len(self.picked) == 1 and type(self.count) is int and self.count == 1
