"""What a TensorIR function reads and writes, and the rewrites that fit it into a program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import ir, s_tir, te, tirx
from tvm.tirx import For, ForKind, PrimFunc

_WRITES = 2
"""The bit of an access pointer's mask that says it is written through."""

_OPAQUE = 8
"""FuseOps' number for functions that fuse with nothing."""


@dataclass(frozen=True)
class Access:
    """How a function uses one of its buffers.

    Attributes:
        writes: whether it writes to it, as far as can be seen.
        starts_anew: whether it may write elements without reading them first.
        reads: whether it reads elements that it did not write before.
        by_pointer: whether a call gets its address: what that call does cannot be seen.
    """

    writes: bool
    starts_anew: bool
    reads: bool
    by_pointer: bool


def accesses(func: PrimFunc) -> dict[ir.Var, Access]:
    """How a function uses each buffer among its parameters."""
    seen = _Seen(func)
    return {buffer: seen.access(buffer) for buffer in func.params if tirx.is_buffer_var(buffer)}


class _Seen:
    """Everything in a function's body that touches a buffer."""

    def __init__(self, func: PrimFunc) -> None:
        self._aliases: dict[ir.Var, ir.Var] = {}
        self._blocks = nodes(func.body, s_tir.SBlock)
        for block in self._blocks:
            for match in block.match_buffers:
                self._aliases[match.buffer] = match.source.source
        self._stores = nodes(func.body, tirx.BufferStore)
        self._calls = nodes(func.body, ir.Call)
        # In a reduction with an initial value, only numbers written by itself are read.
        own = [load for block in self._blocks for load in self._reads_of_itself(block)]
        loads = nodes(func.body, ir.TensorLoad)
        self._loads = [x for x in loads if not any(x.same_as(load) for load in own)]

    def access(self, buffer: ir.Var) -> Access:
        stores = [store for store in self._stores if self._root(store.buffer).same_as(buffer)]
        masks = [int(call.args[4]) for call in self._calls_with(buffer, "tirx.tvm_access_ptr")]
        declared = any(
            self._root(region.source).same_as(buffer)
            for block in self._blocks
            for region in block.writes
        )
        return Access(
            writes=bool(stores) or declared or any(mask & _WRITES for mask in masks),
            starts_anew=any(not self._loads_of(buffer, store.value) for store in stores),
            reads=any(self._root(load.source).same_as(buffer) for load in self._loads),
            by_pointer=bool(self._calls_with(buffer, "tirx.buffer_data")),
        )

    def _root(self, buffer: ir.Var) -> ir.Var:
        while buffer in self._aliases:
            buffer = self._aliases[buffer]
        return buffer

    def _loads_of(self, buffer: ir.Var, root: Any) -> list[Any]:
        loads = nodes(root, ir.TensorLoad)
        return [load for load in loads if self._root(load.source).same_as(buffer)]

    def _reads_of_itself(self, block: s_tir.SBlock) -> list[Any]:
        if block.init is None:
            return []
        started = [self._root(store.buffer) for store in nodes(block.init, tirx.BufferStore)]
        return [load for buffer in started for load in self._loads_of(buffer, block.body)]

    def _calls_with(self, buffer: ir.Var, name: str) -> list[ir.Call]:
        """The calls of an intrinsic that name a buffer or its address."""
        op = ir.Op.get(name)
        calls = [call for call in self._calls if op.same_as(call.op)]
        return [call for call in calls if any(v.same_as(buffer) for v in nodes(call, ir.Var))]


def is_bound_to_threads(func: PrimFunc) -> bool:
    """Whether its loops are the threads of a GPU already."""
    by_loop = any(loop.kind == ForKind.THREAD_BINDING for loop in nodes(func.body, For))
    attributes = nodes(func.body, tirx.AttrStmt)
    return by_loop or any(attribute.attr_key == "thread_extent" for attribute in attributes)


def is_scheduled(func: PrimFunc, device: str) -> bool:
    """Whether its author has scheduled it for a kind of device, ``"cpu"`` or ``"cuda"``."""
    if device != "cpu":
        return is_bound_to_threads(func)
    by_hand = (ForKind.PARALLEL, ForKind.VECTORIZED)
    return any(loop.kind in by_hand for loop in nodes(func.body, For))


def specialized(func: PrimFunc, constants: Mapping[ir.Var, tirx.PrimExpr]) -> PrimFunc:
    """The function with constants in place of scalar parameters and of sizes of its buffers."""
    # Only parameters can be made constants, so the sizes become parameters first.
    known = [*func.params]
    sizes = [var for var in constants if not any(var.same_as(param) for param in known)]
    opened = PrimFunc([*known, *sizes], func.body, func.ret_type, func.attrs)
    return opened.specialize(dict(constants)) if constants else func


def with_buffers(func: PrimFunc, scalars: Mapping[ir.Var, ir.Var]) -> PrimFunc:
    """The function with a buffer of one element in place of each of the given parameters."""
    if not scalars:
        return func
    reads = {
        scalar: tirx.BufferLoad(buffer, []).astype(str(scalar.ty.dtype))
        for scalar, buffer in scalars.items()
    }
    body = tvm_ffi.structural_map(func.body, (ir.Var, lambda var: reads.get(var, var)))
    params = [scalars.get(param, param) for param in func.params]
    return PrimFunc(params, body, func.ret_type, func.attrs)


