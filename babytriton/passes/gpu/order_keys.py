"""The integers that floats are compared by, as functions that kernels call by name."""

from __future__ import annotations

import itertools

import tvm_ffi
from tvm import IRModule, ir, tirx

from babytriton.ops import cuda_code
from babytriton.ops.numerics import from_order_key, order_key
from babytriton.passes.intrinsics import dtype_of, function_name, rewrite, rewrite_calls

_KEY = """\
// An integer that orders as x does, with NaN {where} all numbers{zeros}.
__device__ __forceinline__ {integer} {name}({float} x) {{
  {integer} bits = {bits_of}(x);
  return x != x ? {nan} : {zero}bits ^ ((bits >> {shift}) & {mask});
}}"""

_VALUE = """\
// The number that has a key.
__device__ __forceinline__ {float} of_order_key({integer} key) {{
  return {of_bits}(key ^ ((key >> {shift}) & {mask}));
}}"""

KEYS = "order_key"
"""What the names of the functions that give keys begin with."""

_TYPES = {
    "float32": {
        "float": "float",
        "integer": "int",
        "bits_of": "__float_as_int",
        "of_bits": "__int_as_float",
        "shift": 31,
        "mask": "0x7fffffff",
    },
    "float64": {
        "float": "double",
        "integer": "int64_t",
        "bits_of": "__double_as_longlong",
        "of_bits": "__longlong_as_double",
        "shift": 63,
        "mask": "0x7fffffffffffffffLL",
    },
}
_NANS = {"float32": "0x7fc00000", "float64": "0x7ff8000000000000LL"}
_KINDS = tuple(itertools.product(("max", "min"), (True, False)))


def order_keys_by_name(mod: IRModule) -> IRModule:
    """Kernels that call a function where they have a key spelled out, or the number of one."""
    return rewrite_calls(rewrite(mod, tirx.Select, _key), _value)


def _key(select: tirx.Select) -> ir.Expr:
    test = select.condition
    if not isinstance(test, ir.Call) or function_name(test) != "isnan":
        return select
    x = test.args[0]
    dtype = dtype_of(x)
    for nan, signed_zeros in _KINDS if dtype in _TYPES else ():
        key = order_key(x, nan=nan, signed_zeros=signed_zeros)
        if tvm_ffi.structural_equal(select, key):
            name = KEYS + ("" if nan == "max" else "_low_nan")
            name += "" if signed_zeros else "_one_zero"
            source = _KEY.format(
                name=name,
                **_TYPES[dtype],
                where="above" if nan == "max" else "below",
                zeros="" if signed_zeros else ", and one of both zeros",
                nan=_NANS[dtype] if nan == "max" else f"~{_NANS[dtype]}",
                zero="" if signed_zeros else "x == 0 ? 0 : ",
            )
            own = cuda_code.defined(source, name)
            return tirx.call_pure_extern(dtype_of(select), own, x)
    return select


def _value(call: ir.Call) -> ir.Expr:
    dtype = dtype_of(call)
    if function_name(call) != "reinterpret" or dtype not in _TYPES:
        return call
    folded = call.args[0]
    key = getattr(folded, "a", None)
    if key is None or not tvm_ffi.structural_equal(call, from_order_key(key, dtype)):
        return call
    own = cuda_code.defined(_VALUE.format(**_TYPES[dtype]), "of_order_key")
    return tirx.call_pure_extern(dtype, own, key)
