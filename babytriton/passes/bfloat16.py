"""bfloat16 as the integers that most targets keep it in."""

from __future__ import annotations

from collections.abc import Callable

import tvm
import tvm_ffi
from tvm import IRModule, ir, tirx

from babytriton.ops.numerics import rounded_to_bfloat16
from babytriton.ops.primfunc import with_kernels
from babytriton.passes.blocks import parameters
from babytriton.passes.intrinsics import dtype_of, function_name

_IN_INTEGERS = "tirx.BF16StorageLegalize"


def in_integers(lower: Callable[[IRModule], IRModule]) -> Callable[[IRModule], IRModule]:
    """TVM's lowering, which ends with bfloat16 in memory as integers of 16 bits.

    TVM leaves a vector of the same bfloat16 as it is, which memory of integers then does not take.
    And it computes in float32, whose bits are others, without a thought of who asks for the bits.
    """

    def lowered(mod: IRModule) -> IRModule:
        own = tvm.transform.PassContext.current()
        disabled = [*own.disabled_pass, _IN_INTEGERS]
        with tvm.transform.PassContext(
            own.opt_level, own.required_pass, disabled, own.instruments, own.config
        ):
            mod = lower(with_kernels(mod, _rounded))
        return tirx.transform.BF16StorageLegalize()(with_kernels(mod, _with_vectors))

    return lowered


def _has_bfloat16(func: tirx.PrimFunc) -> bool:
    """Whether a kernel's target may compute in bfloat16 itself."""
    target = func.attrs.get("target") if func.attrs else None
    return target is not None and target.kind.name == "cuda"


def _rounded(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The kernel with the bits of what it computes as those of a bfloat16."""
    if _has_bfloat16(func):
        return func
    given = set(parameters(func))

    def bits(call: ir.Call) -> ir.Expr:
        if function_name(call) != "reinterpret" or dtype_of(call.args[0]) != "bfloat16":
            return call
        (number,) = call.args
        if isinstance(number, ir.TensorLoad) and number.source in given:
            return call
        wide = tirx.reinterpret("uint32", rounded_to_bfloat16(number.astype("float32")))
        own = (wide >> tirx.const(16, "uint32")).astype("uint16")
        return tirx.reinterpret(dtype_of(call), own)

    return tvm_ffi.structural_map(func, (ir.Call, bits))


def _with_vectors(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The kernel with vectors of the same bfloat16 as such of integers."""
    if _has_bfloat16(func):
        return func
    return tvm_ffi.structural_map(func, (tirx.Broadcast, _of_bits))


def _of_bits(vector: tirx.Broadcast) -> ir.Expr:
    """A vector of the same bfloat16 as one of its bits."""
    if dtype_of(vector.value) != "bfloat16":
        return vector
    bits = tirx.Broadcast(tirx.reinterpret("uint16", vector.value), vector.lanes)
    return tirx.reinterpret(dtype_of(vector), bits)
