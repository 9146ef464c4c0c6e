"""Memory that the kernels of a function hand each other: torch's, for as long as they take."""

from __future__ import annotations

import math

import tvm
from tvm import IRModule, ir, tirx

from babytriton.ops.primfunc import nodes
from babytriton.passes.statements import is_number, sequence, statements
from babytriton.plan import ALLOCATE, FREE

_CUDA = 2  # DLPack's number for the kind of device


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
    """A statement with memory for each buffer of its own, from where that is on."""
    if isinstance(stmt, tirx.AttrStmt):
        body = _allocating(stmt.body, device)
        return tirx.AttrStmt(stmt.node, stmt.attr_key, stmt.value, body, stmt.span)
    if not isinstance(stmt, tirx.SeqStmt):
        return stmt
    made: list[tirx.Stmt] = []
    over: list[tirx.Stmt] = []
    for one in statements(stmt):
        if not isinstance(one, tirx.AllocBuffer):
            made.append(_allocating(one, device))
            continue
        buffer = one.buffer
        address = tirx.Var(f"{buffer.name}_address", "int64")
        made.append(tirx.Bind(address, _called("int64", ALLOCATE, device, _bytes(buffer))))
        made.append(tirx.DeclBuffer(buffer, data=tirx.reinterpret(_pointer(buffer), address)))
        over.append(tirx.Evaluate(_called("int32", FREE, address)))
    return sequence([*made, *over])


def _called(dtype: str, function: str, *arguments: ir.Expr) -> ir.Call:
    given = [ir.StringImm(function), *arguments]
    return ir.Call(ir.Op.get("tirx.tvm_call_packed"), given, ret_ty=dtype)


def _pointer(buffer: tirx.Var) -> ir.Type:
    return tirx.buffer_data(buffer).ty


def _bytes(buffer: tirx.Var) -> ir.Expr:
    dtype = tvm.DataType(str(buffer.ty.dtype))  # of vectors, where all accesses are
    element = -(-dtype.bits * dtype.lanes // 8)
    return math.prod(buffer.ty.shape, start=tirx.const(element, "int64"))
