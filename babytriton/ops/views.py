"""Which tensors of a program lie in the memory of others, as transposes and parts do.

Relax has no views: each is a tensor of its own, which a kernel copies. Who can read a tensor where
it lies asks here where that is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from tvm import ir, relax, tirx

from babytriton.ops.sizes import is_empty, symbolic_in
from babytriton.ops.trees import map_leaves

if TYPE_CHECKING:
    from babytriton.ops.layout import Layout
    from babytriton.ops.value import Value
    from babytriton.ops.writes import Put

_PERMUTE = ir.Op.get("relax.permute_dims")
_RESHAPE = ir.Op.get("relax.reshape")
_MATMUL = ir.Op.get("relax.matmul")


@dataclass(frozen=True)
class View:
    """A tensor in the memory of a contiguous one.

    Attributes:
        size, stride: of each dimension, in elements.
        offset: of the first element, in elements.
        whole: the sizes of the contiguous tensor, if no call tells them.
    """

    size: tuple[Any, ...]
    stride: tuple[Any, ...]
    offset: Any
    whole: tuple[int, ...] = ()

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The view, whose sizes are numbers, of a tensor; of a copy of one that has gaps."""
        tensor = tensor.contiguous()
        return tensor.as_strided(self.size, self.stride, tensor.storage_offset() + self.offset)

    @property
    def numbers(self) -> tuple[Any, ...]:
        """All of it: the sizes, the strides, and the offset."""
        return *self.size, *self.stride, self.offset

    def breaks_steps_of(self, count: int) -> bool:
        """Whether its rows are known not to start at multiples of so many elements as copies do."""
        return _has_steps_of(count, (*_strides(self.size), 0)) and not _has_steps_of(
            count, (*self.stride, self.offset)
        )

    def is_like(self, tensor: torch.Tensor) -> bool:
        """Whether it is known that a tensor lies so as well."""
        strides = (*self.stride, *tensor.stride())
        return not symbolic_in(strides) and self.stride == tensor.stride()

    def with_sizes(self, kind: type, fn: Callable[[Any], Any]) -> View:
        """The same with what a function gives for each number in it that is of some kind."""
        size, stride, offset = map_leaves((self.size, self.stride, self.offset), kind, fn)
        return View(size, stride, offset, self.whole)

    def turned(self, axes: Sequence[int]) -> View | None:
        """The same of another contiguous tensor, of which that one is a transpose.

        Args:
            axes: of the other one, in the order that makes that one of it.

        Returns:
            None where a dimension goes along several axes, or a call tells where it goes.
        """
        if not self.whole or not all(isinstance(n, int) for n in self.numbers):
            return None
        size = tuple(self.whole[axes.index(n)] for n in range(len(axes)))
        own, others = _strides(self.whole), _strides(size)
        last, rest = [], self.offset
        for step in own:
            place, rest = divmod(rest, step)
            last.append(place)
        offset = sum(place * others[axis] for place, axis in zip(last, axes))
        stride = []
        for count, step in zip(self.size, self.stride):
            steps = count > 1 and step > 0
            along = next((n for n, x in enumerate(own) if self.whole[n] > 1 and step % x == 0), 0)
            if steps:
                last[along] += (count - 1) * (step // own[along])
            stride.append(step // own[along] * others[axes[along]] if steps else 0)
        is_within = all(place < n for place, n in zip(last, self.whole))
        return View(self.size, tuple(stride), offset, size) if is_within else None


@dataclass(frozen=True)
class Read:
    """What a callable of torch is given for a tensor.

    Attributes:
        expr: a tensor of the program.
        turns: the axes of that, in the order in which the callable is to see them.
        view: what it is to see of it, if not all; then the axes are in order.
    """

    expr: relax.Expr
    turns: tuple[int, ...]
    view: View | None = None

    @classmethod
    def of(cls, expr: relax.Expr) -> Read:
        """The tensor as it is."""
        return cls(expr, tuple(range(len(expr.ty.shape))))

    @property
    def is_whole(self) -> bool:
        """Whether it is the tensor as it is."""
        return self.view is None and list(self.turns) == sorted(self.turns)


@dataclass
class _Known:
    """What is known of the tensors of a part of the program.

    Attributes:
        turned: what each transposed tensor is transposed from, and its axes of that.
        whole: what each reshaped tensor is all of.
        parts: of which contents each tensor is a part, with torch's layouts of these and of it.
        in_memory: what lies in memory whoever reads it: the program's arguments, and what products
            give and torch's functions; with the order of its axes there, none if it is contiguous.
        puts: the writes that each tensor is another one after.
        written: the memory before a tensor that it holds was written to, and that tensor's layout.
    """

    turned: dict[relax.Expr, tuple[relax.Expr, tuple[int, ...]]] = field(default_factory=dict)
    whole: dict[relax.Expr, relax.Expr] = field(default_factory=dict)
    parts: dict[relax.Expr, tuple[relax.Expr, torch.Tensor, torch.Tensor]] = field(
        default_factory=dict
    )
    in_memory: dict[relax.Expr, tuple[int, ...]] = field(default_factory=dict)
    puts: dict[relax.Expr, Put] = field(default_factory=dict)
    written: dict[relax.Expr, tuple[Value, Layout]] = field(default_factory=dict)


class Views:
    """Of the tensors of the program that is being emitted."""

    def __init__(self) -> None:
        self._known = _Known()

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Inside, nothing is known of tensors from outside, nor outside of those from inside.

        So is what a branch or a loop of the run time uses from around it what the user's code
        uses: gradients flow to that.
        """
        before, self._known = self._known, _Known()
        try:
            yield
        finally:
            self._known = before

    def note(self, found: relax.Var, expr: relax.Expr) -> None:
        """Take note of an expression that was bound to a variable."""
        if isinstance(expr, relax.Var):
            self._known.whole[found] = expr
        elif not isinstance(expr, relax.Call):
            return
        elif expr.op == _PERMUTE:
            self._known.turned[found] = expr.args[0], tuple(map(int, expr.attrs.axes))
        elif expr.op == _RESHAPE:
            self._known.whole[found] = expr.args[0]
        elif expr.op == _MATMUL:
            self.note_in_memory([found])

    def note_in_memory(self, exprs: Iterable[relax.Expr], order: tuple[int, ...] = ()) -> None:
        """Take note of tensors that lie in memory whoever reads them, with their axes in an order.

        None stands for that of contiguous tensors.
        """
        self._known.in_memory.update(dict.fromkeys(exprs, order))

    def order_in_memory(self, read: Read, sample: Callable[[Any], Any]) -> tuple[int, ...] | None:
        """The order in which the axes that a callable sees lie in memory; None if it is not known.

        Args:
            read: what the callable is given.
            sample: what a number is for the sizes that the program is compiled with.
        """
        own = self._known.in_memory.get(read.expr, ())
        if read.view is not None:
            # Its steps are those in a contiguous tensor.
            steps = [-sample(step) for step in read.view.stride]
            return None if own else tuple(sorted(range(len(steps)), key=steps.__getitem__))
        return tuple(map(read.turns.index, own or sorted(read.turns)))

    def is_in_memory(self, expr: relax.Expr) -> bool:
        """Whether a tensor is known to lie in memory whoever reads it."""
        return expr in self._known.in_memory

    def note_put(self, expr: relax.Expr, put: Put) -> None:
        """Take note of a tensor that is another one after some writes."""
        self._known.puts[expr] = put

    def put(self, expr: relax.Expr) -> Put | None:
        """The writes after which another tensor is this one."""
        return self._known.puts.get(expr)

    def note_written(self, expr: relax.Expr, contents: Value, view: Layout) -> None:
        """Take note of a memory that was written to all through what a layout sees of it."""
        self._known.written[expr] = contents, view

    def before(self, contents: Value, view: Layout) -> Value:
        """What a memory held before it was written to through a layout, if that was the last write.

        What is written there once more takes the place of the first: all else is as it was.
        """
        found, seen = self._known.written.get(contents.expr, (contents, None))
        return found if seen == view else contents

    def note_part(
        self, expr: relax.Expr, meta: torch.Tensor, whole: relax.Expr, base: torch.Tensor
    ) -> None:
        """Take note of a tensor that torch has in the memory of another one.

        Args:
            expr: the tensor, which never changes.
            meta: its layout.
            whole: the other one, which lies in memory as the program emits it.
            base: its layout.
        """
        if meta.dtype == base.dtype and base.is_contiguous() and not base.storage_offset():
            self._known.parts[expr] = whole, base, meta

    def is_part(self, expr: relax.Expr, whole: relax.Expr) -> bool:
        """Whether a tensor is known to be a part of another one, and where."""
        return expr in self._known.parts and self._known.parts[expr][0] is whole

    def undone(self, expr: relax.Call) -> relax.Expr | None:
        """What a transpose gives again that undoes another one."""
        if expr.op != _PERMUTE:
            return None
        before, turns = self.unturned(expr.args[0])
        axes = [turns[int(axis)] for axis in expr.attrs.axes]
        return before if axes == sorted(axes) else None

    def unturned(self, expr: relax.Expr) -> tuple[relax.Expr, tuple[int, ...]]:
        """What a tensor is the transpose of, and its axes of that: who reads it so needs no copy.

        The tensor itself, with its axes in order, if it is not transposed.
        """
        return self._known.turned.get(expr, (expr, tuple(range(len(expr.ty.shape)))))

    def of(self, value: Value) -> tuple[relax.Expr, View] | None:
        """In which tensor another one lies, and how, if that is in memory anyway."""
        return self._reshaped(value) or self._part(value)

    def _reshaped(self, value: Value) -> tuple[relax.Expr, View] | None:
        """What a tensor is all of, if that is in memory, reshaped and then perhaps transposed."""
        tensor, axes = self.unturned(value.expr)
        whole = tensor
        while whole in self._known.whole:
            whole = self._known.whole[whole]
        if whole is tensor or whole not in self._known.in_memory:
            return None
        size = value.meta.shape
        lies = [size[axes.index(n)] for n in range(len(axes))]
        strides = _strides(lies)
        sizes = tuple(int(n) for n in whole.ty.shape if isinstance(n, tirx.IntImm))
        known = sizes if len(sizes) == len(whole.ty.shape) else ()
        return whole, View(tuple(size), tuple(strides[n] for n in axes), 0, known)

    def _part(self, value: Value) -> tuple[relax.Expr, View] | None:
        """What torch has a tensor in the memory of."""
        if value.expr not in self._known.parts:
            return None
        whole, base, meta = self._known.parts[value.expr]
        if is_empty(meta) or not (whole in self._known.in_memory or _is_most_of(meta, base)):
            return None
        known = () if symbolic_in(tuple(base.shape)) else tuple(base.shape)
        return whole, View(tuple(meta.shape), tuple(meta.stride()), meta.storage_offset(), known)


def _strides(size: Sequence[Any]) -> list[Any]:
    """Those of contiguous tensors."""
    return [math.prod(size[n + 1 :]) for n in range(len(size))]


def _has_steps_of(count: int, steps: Iterable[Any]) -> bool:
    """Whether all are 1, known to be multiples of a number, or told by a call."""
    return all(isinstance(n, torch.SymInt) or n == 1 or n % count == 0 for n in steps)


def _is_most_of(part: torch.Tensor, whole: torch.Tensor) -> bool:
    """Whether to write all of a tensor takes little more time than to write a part of it."""
    if any(isinstance(n, torch.SymInt) for n in (*part.shape, *whole.shape)):
        return False
    is_whole = part.numel() == whole.numel() and part.is_contiguous()
    return not is_whole and 2 * part.numel() >= whole.numel()
