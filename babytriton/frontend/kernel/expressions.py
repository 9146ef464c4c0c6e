"""Expressions of a kernel: Python's own values stay what they are, numbers become TensorIR."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from tvm import ir, tirx

from babytriton import errors
from babytriton.frontend.kernel import scalars
from babytriton.frontend.kernel.elements import Elements
from babytriton.frontend.kernel.program import Branch, Fault, index
from babytriton.frontend.kernel.scalars import Number, ScalarType
from babytriton.frontend.kernel.tensors import ATTRIBUTES, Tensor
from babytriton.frontend.operators import OPERATORS

_COMPARISONS = (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne)


_CASTS: dict[str, torch.dtype] = {
    "float": torch.float32,
    "double": torch.float64,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
    "long": torch.int64,
    "int": torch.int32,
    "short": torch.int16,
    "char": torch.int8,
    "byte": torch.uint8,
    "bool": torch.bool,
}
"""Methods of an element that convert it."""


@dataclass(frozen=True)
class Conversion:
    """A method that gives an element in another dtype, or as a Python number."""

    element: Number
    type: ScalarType

    @classmethod
    def named(cls, element: Number, name: str) -> Conversion | None:
        """The method of a name, if there is one."""
        dtype = element.type.dtype
        if name in _CASTS:
            return cls(element, ScalarType(_CASTS[name], is_element=True))
        if name != "item":
            return None
        python = torch.float64 if dtype.is_floating_point else torch.int64
        return cls(element, ScalarType(dtype if dtype == torch.bool else python))

    def __call__(self) -> Number:
        return Number(scalars.convert(self.element, self.type.dtype), self.type)


class Expressions(Elements):
    """Visits expressions."""

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        owner = self.visit(node.value)
        if isinstance(owner, Tensor) and owner.numel() == 1 and node.attr == "item":
            owner = self.element(node, owner, (0,) * owner.ndim)
        if isinstance(owner, Number):
            method = Conversion.named(owner, node.attr) if owner.type.is_element else None
            if method is None:
                self.refuse(node, f"a number has no `{node.attr}` here", "use a function of math")
            return method
        if isinstance(owner, Tensor) and node.attr not in ATTRIBUTES:
            instead = f"of a tensor, {', '.join(ATTRIBUTES)} and its elements are known"
            self.refuse(node, f"`{node.attr}` works on a whole tensor", instead)
        try:
            found = getattr(owner, node.attr)
        except AttributeError:
            kind = f"a {type(owner).__name__}"
            self.fail(errors.NoAttribute(self.span(node), kind, node.attr))
        if isinstance(owner, Tensor):
            return found
        return self.captures.lift(self.captures.attribute_place(owner, node.attr), found)

    def visit_Constant(self, node: ast.Constant) -> Any:
        return node.value

    def visit_Tuple(self, node: ast.Tuple) -> tuple[Any, ...]:
        return tuple(self.visit(item) for item in node.elts)

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        left, right = self.visit(node.left), self.visit(node.right)
        return self.binary(node, OPERATORS[type(node.op)], left, right)

    def binary(self, node: ast.AST, fn: Callable[..., Any], left: Any, right: Any) -> Any:
        """An operator of two operands, Python's own values included."""
        if not any(isinstance(x, (Number, Tensor)) for x in (left, right)):
            return self.python(node, fn, left, right)
        for operand in (left, right):
            self.number(node, operand)
        type = self.typed(node, fn, left, right)
        if fn in _COMPARISONS:
            return scalars.compare(fn, left, right)
        if type.dtype.is_floating_point or fn not in (operator.floordiv, operator.mod):
            if fn is operator.pow and not type.dtype.is_floating_point:
                self._check_exponent(node, right)
            return scalars.arithmetic(fn, left, right)
        return self._divide(node, fn, left, right, type)

    def typed(self, node: ast.AST, fn: Callable[..., Any], *operands: Any) -> ScalarType:
        """The type of an operation; what torch or Python refuses becomes a message."""
        try:
            return scalars.typed(fn, *operands)
        except Exception as error:
            name = getattr(fn, "__name__", str(fn))
            types = " and ".join(str(scalars.type_of(x)) for x in operands)
            why = " ".join(str(error).split())
            self.fail(errors.OperandsDoNotFit(self.span(node), name, types, why))

    def _check_exponent(self, node: ast.AST, exponent: Any) -> None:
        if isinstance(exponent, Number):
            what = "an integer power whose exponent is known only at run time"
            self.refuse(node, what, "make the base a float, or the exponent a constant")

    def _divide(
        self, node: ast.AST, fn: Callable[..., Any], left: Any, right: Any, type: ScalarType
    ) -> Number:
        """``//`` and ``%`` of integers, which must not divide by zero, nor overflow by -1."""
        if not isinstance(right, Number):
            if fn is operator.floordiv and right == -1:
                return scalars.negate(Number(scalars.convert(left, type.dtype), type))
            return scalars.arithmetic(fn, left, 1 if right == -1 else right)
        divisor = scalars.convert(right, type.dtype)
        zero, one = (tirx.const(x, type.name) for x in (0, 1))
        if self.ranges.of(divisor).low > 0:
            return scalars.arithmetic(fn, left, Number(divisor, type))
        fault = Fault(self.span(node), "")
        self.report(fault, tirx.EQ(divisor, zero), index(0))
        special = tirx.EQ(divisor, zero)
        if type.dtype != torch.uint8:
            special = tirx.Or(special, tirx.EQ(divisor, tirx.const(-1, type.name)))
        safe = Number(tirx.Select(special, one, divisor), type)
        found = scalars.arithmetic(fn, left, safe)
        if fn is operator.mod or type.dtype == torch.uint8:
            return found
        minus = scalars.negate(Number(scalars.convert(left, type.dtype), type))
        is_minus = tirx.EQ(divisor, tirx.const(-1, type.name))
        return Number(tirx.Select(is_minus, minus.expr, found.expr), type)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        operand = self.visit(node.operand)
        fn = OPERATORS.get(type(node.op), operator.not_)
        if not isinstance(operand, Number):
            if isinstance(operand, Tensor):
                self.number(node, operand)
            return self.python(node, fn, operand)
        if fn is operator.not_:
            return Number(tirx.Not(scalars.truth(operand)), ScalarType(torch.bool))
        self.typed(node, fn, operand)
        if fn is operator.pos:
            return operand
        return scalars.negate(operand) if fn is operator.neg else scalars.invert(operand)

    def visit_Compare(self, node: ast.Compare) -> Any:
        left = self.visit(node.left)
        result: Any = True
        for op, comparator in zip(node.ops, node.comparators):
            if type(op) not in OPERATORS:
                names = {"Is": "is", "IsNot": "is not", "In": "in", "NotIn": "not in"}
                sign = names[type(op).__name__]
                self.refuse(node, f"`{sign}` does not compare numbers", "use == or !=")
            if not isinstance(result, Number):
                if not result:
                    return result
                right = self.visit(comparator)
                result = self.binary(node, OPERATORS[type(op)], left, right)
            else:
                goes_on = scalars.truth(result)
                right = self.only_if(goes_on, comparator)
                step = self.binary(node, OPERATORS[type(op)], left, right)
                result = self._both(result, step)
            left = right
        return result

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        is_and = isinstance(node.op, ast.And)
        result = self.visit(node.values[0])
        for part in node.values[1:]:
            if not isinstance(result, Number):
                if bool(result) != is_and:
                    return result
                result = self.visit(part)
                continue
            decides = scalars.truth(result)
            goes_on = decides if is_and else tirx.Not(decides)
            other = self.number(part, self.only_if(goes_on, part))
            if is_and:
                result = self._both(result, other)
            elif _is_bool(result) and _is_bool(other):
                either = scalars.any_of(decides, scalars.truth(other))
                result = Number(either, ScalarType(torch.bool))
            else:
                result = scalars.choose(decides, result, other)
        return result

    def _both(self, first: Number, second: Any) -> Number:
        """``first and second``."""
        if _is_bool(first) and _is_bool(second):
            both = scalars.all_of(scalars.truth(first), scalars.truth(second))
            return Number(both, ScalarType(torch.bool))
        return scalars.choose(scalars.truth(first), second, first)

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        test = self.visit(node.test)
        if not isinstance(test, Number):
            if isinstance(test, Tensor):
                self.number(node.test, test)
            return self.visit(node.body if test else node.orelse)
        condition = scalars.truth(test)
        then = self.number(node.body, self.only_if(condition, node.body))
        otherwise = self.number(node.orelse, self.only_if(tirx.Not(condition), node.orelse))
        return scalars.choose(condition, then, otherwise)

    def only_if(self, condition: ir.Expr, node: ast.expr) -> Any:
        """An expression that is evaluated only where a condition holds."""
        with self.under(condition) as statements:
            value = self.visit(node)
        if statements:
            self.out.append(Branch(condition, tuple(statements)))
        return value


def _is_bool(value: Any) -> bool:
    return scalars.type_of(value).dtype == torch.bool
