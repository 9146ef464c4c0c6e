"""Reductions as tensor expressions: the dimensions they run over, and indices around them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import te, tirx

from babytriton.ops.refusals import IllTyped
from babytriton.ops.site import compute
from babytriton.ops.sizes import int64, is_symbolic
from babytriton.ops.value import Value

STEPS = 4096
"""Numbers that are added one after another before float32 has lost too many of a sum's digits."""


LONG_SUM = "pragma_babytriton.long_sum"
"""Marks blocks whose sums are in float64 so that no digits of float32 get lost: not because the
program asks for them. Named so that TVM's lowering keeps it."""


def pieces(length: int) -> int:
    """Into how many pieces the CPU's schedules cut the sum of a whole tensor, for its threads.

    A number that does not depend on the machine: sums then come out the same on every machine.
    """
    return 1024 if length >= 1 << 22 else 64


@dataclass(frozen=True)
class Axes:
    """The dimensions of a shape that are reduced.

    Attributes:
        shape: of what is reduced.
        dims: the reduced dimensions, ascending, counted from the front.
        keepdim: whether the result keeps them, with size 1.
        wide_sums: whether sums of float32 are accumulated in float64.
    """

    shape: tuple[int, ...]
    dims: tuple[int, ...]
    keepdim: bool = False
    wide_sums: bool = False

    @classmethod
    def of(cls, x: Value, dim: Any, keepdim: Any = False) -> Axes:
        """From torch's ``dim``: a number, several, or ``None`` or ``()`` for all of them."""
        shape = tuple(x.meta.shape)
        dims = dims_of(dim, len(shape))
        # A GPU's threads share long sums, and its float64 may be slow.
        wide_sums = x.device.type == "cpu" and _has_many_steps(shape, dims)
        return cls(shape, dims, bool(keepdim), wide_sums)

    @property
    def length(self) -> int:
        """How many elements make up one result; symbolic where a size is."""
        return math.prod(self.shape[d] for d in self.dims)

    def over_length(self, total: Any) -> Any:
        """The mean, from a sum of floats."""
        return total / self.count(str(total.ty.dtype))

    def count(self, dtype: str) -> tirx.PrimExpr:
        """The length as a number to compute with: a product of sizes, which schedules look for."""
        if not is_symbolic(self.length):
            return tirx.const(self.length, dtype)
        return math.prod(int64(self.shape[d]) for d in self.dims).astype(dtype)

    @property
    def result(self) -> tuple[int, ...]:
        """The shape that the reduction gives."""
        if self.keepdim:
            return tuple(1 if d in self.dims else n for d, n in enumerate(self.shape))
        return tuple(n for d, n in enumerate(self.shape) if d not in self.dims)

    def reduce(
        self, name: str, element: Callable[..., Any], reducer: Callable[..., Any] = te.sum
    ) -> te.Tensor:
        """``element(*index)``, over the whole shape, reduced to the result's shape."""
        axes = {d: te.reduce_axis((int64(0), int64(self.shape[d])), f"k{d}") for d in self.dims}
        notes: dict[str, Any] = {}

        def one(*index: Any) -> Any:
            value = element(*self.full(index, {d: axis.var for d, axis in axes.items()}))
            if self.wide_sums and reducer is te.sum and str(value.ty.dtype) == "float32":
                notes[LONG_SUM] = 1
                value = value.astype("float64")
            return reducer(value, axis=list(axes.values())) if axes else value

        reduced = compute(self.result, one, name, notes)
        if not notes:
            return reduced
        return self.each(f"{name}_rounded", lambda *i: reduced(*i).astype("float32"))

    def each(self, name: str, element: Callable[..., Any]) -> te.Tensor:
        """One value for each result of the reduction."""
        return compute(self.result, element, name)

    def at(self, reduced: te.Tensor, index: Sequence[Any]) -> Any:
        """The element of a reduction's result that belongs to an index of the whole shape."""
        if self.keepdim:
            return reduced(*(int64(0) if d in self.dims else i for d, i in enumerate(index)))
        return reduced(*(i for d, i in enumerate(index) if d not in self.dims))

    def full(self, index: Sequence[Any], reduced: Mapping[int, Any] | None = None) -> list[Any]:
        """An index of the whole shape, from a result's and the reduced dimensions' (or 0)."""
        position = list(index)
        for d in self.dims:
            position[d : d + self.keepdim] = [reduced[d] if reduced else int64(0)]
        return position

    def first(self, x: te.Tensor, index: Sequence[Any]) -> Any:
        """The first of the elements that are reduced together with the one at an index."""
        return x(*(int64(0) if d in self.dims else i for d, i in enumerate(index)))

    def position(self, index: Sequence[Any]) -> Any:
        """Which of the elements that are reduced together it is, counted from 0."""
        position: Any = int64(0)
        for d in self.dims:
            position = position * int64(self.shape[d]) + index[d]
        return position


def dims_of(dim: Any, ndim: int) -> tuple[int, ...]:
    """torch's ``dim`` argument as ascending dimensions counted from the front.

    Raises:
        IllTyped: there is no such dimension, which torch does not say of all meta tensors.
    """
    if dim is None or (isinstance(dim, (tuple, list)) and not dim):
        return tuple(range(ndim))
    given = dim if isinstance(dim, (tuple, list)) else (dim,)
    # A tensor without dimensions takes 0 and -1 as if it had one.
    count = max(ndim, 1)
    for d in given:
        if not -count <= int(d) < count:
            expected = f"expected to be in range of [{-count}, {count - 1}]"
            raise IllTyped(f"Dimension out of range ({expected}, but got {int(d)})")
    return tuple(sorted(int(d) % ndim for d in given)) if ndim else ()


def softmax_dim(dim: int | None, ndim: int) -> int:
    """A softmax's dimension: without one torch.nn.functional's choice from before it was asked."""
    return dim if dim is not None else 0 if ndim in (0, 1, 3) else 1


def _has_many_steps(shape: Sequence[int], dims: tuple[int, ...]) -> bool:
    """Whether many numbers follow each other in a sum, as the schedules of the CPU share it out.

    A row has lanes, of which a function leaves 32, and a whole tensor also has pieces.
    """
    if any(is_symbolic(shape[d]) for d in dims):
        return True
    length = math.prod(shape[d] for d in dims)
    if dims == tuple(range(len(shape))):
        length //= pieces(length)
    if dims and dims[-1] == len(shape) - 1:
        length //= 32
    return length > STEPS
