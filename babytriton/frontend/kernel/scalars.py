"""Numbers of a kernel: their types, and Python's and torch's arithmetic on them as TensorIR.

An element of a tensor has the tensor's dtype and follows torch's promotion. A Python int, float
or bool is an int64, a float64 or a bool, and gives way to the dtype of an element it meets.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from tvm import ir, tirx
from tvm_ffi import structural_walk

from babytriton.ops import numerics
from babytriton.types import dtype_of

PYTHON: dict[type, torch.dtype] = {bool: torch.bool, int: torch.int64, float: torch.float64}
_SAMPLES: dict[torch.dtype, Any] = {torch.bool: True, torch.int64: 1, torch.float64: 1.0}


@dataclass(frozen=True)
class ScalarType:
    """The type of a number.

    Attributes:
        dtype: what it is computed in.
        is_element: whether it promotes as an element of a tensor does, not as a Python number.
        range: of a Python int, the least and the greatest constant that it may be, if it can be
            nothing else.
    """

    dtype: torch.dtype
    is_element: bool = False
    range: tuple[int, int] | None = None

    @property
    def name(self) -> str:
        """TVM's name of the dtype."""
        return dtype_of(self.dtype).name

    @property
    def sample(self) -> Any:
        """A number of this type, for asking torch or Python about an operation."""
        return torch.ones((), dtype=self.dtype) if self.is_element else _SAMPLES[self.dtype]

    def __str__(self) -> str:
        if self.is_element:
            return f"an element of {self.name}"
        return next(kind.__name__ for kind, dtype in PYTHON.items() if dtype == self.dtype)


@dataclass(frozen=True)
class Number:
    """A number that is known only when the kernel runs."""

    expr: ir.Expr
    type: ScalarType


def is_number(value: Any) -> bool:
    """Whether a value is a number, of the run time or Python's own."""
    return isinstance(value, Number) or type(value) in PYTHON


def type_of(value: Any) -> ScalarType:
    """The type of a number."""
    if isinstance(value, Number):
        return value.type
    known = (value, value) if type(value) is int else None
    return ScalarType(PYTHON[type(value)], range=known)


def typed(fn: Callable[..., Any], *operands: Any) -> ScalarType:
    """What an operation gives, as Python or torch itself says.

    Raises:
        Exception: whatever either raises.
    """
    found = fn(*(x.type.sample if isinstance(x, Number) else x for x in operands))
    if isinstance(found, torch.Tensor):
        return ScalarType(found.dtype, is_element=True)
    return ScalarType(PYTHON[type(found)])


def common(left: ScalarType, right: ScalarType) -> ScalarType:
    """The type that holds a number of either type: of a choice, or of a name assigned twice."""
    if left == right:
        return left
    if left.is_element and right.is_element:
        return ScalarType(torch.promote_types(left.dtype, right.dtype), is_element=True)
    if not left.is_element and not right.is_element:
        ranges = (left.range, right.range)
        if ranges[0] and ranges[1]:
            low, high = min(r[0] for r in ranges if r), max(r[1] for r in ranges if r)
            return ScalarType(torch.int64, range=(low, high))
        return ScalarType(torch.promote_types(left.dtype, right.dtype))
    element, python = (left, right) if left.is_element else (right, left)
    dtype = torch.result_type(element.sample, python.sample)
    if dtype == element.dtype and python.dtype == torch.int64 and not dtype.is_floating_point:
        limits = torch.iinfo(dtype)
        fits = python.range and limits.min <= python.range[0] <= python.range[1] <= limits.max
        dtype = dtype if fits else torch.int64
    return ScalarType(dtype, is_element=True)


def constant(value: Any, dtype: torch.dtype) -> ir.Expr:
    """A Python number as a constant."""
    if dtype == torch.bool:
        return tirx.const(bool(value), "bool")
    return tirx.const(float(value) if dtype.is_floating_point else int(value), dtype_of(dtype).name)


def convert(value: Any, dtype: torch.dtype) -> ir.Expr:
    """A number in another dtype, as ``Tensor.to`` converts."""
    if not isinstance(value, Number):
        return constant(value, dtype)
    return cast(value.expr, value.type.dtype, dtype)


