"""A TensorIR function in the form in which a program can call it, and fuse it with others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm_ffi
from tvm import ir, s_tir, te, tirx
from tvm.tirx import For, ForKind, PrimFunc

from babytriton.ops.primfunc import is_scheduled, nodes, with_fields

_OPAQUE = 8
"""FuseOps' number for functions that fuse with nothing."""


def as_kernel(
    func: PrimFunc, outputs: Sequence[ir.Var], started: Sequence[ir.Var], device: str
) -> PrimFunc:
    """A function as call_tir and FuseTIR want it: outputs last, in blocks, sizes in int64.

    Args:
        func: its parameters are buffers of known sizes. Where its author has scheduled it, its
            body stays as it is.
        outputs: the buffers among its parameters that it writes.
        started: those outputs that hold something before; an input more for each of them stands
            before all others. None if the function is scheduled.
        device: the kind of device that it is to run on.
    """
    func, plain = _with_plain_buffers(func)
    inputs = [plain[x] for x in plain if not any(x.same_as(output) for output in outputs)]
    results = [plain[output] for output in outputs]
    if is_scheduled(func, device):
        made = PrimFunc([*inputs, *results], func.body, func.ret_type, func.attrs)
        made = made.with_attrs({"tirx.is_scheduled": True, "op_pattern": _OPAQUE})
        return made.without_attr("global_symbol")
    made = _widened(func.body, inputs, results)
    if func.attrs and "op_pattern" in func.attrs:
        made = made.with_attr("op_pattern", func.attrs["op_pattern"])
    places = [i for i, out in enumerate(outputs) if any(out.same_as(other) for other in started)]
    for place in reversed(places):
        made = _started(made, made.params[len(made.params) - len(outputs) + place])
    return made if _is_dataflow(made) else _sealed(made, len(outputs))


def _started(func: PrimFunc, output: ir.Var) -> PrimFunc:
    """The function with one more input, its first, which an output starts as a copy of."""
    copy = _copy(output)
    before, written = copy.params
    updates = [x for x in nodes(func.body, tirx.BufferStore) if x.buffer.same_as(output)]
    loads = [x for x in nodes(func.body, ir.TensorLoad) if x.source.same_as(output)]
    if _updates_each_once(func, output, updates, loads):

        def replaced(load: Any) -> Any:
            return tirx.BufferLoad(before, load.indices) if load.source.same_as(output) else load

        body = tvm_ffi.structural_map(func.body, (ir.TensorLoad, replaced))
        body = tvm_ffi.structural_map(body, (s_tir.SBlock, _with_found_regions))
    else:
        root = func.body.block
        start = _replaced(copy.body.block.body, written, output)
        body = _root(tirx.SeqStmt([start, root.body]), root.alloc_buffers)
    return PrimFunc([before, *func.params], body, func.ret_type, func.attrs)


def _updates_each_once(
    func: PrimFunc, output: ir.Var, updates: Sequence[Any], loads: Sequence[Any]
) -> bool:
    """Whether each element of an output is written once, from what it held itself."""
    owners = [
        block
        for block in nodes(func.body, s_tir.SBlock)
        if isinstance(block.body, tirx.BufferStore) and block.body.buffer.same_as(output)
    ]
    if len(updates) != 1 or len(owners) != 1 or owners[0].init is not None:
        return False
    block, indices = owners[0], list(updates[0].indices)
    axes = [axis.var for axis in block.iter_vars]
    parallel = all(axis.iter_type == tirx.IterVar.DataPar for axis in block.iter_vars)
    extents = [axis.dom.extent for axis in block.iter_vars]
    whole = all(int(size) == int(extent) for size, extent in zip(output.ty.shape, extents))
    own = [load for load in loads if _same(load.indices, indices)]
    return parallel and whole and _same(axes, indices) and len(own) == len(loads)


