"""Where the elements of tensors lie in memory that they share, and how to read and write them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any

import torch
from tvm import te, tirx

from babytriton.ops.sizes import divided, int64, is_at_most, is_known, is_symbolic

BOX = "babytriton.box"
"""What a block is annotated with that writes a box of a tensor and keeps the rest: for each
dimension a slice as Python has it, start, stop and step, but with 0 for no stop."""


@dataclass(frozen=True)
class Side:
    """What a box takes of one dimension of a tensor; numbers may be symbolic, but for the step.

    Attributes:
        start: the first index.
        step: from one index to the next.
        size: how many indices there are.
        dim: the dimension of the box along which they lie; None where it has none.
    """

    start: Any
    step: int
    size: Any
    dim: int | None

    def index(self, place: Any) -> Any:
        """The index in the tensor, of one in the box."""
        found = place if self.step == 1 else place * int64(self.step)
        return found if self._is_from_start else found + int64(self.start)

    def place(self, index: Any) -> Any:
        """The index in the box, of one in the tensor."""
        found = index if self._is_from_start else index - int64(self.start)
        return found if self.step == 1 else tirx.floordiv(found, int64(self.step))

    def tests(self, index: Any, whole: Any) -> list[Any]:
        """What holds for the indices of a dimension, ``whole`` long, that are in the box."""
        if is_known(self.size == 1):
            return [] if is_known(whole == 1) else [tirx.EQ(index, int64(self.start))]
        tests = []
        if not self._is_from_start:
            tests.append(index >= int64(self.start))
        if not self.ends_last(whole):
            end = self.start + (self.size - 1) * self.step + 1
            tests.append(index < int64(end))
        if self.step > 1:
            rest = tirx.floormod(index - int64(self.start), int64(self.step))
            tests.append(tirx.EQ(rest, int64(0)))
        return tests

    def is_inside(self, whole: Any) -> bool:
        """Whether a dimension that is ``whole`` long has all of the indices."""
        return is_at_most(self.size, self._most(whole))

    def slice(self, whole: Any) -> tuple[int, int, int] | None:
        """Start, stop and step, less than 0 from the end, 0 for no stop; None if sizes tell it."""
        end = 0 if self.ends_last(whole) else self.start + (self.size - 1) * self.step + 1
        start, stop = (_from_either_end(number, whole) for number in (self.start, end))
        return None if start is None or stop is None else (start, stop, self.step)

    def ends_last(self, whole: Any) -> bool:
        """Whether a further index would leave a dimension that is ``whole`` long."""
        return is_known(self.size == self._most(whole))

    def _most(self, whole: Any) -> Any:
        return (whole - self.start + self.step - 1) // self.step

    @property
    def _is_from_start(self) -> bool:
        return is_known(self.start == 0)


@dataclass(frozen=True)
class Box:
    """Elements of a tensor, as a slice of each of its dimensions.

    Attributes:
        sides: of each dimension. Those along the same dimension of the box are a diagonal.
    """

    sides: tuple[Side, ...]

    def index(self, own: Sequence[Any]) -> list[Any]:
        """The element of the tensor that is one of the box."""
        return [x.index(int64(0) if x.dim is None else own[x.dim]) for x in self.sides]

    def own(self, index: Sequence[Any], rank: int) -> list[Any]:
        """The element of the box, which has ``rank`` dimensions, that is one of the tensor."""
        places = {x.dim: x.place(at) for x, at in zip(self.sides, index) if x.dim is not None}
        return [places.get(dim, int64(0)) for dim in range(rank)]

    def holds(self, index: Sequence[Any], shape: Sequence[Any]) -> Any:
        """Whether it has an element of the tensor, of a shape."""
        sized = zip(self.sides, index, shape)
        tests = [test for side, at, whole in sized for test in side.tests(at, whole)]
        along: dict[int, Any] = {}
        for side, at in zip(self.sides, index):
            if side.dim is not None:
                place = side.place(at)
                if side.dim in along:
                    tests.append(tirx.EQ(along[side.dim], place))
                along[side.dim] = place
        return tirx.all(*tests)

    def is_whole(self, shape: Sequence[Any]) -> bool:
        """Whether it has all elements of a tensor of the shape."""
        sizes = [side.size for side in self.sides]
        return not self._is_diagonal and all(is_known(n == m) for n, m in zip(sizes, shape))

    def slices(self, shape: Sequence[Any]) -> list[int] | None:
        """The slices as :data:`BOX` has them, of a tensor of the shape; None if they are others."""
        found = [side.slice(whole) for side, whole in zip(self.sides, shape)]
        if self._is_diagonal or None in found:
            return None
        return [number for each in found if each is not None for number in each]

    @property
    def _is_diagonal(self) -> bool:
        dims = [side.dim for side in self.sides if side.dim is not None]
        return len(set(dims)) < len(dims)


_MOST_JOINTS = 6
"""Pairs of neighbouring dimensions that a view is taken to have merged, in some way."""


@dataclass(frozen=True)
class Layout:
    """Where the elements of a tensor lie in its storage: torch's sizes, strides and offset.

    Any of them may be symbolic.
    """

    shape: tuple[Any, ...]
    strides: tuple[Any, ...]
    offset: Any

    @classmethod
    def of(cls, meta: torch.Tensor) -> Layout:
        """The layout of a real or meta tensor."""
        return cls(tuple(meta.shape), tuple(meta.stride()), meta.storage_offset())

    @property
    def is_injective(self) -> bool:
        """Whether no two elements lie in one place."""
        if any(is_known(n == 0) for n in self.shape):
            return True
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
        inside: list[Any] = [] if is_known(self.offset == 0) else [position >= int64(self.offset)]
        # Code generators compute quotients of what may be negative from many copies of it.
        rest = tirx.Max(position - int64(self.offset), int64(0))
        for dim in self._by_stride():
            stride = int64(self.strides[dim])
            by = tirx.Max(stride, int64(1)) if is_symbolic(stride) else stride
            index[dim], rest = tirx.floordiv(rest, by), tirx.floormod(rest, by)
            inside.append(index[dim] < int64(self.shape[dim]))
        return index, tirx.all(tirx.EQ(rest, int64(0)), *inside)

    def elements_of(self, base: Layout) -> Callable[[Sequence[Any]], list[Any]]:
        """What gives the element of another layout that lies where one of its own does."""
        for groups in base._groups():
            merged = base._merged(groups)
            box = self.box(merged)
            if box is not None:
                return partial(base._parted, groups, box)
        return lambda index: base.index(self.position(index))[0]

    def _groups(self) -> list[tuple[range, ...]]:
        """The dimensions in groups that may be taken for one each; first each for itself.

        A view may have merged them in each of the ways, which double with each pair of neighbours
        that can be: of more than ``_MOST_JOINTS`` pairs none is.
        """
        last = len(self.shape) - 1
        joints = [
            dim
            for dim in range(last)
            if is_known(self.strides[dim] == self.strides[dim + 1] * self.shape[dim + 1])
        ]
        found = []
        for count in range(len(joints) + 1 if len(joints) <= _MOST_JOINTS else 1):
            for closed in combinations(joints, count):
                ends = [dim + 1 for dim in range(last + 1) if dim not in closed]
                found.append(tuple(range(a, b) for a, b in zip([0, *ends], ends)))
        return found

    def _merged(self, groups: Sequence[range]) -> Layout:
        """The layout with a dimension for each group."""
        sizes = tuple(math.prod(self.shape[dim] for dim in group) for group in groups)
        return Layout(sizes, tuple(self.strides[group[-1]] for group in groups), self.offset)

    def _parted(self, groups: Sequence[range], box: Box, index: Sequence[Any]) -> list[Any]:
        """The element that is one of a box of the layout with a dimension for each group."""
        found: list[Any] = []
        for group, place in zip(groups, box.index(index)):
            parts: list[Any] = []
            for dim in reversed(group[1:]):
                parts.insert(0, tirx.floormod(place, int64(self.shape[dim])))
                place = tirx.floordiv(place, int64(self.shape[dim]))
            found += [place, *parts]
        return found

    def box(self, base: Layout) -> Box | None:
        """What it takes of each dimension of another layout, if that is a slice of each.

        In steps or not, and with its dimensions in another order or not. Several that have the same
        dimension are a diagonal. None for others, and where sizes do not tell.
        """
        if not base.is_injective:
            return None
        sides: dict[int, Side] = {}
        rest = self.offset - base.offset
        for dim in base._by_stride():
            start, rest = divided(rest, base.strides[dim])
            if not (is_known(start >= 0) and is_known(start < base.shape[dim])):
                return None
            sides[dim] = Side(start, 1, 1, None)
        if not is_known(rest == 0):
            return None
        for own in self._by_stride():
            rest = self.strides[own]
            for dim in base._by_stride():
                step, rest = divided(rest, base.strides[dim])
                if is_known(step == 0):
                    continue
                is_free = sides[dim].dim is None and isinstance(step, int)
                sides[dim] = Side(sides[dim].start, step, self.shape[own], own)
                if not is_free or not sides[dim].is_inside(base.shape[dim]):
                    return None
            if not is_known(rest == 0):
                return None
        one = Side(0, 1, 1, None)
        return Box(tuple(sides.get(dim, one) for dim in range(len(base.shape))))

    def _by_stride(self) -> list[int]:
        """The dimensions that have more than one element, the largest stride first."""
        dims = [dim for dim, size in enumerate(self.shape) if not is_known(size == 1)]
        return sorted(dims, key=lambda dim: -self.strides[dim])


def _from_either_end(number: Any, whole: Any) -> int | None:
    """A place in a dimension, from its end on where its size tells it; None if that tells more."""
    if not is_symbolic(number):
        return int(number)
    found: int | None = (number - whole).node.maybe_as_int()
    return found


def viewed(base: Layout, view: Layout) -> Callable[[te.Tensor], te.Tensor]:
    """The tensor expression of a view, in terms of the tensor the memory was made for."""
    element = view.elements_of(base)

    def fn(contents: te.Tensor) -> te.Tensor:
        shape = tuple(map(int64, view.shape))
        return te.compute(shape, lambda *index: contents(*element(index)), name="view")

    return fn


def overwritten(base: Layout, view: Layout) -> Callable[[te.Tensor, te.Tensor], te.Tensor]:
    """The tensor expression of the whole memory after a view of it got new elements."""

    box = view.box(base)
    is_whole = box is not None and box.is_whole(base.shape)
    slices = None if box is None or is_whole else box.slices(base.shape)

    def fn(contents: te.Tensor, new: te.Tensor) -> te.Tensor:
        def element(*index: Any) -> Any:
            if box is None:
                own, inside = view.index(base.position(index))
            else:
                own = box.own(index, len(view.shape))
                if is_whole:
                    return new(*own)
                inside = box.holds(index, base.shape)
            # if_then_else, as elsewhere there is no new element to read.
            return tirx.if_then_else(inside, new(*own), contents(*index))

        notes = None if slices is None else {BOX: [int64(n) for n in slices]}
        shape = tuple(map(int64, base.shape))
        return te.compute(shape, element, name="overwrite", attrs=notes)

    return fn
