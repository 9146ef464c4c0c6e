"""Kernels that take the addresses of tensors in the place of the tensors."""

from __future__ import annotations

from tvm import IRModule, ir, tirx

from babytriton.passes.intrinsics import dtype_of, function_name, rewrite

# Of tvm-ffi: the kind that numbers are of; the fields that TVM's code reads a tensor's device from,
# and a tensor from an argument; how long an argument is, and what is before that field.
_NUMBER = 1
_DEVICE, _VALUE = 9, 15
_BYTES, _BYTES_BEFORE = 16, 8


def by_address(mod: IRModule) -> IRModule:
    """Kernels of the CPU whose callers may give numbers for tensors: the addresses of elements.

    That is for tensors of which a kernel knows all but this; the caller takes less time to hand
    over a number. For use after TVM's code that reads arguments is there. Other kernels stay as
    they are: tensors tell a GPU's which GPU it is on.
    """
    functions = [func for func in mod.functions.values() if isinstance(func, tirx.PrimFunc)]
    if any("tirx.kernel_launch_params" in func.attrs for func in functions):
        return mod
    return rewrite(mod, ir.Call, _of_numbers)


def _of_numbers(call: ir.Call) -> ir.Expr:
    """What TVM reads of an argument, also where that is a number."""
    name = function_name(call)
    if name == "tvm_struct_get" and int(call.args[2]) == _DEVICE:
        return tirx.const(0, dtype_of(call))  # There is one CPU.
    if name != "if_then_else" or dtype_of(call):
        return call
    read = call.args[-1]
    if not isinstance(read, ir.Call):
        return call
    if function_name(read) != "tvm_struct_get" or int(read.args[2]) != _VALUE:
        return call
    # A tensor begins with the address of its elements, and so does the field that holds that.
    arguments, place, _ = read.args
    field = tirx.const(int(place) * _BYTES + _BYTES_BEFORE, "int32")
    itself = tirx.call_intrin(call.ty, "tirx.handle_add_byte_offset", arguments, field)
    is_number = tirx.EQ(call.args[0].a, tirx.const(_NUMBER, "int32"))
    return tirx.call_intrin(call.ty, call.op.name, is_number, itself, call)