def _is_dataflow(func: PrimFunc) -> bool:
    """Whether each buffer is written by one block, which reads of it only its own partial sums.

    Schedules work on such functions alone.
    """
    blocks = [block for block in nodes(func.body, s_tir.SBlock) if block.writes]
    writers = [region.source for block in blocks for region in block.writes]
    updates = any(
        load.source.same_as(region.source)
        for block in blocks
        if block.init is None
        for region in block.writes
        for load in nodes(block.body, ir.TensorLoad)
    )
    return len({*writers}) == len(writers) and not updates


def _sealed(func: PrimFunc, outputs: int) -> PrimFunc:
    """The function with all of its statements in one block, which runs as it stands."""
    root = func.body.block
    buffers = list(root.alloc_buffers)

    def opened(realize: s_tir.SBlockRealize) -> tirx.Stmt:
        if realize.block.match_buffers:
            return realize
        buffers.extend(realize.block.alloc_buffers)
        return _without_block(realize)

    body = tvm_ffi.structural_map(root.body, (s_tir.SBlockRealize, opened))
    regions = [_whole(buffer) for buffer in func.params]
    inputs = len(regions) - outputs
    block = s_tir.SBlock([], regions[:inputs], regions[inputs:], "kernel", body)
    sealed = func.with_body(_root(s_tir.SBlockRealize([], True, block), buffers))
    # TVM's own opinion of such blocks is not to be relied on.
    return sealed.with_attr("op_pattern", _OPAQUE)


def _without_block(realize: s_tir.SBlockRealize) -> tirx.Stmt:
    """The statements of a block, in terms of the loops around it."""
    block = realize.block
    body = block.body
    if block.init is not None:
        reduced = [x for x in block.iter_vars if x.iter_type == tirx.IterVar.CommReduce]
        first: Any = tirx.const(True, "bool")
        for axis in reduced:
            first = tirx.And(first, tirx.EQ(axis.var, axis.dom.min))
        body = tirx.SeqStmt([tirx.IfThenElse(first, block.init), body])
    values = {axis.var: value for axis, value in zip(block.iter_vars, realize.iter_values)}
    body = tvm_ffi.structural_map(body, (ir.Var, lambda var: values.get(var, var)))
    always = isinstance(realize.predicate, tirx.IntImm) and bool(realize.predicate.value)
    return body if always else tirx.IfThenElse(realize.predicate, body)


def _with_plain_buffers(func: PrimFunc) -> tuple[PrimFunc, dict[ir.Var, ir.Var]]:
    """The function over contiguous buffers as call_tir passes them, and which became which."""
    plain = {
        param: tirx.decl_buffer(param.ty.shape, param.ty.dtype, name=param.name, layout=None)
        for param in func.params
    }
    body = tvm_ffi.structural_map(func.body, (ir.Var, lambda var: plain.get(var, var)))
    return PrimFunc(list(plain.values()), body, func.ret_type, func.attrs), plain


def _copy(buffer: ir.Var) -> PrimFunc:
    shape = [tirx.IntImm("int64", int(size)) for size in buffer.ty.shape]
    source = te.placeholder(shape, buffer.ty.dtype, name=f"{buffer.name}_before")
    made = te.compute(shape, lambda *index: source(*index), name=f"{buffer.name}_start")
    return te.create_prim_func([source, made], index_dtype_override="int64")


def _widened(body: tirx.Stmt, inputs: Sequence[ir.Var], outputs: Sequence[ir.Var]) -> PrimFunc:
    """A function of this body in blocks, with all sizes and indices in int64.

    FuseTIR joins buffers of one index dtype only. Tensor expressions have a pass for it, which
    is reached by taking the body for that of an external computation.
    """
    tensors = [te.placeholder(list(x.ty.shape), x.ty.dtype, name=x.name) for x in inputs]
    body = _in_blocks(body)
    made = te.extern(
        [list(x.ty.shape) for x in outputs],
        tensors,
        lambda *_: body,
        name="kernel",
        dtype=[x.ty.dtype for x in outputs],
        in_buffers=list(inputs),
        out_buffers=list(outputs),
    )
    results = list(made) if isinstance(made, (list, tuple, tvm_ffi.Array)) else [made]
    wide = te.create_prim_func([*tensors, *results], index_dtype_override="int64")
    outer = wide.body.block
    if isinstance(outer.body, s_tir.SBlockRealize):
        return wide.with_body(outer.body)  # the function's own outermost block
    return _sealed(wide.with_body(_root(outer.body)), len(outputs))


