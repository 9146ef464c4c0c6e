"""Kernels of one operator for tensors that lie in another order than their axes have.

They go through what they read and write from front to back: what is read from memory in an order
of its own is written in the same order, and summed in it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import ir, s_tir, te, tirx

from babytriton.ops.primfunc import nodes
from babytriton.passes.blocks import of_shape, only_block, uses, with_types
from babytriton.passes.names import with_vars
from babytriton.passes.reshape_kernels import groups_of_axes, is_reshape_kernel, reshaped
from babytriton.passes.scans import is_scan
from babytriton.passes.statements import has_addresses, is_number
from babytriton.passes.unchecked_schedules import schedule_of

Order = tuple[int, ...]
"""The axes of a tensor, from the one with the longest steps in memory to that with the shortest."""

Places = tuple[int, ...]
"""For each axis of a tensor, its place in such an order: the axis of memory that it is."""

_COPY = "babytriton.turned"
"""What a kernel is annotated with that only copies a tensor: the axes of it that the copy has."""


def turning(memory: Any, read: Sequence[Any], order: Order) -> tirx.PrimFunc:
    """A kernel that copies what is in memory to where it would lie in a contiguous tensor.

    Args:
        memory: the type of what is there.
        read: how much is read along each axis of it.
        order: in which it has the tensor's axes.
    """
    axes = inverse(order)
    given = te.placeholder(list(memory.shape), str(memory.dtype), name="memory")
    shape = [read[place] for place in axes]
    copy = te.compute(shape, lambda *index: given(*[index[n] for n in order]), name="turned")
    func: tirx.PrimFunc = te.create_prim_func([given, copy], "int64")
    return func.without_attr("global_symbol").with_attr(_COPY, list(axes))


def axes_of_copy(func: ir.BaseFunc) -> Places | None:
    """The axes of what is in memory that a kernel copies; None for all but such kernels."""
    axes = (func.attrs or {}).get(_COPY)
    return None if axes is None else tuple(map(int, axes))


def transposed(func: tirx.PrimFunc) -> Places | None:
    """The axes of its parameter that a kernel gives in another order, and all of it; or None."""
    root = func.body
    if not isinstance(root, s_tir.SBlockRealize) or not isinstance(root.block.body, tirx.For):
        return None
    block = only_block(root.block.body)
    if block is None or not _is_plain(block) or _sums(block):
        return None
    load, rank = block.body.value, len(block.iter_vars)
    if not isinstance(load, ir.TensorLoad) or len(load.indices) != rank:
        return None
    points = [axis.var for axis in block.iter_vars]
    read = [next((n for n, var in enumerate(points) if x.same_as(var)), -1) for x in load.indices]
    axes = _axes(block)
    if sorted(read) != list(range(rank)) or axes != list(range(rank)):
        return None
    shape = [block.iter_vars[n].dom.extent for n in read]
    is_whole = all(map(tvm_ffi.structural_equal, shape, load.source.shape))
    return inverse(read) if is_whole else None


def inverse(axes: Sequence[int]) -> tuple[int, ...]:
    """For each axis, its place in an order of all of them; of such places, the order."""
    return tuple(sorted(range(len(axes)), key=axes.__getitem__))


_SHORT = 16
"""Numbers in a row, of which a sum of fewer at a time takes longer than one across rows."""


@dataclass(frozen=True)
class Turned:
    """A kernel that is given memory in the place of turned copies of it.

    Attributes:
        func: the kernel.
        read: the numbers of the parameters of which it is given the memory.
        order: of the axes of its result, which it gives in that order; None where it gives
            a contiguous one.
        is_pointwise: whether each element of it is computed from those at the same place.
        keeps_format: whether torch has the result in the memory format of what it is computed from:
            not of sums along all of an axis, nor of elements that other tensors choose.
        has_products: whether it sums over what it reads of several tensors, as a product does.
    """

    func: tirx.PrimFunc
    read: Collection[int]
    order: Order | None = None
    is_pointwise: bool = False
    keeps_format: bool = False
    has_products: bool = False


def turned(
    func: tirx.PrimFunc, given: Mapping[int, tuple[Places, Any]], may_turn: bool = True
) -> Turned:
    """A kernel of one operator for what is in memory.

    Args:
        func: the kernel, as it was made for the operator.
        given: by the numbers of parameters, the axes of what is in memory in the order in which
            they make the tensor, and the type of what is there.
        may_turn: whether what is computed from that may lie in orders of its own.
    """
    changed, read = func, []
    for n, (axes, memory) in given.items():
        found = _from_memory(changed, n, axes, memory)
        if found is not None:
            changed = found
            read.append(n)
    if len(read) < len(given):
        return Turned(changed, read)
    if may_turn and is_reshape_kernel(func):
        ((axes, memory),) = given.values()
        return _reshaped(func, axes, memory) or Turned(changed, read)
    kernel = _Kernel.of(changed, [changed.params[n] for n in read], may_turn)
    return Turned(changed, read) if kernel is None else kernel.turned(read)


def _from_memory(
    func: tirx.PrimFunc, place: int, axes: Places, memory: Any
) -> tirx.PrimFunc | None:
    """A kernel for what is in the memory of a parameter; None where it may not just load elements.

    Args:
        func: the kernel.
        place: the number of the parameter.
        axes: of what is in memory, in the order in which they make the parameter.
        memory: its type.
    """
    buffer = func.params[place]
    if has_addresses(func.body):
        return None
    # What a running sum is marked with are axes of the tensor, not of its memory.
    if any(block.match_buffers or is_scan(block) for block in nodes(func.body, s_tir.SBlock)):
        return None
    sch = schedule_of(func)
    order = inverse(axes)
    try:
        for block in sch.get_child_blocks(sch.get_sblock("root")):
            reads = [region.source for region in sch.get(block).reads]
            for n, source in enumerate(reads):
                if source.same_as(buffer):
                    sch.transform_layout(
                        block, ("read", n), lambda *index: [index[axis] for axis in order]
                    )
                    found = sch.mod["main"].with_attrs(dict(func.attrs))
                    given = found.params[place]
                    # There may be more of it than is read; a variable is the program's, though.
                    sizes = [
                        size if isinstance(size, tirx.IntImm) else buffer.shape[axis]
                        for size, axis in zip(memory.shape, order)
                    ]
                    return with_types(found, {given: of_shape(given.ty, sizes)})
    except s_tir.ScheduleError:
        pass
    return None


# Reshapes


def _reshaped(func: tirx.PrimFunc, axes: Places, memory: Any) -> Turned | None:
    """A reshape of what is in memory, as that of the tensor has it; None where there is none.

    Args:
        func: the reshape of the tensor.
        axes: of what is in memory, in the order in which they make the tensor.
        memory: its type.
    """
    given, result = func.params
    order, shape = inverse(axes), list(result.shape)
    lies = [given.shape[axis] for axis in order]
    found = _order_of_reshaped(list(given.shape), shape, order)
    # There may be more in memory than the tensor.
    if found is None or not all(tvm_ffi.structural_equal(n, m) for n, m in zip(memory.shape, lies)):
        return None
    turns = _turns(found, shape)
    there = te.placeholder(lies, str(given.dtype), name=given.name)
    made = reshaped(there, [shape[axis] for axis in found] if turns else shape)
    copy: tirx.PrimFunc = te.create_prim_func([there, made], "int64")
    copy = copy.without_attr("global_symbol").with_attrs(dict(func.attrs or {}))
    copy = with_vars(copy, {copy.params[1]: ir.Var(result.name, copy.params[1].ty)})
    return Turned(copy, (0,), found if turns else None, True, True)


def _order_of_reshaped(given: Sequence[Any], shape: Sequence[Any], order: Order) -> Order | None:
    """The order in which a reshaped tensor lies, by that in which the tensor does.

    None where it lies in no order of its axes.

    Args:
        given: the shape of the tensor.
        shape: the other one.
        order: of the tensor's axes.
    """
    groups = groups_of_axes(list(given), list(shape))
    left = _wide(order, given)
    found: list[int] = []
    while left:
        old, new = next(group for group in groups if left[0] in group[0])
        together = _wide(old, given)
        if left[: len(together)] != together:
            return None
        left = left[len(together) :]
        found += new
    return *(axis for axis in range(len(shape)) if axis not in found), *found


def _wide(axes: Iterable[int], shape: Sequence[Any]) -> list[int]:
    """Those axes of some along which there is more than one element."""
    return [axis for axis in axes if not is_number(shape[axis], 1)]


def _turns(order: Order, shape: Sequence[Any]) -> bool:
    """Whether a tensor that lies in an order is not contiguous."""
    wide = _wide(order, shape)
    return wide != sorted(wide)


# Other kernels


@dataclass(frozen=True)
class _Way:
    """How a block goes through what it reads.

    Attributes:
        loops: its iterations, from the outermost to the innermost.
        order: of the axes of what it writes; None where that is contiguous.
    """

    loops: list[int]
    order: Order | None


@dataclass(frozen=True)
class _Kernel:
    """A kernel of blocks in plain loops, with one result.

    Attributes:
        sch: a schedule of it.
        blocks: in the order in which they run.
        attrs: of the kernel.
        ways: how each block is to go.
    """

    sch: s_tir.Schedule
    blocks: Sequence[s_tir.schedule.SBlockRV]
    attrs: Mapping[str, Any]
    ways: Sequence[_Way]

    @classmethod
    def of(cls, func: tirx.PrimFunc, given: Sequence[tirx.Var], may_turn: bool) -> _Kernel | None:
        """A kernel, of whose parameters some lie in orders of their own; None where it is another.

        Args:
            func: the kernel, which takes these as they lie.
            given: the parameters.
            may_turn: whether what is computed from these may.
        """
        sch = schedule_of(func)
        rvs = sch.get_child_blocks(sch.get_sblock("root"))
        blocks = [sch.get(rv) for rv in rvs]
        if not all(_is_plain(block) for block in blocks) or any(
            len(sch.get_loops(rv)) != len(block.iter_vars) for rv, block in zip(rvs, blocks)
        ):
            return None
        results = [block.writes[0].source in func.params for block in blocks]
        if results.count(True) != 1 or not results[-1]:
            return None
        orders: dict[tirx.Var, Order] = {x: tuple(range(len(x.shape))) for x in given}
        ways = []
        for block in blocks:
            way = _way(block, orders)
            ways.append(way)
            if way.order is not None:
                orders[block.writes[0].source] = way.order
        if ways[-1].order is None or not may_turn:
            # What passes between the blocks stays as it is as well.
            own = {x: orders[x] for x in given}
            ways = [_way(block, own, False, may_turn) for block in blocks]
        return cls(sch, rvs, dict(func.attrs or {}), ways)

    def turned(self, read: Collection[int]) -> Turned:
        """The kernel that goes through memory from front to back.

        Args:
            read: the numbers of the parameters of which it is given the memory.
        """
        sch = self.sch
        blocks = [sch.get(rv) for rv in self.blocks]
        func = sch.mod["main"]
        given = {func.params[n] for n in read}
        is_pointwise = all(_is_pointwise(block, given) for block in blocks)
        keeps_format = all(_keeps_format(block) for block in blocks)
        has_products = any(_has_products(block) for block in blocks)
        for rv, way in zip(self.blocks, self.ways):
            if way.loops != sorted(way.loops):
                loops = sch.get_loops(rv)
                sch.reorder(*[loops[n] for n in way.loops])
                sch.reorder_block_iter_var(rv, way.loops)
            if way.order is not None:
                sch.transform_layout(rv, ("write", 0), _turning(way.order))
        found = sch.mod["main"].with_attrs(self.attrs)
        order = self.ways[-1].order
        return Turned(found, read, order, is_pointwise, keeps_format, has_products)


def _turning(order: Order) -> Callable[..., list[Any]]:
    return lambda *index: [index[axis] for axis in order]


def _is_plain(block: s_tir.SBlock) -> bool:
    """Whether a block stores a number at each of its points, and nothing is to be known of it."""
    if block.annotations or block.match_buffers or not isinstance(block.body, tirx.BufferStore):
        return False
    # Each point has a place of its own.
    spatial = [n for n in range(len(block.iter_vars)) if n not in _sums(block)]
    return sorted(n for n in _axes(block) if n is not None) == spatial


def _sums(block: s_tir.SBlock) -> list[int]:
    """The iterations of a block that it sums over."""
    axes = enumerate(block.iter_vars)
    return [n for n, axis in axes if axis.iter_type != tirx.IterVar.DataPar]


def _is_pointwise(block: s_tir.SBlock, given: Set[tirx.Var]) -> bool:
    """Whether a block computes each number from those at the same place of what is given."""
    points = [axis.var for axis in block.iter_vars]
    indices = [
        index
        for load in nodes(block.body.value, ir.TensorLoad)
        if load.source in given
        for index in load.indices
    ]
    places = (any(x.same_as(var) for var in points) or is_number(x, 0) for x in indices)
    return not _sums(block) and all(places)


def _keeps_format(block: s_tir.SBlock) -> bool:
    """Whether a block sums over windows alone, and reads at places that no tensor tells."""
    sums = [block.iter_vars[n].var for n in _sums(block)]
    loads = [x for x in nodes(block.body.value, ir.TensorLoad) if x.source != block.body.buffer]
    indices = [index for load in loads for index in load.indices]
    return not any(
        nodes(index, ir.TensorLoad) or any(index.same_as(var) for var in sums) for index in indices
    )


def _has_products(block: s_tir.SBlock) -> bool:
    """Whether a block sums over what it reads of several tensors."""
    sums = [block.iter_vars[n].var for n in _sums(block)]
    loads = [x for x in nodes(block.body.value, ir.TensorLoad) if x.source != block.body.buffer]
    return len({x.source for x in loads if any(uses(x, var) for var in sums)}) > 1


def _axes(block: s_tir.SBlock) -> list[int | None]:
    """For each axis of what a block writes, the number of the iteration along it, if it is one."""
    points = [axis.var for axis in block.iter_vars]
    return [
        next((n for n, var in enumerate(points) if index.same_as(var)), None)
        for index in block.body.indices
    ]


def _way(
    block: s_tir.SBlock,
    orders: Mapping[tirx.Var, Order],
    is_turned: bool = True,
    adds_few: bool = True,
) -> _Way:
    """How a block is to go through what it reads.

    Args:
        block: it stores a number at each point.
        orders: of what lies in orders of its own.
        is_turned: whether what it writes may lie so.
        adds_few: whether sums may go through few numbers in a row at a time.
    """
    sizes = [axis.dom.extent for axis in block.iter_vars]
    sums, axes = _sums(block), _axes(block)
    spatial = [n for n in range(len(sizes)) if n not in sums]
    loads = [x for x in nodes(block.body.value, ir.TensorLoad) if x.source != block.body.buffer]
    order = _order_read(block, loads, orders, _wide(spatial, sizes)) if is_turned else None
    if order is not None:
        spatial = [*(n for n in spatial if n not in order), *order]
    adding = [x for x in loads if any(uses(x, block.iter_vars[n].var) for n in sums)]
    if all(load.source in orders for load in adding):
        added = _order_read(block, adding, orders, _wide(sums, sizes))
        if added is not None and (adds_few or not _is_short(sizes[added[-1]])):
            sums = [*(n for n in sums if n not in added), *added]
    if order is None:
        return _Way([*spatial, *sums], None)
    along = [axes.index(n) for n in order]
    written = *(axis for axis in range(len(axes)) if axis not in along), *along
    return _Way([*spatial, *sums], written)


def _is_short(size: ir.Expr) -> bool:
    return isinstance(size, tirx.IntImm) and size < _SHORT


def _order_read(
    block: s_tir.SBlock,
    loads: Sequence[ir.TensorLoad],
    orders: Mapping[tirx.Var, Order],
    iterations: Sequence[int],
) -> list[int] | None:
    """The order in which some iterations of a block go through what it reads.

    None where that is the one that they have, or loads differ in it. What is read along fewer of
    them is smaller, and has no part in it.

    Args:
        block: the one.
        loads: in it.
        orders: of what lies in orders of its own.
        iterations: by their numbers.
    """
    found: list[list[int]] = []
    is_turned = False
    for load in loads:
        own = orders.get(load.source)
        indices = load.indices if own is None else [load.indices[axis] for axis in own]
        used = [[n for n in iterations if uses(x, block.iter_vars[n].var)] for x in indices]
        along = [n for together in used for n in together]
        if {*along} != {*iterations}:
            continue
        if len(along) > len(iterations) or any(len(together) > 1 for together in used):
            return None
        found.append(along)
        is_turned |= own is not None
    if not is_turned or any(along != found[0] for along in found):
        return None
    return None if found[0] == sorted(found[0]) else found[0]