def as_kernel(func: PrimFunc, outputs: Sequence[ir.Var], device: str) -> PrimFunc:
    """The function as call_tir and FuseTIR want it: outputs last, blocks, sizes in int64.

    Args:
        func: its parameters are buffers of known sizes.
        outputs: the buffers among its parameters that it writes.
        device: the kind of device that it is to run on.
    """
    func, plain = _with_plain_buffers(func)
    outputs = [plain[output] for output in outputs]
    inputs = [param for param in func.params if not any(param.same_as(out) for out in outputs)]
    if is_scheduled(func, device):
        marked = func.with_attrs({"tirx.is_scheduled": True, "op_pattern": _OPAQUE})
        kernel = PrimFunc([*inputs, *outputs], func.body, func.ret_type, marked.attrs)
    else:
        kernel = _widened(func, inputs, outputs)
        if func.attrs and "op_pattern" in func.attrs:
            kernel = kernel.with_attr("op_pattern", func.attrs["op_pattern"])
    return kernel.without_attr("global_symbol")


def starting_from_inputs(func: PrimFunc, outputs: Sequence[ir.Var]) -> PrimFunc:
    """The function with an input more for each of the outputs, which starts as a copy of it.

    The new parameters stand before all others.
    """
    if not outputs:
        return func
    copies, inputs = [], []
    for output in outputs:
        copy = _copy(output)
        inputs.append(copy.params[0])
        copies.append(_replaced(copy.body.block.body, copy.params[1], output))
    root = func.body.block
    together = s_tir.SBlock(
        root.iter_vars,
        root.reads,
        root.writes,
        root.name_hint,
        tirx.SeqStmt([*copies, root.body]),
        root.init,
        root.alloc_buffers,
        root.match_buffers,
        root.annotations,
    )
    body = s_tir.SBlockRealize([], True, together)
    return PrimFunc([*inputs, *func.params], body, func.ret_type, func.attrs)


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


def _widened(func: PrimFunc, inputs: Sequence[ir.Var], outputs: Sequence[ir.Var]) -> PrimFunc:
    """The function in blocks, with all sizes and indices in int64.

    FuseTIR joins buffers of one index dtype only. Tensor expressions have a pass for it, which
    is reached by taking the function's body for that of an external computation.
    """
    tensors = [te.placeholder(list(x.ty.shape), x.ty.dtype, name=x.name) for x in inputs]
    body = _in_blocks(func.body)
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
    block = _with_regions(outer, wide, len(inputs))
    return wide.with_body(_root(s_tir.SBlockRealize([], True, block)))


def _with_regions(block: s_tir.SBlock, func: PrimFunc, inputs: int) -> s_tir.SBlock:
    """A block of any statements, said to read all inputs of its function and write all outputs."""
    regions = [_whole(buffer) for buffer in func.params]
    return s_tir.SBlock([], regions[:inputs], regions[inputs:], block.name_hint, block.body)


def _whole(buffer: ir.Var) -> ir.TensorRegion:
    zero = tirx.IntImm("int64", 0)
    return tirx.BufferRegion(buffer, [ir.Range.from_min_extent(zero, n) for n in buffer.ty.shape])


def _in_blocks(body: tirx.Stmt) -> tirx.Stmt:
    """A function's body with each plain elementwise loop nest as a block, which schedules need.

    Where one of its statements is anything else, the body as it is.
    """
    parts = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
    stores = nodes(body, tirx.BufferStore)
    if len({store.buffer for store in stores}) < len(stores):
        return body
    blocks = [_as_block(part) for part in parts]
    if any(block is None for block in blocks):
        return body
    return _root(tirx.SeqStmt(blocks) if len(blocks) > 1 else blocks[0])


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
    bare = s_tir.SBlock(axes, [], [], nest.buffer.name, store)
    buffers = {x.source for x in nodes(store, ir.TensorLoad)} | {store.buffer}
    reads, writes, _ = s_tir.analysis.get_sblock_access_region(bare, {x: x for x in buffers})
    block = s_tir.SBlock(axes, reads, writes, nest.buffer.name, store)
    made: tirx.Stmt = s_tir.SBlockRealize(variables, True, block)
    for loop in reversed(loops):
        made = For(loop.loop_var, loop.min, loop.extent, loop.kind, made)
    return made


def _is_plain(loop: For) -> bool:
    starts = isinstance(loop.min, tirx.IntImm) and int(loop.min) == 0
    return starts and loop.step is None and loop.kind == ForKind.SERIAL


def _root(body: tirx.Stmt) -> tirx.Stmt:
    return s_tir.SBlockRealize([], True, s_tir.SBlock([], [], [], "root", body))


def _replaced(root: Any, old: ir.Var, new: ir.Var) -> Any:
    return tvm_ffi.structural_map(root, (ir.Var, lambda var: new if var.same_as(old) else var))


def nodes(root: Any, kind: type) -> list[Any]:
    """Every node of a kind in an expression or statement."""
    found: list[Any] = []
    tvm_ffi.structural_walk(root, [(kind, found.append)])
    return found
