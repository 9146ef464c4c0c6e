"""Kernels that write a part of a tensor and copy the rest -> such that write the part alone.

For where the result takes the place of the tensor: the rest is there already. A slice is a box of
elements, which its block is annotated with; what is written at places from a tensor starts as a
copy, which is a block of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import tvm_ffi
from tvm import ir, s_tir, sym, tirx

from babytriton.ops.layout import BOX
from babytriton.ops.primfunc import nodes, with_fields
from babytriton.ops.writes import COPY
from babytriton.passes.blocks import element, only_block
from babytriton.passes.inlining import computing, stores_plain_points
from babytriton.passes.intrinsics import function_name
from babytriton.passes.recurrences.in_place import PLACES, in_one_place

_MOST_READS = 64
"""How often a box that computes itself what it writes may read an element that was there."""


def is_box(block: s_tir.SBlock) -> bool:
    """Whether a block writes a box of a tensor and copies the rest."""
    return BOX in block.annotations


def ends_in_box(blocks: Sequence[s_tir.SBlock]) -> bool:
    """Whether the last of some blocks writes a box, and the others compute what is written."""
    *before, last = blocks
    return is_box(last) and all(map(_is_plain, before)) and not any(map(is_box, before))


def _is_plain(block: s_tir.SBlock) -> bool:
    """Whether a block stores a number for each of its points."""
    is_store = isinstance(block.body, tirx.BufferStore)
    points = all(axis.iter_type == tirx.IterVar.DataPar for axis in block.iter_vars)
    return is_store and points and block.init is None


def writes_a_part(func: tirx.PrimFunc) -> bool:
    """Whether a kernel that is of one operator copies its first parameter, but for a part."""
    blocks = nodes(func.body, s_tir.SBlock)
    return any(is_box(block) or is_copy_of(block, func.params[0]) for block in blocks)


def without_boxes(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The kernel with blocks that are not said to write boxes."""

    def plain(block: s_tir.SBlock) -> s_tir.SBlock:
        if not is_box(block):
            return block
        notes = {key: note for key, note in block.annotations.items() if key != BOX}
        return with_fields(block, annotations=notes)

    return func.with_body(tvm_ffi.structural_map(func.body, (s_tir.SBlock, plain)))


def without_the_rest(
    func: tirx.PrimFunc, contents: tirx.Var, out: tirx.Var
) -> tirx.PrimFunc | None:
    """The kernel with a parameter that holds all of a result but for the part that is written.

    Args:
        func: an unscheduled kernel.
        contents: a parameter of the result's type.
        out: the result.

    Returns:
        A kernel in which the result is to be the same memory, and which reads no element of the
        parameter but the one that it then writes; None where it writes all of it, or needs what
        else was there.
    """

    def rewritten(stmt: tirx.Stmt) -> tirx.Stmt:
        block = only_block(stmt)
        if block is None or not _writes(block, out):
            return stmt
        if is_copy_of(block, contents):
            return _NOTHING
        return (_of_box(block, contents) or stmt) if is_box(block) else stmt

    if func.attrs and PLACES in func.attrs:
        return in_one_place(func, contents, out)
    root = func.body
    if not isinstance(root, s_tir.SBlockRealize):
        return None
    parts = root.block.body.seq if isinstance(root.block.body, tirx.SeqStmt) else [root.block.body]
    inner = set(root.block.alloc_buffers)
    parts = _with_what_box_reads(parts, contents, inner)
    found = [rewritten(part) for part in parts]
    kept = [part for part in found if part is not _NOTHING]
    if not kept or all(new is old for new, old in zip(found, parts)):
        return None
    plain = [part for part in kept if not _updates(part, contents, out)]
    if any(_reads(part, contents) for part in plain):
        return None
    # What else reads the result may run beside what writes it.
    others = [part for part in kept if not any(_writes(x, out) for x in nodes(part, s_tir.SBlock))]
    if any(_reads(part, out) for part in others):
        return None
    body = kept[0] if len(kept) == 1 else tirx.SeqStmt(kept)
    own = root.block
    left = [buffer for buffer in own.alloc_buffers if any(_reads(part, buffer) for part in kept)]
    block = with_fields(own, body=body, alloc_buffers=left)
    return func.with_body(s_tir.SBlockRealize(root.iter_values, root.predicate, block, root.span))


_NOTHING = tirx.Evaluate(0)
"""Where there was a copy."""


def _with_what_box_reads(
    parts: Sequence[tirx.Stmt], contents: tirx.Var, inner: set[tirx.Var]
) -> list[tirx.Stmt]:
    """Blocks that end in a box, which computes itself what is computed from a tensor's elements.

    Args:
        parts: the blocks.
        contents: the tensor.
        inner: what a kernel has for itself; what it gives is computed where it is.
    """
    blocks = [only_block(part) for part in parts]
    known = [block for block in blocks if block is not None]
    if len(known) < len(blocks) or not ends_in_box(known):
        return list(parts)
    values: dict[tirx.Var, s_tir.SBlock] = {}
    counts = Counter({contents: 1})
    kept: list[tirx.Stmt] = []
    for part, block in zip(parts, known):
        made = computing(block, values)
        count = sum(counts[load.source] for load in nodes(block.body, ir.TensorLoad))
        if count > _MOST_READS:
            return list(parts)
        if count and stores_plain_points(made) and made.body.buffer in inner:
            values[made.body.buffer], counts[made.body.buffer] = made, count
        else:
            kept.append(_with_block(part, made))
    return kept


