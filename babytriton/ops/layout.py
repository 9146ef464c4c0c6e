"""Where the elements of tensors lie in memory that they share, and how to read and write them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import tvm_ffi
from tvm import te, tirx

from babytriton.ops.sizes import int64

BOX = "babytriton.box"
"""What a block is annotated with that writes a box of a tensor and keeps the rest: for each
dimension the first index, the step and the number of elements."""


@dataclass(frozen=True)
class Side:
    """What a box takes of one dimension of a tensor.

    Attributes:
        start: the first index.
        step: from one index to the next.
        size: how many indices there are.
        dim: the dimension of the box along which they lie; None where it has none.
    """

    start: int
    step: int
    size: int
    dim: int | None

    def index(self, place: Any) -> Any:
        """The index in the tensor, of one in the box."""
        found = place if self.step == 1 else place * int64(self.step)
        return found + int64(self.start) if self.start else found

    def place(self, index: Any) -> Any:
        """The index in the box, of one in the tensor."""
        found = index - int64(self.start) if self.start else index
        return found if self.step == 1 else tirx.floordiv(found, int64(self.step))

    def tests(self, index: Any, whole: int) -> list[Any]:
        """What holds for the indices of a dimension, ``whole`` long, that are in the box."""
        if self.size == 1:
            return [] if whole == 1 else [tirx.EQ(index, int64(self.start))]
        tests = []
        if self.start:
            tests.append(index >= int64(self.start))
        end = self.start + (self.size - 1) * self.step + 1
        if end != whole:
            tests.append(index < int64(end))
        if self.step > 1:
            rest = tirx.floormod(index - int64(self.start), int64(self.step))
            tests.append(tirx.EQ(rest, int64(0)))
        return tests


@dataclass(frozen=True)
class Layout:
    """Where the elements of a tensor lie in its storage: torch's sizes, strides and offset."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, meta: torch.Tensor) -> Layout:
        """The layout of a real or meta tensor."""
        return cls(tuple(meta.shape), tuple(meta.stride()), int(meta.storage_offset()))

    @property
    def is_injective(self) -> bool:
        """Whether no two elements lie in one place."""
        reach = 1
        for dim in reversed(self._by_stride()):
            if self.strides[dim] < reach:
                return False
            reach = self.strides[dim] * (self.shape[dim] - 1) + reach
        return True

    def position(self, index: Sequence[Any]) -> Any:
        """The place of an element in the storage."""
        terms = (i * int64(stride) for i, stride in zip(index, self.strides))
        return sum(terms, int64(self.offset))

    def index(self, position: Any) -> tuple[list[Any], Any]:
        """The element that lies at a place, and whether there is one.

        Only for a layout that is injective: then the largest stride decides first.
        """
        index: list[Any] = [int64(0)] * len(self.shape)
        rest = position - int64(self.offset)
        inside: list[Any] = []
        for dim in self._by_stride():
            index[dim] = tirx.floordiv(rest, int64(self.strides[dim]))
            inside += [index[dim] >= 0, index[dim] < int64(self.shape[dim])]
            rest = rest - index[dim] * int64(self.strides[dim])
        return index, tirx.all(tirx.EQ(rest, int64(0)), *inside)

    def turned(self, other: Layout) -> list[int] | None:
        """The dimension of another layout that each of this one is; None if it is not as turned."""
        if len(self.shape) != len(other.shape) or not _are_same(self.offset, other.offset):
            return None
        rest = list(range(len(other.shape)))
        found = []
        for size, stride in zip(self.shape, self.strides):
            for dim in rest:
                if _are_same(size, other.shape[dim]) and _are_same(stride, other.strides[dim]):
                    rest.remove(dim)
                    found.append(dim)
                    break
        return None if rest else found

    def sides(self, base: Layout) -> tuple[Side, ...] | None:
        """What it takes of each dimension of another layout, if it is a box of that.

        A slice of a tensor is one, in steps or not, and so is that with its dimensions in another
        order. None for others, such as a diagonal, and where a size is symbolic.
        """
        if not base.is_known or not self.is_known or not base.is_injective:
            return None
        sides: dict[int, Side] = {}
        rest = self.offset - base.offset
        for dim in base._by_stride():
            start, rest = divmod(rest, base.strides[dim])
            if not 0 <= start < base.shape[dim]:
                return None
            sides[dim] = Side(start, 1, 1, None)
        if rest:
            return None
        free = sorted(sides, key=lambda dim: -base.strides[dim])
        for own in self._by_stride():
            size, stride = self.shape[own], self.strides[own]
            found = next((dim for dim in free if self._is_along(own, base, dim, sides[dim])), None)
            if found is None:
                return None
            free.remove(found)
            step = stride // base.strides[found]
            sides[found] = Side(sides[found].start, step, size, own)
        one = Side(0, 1, 1, None)
        return tuple(sides.get(dim, one) for dim in range(len(base.shape)))

    def _is_along(self, own: int, base: Layout, dim: int, side: Side) -> bool:
        """Whether all of one of its dimensions lies along one of another layout."""
        step, rest = divmod(self.strides[own], base.strides[dim])
        reach = side.start + (self.shape[own] - 1) * step
        return not rest and step > 0 and reach < base.shape[dim]

    @cached_property
    def is_known(self) -> bool:
        """Whether all that it tells is known while compiling."""
        return all(type(n) is int for n in (*self.shape, *self.strides, self.offset))

    def _by_stride(self) -> list[int]:
        """The dimensions that have more than one element, the largest stride first."""
        dims = [dim for dim, size in enumerate(self.shape) if size != 1]
        return sorted(dims, key=lambda dim: -self.strides[dim])


