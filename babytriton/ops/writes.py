"""Kernels that write elements of a tensor at places which tensors of indices tell.

The result starts as a copy, made in parallel. Then each slice across the indexed dimension, in
which alone two writes can meet, is written by one thread in the order of the indices: the last
write wins and sums add up in one order, on the GPU too, where torch leaves that open. On the CPU a
thread writes several slices that lie side by side.
An index outside of the tensor, for which torch raises on the CPU, writes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from tvm import ir, relax, sym, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as S

from babytriton.ops import numerics
from babytriton.ops.emission import OPAQUE
from babytriton.ops.layout import Layout
from babytriton.ops.numerics import opmath
from babytriton.ops.pointwise import number
from babytriton.ops.primfunc import nodes
from babytriton.ops.refusals import Unsupported
from babytriton.ops.site import Site
from babytriton.ops.sizes import int64
from babytriton.ops.subscript import from_end, is_inside
from babytriton.ops.value import Value
from babytriton.types import TensorType, dtype_of

Expr: TypeAlias = Any
Combine: TypeAlias = Callable[[Expr, Expr], Expr]
Place: TypeAlias = Sequence[Expr]
"""The indices of an element."""


def replaced(old: Expr, new: Expr) -> Expr:
    """The new element."""
    return new


def added(old: Expr, new: Expr) -> Expr:
    """The sum of both."""
    return tirx.Or(old, new) if str(old.ty.dtype) == "bool" else old + new


def _multiplied(old: Expr, new: Expr) -> Expr:
    return tirx.And(old, new) if str(old.ty.dtype) == "bool" else old * new


COMBINE: dict[str | None, Combine] = {
    None: replaced,
    "add": added,
    "sum": added,
    "multiply": _multiplied,
    "prod": _multiplied,
    "amax": numerics.maximum,
    "amin": numerics.minimum,
}
"""What becomes of the old element and the new one, by torch's names of it."""

COPY, SCATTER = "copy", "scatter"
"""The names of the two blocks: the copy, and what is written to it."""

WHOLE = "babytriton.whole"
"""An annotation of the second: each element of the source is written once, and none is left out."""

_BESIDE = 32
"""Slices that lie side by side and that one CPU thread writes together, in vectors."""

_MANY, _ALL = 64, 1 << 16
"""Writes after one another that a GPU thread does in no time; and threads that keep a GPU busy
while each of them waits for its own writes."""


