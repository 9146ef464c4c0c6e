"""Python numbers of the run time: their arithmetic, and where a number stands for a tensor."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from tvm import relax, te, tirx
from tvm.ir import Var

from babytriton.ops.emission import OPAQUE
from babytriton.ops.functions import from_te
from babytriton.ops.sizes import int64
from babytriton.ops.table import Callee
from babytriton.ops.value import NUMBERS, Scalar, Value, constant_needed, values_in

if TYPE_CHECKING:
    from babytriton.ops.builder import Builder

COUNT = "babytriton.count"
"""An attribute of functions that store an integer which the program is given: where it is the
number of a step, how many there are; or 0, where they are given that as well, or it is not known.
"""

_TOTAL = frozenset(
    {operator.add, operator.sub, operator.mul, operator.neg, operator.pos, operator.abs}
    | {operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge}
)
"""What Python never refuses, whatever the numbers are."""

_DIVISIONS = (operator.truediv, operator.floordiv, operator.mod)
_BITS = (operator.and_, operator.or_, operator.xor, operator.invert)


def is_arithmetic(fn: Callee, args: tuple[Any, ...]) -> bool:
    """Whether a call is one of Python's operators on numbers, some of the run time."""
    known = fn in _TOTAL or fn in _DIVISIONS or fn in _BITS or fn is operator.pow
    numbers = all(isinstance(arg, (Scalar, bool, int, float, torch.SymInt)) for arg in args)
    return known and numbers and any(isinstance(arg, Scalar) for arg in args)


def arithmetic(builder: Builder, fn: Callee, args: tuple[Any, ...]) -> Scalar:
    """The result of one of Python's operators, a number of the run time.

    Raises:
        NeedsConstant, DataDependent: Python would raise for some numbers, as a kernel cannot.
    """
    kinds: list[Any] = [kind_of(arg) for arg in args]
    divides = fn in _DIVISIONS and _divides(fn, args, kinds)
    bits = fn in _BITS and float not in kinds
    powers = fn is operator.pow and _has_power(args, kinds)
    if not (fn in _TOTAL or divides or bits or powers):
        raise constant_needed(fn.__name__, args)
    # Every kind has a one, and no operator above refuses it.
    sample = fn(*(kind(1) for kind in kinds))
    meta = torch.empty((), dtype=NUMBERS[type(sample)], device="meta")
    wide = [_as_int(builder, arg) for arg in args]
    arguments = frozenset[str]().union(*(arg.arguments for arg in wide if isinstance(arg, Scalar)))
    return Scalar(builder, builder.build(fn, tuple(wide), {}, meta), sample, arguments)


def _has_power(args: tuple[Any, ...], kinds: list[Any]) -> bool:
    """Whether a power is of one kind whatever the numbers: others Python gives as complex ones.

    One that is too large, or of zero, is infinite, as tensors have it.
    """
    base, exponent = args
    if type(exponent) is int and exponent >= 0:
        return True
    return kinds == [float, int] or (type(base) is float and base > 0)


def _divides(fn: Callee, args: tuple[Any, ...], kinds: list[Any]) -> bool:
    """Whether a kernel can divide as Python does: dividing integers by 0 would end the process.

    A float that a tensor held is divided by 0 as tensors are.
    """
    if not isinstance(args[1], Scalar):
        return bool(args[1] != 0)
    return not args[1].arguments and (fn is operator.truediv or float in kinds)


def _as_int(builder: Builder, arg: Any) -> Any:
    """Bools count as ints in Python's arithmetic, and not in torch's."""
    if isinstance(arg, bool):
        return int(arg)
    if isinstance(arg, torch.SymInt):
        return counted(builder, int64(arg))
    return convert(builder, arg, int) if isinstance(arg, Scalar) and arg.kind is bool else arg


def counted(builder: Builder, number: Var, count: Any = None) -> Scalar:
    """An integer that the program is given, and that no tensor holds.

    Args:
        builder: emits it.
        number: it, such as a size.
        count: if it is the number of a step, how many there are.
    """

    def whole(number: Any, *_: Any) -> te.Tensor:
        return te.compute((), lambda: number, name=number.name)

    steps = None if count is None else int64(count)
    attrs = {COUNT: int(steps) if isinstance(steps, tirx.IntImm) else 0}
    if count is not None:  # What reads it is to be given the number, and not to store it.
        attrs["op_pattern"] = OPAQUE
    given = [number, *([steps] if isinstance(steps, Var) else [])]
    call = builder.called("step", *from_te(whole, given, attrs))
    tensor = builder.emit(call)
    builder.regions.counts[tensor] = call
    return builder.number(tensor, 1)


def kind_of(value: Any) -> type | None:
    """The kind of a Python number, known or of the run time; ``None`` for anything else."""
    if isinstance(value, Scalar):
        return value.kind
    if isinstance(value, torch.SymInt):
        return int
    return type(value) if type(value) in NUMBERS else None


def convert(builder: Builder, value: Any, kind: type) -> Scalar:
    """``bool(value)``, ``int(value)`` or ``float(value)`` of a number, or a tensor of one."""
    if not isinstance(value, Value):
        return builder.number(constant(builder, kind(value)), kind(1))
    arguments: frozenset[str] = frozenset()
    if isinstance(value, Scalar):
        if value.kind is kind:
            return value
        arguments, value = value.arguments, value.tensor
    found = builder.moved(value.reshape(()).to(NUMBERS[kind]))
    return Scalar(builder, builder.unfollowed(found.expr), kind(1), arguments)


def constant(builder: Builder, number: bool | int | float) -> relax.Expr:
    """A number as a tensor without dimensions."""
    dtype = str(NUMBERS[type(number)]).removeprefix("torch.")
    return relax.const(number, dtype)


def as_tensors(fn: Callee, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Arguments for a row that takes no numbers of the run time: as an index, one is a tensor.

    Raises:
        NeedsConstant, DataDependent: one stands where there must be a constant.
    """
    found = _BY_TENSOR[fn](args) if fn in _BY_TENSOR else args
    values = values_in((found, kwargs))
    if any(isinstance(value, Scalar) for value in values):
        raise constant_needed(getattr(fn, "__name__", str(fn)), values)
    return found


def _as_index(args: tuple[Any, ...]) -> tuple[Any, ...]:
    owner, item = args
    parts = item if isinstance(item, tuple) else (item,)
    found = tuple(part.tensor if _is_int(part) else part for part in parts)
    return owner, found if isinstance(item, tuple) else found[0]


def _is_int(part: Any) -> bool:
    return isinstance(part, Scalar) and part.kind is int


_BY_TENSOR: dict[Callee, Callable[[tuple[Any, ...]], tuple[Any, ...]]] = {
    operator.getitem: _as_index,
    torch.Tensor.__getitem__: _as_index,
}