def _with_block(part: tirx.Stmt, made: s_tir.SBlock) -> tirx.Stmt:
    """The loops around a block, around another one."""
    return tvm_ffi.structural_map(part, (s_tir.SBlock, lambda _: made))


def _updates(part: tirx.Stmt, contents: tirx.Var, out: tirx.Var) -> bool:
    """Whether a block reads no element of a tensor but the one that it then stores to a result."""
    block = only_block(part)
    if block is None or not _is_plain(block) or not block.body.buffer.same_as(out):
        return False
    loads = (x for x in nodes(block.body.value, ir.TensorLoad) if x.source.same_as(contents))
    return all(_are_same(load.indices, block.body.indices) for load in loads)


def _reads(part: tirx.Stmt, buffer: tirx.Var) -> bool:
    return any(load.source.same_as(buffer) for load in nodes(part, ir.TensorLoad))


def _writes(block: s_tir.SBlock, buffer: tirx.Var) -> bool:
    return any(region.source.same_as(buffer) for region in block.writes)


def is_copy_of(block: s_tir.SBlock, contents: tirx.Var) -> bool:
    """Whether a block copies a tensor as it is, before others write to parts of the copy."""
    store = block.body
    if not block.name_hint.startswith(COPY) or not isinstance(store, tirx.BufferStore):
        return False
    value = store.value
    is_load = isinstance(value, ir.TensorLoad) and value.source.same_as(contents)
    return is_load and _are_same(value.indices, store.indices)


def _of_box(block: s_tir.SBlock, contents: tirx.Var) -> tirx.Stmt | None:
    """Loops over the box alone of a block that writes one."""
    store = block.body
    if not isinstance(store, tirx.BufferStore) or not isinstance(store.value, ir.Call):
        return None
    if function_name(store.value) != "if_then_else":
        return None
    _, new, kept = store.value.args
    is_kept = isinstance(kept, ir.TensorLoad) and kept.source.same_as(contents)
    if not is_kept or not _are_same(kept.indices, store.indices):
        return None
    numbers = [int(n) for n in block.annotations[BOX]]
    slices = list(zip(numbers[::3], numbers[1::3], numbers[2::3]))
    if len(slices) != len(block.iter_vars):
        return None
    loops, axes, places = [], [], {}
    for axis, (start, stop, step) in zip(block.iter_vars, slices):
        dtype, whole = axis.var.ty.dtype, axis.dom.extent
        first = whole + start if start < 0 else tirx.const(start, dtype)
        end = whole + stop if stop <= 0 else tirx.const(stop, dtype)
        zero, count = tirx.const(0, dtype), _steps(end - first, step)
        loops.append(tirx.Var(axis.var.name, dtype))
        inner = tirx.Var(f"v_{axis.var.name}", dtype)
        axes.append(tirx.IterVar(ir.Range.from_min_extent(zero, count), inner, axis.iter_type))
        places[axis.var] = inner * tirx.const(step, dtype) + first
    analyzer = sym.Analyzer()
    for axis in axes:
        analyzer.bind(axis.var, axis.dom)

    def placed(expr: ir.Expr) -> ir.Expr:
        return tvm_ffi.structural_map(expr, (ir.Var, lambda var: places.get(var, var)))

    def simple(load: ir.TensorLoad) -> ir.TensorLoad:
        return tirx.BufferLoad(load.source, [analyzer.simplify(index) for index in load.indices])

    value = tvm_ffi.structural_map(placed(new), (ir.TensorLoad, simple))
    indices = [analyzer.simplify(placed(index)) for index in store.indices]
    body = tirx.BufferStore(store.buffer, value, indices)
    reads = [element(load.source, load.indices) for load in nodes(value, ir.TensorLoad)]
    made = with_fields(
        block,
        iter_vars=axes,
        reads=reads,
        writes=[element(store.buffer, indices)],
        body=body,
        annotations={},
    )
    stmt: tirx.Stmt = s_tir.SBlockRealize(loops, tirx.const(True, "bool"), made)
    for loop, axis in reversed(list(zip(loops, axes))):
        stmt = tirx.For(loop, axis.dom.min, axis.dom.extent, tirx.ForKind.SERIAL, stmt)
    return stmt


def _steps(length: ir.Expr, step: int) -> ir.Expr:
    """How many indices of a length there are in steps from the first on."""
    one, by = tirx.const(1, length.ty.dtype), tirx.const(step, length.ty.dtype)
    return sym.Analyzer().simplify(tirx.floordiv(length + by - one, by))


def _are_same(left: Sequence[ir.Expr], right: Sequence[ir.Expr]) -> bool:
    return bool(tvm_ffi.structural_equal(list(left), list(right), map_free_vars=False))
