"""Products that round before something is added to them, as torch's do.

TVM lets LLVM make one instruction with one rounding of a product and a sum. Then `a * b - c * d` is
no zero for equal products, the root of `x * x - y * y` may be that of a negative number, and the
largest of some products less their maximum is not 0. A product that is a fused multiply-add itself,
of a zero that LLVM cannot know to be one, stays what it is, and takes no longer.
"""

from __future__ import annotations

import math

import tvm
import tvm_ffi
from tvm import IRModule, ir, s_tir, tirx

from babytriton.ops.primfunc import nodes
from babytriton.passes.blocks import parameters
from babytriton.passes.intrinsics import dtype_of, function_name
from babytriton.passes.statements import sequence

# What floats are called in LLVM IR.
_FLOATS = {"float32": "float", "float64": "double"}

# -0.0, which leaves every number as it is, and what gives it.
_NAME = "babytriton_zero_of_{type}"
_SOURCE = """
define {type} @{name}() {{
  %place = alloca {type}
  store volatile {type} -0.0, ptr %place
  %zero = load volatile {type}, ptr %place
  ret {type} %zero
}}
"""


def rounded_products(mod: IRModule) -> IRModule:
    """Kernels as plain loops -> the same, with products that round."""
    functions = {
        var: _rounding(func) if isinstance(func, tirx.PrimFunc) and parameters(func) else func
        for var, func in mod.functions_items()
    }
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def _rounding(func: tirx.PrimFunc) -> tirx.PrimFunc:
    root = func.body.block
    # What is in a parameter has been rounded when it is read again.
    locals_ = {allocation.buffer for allocation in nodes(root.body, tirx.AllocBuffer)}
    zeros: dict[str, tirx.Var] = {}

    def rounded(expr: ir.Expr) -> ir.Expr:
        dtype = dtype_of(expr)
        if not isinstance(expr, tirx.Mul) or dtype not in _FLOATS:
            return expr
        if _is_power_of_two(expr.a) or _is_power_of_two(expr.b):  # which is exact
            return tirx.Mul(rounded(expr.a), rounded(expr.b))
        zero = zeros.setdefault(dtype, tirx.Var("zero", dtype))
        return tirx.call_intrin(expr.ty, "tirx.fma", expr.a, expr.b, zero)

    def add(node: tirx.Add | tirx.Sub) -> ir.Expr:
        return type(node)(rounded(node.a), rounded(node.b))

    def store(node: tirx.BufferStore) -> tirx.BufferStore:
        if node.buffer not in locals_:
            return node
        return tirx.BufferStore(node.buffer, rounded(node.value), node.indices)

    changes = [(tirx.Add, add), (tirx.Sub, add), (tirx.BufferStore, store)]
    body = tvm_ffi.structural_map(root.body, changes)
    if not zeros:
        return func
    names = [
        tirx.Bind(var, tirx.call_extern(dtype, _NAME.format(type=_FLOATS[dtype])))
        for dtype, var in zeros.items()
    ]
    block = s_tir.SBlock([], [], [], root.name_hint, sequence([*names, body]))
    return func.with_body(s_tir.SBlockRealize([], tirx.const(True, "bool"), block))


def _is_power_of_two(expr: ir.Expr) -> bool:
    """Whether it is a power of two, whatever its sign."""
    return isinstance(expr, tirx.FloatImm) and abs(math.frexp(float(expr.value))[0]) == 0.5


def define_zeros() -> tvm.transform.Pass:
    """What the kernels call for it, for before code generation."""

    def run(mod: IRModule, _: tvm.transform.PassContext) -> IRModule:
        functions = {
            var: _with_definitions(func) if isinstance(func, tirx.PrimFunc) else func
            for var, func in mod.functions_items()
        }
        return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)

    return tvm.transform.module_pass(run, opt_level=0, name="babytriton.DefineZeros")


def _with_definitions(func: tirx.PrimFunc) -> tirx.PrimFunc:
    called = {
        str(call.args[0].value)
        for call in nodes(func.body, ir.Call)
        if function_name(call) == "call_extern"
    }
    body = func.body
    for type in _FLOATS.values():
        name = _NAME.format(type=type)
        if name in called:
            source = ir.StringImm(_SOURCE.format(type=type, name=name))
            body = tirx.AttrStmt(func.params[0], "pragma_import_llvm", source, body)
    return func.with_body(body)