@dataclass(frozen=True)
class Writes:
    """What is written to a tensor, and where.

    Attributes:
        tensor: that starts it; it has dimensions.
        indices: the index tensors.
        source: a value with the elements to write, or one number for all of them.
        combine: the element to write, from the one that is there and the new one.
        slices: how many slices there are, as a shape.
        count: the writes in each, one after the other.
        dims: the dimensions of the tensor whose places the indices, or numbers, tell.
        places: from the index buffers, a slice's index and the number of a write: the position
            to write to, and the position to read ``source`` at, which broadcasts.
        wraps: whether negative places of these dimensions count from the end.
    """

    tensor: Value
    indices: Sequence[Value]
    source: Any
    combine: Combine
    slices: Sequence[int]
    count: int
    dims: Sequence[int]
    places: Callable[..., tuple[Place, Place]]
    wraps: bool = False

    def emit(self, site: Site) -> relax.Var:
        """A copy of the tensor with the writes in each of the slices.

        Raises:
            Unsupported: they would run on few threads.
        """
        is_long = self.count > _MANY and math.prod(self.slices) < _ALL
        if site.builder.device.type == "cuda" and is_long:
            raise Unsupported("many writes to few slices would run on few threads")
        found = self.into(site, self.tensor.expr, self.tensor.meta.shape, list)
        memory = self.tensor.storage
        if memory is not None and self._dtype(site) == site.dtype:
            site.builder.views.note_put(found, Put(self, site, memory.expr))
        return site.cast(found, site.dtype)

    def _dtype(self, site: Site) -> torch.dtype:
        # Sums of halves are rounded once, at the end.
        return site.dtype if self.combine is replaced else opmath(site.dtype)

    def into(
        self,
        site: Site,
        contents: relax.Expr,
        shape: Sequence[Any],
        element: Callable[[Place], list[Expr]],
    ) -> relax.Var:
        """A copy of another tensor with the same writes.

        Args:
            site: of the call.
            contents: the other tensor.
            shape: of that.
            element: the one of that to write to, instead of one of the tensor.
        """
        dtype = self._dtype(site)
        sources = [self.source] if isinstance(self.source, Value) else []
        inputs = [site.cast(contents, dtype)]
        inputs += [*(site.expr(x, dtype) for x in sources), *(x.expr for x in self.indices)]
        name = dtype_of(dtype).name
        kinds = [(shape, name), *((x.meta.shape, name) for x in sources)]
        kinds += [(x.meta.shape, dtype_of(x.meta.dtype).name) for x in self.indices]
        on_cpu = site.builder.device.type == "cpu"
        # A size that calls compute is a parameter of the program, and is told before the kernel.
        for size in (*self.slices, self.count, *(n for sizes, _ in kinds for n in sizes)):
            int64(size)
        with IRBuilder() as builder:
            with S.prim_func(s_tir=True):
                S.func_name("scatter")
                # By its loads and stores TVM does not always see that nothing may join it.
                S.func_attr({"tirx.noalias": True, "op_pattern": OPAQUE})
                base, *others = (
                    S.arg(f"x{i}", S.buffer([int64(n) for n in sizes], kind))
                    for i, (sizes, kind) in enumerate(kinds)
                )
                out = S.arg("scatter", S.buffer([int64(n) for n in shape], name))
                with _points(shape, COPY) as index:
                    S.buffer_store(out, base[tuple(index)], index)
                self._write(out, others, element, on_cpu, dtype)
            function = builder.get()
        return site.kernel("scatter", function, inputs, TensorType(tuple(shape), dtype))

    def _write(
        self,
        out: Any,
        others: Sequence[Any],
        element: Callable[[Place], list[Expr]],
        on_cpu: bool,
        dtype: torch.dtype,
    ) -> None:
        """The block of the writes.

        Args:
            out: what is written to.
            others: the buffers of the source, if it is a value, and of the indices.
            element: the one of that, of one of the tensor.
            on_cpu: whether a thread writes several slices.
            dtype: of the elements.
        """
        has_source = isinstance(self.source, Value)
        picks = others[1:] if has_source else others
        shape, slices = self.tensor.meta.shape, self.slices
        last = len(shape) - 1
        is_beside = on_cpu and last not in self.dims
        tasks: list[Any] = list(slices)
        if is_beside:
            tasks[-1] = tirx.ceildiv(int64(slices[-1]), int64(_BESIDE))
        with _points(tasks, SCATTER) as at:
            if has_source and self.combine is replaced and self.count == 1:
                S.sblock_attr({WHOLE: int64(1)})
            first, beside = int64(0), int64(1)
            if is_beside:
                first = at[-1] * int64(_BESIDE)
                beside = tirx.Min(int64(_BESIDE), int64(slices[-1]) - first)
            # Schedules may not spread a block over threads that reads what it writes; this one
            # does so only within its slices.
            S.reads(*(tirx.BufferRegion(x, [_range(n) for n in x.shape]) for x in others))
            ends = [[*at[:-1], x] if is_beside else at for x in (first, first + beside - 1)]
            begin, end = (self.places(picks, own, int64(0))[0] for own in ends)
            S.writes(tirx.BufferRegion(out, self._ranges(out, element, begin, end)))
            lanes = S.serial(int64(0), beside) if is_beside else nullcontext()
            with S.serial(int64(0), int64(self.count)) as i, lanes as lane:
                own = [*at[:-1], first + lane] if is_beside else at
                told, origin = self.places(picks, own, i)
                place = [_named(x) if d in self.dims else x for d, x in enumerate(told)]
                if has_source:
                    new = tirx.BufferLoad(others[0], broadcast(others[0], origin))
                else:
                    new = tirx.const(number(self.source, dtype), dtype_of(dtype).name)
                sizes = {d: int64(shape[d]) for d in self.dims}
                inside = [is_inside(place[d], n, wraps=self.wraps) for d, n in sizes.items()]
                with ExitStack() as where:
                    for part in (S.If(tirx.all(*inside)), S.Then()) if inside else ():
                        where.enter_context(part)
                    wrapped = sizes if self.wraps else ()
                    at_out = element(
                        [from_end(x, sizes[d]) if d in wrapped else x for d, x in enumerate(place)]
                    )
                    S.buffer_store(out, self.combine(out[tuple(at_out)], new), at_out)

    def _ranges(
        self, out: Any, element: Callable[[Place], list[Expr]], begin: Place, end: Place
    ) -> list[ir.Range]:
        """What may be written, of the slices between two places."""
        shape = self.tensor.meta.shape
        points = [tirx.Var("i", "int64") for _ in shape]
        analyzer = sym.Analyzer()
        for var, size in zip(points, shape):
            analyzer.bind(var, _range(size))
        told = {points[d] for d in self.dims}
        ranges = []
        for size, index, one, other in zip(out.shape, *map(element, (points, begin, end))):
            if told & set(nodes(analyzer.simplify(index), ir.Var)):
                ranges.append(_range(size))
            else:  # with what steps leave out
                ranges.append(ir.Range.from_min_extent(one, analyzer.simplify(other - one + 1)))
        return ranges


