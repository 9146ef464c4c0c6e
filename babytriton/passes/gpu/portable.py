"""Kernels for GPUs without CUDA, in what their languages have."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator

from tvm import IRModule, ir, tirx

from babytriton.ops.primfunc import nodes
from babytriton.passes.intrinsics import (
    dtype_of,
    function_name,
    in_float32,
    is_half_function,
    rewrite,
    rewrite_calls,
)

_COMMON = "acos asin asinh acosh atan atan2 atanh tan sinh cosh tanh"
_C = f"{_COMMON} fmod copysign log10 rint"
_WHOLE = f"{_C} erf erfc expm1 log1p lgamma tgamma hypot nextafter"

FUNCTIONS = {
    "metal": frozenset(_C.split()),
    "opencl": frozenset(_WHOLE.split()),
    "webgpu": frozenset(f"{_COMMON} round".split()),
    "rocm": frozenset(f"__ocml_{name}_f32" for name in _WHOLE.split()),
}
"""What kernels for each kind of GPU may call by name, besides TVM's intrinsics."""

_NO_DTYPES = {
    "metal": ("float64",),
    "opencl": ("bool",),
    "webgpu": (
        "float64",
        "bfloat16",
        "int64",
        "uint64",
        "int16",
        "uint16",
        "int8",
        "uint8",
        "bool",
    ),
    # LLVM ends the process over functions of float64 that AMD's library would have.
    "rocm": ("float64",),
}
"""What elements of tensors may not be."""

_EXTERN = ("call_pure_extern", "call_extern")


def math_for(kind: str) -> Callable[[IRModule], IRModule]:
    """A pass after which kernels call the functions of a kind's language.

    Functions of 16 bits run in float32; what the language lacks is a formula, if there is one.
    """

    def portable(call: ir.Call) -> ir.Expr:
        if is_half_function(call):
            wide = in_float32(call)
            return tirx.Cast(dtype_of(call), portable(wide.value))
        name, operands = function_name(call), list(call.args)
        if name in _EXTERN:
            name, operands = str(call.args[0].value).removesuffix("f"), operands[1:]
        elif name in ("round", "nearbyint"):
            name = "rint"
        elif name not in _WHOLE.split():
            return call
        own = _own_name(kind, name)
        if own not in FUNCTIONS[kind] and name in _FORMULAS:
            return _FORMULAS[name](*operands)
        return tirx.call_pure_extern(dtype_of(call), own, *operands)

    return lambda mod: rewrite(rewrite_calls(mod, portable), tirx.FloatImm, _exact)


def _own_name(kind: str, name: str) -> str:
    """What a kind's library calls a function of C."""
    if kind == "rocm":
        return f"__ocml_{name}_f32"
    return "round" if kind == "webgpu" and name == "rint" else name


def _exact(constant: tirx.FloatImm) -> ir.Expr:
    """A constant as a sum where the seven digits that TVM prints are not enough."""
    value = float(constant.value)
    if dtype_of(constant) != "float32" or not math.isfinite(value):
        return constant
    printed = float(f"{value:e}")
    if _single(printed) == _single(value):
        return constant
    rest = tirx.FloatImm("float32", _single(value) - printed)
    return tirx.Add(tirx.FloatImm("float32", printed), rest)


def _single(value: float) -> float:
    (found,) = struct.unpack("f", struct.pack("f", value))
    return float(found)


def missing(mod: IRModule, kind: str) -> Iterator[str]:
    """What is in kernels and not in the kind's language: functions, dtypes and constants."""
    for _, func in mod.functions_items():
        if not isinstance(func, tirx.PrimFunc):
            continue
        loads, stores = nodes(func.body, ir.TensorLoad), nodes(func.body, tirx.BufferStore)
        tensors = [*func.params, *(x.source for x in loads), *(x.buffer for x in stores)]
        for dtype in (str(tensor.ty.dtype) for tensor in tensors):
            if dtype in _NO_DTYPES[kind]:
                yield dtype
        for call in nodes(func.body, ir.Call):
            if function_name(call) in _EXTERN and call.args[0].value not in FUNCTIONS[kind]:
                yield str(call.args[0].value)
        if kind == "webgpu":
            constants = nodes(func.body, tirx.FloatImm)
            yield from (str(x.value) for x in constants if not math.isfinite(x.value))


def _erf(x: ir.Expr) -> ir.Expr:
    """The error function to 1.5e-7: formula 7.1.26 of Abramowitz and Stegun's handbook (1964)."""
    dtype = x.ty.dtype
    positive = tirx.abs(x)
    t = tirx.const(1, dtype) / (tirx.const(1, dtype) + tirx.const(0.3275911, dtype) * positive)
    total = tirx.const(0, dtype)
    for factor in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592):
        total = (total + tirx.const(factor, dtype)) * t
    found = tirx.const(1, dtype) - total * tirx.exp(-(positive * positive))
    return tirx.Select(x < tirx.const(0, dtype), -found, found)


def _log1p(x: ir.Expr) -> ir.Expr:
    """log(1 + x) without the error of the sum: W. Kahan's, as HP's calculators had it (1979)."""
    one, large = tirx.const(1, x.ty.dtype), tirx.const(1e20, x.ty.dtype)
    total = x + one
    correction = tirx.Select(x > large, one, x / (total - one))
    return tirx.Select(tirx.EQ(total, one), x, tirx.log(total) * correction)


def _expm1(x: ir.Expr) -> ir.Expr:
    """exp(x) - 1 without the error of the difference: by W. Kahan's correction, near zero."""
    one = tirx.const(1, x.ty.dtype)
    power = tirx.exp(x)
    small = (power - one) * x / tirx.log(power)
    far = tirx.abs(x) > one
    return tirx.Select(tirx.EQ(power, one), x, tirx.Select(far, power - one, small))


def _log10(x: ir.Expr) -> ir.Expr:
    return tirx.log(x) * tirx.const(1 / math.log(10), x.ty.dtype)


_FORMULAS: dict[str, Callable[..., ir.Expr]] = {
    "erf": _erf,
    "expm1": _expm1,
    "log1p": _log1p,
    "log10": _log10,
}


def without_unrolling(mod: IRModule) -> IRModule:
    """Kernels whose loops are unrolled by the compiler, or not at all."""
    return _serial(mod, lambda loop: loop.kind == tirx.ForKind.UNROLLED)


def without_vectors(mod: IRModule) -> IRModule:
    """Kernels that load and store number by number, as WebGPU's arrays of numbers must be."""
    kinds = (tirx.ForKind.UNROLLED, tirx.ForKind.VECTORIZED)
    return _serial(mod, lambda loop: loop.kind in kinds)


def with_short_vectors(mod: IRModule) -> IRModule:
    """Kernels whose vectors are of four numbers at most, as Metal's are."""
    kind = tirx.ForKind.VECTORIZED
    return _serial(mod, lambda loop: loop.kind == kind and int(loop.extent) > 4)


def _serial(mod: IRModule, is_plain: Callable[[tirx.For], bool]) -> IRModule:
    """Kernels in which some loops are loops and no more."""

    def plain(loop: tirx.For) -> tirx.For:
        if not is_plain(loop):
            return loop
        return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body)

    return rewrite(mod, tirx.For, plain)
