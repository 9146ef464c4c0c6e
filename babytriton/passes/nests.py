"""Loop nests for pointwise blocks: which blocks share one, and how deep its axes fuse.

Elementwise rules of every device put a value and its readers into one loop body: the value then
lives in a register, whether it is read once or often, and whether or not it is also an output.
What is read at other points than its own passes through memory; but what is only copied there is
read where it lies, and what is cheap may be computed for each of these points.
"""

from __future__ import annotations

import tvm_ffi
from tvm import ir, s_tir, sym, tirx
from tvm.s_tir.dlight.analysis import SBlockInfo

from babytriton.ops.primfunc import nodes
from babytriton.passes.blocks import (
    inline,
    inline_cheap,
    is_output,
    is_pointwise,
    is_wider,
    loads,
    loop_of,
    places_of,
    reads_of,
    same_extents,
    uses,
    written,
)
from babytriton.passes.effort import effort

Nest = list[SBlockInfo]

LONG = 64
"""Steps of a loop, beside which what starts and ends it is little."""


def pointwise_nests(
    sch: s_tir.Schedule, infos: list[SBlockInfo], side_by_side: bool = False
) -> list[Nest]:
    """The pointwise blocks grouped so that a group can share one loop nest, in running order.

    Args:
        sch: has them.
        infos: the blocks, in running order.
        side_by_side: whether blocks that read nothing of each other may share one, too, for which
            TVM moves none.
    """
    nests: list[Nest] = []
    for info in infos:
        homes = _homes(nests, producers(sch, info), side_by_side)
        home = next((nest for nest in homes if reads_only_own_point(sch, info, nest)), None)
        if home is None:
            nests.append([info])
        else:
            home.append(info)
    return nests


def _homes(nests: list[Nest], made: set[str], side_by_side: bool) -> list[Nest]:
    """The nests that a block may join which reads what these blocks make.

    Those that run when all of that is there; TVM moves blocks only to where all of it is made.
    """
    if not side_by_side:
        return [nest for nest in nests if made and made <= members(nest)]
    if not made <= {name for nest in nests for name in members(nest)}:
        return []
    return nests[max((n for n, nest in enumerate(nests) if made & members(nest)), default=0) :]


def members(nest: Nest) -> set[str]:
    """The names of a nest's blocks."""
    return {member.name for member in nest}


def producers(sch: s_tir.Schedule, info: SBlockInfo) -> set[str]:
    """The names of the blocks that write what a block reads."""
    return {sch.get(block).name_hint for block in sch.get_producers(info.block_rv)}


def inlined_nests(
    sch: s_tir.Schedule, infos: list[SBlockInfo], side_by_side: bool = False, cheap: int = 0
) -> list[Nest]:
    """The nests of pointwise blocks without those that are as well computed where they are read.

    Where several nests are left, what blocks of one read may be read by a single one by then.

    Args:
        sch: has the blocks.
        infos: these, in running order.
        side_by_side: whether blocks that read nothing of each other may share a nest, too.
        cheap: how much may be computed again for a number that is read at several places.
    """
    infos = inline_cheap(sch, infos, moves=False)
    nests = pointwise_nests(sch, infos, side_by_side)
    if len(nests) > 1:
        infos = inline_cheap(sch, infos, moves=False)
        infos = _computed_again(sch, infos, pointwise_nests(sch, infos, side_by_side), cheap)
        nests = pointwise_nests(sch, infos, side_by_side)
    return nests


def _computed_again(
    sch: s_tir.Schedule, infos: list[SBlockInfo], nests: list[Nest], cheap: int
) -> list[SBlockInfo]:
    """The blocks without those whose values others compute at each place where they read them.

    These are values that would be in memory for one other nest, which reads them at few places.
    """
    sizes = {info.name: info.dom() for info in infos}
    home = {info.name: n for n, nest in enumerate(nests) for info in nest}
    kept = []
    for info in infos:
        readers = {home[sch.get(block).name_hint] for block in sch.get_consumers(info.block_rv)}
        passes_on = len(readers) == 1 and home[info.name] not in readers
        is_cheap = passes_on and _is_cheap_at_places(sch, info, cheap)
        if not is_cheap or is_wider(sch, info, sizes) or not inline(sch, info):
            kept.append(info)
    return kept


def _is_cheap_at_places(sch: s_tir.Schedule, info: SBlockInfo, cheap: int) -> bool:
    """Whether no more than so much is computed again, and written again, for all reads."""
    if not is_pointwise(sch, info) or is_output(sch, info):
        return False
    value, places = sch.get(info.block_rv).body.value, places_of(sch, info)
    again = len(nodes(value, ir.Expr)) * (len(reads_of(sch, info)) - places)
    return effort(value) * (places - 1) <= cheap and again <= cheap


def reads_only_own_point(sch: s_tir.Schedule, info: SBlockInfo, nest: Nest) -> bool:
    """Whether the block, at each point, reads of the nest's values that same point only."""
    if not same_extents(info.dom(), nest[0].dom()):
        return False
    block = sch.get(info.block_rv)
    point = [it.var for it in block.iter_vars]
    return stores_at(sch, info, point) and all(
        is_point(load.indices, point) and stores_own_point(sch, member)
        for member in nest
        for load in loads(sch, info.block_rv, written(sch, member))
    )


def stores_own_point(sch: s_tir.Schedule, info: SBlockInfo) -> bool:
    return stores_at(sch, info, [it.var for it in sch.get(info.block_rv).iter_vars])