@dataclass(frozen=True)
class Put:
    """Writes to what a tensor sees of a memory, which may as well be made to that memory.

    Attributes:
        writes: to the tensor.
        site: the call that makes them.
        contents: of the memory at that time.
    """

    writes: Writes
    site: Site
    contents: relax.Expr

    def is_of(self, contents: relax.Expr, view: Layout) -> bool:
        """Whether it writes to what a layout sees of these contents."""
        return self.contents.same_as(contents) and Layout.of(self.writes.tensor.meta) == view

    def into(self, base: Layout) -> relax.Var:
        """The memory after these writes, as a tensor of a layout."""
        element = Layout.of(self.writes.tensor.meta).elements_of(base)
        return self.writes.into(self.site, self.contents, base.shape, element)


def _named(place: Expr) -> Expr:
    """A variable for an element of a tensor, which its uses load once.

    A single number, such as that of a loop's step, may be known where it is used.
    """
    if not any(len(load.indices) for load in nodes(place, ir.TensorLoad)):
        return place
    variable = tirx.Var("place", place.ty.dtype)
    S.bind(place, var=variable)
    return variable


@contextmanager
def _points(shape: Sequence[Any], name: str) -> Iterator[list[Expr]]:
    """A block for each point of a shape; gives its index."""
    # Schedules hold on to the loop around a block, so a single point has one too.
    extents = [int64(n) for n in shape] or [int64(1)]
    with S.grid(*extents) as loops, S.sblock(name):
        loops = list(loops) if len(extents) > 1 else [loops]
        yield [S.axis.spatial(n, loop) for n, loop in zip(extents, loops)][: len(shape)]


def _range(size: Any) -> ir.Range:
    return ir.Range.from_min_extent(int64(0), int64(size))


def broadcast(buffer: Any, index: Place) -> list[Expr]:
    """The index of the element of a buffer that stands at one of what it broadcasts to."""
    own = list(index)[len(index) - len(buffer.shape) :]
    return [
        int64(0) if isinstance(n, tirx.IntImm) and int(n) == 1 else i
        for n, i in zip(buffer.shape, own)
    ]
