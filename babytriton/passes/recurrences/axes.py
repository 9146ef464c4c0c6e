"""The axes of a loop's tensors along which its steps work at each place for itself."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import ir, tirx

from babytriton.passes.recurrences.step import Step, Work, is_one


@dataclass(frozen=True)
class Threads:
    """What a thread of the kernel has of each tensor: all at one place of the axes that are shared.

    Attributes:
        extents: of the axes, in order; one of a single place where there are none.
        axes: for a tensor's axis, or the axis of a block, which of them it is.
    """

    extents: tuple[ir.Expr, ...]
    axes: dict[Hashable, int]

    def of_tensor(self, tensor: tirx.Var) -> dict[int, int]:
        """The axes of a tensor that threads share, and which they are."""
        places = range(len(tensor.ty.shape))
        return {n: self.axes[tensor, n] for n in places if (tensor, n) in self.axes}

    def own_axes(self, tensor: tirx.Var) -> list[int]:
        """The axes of a tensor that a thread goes along, but for those of one place."""
        shape = tensor.ty.shape
        shared = self.of_tensor(tensor)
        return [n for n, size in enumerate(shape) if n not in shared and not is_one(size)]

    def size_of(self, tensor: tirx.Var) -> int | None:
        """How many elements of a tensor a thread has; None where a call tells."""
        return _points(tensor.ty.shape[n] for n in self.own_axes(tensor))

    def work_of(self, work: Work) -> int | None:
        """How many points of a block a thread does; None where a call tells."""
        return _points(axis.extent for axis in work.axes if axis.var not in self.axes)


def _points(extents: Iterable[ir.Expr]) -> int | None:
    """How many points some extents have; None where a call tells."""
    sizes = list(extents)
    if not all(isinstance(size, tirx.IntImm) for size in sizes):
        return None
    return math.prod(map(int, sizes))


def threads_of(step: Step, given: set[tirx.Var], first: Sequence[tirx.Var]) -> Threads:
    """The threads among which the work of a loop's steps can be shared.

    An axis of a tensor is one with that of another where a block names both by the same variable.
    It is shared if every access to a tensor that steps write names it by such a variable: then a
    thread reads nothing that another one writes.

    Args:
        step: of the loop.
        given: the tensors that no step writes.
        first: those whose axes are in order.
    """
    classes = _Classes()
    for state, after in zip(step.states, step.nexts):
        for n in range(len(state.ty.shape)):
            classes.join((state, n), (after, n))
    for work in step.works:
        extents = {axis.var: axis.extent for axis in work.axes if not axis.is_reduced}
        accesses = [(store.buffer, store.indices) for store in work.stores()]
        accesses += [(load.source, load.indices) for load in work.loads()]
        for tensor, indices in accesses:
            if tensor in given:
                continue
            for n, (index, size) in enumerate(zip(indices, tensor.ty.shape)):
                extent = extents.get(index) if isinstance(index, ir.Var) else None
                is_whole = extent is not None and tvm_ffi.structural_equal(extent, size)
                if is_whole and not is_one(size):
                    classes.join((tensor, n), index)
                else:
                    classes.refuse((tensor, n))
    for tensor in [*step.states, *step.nexts, *_written(step)]:
        classes.refuse_repeated([(tensor, n) for n in range(len(tensor.ty.shape))])
    for work in step.works:
        classes.refuse_repeated([axis.var for axis in work.axes])
        classes.note([axis.var for axis in work.axes])
    return _ordered(classes, step, first)


def _ordered(classes: _Classes, step: Step, first: Sequence[tirx.Var]) -> Threads:
    numbers: dict[Hashable, int] = {}
    extents: list[ir.Expr] = []
    for tensor in [*first, *step.states]:
        own = {
            group: size
            for n, size in enumerate(tensor.ty.shape)
            if (group := classes.accepted((tensor, n))) is not None and not is_one(size)
        }
        # What needs nothing of the others, and is as large, has its places beside theirs.
        is_apart = own and not own.keys() & numbers.keys() and not classes.meet(own, numbers)
        if is_apart and _are_same(list(own.values()), extents):
            numbers.update(zip(own, range(len(extents))))
            continue
        for group, size in own.items():
            if group not in numbers:
                numbers[group] = len(extents)
                extents.append(size)
    axes: dict[Hashable, int] = {}
    for member in classes.members:
        group = classes.accepted(member)
        if group in numbers:
            axes[member] = numbers[group]
    return Threads(tuple(extents) or (tirx.const(1, "int64"),), axes)


def _are_same(some: Sequence[ir.Expr], others: Sequence[ir.Expr]) -> bool:
    return bool(tvm_ffi.structural_equal(list(some), list(others)))


def _written(step: Step) -> list[tirx.Var]:
    return list(dict.fromkeys(store.buffer for work in step.works for store in work.stores()))


class _Classes:
    """Axes that are one: disjoint sets, of which some are refused."""

    def __init__(self) -> None:
        self.members: dict[Hashable, Hashable] = {}
        self._refused: set[Hashable] = set()
        self._together: list[list[Hashable]] = []

    def _root(self, member: Hashable) -> Hashable:
        while (parent := self.members.setdefault(member, member)) is not member:
            member = parent
        return member

    def join(self, one: Hashable, other: Hashable) -> None:
        """Make the classes of two members one."""
        one, other = self._root(one), self._root(other)
        if one is not other:
            self.members[one] = other
            if one in self._refused:
                self._refused.add(other)

    def refuse(self, member: Hashable) -> None:
        """Refuse the class of a member."""
        self._refused.add(self._root(member))

    def refuse_repeated(self, members: Sequence[Hashable]) -> None:
        """Refuse a class that two of these are of."""
        roots = [self._root(member) for member in members]
        for root in roots:
            if sum(root is other for other in roots) > 1:
                self._refused.add(root)

    def note(self, members: Sequence[Hashable]) -> None:
        """Note that some members are of one block: their classes are not each other's places."""
        self._together.append(list(members))

    def meet(self, some: Iterable[Hashable], others: Iterable[Hashable]) -> bool:
        """Whether a block has members of some classes, and of others."""
        one, other = set(some), set(others)
        roots = ({self._root(member) for member in members} for members in self._together)
        return any(one & found and other & found for found in roots)

    def accepted(self, member: Hashable) -> Hashable | None:
        """The class of a member, if it is not refused."""
        root = self._root(member)
        return None if root in self._refused else root
