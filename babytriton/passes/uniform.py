"""Tensors that have one number in all places: kernels that read them have the number itself."""

from __future__ import annotations

from collections.abc import Sequence

import tvm_ffi
from tvm import IRModule, ir, relax, te, tirx

from babytriton.ops import numerics
from babytriton.ops.primfunc import nodes
from babytriton.passes.bindings import CALL_TIR, add_kernel, call_of, with_arguments, with_blocks
from babytriton.passes.patterns import fuses_with_values

# Of integers by 0 they are no numbers, which TVM would see.
_DIVISIONS = (tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod)
_ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div)


def number_of(constant: ir.GenericConst) -> tirx.PrimExpr | None:
    """The one number that all elements of a tensor are; None if there are others."""
    numbers, dtype = constant.value.numpy(), str(constant.ty.dtype)
    if numbers.dtype.kind not in "biuf" or not numbers.size:
        return None
    size, contents = numbers.itemsize, numbers.tobytes()
    if contents != contents[:size] * numbers.size:
        return None
    return tirx.const(numbers.flat[0].item(), dtype)


def numbers_inside(mod: IRModule) -> IRModule:
    """The program with kernels for such constants, which fuse with those that read them.

    Args:
        mod: of calls of kernels that are not fused yet, with constants for what is known.
    """
    functions = dict(mod.functions_items())
    for var, function in mod.functions_items():
        if isinstance(function, relax.Function):
            functions[var] = _with_numbers(functions, function)
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def _with_numbers(
    functions: dict[ir.GlobalVar, ir.BaseFunc], function: relax.Function
) -> relax.Function:
    blocks, count = [], len(functions)
    for block in function.body.blocks:
        bindings: list[relax.Binding] = []
        for binding in block.bindings:
            if isinstance(block, relax.DataflowBlock) and isinstance(binding, relax.VarBinding):
                binding = _reading_numbers(functions, binding, bindings)
            bindings.append(binding)
        blocks.append(type(block)(bindings))
    return function if len(functions) == count else with_blocks(function, blocks)


def _reading_numbers(
    functions: dict[ir.GlobalVar, ir.BaseFunc],
    binding: relax.VarBinding,
    before: list[relax.Binding],
) -> relax.Binding:
    """A binding of a call whose kernel reads the results of others in the place of constants.

    Args:
        functions: of the program; those others are added.
        binding: any.
        before: to which their calls are added.
    """
    call = binding.value
    if not (isinstance(call, ir.Call) and call.op == CALL_TIR):
        return binding
    kernel = functions[call.args[0]]
    if not fuses_with_values(kernel):
        return binding
    given = list(call.args[1].fields)
    for place, constant in enumerate(given):
        number = number_of(constant) if isinstance(constant, ir.GenericConst) else None
        is_float = number is not None and numerics.is_float(number)
        if number is None or (number.value == 0 and not is_float and _has(kernel, _DIVISIONS)):
            continue
        if number.value == 0 and _has(kernel, _ARITHMETIC):
            number = opaque(number)
        var = add_kernel(functions, "full", _storing(number, constant.ty.shape))
        given[place] = relax.DataflowVar("full", constant.ty)
        before.append(relax.VarBinding(given[place], call_of(var, [], constant.ty)))
    value = with_arguments(call, [call.args[0], relax.Tuple(given), *call.args[2:]])
    return relax.VarBinding(binding.var, value, binding.span)


def _storing(number: tirx.PrimExpr, shape: Sequence[tirx.PrimExpr]) -> tirx.PrimFunc:
    """A kernel that stores a number in all places."""
    fill = te.compute(list(shape), lambda *_: number, name="full")
    func = te.create_prim_func([fill], "int64").without_attr("global_symbol")
    return func.with_attrs({"tirx.noalias": True, "op_pattern": 0})


def opaque(number: tirx.PrimExpr) -> tirx.PrimExpr:
    """A number that TVM takes for none: a float 0, and what it multiplies, would be left out."""
    if not numerics.is_float(number):
        return number
    dtype = str(number.ty.dtype)
    if dtype in ("float32", "float64"):
        return numerics.hidden(number)
    return numerics.hidden(tirx.const(number.value, "float32")).astype(dtype)


def with_opaque_zero(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
    """A kernel that stores a float 0 everywhere, so that TVM does not see it; or any other."""

    def stored(store: tirx.BufferStore) -> tirx.BufferStore:
        if not isinstance(store.value, tirx.FloatImm) or store.value.value != 0:
            return store
        return tirx.BufferStore(store.buffer, opaque(store.value), store.indices)

    return kernel.with_body(tvm_ffi.structural_map(kernel.body, (tirx.BufferStore, stored)))


def _has(kernel: tirx.PrimFunc, kinds: Sequence[type]) -> bool:
    """Whether it computes anything of these kinds."""
    return any(nodes(kernel.body, kind) for kind in kinds)
