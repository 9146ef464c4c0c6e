"""Assignments in a kernel: names, elements, and updates, which may be steps of a reduction."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

import torch
from tvm import ir, tirx

from babytriton import errors
from babytriton.errors import kernels as kernel_errors
from babytriton.frontend.kernel import scalars
from babytriton.frontend.kernel.inlining import Calls
from babytriton.frontend.kernel.program import Assign, Branch, Update
from babytriton.frontend.kernel.scalars import Number, ScalarType
from babytriton.frontend.kernel.tensors import Tensor
from babytriton.frontend.operators import OPERATORS

_KINDS: dict[Any, str] = {operator.add: "sum", operator.mul: "product", max: "max", min: "min"}
_UPDATES = (*_KINDS, operator.sub)
_SIGNS = {"Add": "+", "Sub": "-", "Mult": "*", "Div": "/", "FloorDiv": "//", "Mod": "%"}
_SIGNS |= {"Pow": "**", "BitAnd": "&", "BitOr": "|", "BitXor": "^", "LShift": "<<", "RShift": ">>"}


class Assignments(Calls):
    """Visits statements that assign."""

    def visit_Assign(self, node: ast.Assign) -> None:
        if len(node.targets) == 1 and self._is_update(node):
            return
        value = self.visit(node.value)
        view = isinstance(node.value, ast.Subscript) and isinstance(value, Number)
        for target in node.targets:
            self.assign(target, value, is_view=view and value.type.is_element)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.assign(node.target, self.visit(node.value))

    def visit_NamedExpr(self, node: ast.NamedExpr) -> Any:
        value = self.visit(node.value)
        self.assign(node.target, value)
        return self.visit_Name(ast.copy_location(ast.Name(node.target.id, ast.Load()), node))

    def assign(self, target: ast.expr, value: Any, *, is_view: bool = False) -> None:
        """Assign a value to a target: a name, an element, or a tuple of targets."""
        if isinstance(target, ast.Name):
            self._assign_name(target, value, is_view)
        elif isinstance(target, ast.Subscript):
            self._assign_element(target, value)
        elif isinstance(target, (ast.Tuple, ast.List)):
            items = self.python(target, tuple, value) if not isinstance(value, Number) else ()
            if len(items) != len(target.elts):
                wanted = str(len(target.elts))
                self.fail(errors.CannotUnpack(self.span(target), len(items), wanted))
            # All are read before any is written: a, b = b, a.
            kept = [self.kept(item) for item in items]
            for part, item in zip(target.elts, kept):
                self.assign(part, item)
        else:
            self.generic_visit(target)

    def _assign_name(self, node: ast.Name, value: Any, is_view: bool) -> None:
        frame = self.frame
        if node.id in frame.names.changing:
            self.number(node, value)
            self.store_local(node.id, value)
            if is_view:
                self.views.add((*frame.key, node.id))
        elif isinstance(value, Number) and scalars.reads(value.expr):
            frame.scope.bind(node.id, self.kept(value, node.id))
            if is_view:
                self.views.add((*frame.key, node.id))
        else:
            frame.scope.bind(node.id, value)
        frame.assigned.add(node.id)

    def _assign_element(self, target: ast.Subscript, value: Any, update: Any = None) -> None:
        owner, given = self._subscript(target)
        self.number(target, value)
        part = self._one_element(target, owner, given)
        if not isinstance(value, Number):
            # As torch: a constant that the dtype cannot hold is refused.
            self.python(target, operator.setitem, torch.empty(1, dtype=part.dtype), 0, value)
        self._store(part, scalars.convert(value, part.dtype), update)

    def _store(self, part: Tensor, expr: ir.Expr, update: Update | None) -> None:
        store = Assign(part.buffer, part.prefix, expr, update, self.line)
        outside, self.outside = self.outside, []
        inside: ir.Expr | None = None
        for condition in outside:
            stays = tirx.Not(condition)
            inside = stays if inside is None else tirx.And(inside, stays)
        self.out.append(store if inside is None else Branch(inside, (store,)))

    def _subscript(self, target: ast.Subscript) -> tuple[Tensor, tuple[Any, ...]]:
        owner = self.visit(target.value)
        if not isinstance(owner, Tensor):
            what = f"this writes into a {type(owner).__name__}"
            self.refuse(target, what, "write into tensor arguments")
        given = self.indices(target)
        self.outside = []
        return owner, given

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        fn = OPERATORS[type(node.op)]
        name = node.target.id if isinstance(node.target, ast.Name) else ""
        if (*self.frame.key, name) in self.views:
            sign = _SIGNS[type(node.op).__name__]
            self.fail(kernel_errors.ElementView(self.span(node), name, sign))
        self.update(node, node.target, fn, node.value, in_place=True)

    def _is_update(self, node: ast.Assign) -> bool:
        """``x = x + ...``, ``x = max(x, ...)`` and the like, which may be steps of a reduction."""
        target, value = node.targets[0], node.value
        if isinstance(target, ast.Name) and target.id not in self.frame.names.changing:
            return False
        same = ast.dump(target).replace("Store()", "Load()")
        if isinstance(value, ast.BinOp):
            fn = OPERATORS[type(value.op)]
            left, right = value.left, value.right
        elif isinstance(value, ast.Call) and len(value.args) == 2 and not value.keywords:
            fn = self.visit(value.func)
            left, right = value.args
        else:
            return False
        if fn not in _UPDATES or ast.dump(left) != same:
            return False
        self.update(node, target, fn, right)
        return True

    def update(
        self,
        node: ast.AST,
        target: ast.expr,
        fn: Callable[..., Any],
        operand: ast.expr,
        in_place: bool = False,
    ) -> None:
        """Combine what a target holds with another number.

        Args:
            node: the statement.
            target: a name or an element.
            fn: the operator, or ``max`` or ``min``.
            operand: what is combined.
            in_place: whether torch would keep the dtype of an element, as ``+=`` does.
        """
        if isinstance(target, ast.Name):
            old = self.number(target, self.visit_Name(target))
            right = self.number(operand, self.visit(operand))
            value = self._combine(node, fn, old, right)
            if target.id not in self.frame.names.changing:
                self.frame.scope.bind(target.id, value)
                return
            dtype = self.types[(*self.frame.key, target.id)].dtype
            self.store_local(target.id, value, self._step(fn, right, dtype, value))
            return
        if not isinstance(target, ast.Subscript):
            self.generic_visit(target)
        owner, given = self._subscript(target)
        part = self._one_element(target, owner, given)
        outside, self.outside = self.outside, []
        type = ScalarType(part.dtype, is_element=True)
        old = Number(tirx.BufferLoad(part.buffer, list(part.prefix)), type)
        right = self.number(operand, self.visit(operand))
        if in_place:
            other = right.type.sample if isinstance(right, Number) else right
            self.python(node, lambda: _in_place(fn, type.sample, other))
        value = self._combine(node, fn, old, right)
        self.outside = outside
        step = self._step(fn, right, part.dtype, value)
        self._store(part, scalars.convert(value, part.dtype), step)

    def _one_element(self, target: ast.AST, owner: Tensor, given: tuple[Any, ...]) -> Tensor:
        part = self.part(target, owner, given)
        if part.ndim:
            why = f"{len(part.prefix)} of {len(part.sizes)} indices"
            instead = "a kernel writes one element at a time: loop over the other dimensions"
            self.fail(kernel_errors.WrongIndex(self.span(target), owner.name, why, instead))
        return part

    def _combine(self, node: ast.AST, fn: Callable[..., Any], left: Any, right: Any) -> Any:
        if fn in (max, min):
            self.typed(node, operator.lt, left, right)
            return scalars.extreme(fn, left, right)
        return self.binary(node, fn, left, right)

    def _step(
        self, fn: Callable[..., Any], operand: Any, dtype: torch.dtype, value: Any
    ) -> Update | None:
        """The step of a reduction that an update is, where its dtype is the target's."""
        if not isinstance(value, Number) or value.type.dtype != dtype or dtype == torch.bool:
            return None
        if fn is operator.sub:
            if not isinstance(operand, Number):
                fn, operand = operator.add, -operand
            elif operand.type.dtype.is_floating_point:
                fn, operand = operator.add, scalars.negate(operand)
        kind = _KINDS.get(fn)
        if kind is None:
            return None
        return Update(kind, scalars.convert(operand, scalars.opmath(dtype)))


def _in_place(fn: Callable[..., Any], old: torch.Tensor, new: Any) -> torch.Tensor:
    """``old += new`` and the like, for torch to refuse what its dtype cannot hold."""
    update = getattr(operator, f"i{fn.__name__.rstrip('_')}")
    found: torch.Tensor = update(old, new)
    return found