def _whole(buffer: ir.Var) -> ir.TensorRegion:
    zero = tirx.IntImm("int64", 0)
    return tirx.BufferRegion(buffer, [ir.Range.from_min_extent(zero, n) for n in buffer.ty.shape])


def _in_blocks(body: tirx.Stmt) -> tirx.Stmt:
    """A function's body with each plain elementwise loop nest as a block, which schedules need.

    Where one of its statements is anything else, the body as it is.
    """
    parts = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
    buffers = [part.buffer for part in parts if isinstance(part, tirx.AllocBuffer)]
    blocks = [_as_block(part) for part in parts if not isinstance(part, tirx.AllocBuffer)]
    stores = nodes(body, tirx.BufferStore)
    each_once = len({store.buffer for store in stores}) == len(stores)
    if not each_once or any(block is None for block in blocks):
        return body
    return _root(tirx.SeqStmt(blocks) if len(blocks) > 1 else blocks[0], buffers)


def _as_block(nest: tirx.Stmt) -> tirx.Stmt | None:
    """A loop nest that stores one element at each of its points, with a block around the store."""
    loops: list[For] = []
    while isinstance(nest, For):
        loops.append(nest)
        nest = nest.body
    if not isinstance(nest, tirx.BufferStore) or not all(_is_plain(loop) for loop in loops):
        return None
    variables = [loop.loop_var for loop in loops]
    stored = [index for index in nest.indices if isinstance(index, ir.Var)]
    others = [index for index in nest.indices if not isinstance(index, ir.Var)]
    reads_itself = any(x.source.same_as(nest.buffer) for x in nodes(nest, ir.TensorLoad))
    each_once = len(stored) == len(variables) and {*stored} == {*variables}
    if reads_itself or not each_once or any(nodes(index, ir.Var) for index in others):
        return None
    points = {v: ir.Var(f"v_{v.name}", v.ty) for v in variables}
    store = tvm_ffi.structural_map(nest, (ir.Var, lambda var: points.get(var, var)))
    axes = [
        tirx.IterVar(ir.Range.from_min_extent(loop.min, loop.extent), point, tirx.IterVar.DataPar)
        for loop, point in zip(loops, points.values())
    ]
    block = _with_found_regions(s_tir.SBlock(axes, [], [], nest.buffer.name, store))
    made: tirx.Stmt = s_tir.SBlockRealize(variables, True, block)
    for loop in reversed(loops):
        made = For(loop.loop_var, loop.min, loop.extent, loop.kind, made)
    return made


def _is_plain(loop: For) -> bool:
    starts = isinstance(loop.min, tirx.IntImm) and int(loop.min) == 0
    return starts and loop.step is None and loop.kind == ForKind.SERIAL


def _root(body: tirx.Stmt, buffers: Sequence[ir.Var] = ()) -> tirx.Stmt:
    block = s_tir.SBlock([], [], [], "root", body, alloc_buffers=list(buffers))
    return s_tir.SBlockRealize([], True, block)


def _with_found_regions(block: s_tir.SBlock) -> s_tir.SBlock:
    """A block of one store, with the reads and writes that it has in fact."""
    if not isinstance(block.body, tirx.BufferStore):
        return block
    loads = nodes(block.body, ir.TensorLoad)
    buffers = {load.source for load in loads} | {block.body.buffer}
    found = s_tir.analysis.get_sblock_access_region(block, {x: x for x in buffers})
    return with_fields(block, reads=found[0], writes=found[1])


def _same(left: Sequence[Any], right: Sequence[Any]) -> bool:
    """Whether two lists of indices are the same variables."""
    return len(left) == len(right) and all(a.same_as(b) for a, b in zip(left, right))


def _replaced(root: Any, old: ir.Var, new: ir.Var) -> Any:
    return tvm_ffi.structural_map(root, (ir.Var, lambda var: new if var.same_as(old) else var))
