"""Kernels that take the addresses of tensors in the place of the tensors."""

from __future__ import annotations

from tvm import IRModule, ir, tirx

from babytriton.passes.intrinsics import dtype_of, function_name, rewrite

# Of tvm-ffi: the kind that numbers are of, the field of an argument that TVM's code reads a tensor
# from, and how long an argument is and what is before that field.
_NUMBER = 1
_VALUE = 15
_BYTES, _BYTES_BEFORE = 16, 8


def by_address(mod: IRModule) -> IRModule:
    """Kernels whose callers may give numbers for tensors: the addresses of their elements.

    That is for tensors of which a kernel knows all but this; the caller takes less time to hand
    over a number. For after TVM's code that reads arguments is there.
    """
    return rewrite(mod, ir.Call, _or_number)


def _or_number(call: ir.Call) -> ir.Expr:
    """Where a tensor is that TVM reads from an argument, also where that is a number.

    A tensor begins with the address of its elements: so does the field, if that is in it.
    """
    if function_name(call) != "if_then_else" or dtype_of(call):
        return call
    read = call.args[-1]
    if not isinstance(read, ir.Call):
        return call
    if function_name(read) != "tvm_struct_get" or int(read.args[2]) != _VALUE:
        return call
    arguments, place, _ = read.args
    field = tirx.const(int(place) * _BYTES + _BYTES_BEFORE, "int32")
    itself = tirx.call_intrin(call.ty, "tirx.handle_add_byte_offset", arguments, field)
    is_number = tirx.EQ(call.args[0].a, tirx.const(_NUMBER, "int32"))
    return tirx.call_intrin(call.ty, call.op.name, is_number, itself, call)