def cast(expr: ir.Expr, source: torch.dtype, dtype: torch.dtype) -> ir.Expr:
    """An expression of one dtype in another."""
    if source == dtype:
        return expr
    if dtype == torch.bool:
        return numerics.is_true(expr)
    if source.is_floating_point and not dtype.is_floating_point and dtype_of(dtype).bits < 32:
        # Out-of-range floats wrap, as in C through a wide integer, instead of being poison.
        expr = tirx.Cast("int64", expr)
    return tirx.Cast(dtype_of(dtype).name, expr)


def truth(value: Any) -> ir.Expr:
    """Python's truth of a number."""
    return convert(value, torch.bool)


def opmath(dtype: torch.dtype) -> torch.dtype:
    """The dtype that torch computes in: float32 for the half-precision floats."""
    return numerics.opmath(dtype)


def compute(
    type: ScalarType, within: torch.dtype, build: Callable[..., ir.Expr], *operands: Any
) -> Number:
    """A number of a type, by a function of expressions in the dtype ``within``.

    Narrow integers are computed in int32, as C++ does without saying so: CUDA's would not wrap.
    """
    dtype = torch.int32 if within in _NARROW else opmath(within)
    expr = build(*(convert(x, dtype) for x in operands))
    found = torch.bool if str(expr.ty.dtype) == "bool" else dtype
    return Number(cast(expr, found, type.dtype), type)


def compare(fn: Callable[..., Any], left: Any, right: Any) -> Number:
    """A comparison: in the common dtype of both sides, a NaN unequal to everything."""
    type = typed(fn, left, right)
    within = torch.result_type(*(_operand(x) for x in (left, right)))
    if not type.is_element and any(type_of(x).dtype == torch.float64 for x in (left, right)):
        within = torch.float64
    if within == torch.bool:
        within = torch.uint8
    return compute(type, within, _COMPARISONS[fn], left, right)


def arithmetic(fn: Callable[..., Any], left: Any, right: Any) -> Number:
    """An operator other than a comparison; of integers, the divisor is known not to be 0."""
    type = typed(fn, left, right)
    if fn is operator.pow:
        return power(type, left, right)
    build = _FLOATS.get(fn) if type.dtype.is_floating_point else None
    if build is None and type.dtype == torch.bool:
        build = _BOOLS[fn]
    within = type.dtype
    if build is None:
        build = _INTEGERS[fn]
        if type.dtype == torch.int32 and fn in _OVERFLOWING:
            within = torch.int64
    if type.dtype.is_floating_point:
        left, right = (_not_folded(x, type) for x in (left, right))
    return compute(type, within, build, left, right)


def _not_folded(value: Any, type: ScalarType) -> Any:
    """A constant 0 that TVM does not see: it takes 0 * x and 0 / x for 0, whatever x is."""
    if isinstance(value, Number) or value != 0:
        return value
    dtype = opmath(type.dtype)
    return Number(numerics.hidden(constant(value, dtype)), ScalarType(dtype))


def power(type: ScalarType, base: Any, exponent: Any) -> Number:
    """``base ** exponent``; of integers the exponent is a constant that is not negative."""
    if not isinstance(exponent, Number) and exponent in (2, 3):
        square = arithmetic(operator.mul, base, base)
        return square if exponent == 2 else arithmetic(operator.mul, square, base)
    if type.dtype.is_floating_point:
        return compute(type, type.dtype, numerics.power, base, exponent)
    found: Any = None
    square, left = base, int(exponent)
    while left:
        if left & 1:
            found = square if found is None else arithmetic(operator.mul, found, square)
        left >>= 1
        square = arithmetic(operator.mul, square, square) if left else square
    return Number(convert(1 if found is None else found, type.dtype), type)


def negate(value: Number) -> Number:
    """``-value``."""
    type = typed(operator.neg, value)
    if type.dtype.is_floating_point:
        return compute(type, type.dtype, _minus, value)
    return arithmetic(operator.sub, Number(constant(0, type.dtype), type), value)


def _minus(x: ir.Expr) -> ir.Expr:
    # 0 - x would give a zero of the wrong sign.
    return tirx.Mul(x, numerics.like(x, -1))


def invert(value: Number) -> Number:
    """``~value``."""
    type = typed(operator.invert, value)
    build = tirx.Not if type.dtype == torch.bool else tirx.bitwise_not
    return compute(type, type.dtype, build, value)