def stores_at(sch: s_tir.Schedule, info: SBlockInfo, point: list[tirx.Var]) -> bool:
    return is_point(sch.get(info.block_rv).body.indices, point)


def is_point(indices: list[ir.Expr], point: list[tirx.Var]) -> bool:
    return len(indices) == len(point) and all(i.same_as(v) for i, v in zip(indices, point))


def fuse_nest(
    sch: s_tir.Schedule, nest: Nest, depth: int
) -> tuple[s_tir.schedule.LoopRV | None, s_tir.schedule.LoopRV]:
    """One loop body for the nest: (the outer axes fused or None, the innermost `depth` fused)."""
    loops = sch.get_loops(nest[0].block_rv)
    split = len(loops) - depth
    inner = sch.fuse(*loops[split:])
    outer = sch.fuse(*loops[:split]) if split else None
    for info in nest[1:]:
        sch.reverse_compute_at(info.block_rv, inner, preserve_unit_loops=True)
    for info in nest:
        if stays_inside(sch, info, nest):
            # A GPU kernel cannot allocate other memory, and this is one element anyway.
            sch.set_scope(info.block_rv, 0, "local")
    return outer, inner


def stays_inside(sch: s_tir.Schedule, info: SBlockInfo, nest: Nest) -> bool:
    """Whether only the nest itself reads what the block computes."""
    names = {member.name for member in nest}
    readers = {sch.get(block).name_hint for block in sch.get_consumers(info.block_rv)}
    return not is_output(sch, info) and readers <= names


def contiguous_depth(sch: s_tir.Schedule, nest: Nest) -> int:
    """How many innermost axes fuse into one along which every access is contiguous or constant.

    At least one where there is an axis: a strided axis stays a loop of its own, since the index
    of a fused one would need a division at each element, which nothing vectorizes.
    """
    return min(block_depth(sch, info) for info in nest)


def block_depth(sch: s_tir.Schedule, info: SBlockInfo) -> int:
    block = sch.get(info.block_rv)
    variables = [it.var for it in block.iter_vars]
    store = block.body
    target = offset(store.buffer, store.indices)
    sources = [offset(load.source, load.indices) for load in nodes(store.value, ir.TensorLoad)]
    if len(variables) > 1 and is_long(info.iters[-1].dom):
        # What asks for places, not for elements, would divide as well.
        asked = without_loads(store.value)
        variables = variables[-1:] if any(uses(asked, var) for var in variables) else variables
    for depth in range(len(variables), 1, -1):
        outer, inner = variables[:-depth], variables[-depth:]
        if all(moves_along(source, target, outer, inner) for source in sources):
            return depth
    return min(len(variables), 1)


def is_long(extent: int | tirx.Expr) -> bool:
    """Whether a loop may well be one by itself; one of a length that a call tells may be."""
    return not isinstance(extent, int) or extent >= LONG


def without_loads(value: ir.Expr) -> ir.Expr:
    """The expression with zeros in place of the elements that it reads."""
    return tvm_ffi.structural_map(
        value, (ir.TensorLoad, lambda load: tirx.const(0, load.ty.dtype)), order="pre"
    )


def moves_along(
    source: ir.Expr, target: ir.Expr, outer: list[tirx.Var], inner: list[tirx.Var]
) -> bool:
    """Whether `source` advances with `target` over the inner variables, or not at all."""
    if not any(uses(source, var) for var in inner):
        return True
    return is_equal(at_zero(source, outer), at_zero(target, outer))


def is_equal(left: ir.Expr, right: ir.Expr) -> bool:
    return bool(sym.Analyzer().can_prove_equal(left, right))


def at_zero(expr: ir.Expr, variables: list[tirx.Var]) -> ir.Expr:
    zeros = {var: tirx.const(0, var.ty.dtype) for var in variables}
    return tvm_ffi.structural_map(expr, (ir.Var, lambda var: zeros.get(var, var)))


def offset(buffer: tirx.Buffer, indices: list[ir.Expr]) -> ir.Expr:
    """The row-major position of an element."""
    if not len(indices):
        return tirx.const(0, "int64")
    (position,) = buffer.offset_of(list(indices))
    return position


def fuse_reduced(sch: s_tir.Schedule, info: SBlockInfo) -> list[s_tir.schedule.LoopRV]:
    """The loops of the reduced axes, the last of them one where all it reads lies without gaps."""
    axes = [n for n, it in enumerate(info.iters) if it.kind == "R"]
    reduced = [loop_of(sch, info.block_rv, axis) for axis in axes]
    count = contiguous_axes(sch, info)
    if count == 1:
        return reduced
    return [*reduced[:-count], sch.fuse(*reduced[-count:])]


def contiguous_axes(sch: s_tir.Schedule, info: SBlockInfo) -> int:
    """How many trailing reduced axes every operand holds without gaps: they fuse into one."""
    block = sch.get(info.block_rv)
    variables = [it.var for it in block.iter_vars]
    axes = [(var, it.dom) for var, it in zip(variables, info.iters) if it.kind == "R"]
    loads = nodes(block.body.value, ir.TensorLoad)
    for count in range(len(axes), 1, -1):
        inner = axes[-count:]
        position = tirx.const(0, inner[0][0].ty.dtype)
        for var, dim in inner:
            position = position * dim + var
        rest = [var for var in variables if not any(var.same_as(other) for other, _ in inner)]
        places = [
            at_zero(offset(load.source, load.indices), rest)
            for load in loads
            if any(uses(index, var) for index in load.indices for var, _ in inner)
        ]
        if all(is_equal(place, position) for place in places):
            return count
    return 1