def _are_same(left: Any, right: Any) -> bool:
    """Whether two sizes are written in the same way."""
    return bool(tvm_ffi.structural_equal(int64(left), int64(right)))


def viewed(base: Layout, view: Layout) -> Callable[[te.Tensor], te.Tensor]:
    """The tensor expression of a view, in terms of the tensor the memory was made for."""

    dims, sides = base.turned(view), view.sides(base)

    def fn(contents: te.Tensor) -> te.Tensor:
        def element(*index: Any) -> Any:
            if dims is not None:
                return contents(*(index[dim] for dim in dims))
            if sides is not None:
                return contents(*(side.index(_along(side, index)) for side in sides))
            return contents(*base.index(view.position(index))[0])

        return te.compute(tuple(map(int64, view.shape)), element, name="view")

    return fn


def overwritten(base: Layout, view: Layout) -> Callable[[te.Tensor, te.Tensor], te.Tensor]:
    """The tensor expression of the whole memory after a view of it got new elements."""

    dims, sides = view.turned(base), view.sides(base)
    is_whole = sides is not None and all(x.size == n for x, n in zip(sides, base.shape))

    def fn(contents: te.Tensor, new: te.Tensor) -> te.Tensor:
        def element(*index: Any) -> Any:
            if dims is not None:
                return new(*(index[dim] for dim in dims))
            if sides is not None:
                own: list[Any] = [int64(0)] * len(view.shape)
                for side, at in zip(sides, index):
                    if side.dim is not None:
                        own[side.dim] = side.place(at)
                if is_whole:
                    return new(*own)
                sized = zip(sides, index, base.shape)
                inside = tirx.all(*(test for x, at, n in sized for test in x.tests(at, n)))
            else:
                own, inside = view.index(base.position(index))
            # if_then_else, as elsewhere there is no new element to read.
            return tirx.if_then_else(inside, new(*own), contents(*index))

        notes = None
        if dims is None and sides is not None and not is_whole:
            notes = {BOX: [int64(n) for x in sides for n in (x.start, x.step, x.size)]}
        shape = tuple(map(int64, base.shape))
        return te.compute(shape, element, name="overwrite", attrs=notes)

    return fn


def _along(side: Side, index: Sequence[Any]) -> Any:
    """An element's index in a box, along one of its sides."""
    return int64(0) if side.dim is None else index[side.dim]
