"""Kernels that take the addresses of tensors in the place of the tensors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import tvm_ffi
from tvm import IRModule, ir, tirx

from babytriton.ops.primfunc import nodes
from babytriton.passes.intrinsics import dtype_of, function_name

# Of tvm-ffi: the kind that numbers are of; the fields that TVM's code reads a tensor's device from,
# and a tensor from an argument; how long an argument is, and what is before that field.
_NUMBER = 1
_DEVICE, _VALUE = 9, 15
_BYTES, _BYTES_BEFORE = 16, 8


def by_address(mod: IRModule) -> IRModule:
    """Kernels whose callers may give numbers for tensors: the addresses of elements.

    That is for tensors of which a kernel knows all but this; the caller takes less time to hand
    over a number. A GPU's kernels learn from the last that is given as a tensor which GPU it is on:
    one is to be. For use after TVM's code that reads arguments is there.
    """
    functions = dict(mod.functions_items())
    is_on_gpu = any("tirx.kernel_launch_params" in func.attrs for func in functions.values())
    for var, func in functions.items():
        if not isinstance(func, tirx.PrimFunc):
            continue
        tensors = [call for call in nodes(func.body, ir.Call) if _argument(call) is not None]
        by_place = {_place(call): call for call in tensors} if is_on_gpu else {}
        of_numbers = partial(_of_numbers, tensors=[by_place[n] for n in sorted(by_place)])
        functions[var] = tvm_ffi.structural_map(func, (ir.Call, of_numbers))
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def _argument(call: ir.Call) -> ir.Call | None:
    """How TVM reads an argument, where a call is a tensor that is one."""
    if function_name(call) != "if_then_else" or dtype_of(call):
        return None
    read = call.args[-1]
    is_read = isinstance(read, ir.Call) and function_name(read) == "tvm_struct_get"
    return read if is_read and int(read.args[2]) == _VALUE else None


def _place(call: ir.Call) -> int:
    """The number of the argument that a tensor is."""
    read = _argument(call)
    return -1 if read is None else int(read.args[1])


def _of_numbers(call: ir.Call, tensors: Sequence[ir.Call]) -> ir.Expr:
    """What TVM reads of an argument, also where that is a number.

    Args:
        call: of TVM's.
        tensors: those that may tell the GPU, in order; none on the CPU, of which there is one.
    """
    if function_name(call) == "tvm_struct_get" and int(call.args[2]) == _DEVICE:
        found: ir.Expr = tirx.const(0, dtype_of(call))
        for tensor in tensors:  # The last has the last word.
            told = tirx.call_intrin(dtype_of(call), call.op.name, tensor, *call.args[1:])
            found = tirx.if_then_else(_is_number(tensor), found, told)
        return found
    read = _argument(call)
    if read is None:
        return call
    # A tensor begins with the address of its elements, and so does the field that holds that.
    arguments, place, _ = read.args
    field = tirx.const(int(place) * _BYTES + _BYTES_BEFORE, "int32")
    itself = tirx.call_intrin(call.ty, "tirx.handle_add_byte_offset", arguments, field)
    return tirx.call_intrin(call.ty, call.op.name, _is_number(call), itself, call)


def _is_number(tensor: ir.Call) -> ir.Expr:
    """Whether the argument that a tensor is to be is a number."""
    return tirx.EQ(tensor.args[0].a, tirx.const(_NUMBER, "int32"))