def absolute(value: Number) -> Number:
    """``abs(value)``."""
    type = typed(operator.abs, value)
    return compute(type, type.dtype, tirx.abs, value)


def choose(condition: ir.Expr, then: Any, otherwise: Any) -> Number:
    """One of two numbers; only the chosen one is computed where computing it may fail."""
    type = common(type_of(then), type_of(otherwise))
    type = ScalarType(type.dtype, type.is_element)
    branches = [convert(x, type.dtype) for x in (then, otherwise)]
    build = tirx.if_then_else if any(may_fail(x) for x in branches) else tirx.Select
    return Number(build(condition, *branches), type)


def extreme(fn: Callable[..., Any], left: Any, right: Any) -> Number:
    """``max(left, right)`` or ``min``: the first unless the second is beyond it, as in Python."""
    beyond = compare(operator.gt if fn is max else operator.lt, right, left)
    type = common(type_of(left), type_of(right))
    type = ScalarType(type.dtype, type.is_element)
    return Number(
        tirx.Select(beyond.expr, convert(right, type.dtype), convert(left, type.dtype)), type
    )


def reads(expr: ir.Expr) -> bool:
    """Whether an expression reads memory."""
    return bool(loads(expr))


def may_fail(expr: ir.Expr) -> bool:
    """Whether an expression reads tensors: to do so where it is not asked for may be an error."""
    return any(load.source.scope() != "local" for load in loads(expr))


def loads(expr: ir.Expr) -> list[Any]:
    """Every load in an expression."""
    found: list[Any] = []
    structural_walk(expr, [(ir.TensorLoad, found.append)], order="post")
    return found


def all_of(first: ir.Expr, second: ir.Expr) -> ir.Expr:
    """Whether both hold; the second is not asked where the first does not, if that may fail."""
    if may_fail(second):
        return tirx.if_then_else(first, second, tirx.const(False, "bool"))
    return tirx.And(first, second)


def any_of(first: ir.Expr, second: ir.Expr) -> ir.Expr:
    """Whether either holds; the second is not asked where the first does, if that may fail."""
    if may_fail(second):
        return tirx.if_then_else(first, tirx.const(True, "bool"), second)
    return tirx.Or(first, second)


def _operand(value: Any) -> Any:
    return value.type.sample if isinstance(value, Number) else value


_NARROW = (torch.int8, torch.uint8, torch.int16)
_COMPARISONS: dict[Any, Callable[..., ir.Expr]] = {
    operator.lt: tirx.LT,
    operator.le: tirx.LE,
    operator.gt: tirx.GT,
    operator.ge: tirx.GE,
    operator.eq: numerics.equal,
    operator.ne: numerics.not_equal,
}
# Nodes, not operators: those fold constants as if floats were real numbers.
_FLOATS: dict[Any, Callable[..., ir.Expr]] = {
    operator.add: tirx.Add,
    operator.sub: tirx.Sub,
    operator.mul: tirx.Mul,
    operator.truediv: tirx.Div,
    operator.floordiv: numerics.floor_divide,
    operator.mod: numerics.remainder,
}
_INTEGERS: dict[Any, Callable[..., ir.Expr]] = {
    operator.add: operator.add,
    operator.sub: operator.sub,
    operator.mul: operator.mul,
    operator.floordiv: tirx.floordiv,
    operator.mod: tirx.floormod,
    operator.and_: tirx.bitwise_and,
    operator.or_: tirx.bitwise_or,
    operator.xor: tirx.bitwise_xor,
    operator.lshift: tirx.shift_left,
    operator.rshift: tirx.shift_right,
}
_OVERFLOWING = (operator.add, operator.sub, operator.mul)
"""Those that leave the range of int32, and wrap. LLVM is told by TVM that neither they nor their
unsigned kin ever do, so they are computed in int64."""
_BOOLS: dict[Any, Callable[..., ir.Expr]] = {
    operator.add: tirx.Or,
    operator.mul: tirx.And,
    operator.and_: tirx.And,
    operator.or_: tirx.Or,
    operator.xor: lambda a, b: tirx.NE(tirx.Cast("int32", a), tirx.Cast("int32", b)),
}
