"""What a kernel computes, in a form that can be written out for threads.

A kernel works on rows; a row has elements. Elementwise kernels are a single row.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import tvm_ffi
from tvm import ir, s_tir, sym, tirx
from tvm.s_tir.dlight.analysis import SBlockInfo

from babytriton.ops.primfunc import nodes
from babytriton.passes.blocks import is_one, is_output, same_extents, uses
from babytriton.passes.forms import is_own_place
from babytriton.passes.gpu.accesses import Access, is_inside, is_of_lanes, loads_made, with_names
from babytriton.passes.gpu.certain import without_certain
from babytriton.passes.gpu.extents import Axis, Extent, is_multiple, position, product
from babytriton.passes.gpu.writing import VECTOR, item_bytes, number
from babytriton.passes.nests import at_zero, is_equal, offset
from babytriton.passes.statements import is_constant

# How partial results become one, and what leaves any result as it is: each thread starts from it.
_COMBINES = (tirx.Add, tirx.Mul, tirx.Max, tirx.Min)
_NEUTRAL = {tirx.Add: 0, tirx.Mul: 1}


@dataclass(frozen=True)
class Block:
    """A block of a kernel.

    Attributes:
        store: what it stores at each point, or the sum it adds to, by the program's axes.
        has_elements: whether it has a value for each element of a row, or reduces them.
        combine: of a reduction, how it combines values.
        start: what a reduction starts from.
        is_result: whether what it stores is needed when the kernel is done.
        is_of_columns: of a reduction, whether it goes along the rows: it has a value for each
            element of all of them.
    """

    store: tirx.BufferStore
    has_elements: bool
    combine: type | None
    start: ir.Expr | None
    is_result: bool
    is_of_columns: bool = False

    @property
    def buffer(self) -> tirx.Var:
        """What it writes."""
        return self.store.buffer

    @property
    def dtype(self) -> str:
        """Of what it writes."""
        return str(self.buffer.ty.dtype)

    @property
    def value(self) -> ir.Expr:
        """What is stored, or what is added."""
        if self.combine is None:
            return self.store.value
        own, other = self.store.value.a, self.store.value.b
        return other if is_load_of(own, self.buffer) else own

    def with_value(self, value: ir.Expr) -> Block:
        """The same of another value."""
        if self.combine is not None:
            own = tirx.BufferLoad(self.buffer, list(self.store.indices))
            value = self.combine(own, value)
        stored = tirx.BufferStore(self.buffer, value, list(self.store.indices))
        return replace(self, store=stored)


@dataclass(frozen=True)
class Program:
    """A kernel.

    Attributes:
        rows: the axes that are its rows.
        elements: those of a row's elements.
        blocks: what is done, in order.
        is_apart: whether elements of a row lie apart in memory, as those of a column do: they are
            accessed one by one.
    """

    rows: tuple[Axis, ...]
    elements: tuple[Axis, ...]
    blocks: tuple[Block, ...]
    is_apart: bool = False

    @classmethod
    def of(
        cls,
        sch: s_tir.Schedule,
        infos: Sequence[SBlockInfo],
        rows: Sequence[Extent],
        *,
        is_apart: bool = False,
        columns: Sequence[SBlockInfo] = (),
    ) -> Program | None:
        """The program of a kernel's blocks; None if not all are of the same rows and elements.

        Args:
            sch: the kernel.
            infos: its blocks on rows.
            rows: the extents of the axes that are the rows.
            is_apart: whether elements of a row lie apart in memory.
            columns: those of its blocks that reduce columns.
        """
        inner = [[n for n in info.dom() if not is_one(n)][len(rows) :] for info in infos]
        elements = next((extents for extents in inner if extents), [])
        if not all(not extents or same_extents(extents, elements) for extents in inner):
            return None
        axes = [(tirx.Var(f"row{n}", "int64"), extent) for n, extent in enumerate(rows)]
        points = [(tirx.Var(f"element{n}", "int64"), extent) for n, extent in enumerate(elements)]
        names = {info.name for info in (*infos, *columns)}
        blocks = [_block(sch, info, axes, points, names) for info in infos]
        sums = [_block(sch, info, points, axes, names) for info in columns]
        blocks += [None if block is None else replace(block, is_of_columns=True) for block in sums]
        found = _at_own_points([block for block in blocks if block is not None])
        if len(found) < len(infos) + len(columns):
            return None
        return cls(tuple(axes), tuple(points), tuple(found), is_apart)

    @classmethod
    def of_columns(cls, sch: s_tir.Schedule, infos: Sequence[SBlockInfo]) -> Program | None:
        """The program whose rows are reduced, element by element; None if that is not what it is.

        Some blocks reduce their last axes; the rest have a value for each element. Reductions come
        first, also those that read what others have of a column: :attr:`dependent`.
        """
        reductions = [info for info in infos if info.is_reduction()]
        others = [info for info in infos if not info.is_reduction()]
        shapes = [_axes_reduced(info) for info in reductions]
        if not shapes or shapes[0] is None:
            return None
        elements, rows = shapes[0]
        for shape in shapes:
            if shape is None or not all(map(same_extents, shape, shapes[0])):
                return None
        if not all(same_extents([n for n in i.dom() if not is_one(n)], elements) for i in others):
            return None
        axes = [(tirx.Var(f"row{n}", "int64"), extent) for n, extent in enumerate(rows)]
        points = [(tirx.Var(f"element{n}", "int64"), extent) for n, extent in enumerate(elements)]
        names = {info.name for info in infos}
        reduced = [_block(sch, info, points, axes, names) for info in reductions]
        pointwise = [_block(sch, info, [], points, names) for info in others]
        found = [replace(block, has_elements=True) for block in reduced if block is not None]
        found += [block for block in pointwise if block is not None]
        if len(found) < len(infos):
            return None
        written = {block.buffer: block for block in found}
        for block in found:
            own = [x for x in nodes(block.value, ir.TensorLoad) if x.source in written]
            if not all(_is_own_point(load, written[load.source]) for load in own):
                return None
        return cls(tuple(axes), tuple(points), tuple(found))

    @property
    def reductions(self) -> list[Block]:
        """The blocks that reduce something."""
        return [block for block in self.blocks if block.combine is not None]

    @property
    def dependent(self) -> set[int]:
        """The places of the reductions that read what other blocks have."""
        made = {block.buffer for block in self.blocks}
        places = enumerate(self.blocks)
        return {n for n, block in places if block.combine and reads(block.value, made)}

    @property
    def row_count(self) -> Extent:
        """How many rows there are."""
        return product(extent for _, extent in self.rows)

    @property
    def length(self) -> Extent:
        """Elements of a row."""
        return product(extent for _, extent in self.elements)

    @property
    def _place(self) -> Sequence[ir.Expr]:
        """The place of an element, as the results have it: rows may lie behind other axes."""
        axes = [variable for variable, _ in (*self.rows, *self.elements)]
        for block in self.blocks:
            place = [i for i in block.store.indices if any(i.same_as(axis) for axis in axes)]
            if len(place) == len(axes):
                return place
        return axes

    def access(self, block: Block, load: ir.TensorLoad | tirx.BufferStore) -> Access | None:
        """Where it is, if that can be told for a vector of elements at once."""
        buffer = load.buffer if isinstance(load, tirx.BufferStore) else load.source
        indices = list(load.indices)
        variables = [var for var, _ in self.elements]
        if not block.has_elements or not any(uses(i, var) for i in indices for var in variables):
            return None
        last, inner = variables[-1], nodes(indices, ir.TensorLoad)
        if nodes(indices, ir.Call) or any(uses(each, last) for each in inner):
            return None
        place = offset(buffer, indices)
        is_own = isinstance(load, tirx.BufferStore) or is_own_place(load, self._place)
        base = sym.Analyzer().simplify(at_zero(place, variables))
        is_of_row = not any(uses(each, var) for each in inner for var in variables)
        found = place if not inner else with_names(place)
        rest = found - at_zero(found, variables)
        if is_of_row and is_equal(rest, position(variables, [n for _, n in self.elements])):
            return Access(buffer, place, base, True, is_own)
        if not uses(place, last):
            return Access(buffer, place, None, False, is_own)
        if self.is_apart or is_equal(found - at_zero(found, [last]), last):
            return Access(buffer, place, None, True, is_own)
        if isinstance(load, tirx.BufferStore):
            return None
        return Access(buffer, place, None, False, is_own, jumps=True)

    def accesses(self) -> list[tuple[int, Access]]:
        """Which block reads what along its row."""
        return [
            (number_, found)
            for number_, block in enumerate(self.blocks)
            for load in loads_made(block.value)
            if (found := self.access(block, load)) is not None
        ]

    def loads(self, block: Block, width: int) -> list[ir.TensorLoad]:
        """What a block loads for each vector of so many elements.

        Besides what no condition keeps it from: what elements of each vector choose from, by their
        number in it.
        """
        made = loads_made(block.value)
        if not self.elements:
            return made

        def chooses_both(test: ir.Expr) -> bool:
            return is_of_lanes(test, self.elements[-1], width)

        found = loads_made(block.value, chooses_both)
        axes, others = (
            (*self.rows, *self.elements),
            [x for x in found if not any(map(x.same_as, made))],
        )
        return [*made, *(load for load in others if is_inside(load, axes))]

    def is_passed_on(self, block: Block) -> bool:
        """Whether another block reads what the block computes of each element."""
        if block.combine is not None or not block.has_elements:
            return False
        return any(
            load.source.same_as(block.buffer)
            for other in self.blocks
            for load in nodes(other.value, ir.TensorLoad)
        )

    def vector(self, *, has_tail: bool) -> int:
        """Elements of a vector: as many as 16 bytes hold of the widest operand, if they fit.

        All results fit then, and half of what is read at least. What does not is read by itself.

        Args:
            has_tail: whether the last elements of a row may be accessed one by one.
        """
        if self.is_apart:
            return 1
        reads = [one for _, one in self.accesses() if one.moves]
        stores = [
            stored
            for block in self.blocks
            if block.is_result and (stored := self.access(block, block.store)) is not None
        ]
        # What passes from block to block is in registers, not in memory.
        written = [block.buffer for block in self.blocks]
        reads = [one for one in reads if not any(one.buffer.same_as(own) for own in written)]
        widest = max(
            (item_bytes(str(one.buffer.ty.dtype)) for one in [*reads, *stores]), default=VECTOR
        )
        width = VECTOR // widest
        while width > 1 and not self._fits(width, reads, stores, has_tail):
            width //= 2
        return width

    def _fits(self, width: int, reads: list[Access], stores: list[Access], has_tail: bool) -> bool:
        last = self.elements[-1]
        fitting = sum(one.fits(width, last) for one in reads)
        return (
            (has_tail or is_multiple(self.length, width))
            and all(one.fits(width, last) for one in stores)
            and 2 * fitting >= len(reads)
        )


def _block(
    sch: s_tir.Schedule,
    info: SBlockInfo,
    rows: Sequence[Axis],
    elements: Sequence[Axis],
    names: set[str],
) -> Block | None:
    block = sch.get(info.block_rv)
    store = block.body
    if not isinstance(store, tirx.BufferStore) or nodes(store, tirx.Let):
        return None
    axes = [(it.var, is_one(axis.dom)) for it, axis in zip(block.iter_vars, info.iters)]
    sized = [var for var, is_unit in axes if not is_unit]
    named = {var: number(0) for var, is_unit in axes if is_unit}
    named |= {var: own for var, (own, _) in zip(sized, [*rows, *elements])}
    store = tvm_ffi.structural_map(store, (ir.Var, lambda var: named.get(var, var)))
    store = without_certain(store, [*rows, *elements])
    combine = start = None
    if info.is_reduction():
        if type(store.value) not in _COMBINES or not isinstance(block.init, tirx.BufferStore):
            return None
        sides = (store.value.a, store.value.b)
        if sum(is_load_of(side, store.buffer) for side in sides) != 1:
            return None
        combine, start = type(store.value), block.init.value
        if combine in _NEUTRAL and not is_constant(start, _NEUTRAL[combine]):
            return None
    elif any(is_load_of(load, store.buffer) for load in nodes(store.value, ir.TensorLoad)):
        return None
    if combine is not None and not any(it.kind == "R" and not is_one(it.dom) for it in info.iters):
        # Over axes of size 1: what it starts from, and one value.
        (value,) = [side for side in sides if not is_load_of(side, store.buffer)]
        whole = value if _is_neutral(combine, start) else combine(start, value)
        store = tirx.BufferStore(store.buffer, whole, list(store.indices))
        combine = start = None
    readers = {sch.get(reader).name_hint for reader in sch.get_consumers(info.block_rv)}
    is_result = is_output(sch, info) or not readers <= names
    return Block(store, len(sized) > len(rows), combine, start, is_result)


def _axes_reduced(info: SBlockInfo) -> tuple[list[Extent], list[Extent]] | None:
    """The extents that a reduction has results for, and those of its last axes, which it reduces.

    None of one that reduces none of its axes, all of them, or others.
    """
    axes = [axis for axis in info.iters if not is_one(axis.dom)]
    kinds = [axis.kind for axis in axes]
    if kinds != sorted(kinds, key="SR".index) or set(kinds) != {"S", "R"}:
        return None
    return [a.dom for a in axes if a.kind == "S"], [a.dom for a in axes if a.kind == "R"]


def _at_own_points(blocks: Sequence[Block]) -> list[Block]:
    """The blocks, each of which reads of the others' elements those at its own point alone.

    A thread has no other elements at hand: they are computed anew. Those up to the first block for
    which that cannot be.
    """
    done: list[Block] = []
    for block in blocks:
        before = {b.buffer: b for b in done if b.has_elements and b.combine is None}
        block = _with_own_points(block, before)
        if any(
            load.source in before
            and not (block.has_elements and _is_own_point(load, before[load.source]))
            for load in nodes(block.value, ir.TensorLoad)
        ):
            break
        done.append(block)
    return done


def _with_own_points(block: Block, before: dict[tirx.Var, Block]) -> Block:
    def anew(load: ir.TensorLoad) -> ir.Expr:
        return _anew(load, before, block.has_elements)

    return replace(block, store=tvm_ffi.structural_map(block.store, (ir.TensorLoad, anew)))


def _is_own_point(load: ir.TensorLoad, block: Block) -> bool:
    return bool(tvm_ffi.structural_equal(load.indices, block.store.indices))


def _anew(load: ir.TensorLoad, before: dict[tirx.Var, Block], has_elements: bool) -> ir.Expr:
    """What a load reads, computed once more if it is of another point than the reader's own."""
    block = before.get(load.source)
    if block is None or (has_elements and _is_own_point(load, block)):
        return load
    values = {
        variable: index
        for variable, index in zip(block.store.indices, load.indices)
        if isinstance(variable, ir.Var)
    }
    if sum(isinstance(n, tirx.IntImm) for n in block.store.indices) + len(values) < len(
        block.store.indices
    ):
        return load
    return tvm_ffi.structural_map(block.value, (ir.Var, lambda var: values.get(var, var)))


def reads(expr: ir.Expr, buffers: Collection[tirx.Var]) -> bool:
    """Whether an expression reads any of some buffers."""
    return any(load.source in buffers for load in nodes(expr, ir.TensorLoad))


def inlined(expr: ir.Expr, values: Mapping[tirx.Var, ir.Expr]) -> ir.Expr:
    """An expression with what buffers of one number are computed from in the place of these."""

    def of_load(load: ir.TensorLoad) -> ir.Expr:
        value = values.get(load.source)
        return load if value is None else inlined(value, values)

    return tvm_ffi.structural_map(expr, (ir.TensorLoad, of_load))


def is_load_of(expr: ir.Expr, buffer: tirx.Var) -> bool:
    """Whether the expression is a load of the buffer."""
    return isinstance(expr, ir.TensorLoad) and expr.source.same_as(buffer)


def _is_neutral(combine: type, start: ir.Expr) -> bool:
    """Whether any number stays what it is when it is combined with what a reduction starts from."""
    if combine in _NEUTRAL:
        return True
    limit = tirx.min_value if combine is tirx.Max else tirx.max_value
    dtype = str(start.ty.dtype)
    return dtype.startswith(("int", "uint")) and is_constant(start, limit(dtype).value)
