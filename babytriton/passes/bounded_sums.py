"""Sums of integers that stay within their type wherever a kernel computes them, as such.

Integers wrap around, as torch's do, which C++ promises of unsigned ones alone (`ops/wrapping.py`).
What is computed from the indices of loops and threads has bounds: signed integers do, and what is
compared with others may be known.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from itertools import product
from typing import Any

import tvm_ffi
from tvm import IRModule, ir, sym, tirx

from babytriton.ops.primfunc import nodes, with_kernels
from babytriton.passes.indices import LIMITS, ranges_of
from babytriton.passes.intrinsics import dtype_of, function_name

_SUMS: dict[type, Callable[[Any, Any], Any]] = {
    tirx.Add: operator.add,
    tirx.Sub: operator.sub,
    tirx.Mul: operator.mul,
}


def as_signed(mod: IRModule) -> IRModule:
    """Scheduled kernels with signed integers where none can wrap around."""
    return with_kernels(mod, _as_signed)


def _as_signed(func: tirx.PrimFunc) -> tirx.PrimFunc:
    if not any(map(_is_sum, nodes(func.body, tirx.Cast))):
        return func
    analyzer = sym.Analyzer()
    for var, (extent, *others) in ranges_of(func).items():
        if not others:
            analyzer.bind(var, extent)

    def bounds(value: ir.Expr) -> tuple[int, int]:
        found = analyzer.const_int_bound(value)
        return int(found.min_value), int(found.max_value)

    def signed(cast: tirx.Cast) -> ir.Expr:
        if not _is_sum(cast):
            return cast
        kind, dtype = type(cast.value), dtype_of(cast)
        operands = [_operand(x, dtype) for x in (cast.value.a, cast.value.b)]
        least, greatest = LIMITS[dtype]
        limits = [bounds(x) for x in operands if x is not None]
        is_bounded = len(limits) == 2 and all(least < x and y < greatest for x, y in limits)
        results = [_SUMS[kind](*x) for x in product(*limits)] if is_bounded else []
        if results and least <= min(results) and max(results) <= greatest:
            return kind(*operands)
        return cast

    def told(comparison: Any) -> ir.Expr:
        if dtype_of(comparison.a) not in LIMITS:
            return comparison
        found = analyzer.simplify(comparison)
        return found if isinstance(found, tirx.IntImm) else comparison

    body = tvm_ffi.structural_map(func.body, (tirx.Cast, signed))
    if tvm_ffi.structural_equal(body, func.body):
        return func
    comparisons = [(kind, told) for kind in (tirx.LT, tirx.LE, tirx.GT, tirx.GE)]
    rest = [(tirx.And, _both), (tirx.Select, _chosen), (ir.Call, _chosen_in_time)]
    return func.with_body(tvm_ffi.structural_map(body, [*comparisons, *rest]))


def _is_sum(cast: tirx.Cast) -> bool:
    """Whether it makes a signed integer of a sum, or the like, of unsigned ones of as many bits."""
    dtype = dtype_of(cast)
    is_signed = dtype in ("int32", "int64")
    return is_signed and type(cast.value) in _SUMS and dtype_of(cast.value) == f"u{dtype}"


def _operand(value: ir.Expr, dtype: str) -> ir.Expr | None:
    """The signed integer that an unsigned one has the bits of."""
    if isinstance(value, tirx.Cast) and dtype_of(value.value) == dtype:
        return value.value
    if isinstance(value, tirx.IntImm):
        return tirx.IntImm(dtype, int(value.value))
    if isinstance(value, tirx.BitwiseNot) and isinstance(value.a, tirx.IntImm):
        return tirx.IntImm(dtype, -int(value.a.value) - 1)
    return None


def _both(both: tirx.And) -> ir.Expr:
    """Two conditions without one that is known to hold."""
    for one, other in ((both.a, both.b), (both.b, both.a)):
        if isinstance(one, tirx.IntImm) and one.value:
            return other
    return both


def _chosen(choice: tirx.Select) -> ir.Expr:
    if not isinstance(choice.condition, tirx.IntImm):
        return choice
    return choice.true_value if choice.condition.value else choice.false_value


def _chosen_in_time(call: ir.Call) -> ir.Expr:
    """As :func:`_chosen`, of what computes the chosen value alone."""
    if function_name(call) != "if_then_else" or not isinstance(call.args[0], tirx.IntImm):
        return call
    return call.args[1] if call.args[0].value else call.args[2]
