"""Memory that the kernels of a function hand each other: torch's, for as long as they take."""

from __future__ import annotations

import math

import tvm
from tvm import IRModule, ir, tirx

from babytriton.ops.primfunc import nodes
from babytriton.passes.statements import is_number, sequence, statements
from babytriton.plan import ALLOCATE, FREE

_CUDA = 2  # DLPack's number for the kind of device
_ALIGNMENT = 256  # bytes, as CUDA's own allocator has it


def from_torch(mod: IRModule) -> IRModule:
    """Functions that launch kernels, with memory between these from torch's allocator.

    TVM's own allocator knows no streams: kernels on two of them would share what it hands out. For
    use where kernels have been taken out of the functions, before memory is allocated.
    """
    functions = dict(mod.functions_items())
    for var, func in functions.items():
        device = _device(func) if isinstance(func, tirx.PrimFunc) else None
        if device is not None:
            functions[var] = func.with_body(_allocating(func.body, device))
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def _device(func: tirx.PrimFunc) -> ir.Expr | None:
    """The number of the CUDA GPU that a function launches kernels on; None if it launches none."""
    told = {attr.attr_key: attr.value for attr in nodes(func.body, tirx.AttrStmt)}
    kind = told.get("device_type")
    return told["device_id"] if kind is not None and is_number(kind, _CUDA) else None


def _allocating(stmt: tirx.Stmt, device: ir.Expr) -> tirx.Stmt:
    """A statement with memory for all buffers of its own, which is there until its end.

    It is one piece of memory: where there is none, nothing is to be given back.
    """
    if isinstance(stmt, tirx.AttrStmt):
        body = _allocating(stmt.body, device)
        return tirx.AttrStmt(stmt.node, stmt.attr_key, stmt.value, body, stmt.span)
    if not isinstance(stmt, tirx.SeqStmt):
        return stmt
    parts = statements(stmt)
    places = [n for n, one in enumerate(parts) if isinstance(one, tirx.AllocBuffer)]
    if not places:
        return sequence([_allocating(one, device) for one in parts])
    # Behind what computes their sizes.
    before = [one for one in parts[: places[-1]] if not isinstance(one, tirx.AllocBuffer)]
    address, total = tirx.Var("memory_of_kernels", "int64"), tirx.const(0, "int64")
    declared: list[tirx.Stmt] = []
    for place in places:
        buffer = parts[place].buffer
        data = tirx.reinterpret(tirx.buffer_data(buffer).ty, address + total)
        declared.append(tirx.DeclBuffer(buffer, data=data))
        total = total + _aligned(_bytes(buffer))
    allocated = tirx.Bind(address, _called("int64", ALLOCATE, device, total))
    freed = tirx.Evaluate(_called("int32", FREE, address))
    return sequence([*before, allocated, *declared, *parts[places[-1] + 1 :], freed])


def _aligned(size: ir.Expr) -> ir.Expr:
    return tirx.floordiv(size + (_ALIGNMENT - 1), _ALIGNMENT) * _ALIGNMENT


def _called(dtype: str, function: str, *arguments: ir.Expr) -> ir.Call:
    given = [ir.StringImm(function), *arguments]
    return ir.Call(ir.Op.get("tirx.tvm_call_packed"), given, ret_ty=dtype)


def _bytes(buffer: tirx.Var) -> ir.Expr:
    dtype = tvm.DataType(str(buffer.ty.dtype))  # of vectors, where all accesses are
    element = -(-dtype.bits * dtype.lanes // 8)
    return math.prod(buffer.ty.shape, start=tirx.const(element, "int64"))
