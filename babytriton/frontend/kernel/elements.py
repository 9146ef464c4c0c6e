"""Elements of tensors in a kernel: indices as positions, and what is said of those out of range."""

from __future__ import annotations

import ast
import operator
from typing import Any, NoReturn

import torch
from tvm import ir, tirx

from babytriton.errors import kernels as kernel_errors
from babytriton.frontend.kernel import scalars
from babytriton.frontend.kernel.program import UNTOUCHED, ZERO, Assign, Branch, Fault, index
from babytriton.frontend.kernel.scalars import Number, ScalarType, is_number
from babytriton.frontend.kernel.tensors import Tensor
from babytriton.frontend.kernel.visitor import Visitor


class Elements(Visitor):
    """Visits subscripts."""

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        owner = self.visit(node.value)
        if not isinstance(owner, Tensor):
            key = self.visit(node.slice)
            if isinstance(owner, Number) or isinstance(key, Number):
                what = "only tensors can be indexed at run time"
                self.refuse(node, what, "pass the values as a tensor")
            return self.python(node, operator.getitem, owner, key)
        return self.element(node, owner, self.indices(node))

    def indices(self, node: ast.Subscript) -> tuple[Any, ...]:
        """The indices of a subscript, one a dimension."""
        found = self.visit(node.slice)
        return found if isinstance(found, tuple) else (found,)

    def visit_Slice(self, node: ast.Slice) -> NoReturn:
        self.refuse(node, "a slice is a whole tensor", "write a loop over its elements")

    def element(self, node: ast.AST, tensor: Tensor, given: tuple[Any, ...]) -> Any:
        """An element of a tensor, or the part that fewer indices leave."""
        part = self.part(node, tensor, given)
        if part.ndim:
            prefix = tuple(self.keep(expr) for expr in part.prefix)
            return Tensor(part.name, part.buffer, part.dtype, part.sizes, prefix)
        type = ScalarType(part.dtype, is_element=True)
        return Number(tirx.BufferLoad(part.buffer, list(part.prefix)), type)

    def part(self, node: ast.AST, tensor: Tensor, given: tuple[Any, ...]) -> Tensor:
        """The tensor with more indices, each in range."""
        if len(given) > tensor.ndim:
            why = f"{len(given)} indices, where there are {tensor.ndim} dimensions"
            self.fail(
                kernel_errors.WrongIndex(self.span(node), tensor.name, why, "index each once")
            )
        prefix = tensor.prefix
        for value in given:
            dim = len(prefix)
            prefix = (*prefix, self.position(node, tensor, dim, value))
        return Tensor(tensor.name, tensor.buffer, tensor.dtype, tensor.sizes, prefix)

    def position(self, node: ast.AST, tensor: Tensor, dim: int, value: Any) -> ir.Expr:
        """An index as a position from the start; from the end it counts as Python counts."""
        if not is_number(value) or not _is_integer(value):
            kind = str(scalars.type_of(value)) if is_number(value) else type(value).__name__
            why, instead = f"dimension {dim} has an index of type {kind}", "index with integers"
            self.fail(kernel_errors.WrongIndex(self.span(node), tensor.name, why, instead))
        size = tensor.sizes[dim]
        expr = self.ranges.analyzer.simplify(scalars.convert(value, torch.int64))
        bounds = self.ranges.of(expr)
        never = size == 0 or bounds.low >= size or bounds.high < -size
        sometimes = bounds.attained and self.certain and (bounds.high >= size or bounds.low < -size)
        if never or sometimes:
            beyond = bounds.high if bounds.high >= size else bounds.low
            text = str(beyond) if never and bounds.low == bounds.high else f"up to {beyond}"
            text = f"down to {beyond}" if beyond < 0 and text.startswith("up") else text
            span = self.span(node)
            self.fail(kernel_errors.IndexOutOfRange(span, f"index {text}", dim, tensor.name, size))
        if self.checks and not (-size <= bounds.low and bounds.high < size):
            expr = self.keep(expr)
        if bounds.low < 0:
            wraps = tirx.LT(expr, ZERO)
            wrapped = expr + index(size)
            found = wrapped if bounds.high < 0 else tirx.Select(wraps, wrapped, expr)
        else:
            found = expr
        if self.checks and (bounds.low < -size or bounds.high >= size):
            outside = tirx.Or(tirx.LT(found, ZERO), tirx.GE(found, index(size)))
            self.report(Fault(self.span(node), tensor.name, dim, size), outside, expr)
            self.outside.append(outside)
            return tirx.Select(outside, ZERO, found)
        return found

    def report(self, fault: Fault, condition: ir.Expr, value: ir.Expr) -> None:
        """Write a failure down where a condition holds, the first of each place."""
        place = index(len(self.faults))
        self.faults.append(fault)
        untouched = tirx.EQ(tirx.BufferLoad(self.fault, [place]), index(UNTOUCHED))
        store = Assign(self.fault, (place,), value)
        self.out.append(Branch(condition, (Branch(untouched, (store,)),)))


def _is_integer(value: Any) -> bool:
    dtype = scalars.type_of(value).dtype
    return not dtype.is_floating_point and dtype != torch.bool
