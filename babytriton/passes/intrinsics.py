"""Math functions in kernels: rewriting calls of TVM's intrinsics before they are lowered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm_ffi
from tvm import IRModule, ir, tirx

from babytriton.ops.primfunc import nodes, with_kernels

HALVES = ("float16", "bfloat16")

# Functions of floats to a float of the same type, by TVM's names.
FLOAT_FUNCTIONS = frozenset(
    (
        *("exp", "exp2", "exp10", "log", "log2", "log10", "log1p", "pow", "sqrt", "rsqrt"),
        *("sin", "cos", "tan", "asin", "acos", "atan", "atan2", "hypot"),
        *("sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "sigmoid", "erf"),
        *("floor", "ceil", "round", "nearbyint", "trunc", "fabs", "fmod", "copysign"),
    )
)

# Those that processors have instructions for take no longer than a sum.
SLOW_FUNCTIONS = FLOAT_FUNCTIONS.difference(
    ("floor", "ceil", "round", "nearbyint", "trunc", "fabs", "copysign", "sqrt", "rsqrt")
).union(("call_pure_extern",))

_PURE = 1
"""Of TVM's kinds of effects: those up to this are none."""

Rewrite = Callable[[ir.Call], ir.Expr]


def rewrite_calls(mod: IRModule, fn: Rewrite) -> IRModule:
    """A module whose kernels have each call replaced by what `fn` makes of it."""
    return rewrite(mod, ir.Call, fn)


def rewrite(mod: IRModule, kind: type, fn: Callable[[Any], ir.Expr]) -> IRModule:
    """A module whose kernels have each node of a kind replaced by what `fn` makes of it."""
    return with_kernels(mod, lambda func: tvm_ffi.structural_map(func, (kind, fn)))


def function_name(call: ir.Call) -> str:
    """The intrinsic that is called, such as "exp"; empty for other calls."""
    # Most are "tirx.exp", but a few "prim.ceil".
    return call.op.name.rpartition(".")[2] if isinstance(call.op, ir.Op) else ""


def is_pure(call: ir.Call) -> bool:
    """Whether a call gives a result, the same for the same arguments, and does nothing else."""
    if not isinstance(call.op, ir.Op):
        return False
    kind = call.op.get_attr("TCallEffectKind")
    return kind is not None and int(kind) <= _PURE


def has_slow_functions(node: Any) -> bool:
    """Whether functions such as exponentials are computed in an expression or a statement."""
    return any(function_name(call) in SLOW_FUNCTIONS for call in nodes(node, ir.Call))


def dtype_of(expr: ir.Expr) -> str:
    """The dtype of an expression; empty for an address."""
    return str(getattr(expr.ty, "dtype", ""))


def is_half_function(call: ir.Call) -> bool:
    """Whether the call is a math function in a 16-bit float."""
    return function_name(call) in FLOAT_FUNCTIONS and dtype_of(call) in HALVES


def in_float32(call: ir.Call) -> ir.Expr:
    """A math function of 16-bit floats computed in float32, as torch does.

    TVM lacks many for 16 bits, names some that CUDA lacks (hsinh, hfmod), and approximates others
    by formulas that lose all digits.
    """
    wide = [tirx.Cast("float32", arg) for arg in call.args]
    return tirx.Cast(dtype_of(call), tirx.call_intrin("float32", call.op, *wide))
