"""What a TensorIR function reads and writes, and the rewrites that fit it into a program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import IRModule, ir, s_tir, sym, tirx
from tvm.tirx import For, ForKind, PrimFunc

LINES = "babytriton.lines"
"""An attribute of kernels: the user's lines that they compute, as texts "file:line", in order."""

_WRITES = 2
"""The bit of an access pointer's mask that says it is written through."""

_WALK = tvm_ffi.get_global_func("ffi.StructuralWalk")
_PARTS_FIRST = int(tvm_ffi.WalkOrder.POSTORDER)

_OPAQUE = 8
"""FuseOps' number for functions that fuse with nothing."""

_USERS = "babytriton.users"
"""The attribute of functions that are the user's own."""


def as_users(func: PrimFunc) -> PrimFunc:
    """The function, marked as one that the user wrote."""
    return func.with_attr(_USERS, True)


def is_users(func: PrimFunc) -> bool:
    """Whether the user wrote it: not if it was fused with others since."""
    return bool(func.attrs and func.attrs.get(_USERS, False))


@dataclass(frozen=True)
class Access:
    """How a function uses one of its buffers.

    Attributes:
        writes: whether it writes to it, as far as can be seen.
        starts_anew: whether it may write elements without reading them first.
        writes_all: whether it writes each element whatever happens, as far as can be seen.
        reads: whether it reads elements that it did not write before.
        by_pointer: whether a call gets its address: what that call does cannot be seen.
    """

    writes: bool
    starts_anew: bool
    writes_all: bool
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
        self._body = func.body
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
            writes_all=_covers(self._body, buffer, {}),
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


def _covers(stmt: tirx.Stmt, buffer: ir.Var, extents: dict[ir.Var, Any]) -> bool:
    """Whether a statement stores each element of a buffer.

    Args:
        stmt: a statement.
        buffer: the buffer.
        extents: of the loops around it, and of axes that run as such a loop does; all from 0.
    """
    if isinstance(stmt, tirx.SeqStmt):
        return any(_covers(part, buffer, extents) for part in stmt.seq)
    if isinstance(stmt, For):
        plain = _is_zero(stmt.min) and stmt.step is None
        return plain and _covers(stmt.body, buffer, {**extents, stmt.loop_var: stmt.extent})
    if isinstance(stmt, s_tir.SBlockRealize):
        if not (isinstance(stmt.predicate, tirx.IntImm) and bool(stmt.predicate.value)):
            return False
        axes = {
            axis.var: axis.dom.extent
            for axis, value in zip(stmt.block.iter_vars, stmt.iter_values)
            if _is_zero(axis.dom.min)
            and isinstance(value, ir.Var)
            and value in extents
            and _equal(axis.dom.extent, extents[value])
        }
        start = stmt.block.init if stmt.block.init is not None else stmt.block.body
        return _covers(start, buffer, {**extents, **axes})
    if not isinstance(stmt, tirx.BufferStore) or not stmt.buffer.same_as(buffer):
        return False
    indices = [index for index in stmt.indices if isinstance(index, ir.Var)]
    return (
        len({*indices}) == len(stmt.indices)
        and all(index in extents for index in indices)
        and all(_equal(extents[i], size) for i, size in zip(indices, buffer.ty.shape))
    )


def _is_zero(number: Any) -> bool:
    return isinstance(number, tirx.IntImm) and int(number) == 0


def _equal(left: Any, right: Any) -> bool:
    """Whether two sizes are the same, in whichever dtype."""
    return bool(sym.Analyzer().can_prove_equal(left.astype("int64"), right.astype("int64")))


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
    marked = bool(func.attrs and func.attrs.get("tirx.is_scheduled", False))
    return marked or any(loop.kind in by_hand for loop in nodes(func.body, For))


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


_FIELDS = (
    *("iter_vars", "reads", "writes", "name_hint", "body", "init"),
    *("alloc_buffers", "match_buffers", "annotations", "span"),
)


def with_fields(block: s_tir.SBlock, **fields: Any) -> s_tir.SBlock:
    """A block with other contents, by the names that ``SBlock`` has for them."""
    assert fields.keys() <= set(_FIELDS)
    return s_tir.SBlock(*(fields.get(name, getattr(block, name)) for name in _FIELDS))


def with_kernels(mod: IRModule, change: Callable[[PrimFunc], PrimFunc]) -> IRModule:
    """A module with what each of its kernels is changed to; the rest of it as it is."""
    functions = {
        var: change(func) if isinstance(func, PrimFunc) else func
        for var, func in mod.functions_items()
    }
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def nodes(root: Any, kind: Any) -> list[Any]:
    """Every node of a kind in an expression or statement, its parts before itself.

    As :func:`tvm_ffi.structural_walk` finds them, which looks longer at what it is asked than at
    most expressions.
    """
    found: list[Any] = []
    _WALK(root, [(kind.__tvm_ffi_type_info__.type_index, found.append)], [], _PARTS_FIRST)
    return found
