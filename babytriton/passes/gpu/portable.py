"""Kernels for GPUs without CUDA, in what their languages have."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Iterator

import tvm_ffi
from tvm import IRModule, ir, tirx

from babytriton.ops.primfunc import nodes, with_kernels
from babytriton.passes.intrinsics import (
    dtype_of,
    function_name,
    in_float32,
    is_half_function,
    rewrite,
    rewrite_calls,
)
from babytriton.passes.names import with_vars

_COMMON = "acos asin asinh acosh atan atan2 atanh tan sinh cosh tanh"
_C = f"{_COMMON} fmod copysign log10 rint"
_WHOLE = f"{_C} erf erfc expm1 log1p lgamma tgamma hypot nextafter"

_INEXACT = ("pow", "sin", "cos")
"""What LLVM has instructions of AMD's for, of few digits and for small numbers."""

FUNCTIONS = {
    "metal": frozenset(_C.split()),
    "opencl": frozenset([*_WHOLE.split(), "as_double"]),
    "webgpu": frozenset([*_COMMON.split(), "round", "infinity", "not_a_number"]),
    "rocm": frozenset(f"__ocml_{name}_f32" for name in (*_WHOLE.split(), *_INEXACT)),
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
    """A pass after which kernels compute with what a kind's language has.

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
        elif (name, kind) == ("pow", "webgpu"):
            return _pow(*operands)
        elif name not in _WHOLE.split() and not (kind == "rocm" and name in _INEXACT):
            return call
        own = _own_name(kind, name)
        if own not in FUNCTIONS[kind] and name in _FORMULAS:
            return _FORMULAS[name](*operands)
        return tirx.call_pure_extern(dtype_of(call), own, *operands)

    def remainder(node: tirx.Mod) -> ir.Expr:
        dtype = dtype_of(node)
        if "float" not in dtype:
            return node
        sides = [x if dtype != "float16" else tirx.Cast("float32", x) for x in (node.a, node.b)]
        return portable(tirx.call_pure_extern("float32", "fmod", *sides)).astype(dtype)

    def apply(mod: IRModule) -> IRModule:
        mod = rewrite_calls(mod, portable)
        if kind in ("metal", "webgpu"):
            mod = rewrite(mod, tirx.Mod, remainder)
        exact = _CONSTANTS.get(kind, _exact)
        return rewrite(mod, tirx.FloatImm, exact)

    return apply


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


def _exact_in_opencl(constant: tirx.FloatImm) -> ir.Expr:
    """The same; of float64 by its bits, and if it is not finite, of the type that it has there."""
    value = float(constant.value)
    if dtype_of(constant) != "float64":
        return _exact(constant)
    if not math.isfinite(value):
        return tirx.Cast("float64", tirx.FloatImm("float32", value))
    if float(f"{value:e}") == value:
        return constant
    (bits,) = struct.unpack("q", struct.pack("d", value))
    return tirx.call_pure_extern("float64", "as_double", tirx.IntImm("int64", bits))


def _exact_in_webgpu(constant: tirx.FloatImm) -> ir.Expr:
    """The same; by functions of ours for what is no constant there."""
    value = float(constant.value)
    if math.isfinite(value):
        return _exact(constant)
    name = "not_a_number" if math.isnan(value) else "infinity"
    found = tirx.call_pure_extern("float32", name)
    return (-found if value < 0 else found).astype(dtype_of(constant))


_CONSTANTS = {"opencl": _exact_in_opencl, "webgpu": _exact_in_webgpu}


def _single(value: float) -> float:
    (found,) = struct.unpack("f", struct.pack("f", value))
    return float(found)


def missing(mod: IRModule, kind: str) -> Iterator[str]:
    """What is in kernels and not in the kind's language: functions and dtypes."""
    for _, func in mod.functions_items():
        if not isinstance(func, tirx.PrimFunc):
            continue
        loads, stores = nodes(func.body, ir.TensorLoad), nodes(func.body, tirx.BufferStore)
        for value in (*func.params, *(x.source for x in loads), *(x.buffer for x in stores)):
            dtype = str(value.ty.dtype)
            if dtype not in _NO_DTYPES[kind]:
                continue
            is_number = not isinstance(value.ty, tirx.BufferType)
            instead = f", which the number `{value.name}` is: static_argnames makes it a constant"
            yield f"`{dtype}`{instead if is_number else ''}"
        for call in nodes(func.body, ir.Call):
            if function_name(call) in _EXTERN and call.args[0].value not in FUNCTIONS[kind]:
                yield f"`{call.args[0].value}`"


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


def _pow(x: ir.Expr, y: ir.Expr) -> ir.Expr:
    """A power by one of the absolute value, which is all that WebGPU has."""
    zero, half = tirx.const(0, x.ty.dtype), y * tirx.const(0.5, x.ty.dtype)
    power = tirx.pow(tirx.abs(x), y)
    signed = tirx.Select(tirx.EQ(half, tirx.floor(half)), power, -power)
    is_whole = tirx.EQ(y, tirx.floor(y))
    return tirx.Select(tirx.And(x < zero, is_whole), signed, tirx.Select(x < zero, _nan(x), power))


def _nan(like: ir.Expr) -> ir.Expr:
    return tirx.call_pure_extern("float32", "not_a_number").astype(dtype_of(like))


def _fmod(x: ir.Expr, y: ir.Expr) -> ir.Expr:
    """What is left of a division, as WebGPU defines its own for floats."""
    return x - y * tirx.trunc(x / y)


def _copysign(x: ir.Expr, sign: ir.Expr) -> ir.Expr:
    """The absolute value with another sign; that of a negative zero is lost."""
    size = tirx.abs(x)
    return tirx.Select(sign < tirx.const(0, x.ty.dtype), -size, size)


def _log10(x: ir.Expr) -> ir.Expr:
    return tirx.log(x) * tirx.const(1 / math.log(10), x.ty.dtype)


_FORMULAS: dict[str, Callable[..., ir.Expr]] = {
    "copysign": _copysign,
    "erf": _erf,
    "expm1": _expm1,
    "fmod": _fmod,
    "log1p": _log1p,
    "log10": _log10,
}


def choices_of_one_type(mod: IRModule) -> IRModule:
    """Kernels for OpenCL whose choices are between numbers as wide as these are computed."""

    def own(func: tirx.PrimFunc) -> tirx.PrimFunc:
        target = func.attrs.get("target", None)
        if target is None or target.kind.name != "opencl":
            return func
        return tvm_ffi.structural_map(func, (tirx.Select, _of_one_type))

    return with_kernels(mod, own)


def _of_one_type(chosen: tirx.Select) -> ir.Expr:
    """A choice between small integers, of which each operation makes an int."""
    dtype = dtype_of(chosen)
    if dtype not in ("int8", "uint8", "int16", "uint16"):
        return chosen
    sides = [tirx.Cast("int32", side) for side in (chosen.true_value, chosen.false_value)]
    return tirx.Cast(dtype, tirx.Select(chosen.condition, *sides))


_WORDS = re.compile(
    r"(u?(char|short|int|long|fixed)|bool|half|float|double|quad|complex|[biuf]?vec|mat)\d*(x\d+)?|"
    "kernel|global|local|constant|private|generic|device|thread|threadgroup|pipe|sampler|event|"
    "read_only|write_only|read_write|vertex|fragment|compute|constexpr|namespace|template|using|"
    "fn|let|var|override|ptr|atomic|array|f16|f32|i32|u32|loop|continuing|discard|diagnostic|"
    "enable|requires|alias|const_assert|self|super|mod|move|mut|pub|ref|trait|type|uniform|"
    "workgroup|storage|shared|in|out|inout|image|texture|buffer|args?|podArgs|gridDim|blockIdx|"
    "threadIdx|max|min|select|step|mix|sign|dot|length|distance|normalize|cross"
)
"""Words of these languages, and functions that kernels call."""


def without_words(mod: IRModule) -> IRModule:
    """Kernels that take no number by a name which is a word of their language.

    Tensors have an ending there that no word has.
    """

    def renamed(func: tirx.PrimFunc) -> tirx.PrimFunc:
        names = {
            param: ir.Var(f"{param.name}_value", param.ty)
            for param in func.params
            if not isinstance(param.ty, tirx.BufferType) and _WORDS.fullmatch(param.name)
        }
        return with_vars(func, names) if names else func

    return with_kernels(mod, renamed)


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
