"""Products that are rounded before something is added to them, where two passes must agree.

NVIDIA's compiler makes one instruction of a product and a sum, which rounds once; whether it does
depends on what else is done with the product. Where a pass looks for the number that another one
has found, as that of a row's maximum, both must compute the same.
"""

from __future__ import annotations

import math

import tvm_ffi
from tvm import IRModule, ir, tirx

from babytriton.ops.primfunc import nodes, with_kernels
from babytriton.passes.gpu.order_keys import KEYS
from babytriton.passes.intrinsics import dtype_of

_PRODUCTS = {
    "float16": "__hmul_rn",
    "bfloat16": "__hmul_rn",
    "float32": "__fmul_rn",
    "float64": "__dmul_rn",
}


_TESTS = (tirx.EQ, tirx.NE, tirx.LE, tirx.LT, tirx.GE, tirx.GT)


def exact_products(mod: IRModule) -> IRModule:
    """Functions that look for an extreme which they have found, with such products."""
    return with_kernels(mod, _exact)


def _exact(func: tirx.PrimFunc) -> tirx.PrimFunc:
    called = [call.args[0] for call in nodes(func.body, ir.Call) if call.args]
    names = [str(name.value) for name in called if isinstance(name, ir.StringImm)]
    finds = any(name.startswith(KEYS) for name in names)
    looks = any(_compares(test) for kind in _TESTS for test in nodes(func.body, kind))
    return tvm_ffi.structural_map(func, (tirx.Mul, _product)) if finds and looks else func


def _compares(test: ir.Expr) -> bool:
    """Whether it is a number that is compared with another that is no constant."""
    sides = test.a, test.b
    return dtype_of(test.a) in _PRODUCTS and not any(isinstance(x, tirx.FloatImm) for x in sides)


def _product(product: tirx.Mul) -> ir.Expr:
    name = _PRODUCTS.get(dtype_of(product))
    if name is None or any(map(_is_power_of_two, (product.a, product.b))):
        return product
    return tirx.call_pure_extern(dtype_of(product), name, product.a, product.b)


def _is_power_of_two(factor: ir.Expr) -> bool:
    """Whether products with it are not rounded."""
    return isinstance(factor, tirx.FloatImm) and abs(math.frexp(float(factor.value))[0]) in (0, 0.5)
