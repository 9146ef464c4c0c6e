"""Functions of numbers: what Python's, math's and torch's mean in a kernel."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from tvm import ir, tirx

from babytriton.frontend.kernel import scalars
from babytriton.frontend.kernel.scalars import Number, ScalarType
from babytriton.ops import numerics

Function = Callable[..., Any]

_PYTHON_INT = ScalarType(torch.int64)
_PYTHON_FLOAT = ScalarType(torch.float64)
_BOOL = ScalarType(torch.bool)


def _float_type(*values: Any) -> ScalarType:
    """What a function of floats gives: the elements' dtype, or a Python float."""
    elements = [x.type for x in values if isinstance(x, Number) and x.type.is_element]
    floats = [type for type in elements if type.dtype.is_floating_point]
    if not floats:
        return _PYTHON_FLOAT
    return functools.reduce(scalars.common, floats)


def _floating(build: Callable[..., ir.Expr]) -> Function:
    """A function of floats to a float of the same dtype."""

    def made(*values: Any) -> Number:
        type = _float_type(*values)
        return scalars.compute(type, type.dtype, build, *values)

    return made


def _of_torch(build: Callable[..., ir.Expr]) -> Function:
    """As :func:`_floating` for torch's functions, which make float32 of integers."""

    def made(*values: Any) -> Number:
        type = _float_type(*values)
        type = ScalarType(torch.get_default_dtype(), True) if type is _PYTHON_FLOAT else type
        return scalars.compute(type, type.dtype, build, *values)

    return made


def _to_int(build: Callable[[ir.Expr], ir.Expr]) -> Function:
    """A function of a float to a Python int."""

    def made(value: Any) -> Any:
        if not _is_float(value):
            return int_of(value)
        dtype = scalars.opmath(scalars.type_of(value).dtype)
        whole = build(scalars.convert(value, dtype))
        return Number(scalars.cast(whole, dtype, torch.int64), _PYTHON_INT)

    return made


def _asks(build: Callable[[ir.Expr], ir.Expr]) -> Function:
    """A question about a float."""

    def made(value: Any) -> Number:
        dtype = scalars.opmath(_float_type(value).dtype)
        return Number(build(scalars.convert(value, dtype)), _BOOL)

    return made


def int_of(value: Any) -> Number:
    """``int(value)``: towards zero."""
    dtype = scalars.type_of(value).dtype
    expr = scalars.convert(value, scalars.opmath(dtype))
    return Number(scalars.cast(expr, scalars.opmath(dtype), torch.int64), _PYTHON_INT)


def float_of(value: Any) -> Number:
    """``float(value)``."""
    return Number(scalars.convert(value, torch.float64), _PYTHON_FLOAT)


def bool_of(value: Any) -> Number:
    """``bool(value)``."""
    return Number(scalars.truth(value), _BOOL)


def round_of(value: Any) -> Any:
    """``round(value)`` of a Python number: halves go to the even neighbour."""
    return _to_int(tirx.nearbyint)(value)


def _log(value: Any, base: Any = None) -> Any:
    found = _floating(tirx.log)(value)
    if base is None:
        return found
    below = _floating(tirx.log)(base)
    return scalars.arithmetic(operator.truediv, found, below)


def _extremes(fn: Callable[..., Any]) -> Function:
    def made(*values: Any) -> Any:
        return functools.reduce(lambda left, right: scalars.extreme(fn, left, right), values)

    return made


def _propagating(build: Callable[..., ir.Expr]) -> Function:
    """torch's maximum and minimum, which are NaN if an operand is."""

    def made(left: Any, right: Any) -> Number:
        type = scalars.common(scalars.type_of(left), scalars.type_of(right))
        return scalars.compute(type, type.dtype, build, left, right)

    return made


def _where(condition: Any, then: Any, otherwise: Any) -> Number:
    return scalars.choose(scalars.truth(condition), then, otherwise)


def _sigmoid(x: ir.Expr) -> ir.Expr:
    one = numerics.like(x, 1)
    return tirx.Div(one, tirx.Add(one, tirx.exp(tirx.Mul(x, numerics.like(x, -1)))))


def _scaled(factor: float) -> Callable[[ir.Expr], ir.Expr]:
    return lambda x: tirx.Mul(x, numerics.like(x, factor))


def _library(name: str) -> Callable[..., ir.Expr]:
    return lambda *args: numerics.libm(name, *args)


_FLOATING: dict[str, Callable[..., ir.Expr]] = {
    "sqrt": tirx.sqrt,
    "exp": tirx.exp,
    "exp2": tirx.exp2,
    "expm1": _library("expm1"),
    "log2": tirx.log2,
    "log10": tirx.log10,
    "log1p": _library("log1p"),
    "sin": tirx.sin,
    "cos": tirx.cos,
    "tan": tirx.tan,
    "asin": tirx.asin,
    "acos": tirx.acos,
    "atan": tirx.atan,
    "atan2": _library("atan2"),
    "sinh": tirx.sinh,
    "cosh": tirx.cosh,
    "tanh": tirx.tanh,
    "asinh": _library("asinh"),
    "acosh": _library("acosh"),
    "atanh": tirx.atanh,
    "erf": _library("erf"),
    "erfc": _library("erfc"),
    "gamma": _library("tgamma"),
    "lgamma": _library("lgamma"),
    "hypot": _library("hypot"),
    "copysign": _library("copysign"),
    "fmod": tirx.truncmod,
    "pow": numerics.power,
    "fabs": tirx.abs,
    "degrees": _scaled(180 / math.pi),
    "radians": _scaled(math.pi / 180),
}
"""Functions of floats to a float, by the name that ``math`` has for them."""

_TORCH = (
    *("sqrt", "exp", "exp2", "expm1", "log2", "log10", "log1p", "sin", "cos", "tan", "tanh"),
    *("sinh", "cosh", "asin", "acos", "atan", "atan2", "erf", "erfc"),
)
"""Those of them that torch has as well."""


def _table() -> dict[Any, Function]:
    found: dict[Any, Function] = {
        abs: scalars.absolute,
        int: int_of,
        float: float_of,
        bool: bool_of,
        round: round_of,
        max: _extremes(max),
        min: _extremes(min),
        math.log: _log,
        math.floor: _to_int(tirx.floor),
        math.ceil: _to_int(tirx.ceil),
        math.trunc: _to_int(tirx.trunc),
        math.isnan: _asks(numerics.isnan),
        math.isinf: _asks(tirx.isinf),
        math.isfinite: _asks(tirx.isfinite),
        torch.abs: scalars.absolute,
        torch.log: _of_torch(tirx.log),
        torch.sigmoid: _of_torch(_sigmoid),
        torch.maximum: _propagating(numerics.maximum),
        torch.minimum: _propagating(numerics.minimum),
        torch.where: _where,
    }
    for name, build in _FLOATING.items():
        if hasattr(math, name):  # Python 3.10 has no exp2
            found[getattr(math, name)] = _floating(build)
        if name in _TORCH:
            found[getattr(torch, name)] = _of_torch(build)
    return found


def _is_float(value: Any) -> bool:
    return scalars.type_of(value).dtype.is_floating_point


FUNCTIONS = _table()
"""What a call of a function means, where one of its arguments is a number of the run time."""
