"""Zeros that LLVM cannot know to be zeros."""

from __future__ import annotations

from tvm import IRModule, ir, tirx

from babytriton.ops.primfunc import nodes, with_kernels
from babytriton.passes.intrinsics import function_name

# What types are called in LLVM IR, and zeros that leave every number as it is: floats when they are
# added, integers by an exclusive or as well.
_ZEROS = {
    "float32": ("float", "-0.0"),
    "float64": ("double", "-0.0"),
    "int32": ("i32", "0"),
    "int64": ("i64", "0"),
}

DTYPES = frozenset(_ZEROS)
"""Those that there is a zero of."""

_NAME = "babytriton_zero_of_{type}"
_SOURCE = """
define {type} @{name}() {{
  %place = alloca {type}
  store volatile {type} {zero}, ptr %place
  %zero = load volatile {type}, ptr %place
  ret {type} %zero
}}
"""


def bind_zero(variable: tirx.Var) -> tirx.Stmt:
    """What makes a variable, of one of the dtypes, a zero."""
    type, _ = _ZEROS[str(variable.ty.dtype)]
    return tirx.Bind(variable, tirx.call_extern(variable.ty.dtype, _NAME.format(type=type)))


def define_zeros(mod: IRModule) -> IRModule:
    """Kernels with what they call for them, for before code generation."""
    return with_kernels(mod, _with_definitions)


def _with_definitions(func: tirx.PrimFunc) -> tirx.PrimFunc:
    called = {
        str(call.args[0].value)
        for call in nodes(func.body, ir.Call)
        if function_name(call) == "call_extern"
    }
    body = func.body
    for type, zero in _ZEROS.values():
        name = _NAME.format(type=type)
        if name in called:
            source = ir.StringImm(_SOURCE.format(type=type, name=name, zero=zero))
            body = tirx.AttrStmt(func.params[0], "pragma_import_llvm", source, body)
    return func.with_body(body)
