"""Assignment: names, unpacking, augmented assignment, and what may not be written to."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

import torch

from babytriton import errors
from babytriton.frontend.operators import OPERATORS
from babytriton.frontend.visitor import Visitor
from babytriton.ops.value import Scalar, Value, values_in

IN_PLACE: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.iadd,
    ast.Sub: operator.isub,
    ast.Mult: operator.imul,
    ast.Div: operator.itruediv,
    ast.FloorDiv: operator.ifloordiv,
    ast.Mod: operator.imod,
    ast.Pow: operator.ipow,
    ast.MatMult: operator.imatmul,
    ast.BitAnd: operator.iand,
    ast.BitOr: operator.ior,
    ast.BitXor: operator.ixor,
    ast.LShift: operator.ilshift,
    ast.RShift: operator.irshift,
}
_STORE_INSTEAD = "build the result from its parts, with torch.where, torch.cat or torch.stack"
_SHORTER = "build the shorter one: torch.cat((x[:i], x[i + 1:]))"


class Assignments(Visitor):
    """Statements that bind names."""

    def visit_Assign(self, node: ast.Assign) -> None:
        value = self.visit(node.value)
        for target in node.targets:
            self.bind(target, value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.bind(node.target, self.visit(node.value))

    def visit_NamedExpr(self, node: ast.NamedExpr) -> Any:
        value = self.visit(node.value)
        self.bind(node.target, value)
        return value

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if not isinstance(node.target, ast.Name):
            self._update_item(node, node.target)
            return
        name = node.target.id
        old, new = self.read(name, node.target), self.visit(node.value)
        if isinstance(old, Value) and not isinstance(old, Scalar):
            self._update(node, name, old, new)
        elif values_in(new) and not isinstance(old, (list, dict, set)):
            self.scope.bind(name, self.emit(node, OPERATORS[type(node.op)], old, new))
        else:
            self._refuse_captured(node, old)
            self.scope.bind(name, self.python(node, IN_PLACE[type(node.op)], old, new))

    def visit_Delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            if isinstance(target, ast.Subscript):
                self._delete_item(target)
                continue
            if not isinstance(target, ast.Name):
                self.fail(errors.UnsupportedSyntax(self.span(target), "del of an attribute"))
            if target.id not in self.scope.names:
                self.fail(errors.UndefinedName(self.span(target), target.id))
            self.scope.unbind(target.id)

    def _delete_item(self, target: ast.Subscript) -> None:
        """``del items[i]``, for lists and dicts made inside the function."""
        owner, key = self.visit(target.value), self.visit(target.slice)
        self._refuse_captured(target, owner)
        if not isinstance(owner, (list, dict)):
            self.fail(errors.UnsupportedSyntax(self.span(target), "del of an item", _SHORTER))
        self.python(target, operator.delitem, owner, key)

    def bind(self, target: ast.expr, value: Any) -> None:
        """Assign a value to a target: a name, or a tuple or list of targets."""
        if isinstance(target, ast.Name):
            self._bind_name(target.id, value)
        elif isinstance(target, (ast.Tuple, ast.List)):
            self._unpack(target, value)
        elif isinstance(target, (ast.Subscript, ast.Attribute)):
            self._store(target, value)
        else:
            self.generic_visit(target)

    def _bind_name(self, name: str, value: Any) -> None:
        self.scope.bind(name, value)
        if isinstance(value, Value) and self.program.claims_name(value):
            self.program.builder.name(name, value)

    def _unpack(self, target: ast.Tuple | ast.List, value: Any) -> None:
        if isinstance(value, Value) and value.meta.ndim == 0:
            self.fail(errors.CannotUnpack(self.span(target), 0, str(len(target.elts))))
        items = self.python(target, list, value)
        stars = [i for i, item in enumerate(target.elts) if isinstance(item, ast.Starred)]
        wanted = len(target.elts)
        if not stars:
            if len(items) != wanted:
                self.fail(errors.CannotUnpack(self.span(target), len(items), str(wanted)))
            for item, part in zip(target.elts, items):
                self.bind(item, part)
            return
        if len(items) < wanted - 1:
            at_least = f"at least {wanted - 1}"
            self.fail(errors.CannotUnpack(self.span(target), len(items), at_least))
        [star] = stars
        after = wanted - star - 1
        middle = items[star : len(items) - after]
        parts = [*items[:star], middle, *items[len(items) - after :]]
        for item, part in zip(target.elts, parts):
            self.bind(item.value if isinstance(item, ast.Starred) else item, part)

    def _store(self, target: ast.Subscript | ast.Attribute, value: Any) -> None:
        owner = self.visit(target.value)
        text = self.source.segment(target)
        if isinstance(owner, Value) and isinstance(target, ast.Subscript):
            self.fail(errors.Mutation(self.span(target), f"{text} = ...", _STORE_INSTEAD))
        if isinstance(target, ast.Attribute):
            self.fail(errors.UnsupportedSyntax(self.span(target), "assignment to an attribute"))
        self._refuse_captured(target, owner)
        self.python(target, operator.setitem, owner, self.visit(target.slice), value)

    def _update_item(self, node: ast.AugAssign, target: ast.Subscript | ast.Attribute) -> None:
        """``items[i] += new``, for lists and dicts made inside the function."""
        owner = self.visit(target.value)
        if isinstance(owner, Value):
            what = f"{self.source.segment(target)} {_sign(node.op)}= ..."
            self.fail(errors.Mutation(self.span(node), what, _STORE_INSTEAD))
        if isinstance(target, ast.Attribute):
            self.fail(errors.UnsupportedSyntax(self.span(target), "assignment to an attribute"))
        self._refuse_captured(node, owner)
        key = self.visit(target.slice)
        old = self.python(node, operator.getitem, owner, key)
        new = self.emit(node, OPERATORS[type(node.op)], old, self.visit(node.value))
        self.python(node, operator.setitem, owner, key, new)

    def _update(self, node: ast.AugAssign, name: str, old: Value, new: Any) -> None:
        """``old += new`` in place: every name of the tensor sees it, as in torch."""
        sign = _sign(node.op)
        if self.program.is_parameter(old):
            text = self.source.segment(node)
            instead = f"it would write into the caller's tensor: {name} = {name} {sign} ..."
            self.fail(errors.Mutation(self.span(node), text, instead))
        if self.program.builder.has_views(old):
            text = self.source.segment(node)
            instead = f"other tensors share its memory: use a new one, {name} = {name} {sign} ..."
            self.fail(errors.Mutation(self.span(node), text, instead))
        in_place = IN_PLACE[type(node.op)]
        with self.program.blaming(self.span(node), in_place.__name__, (old, new)):
            builder = self.program.builder
            builder.check_in_place(in_place, old, new)
            result = builder.call(OPERATORS[type(node.op)], (old, new), {})
            result = builder.call(torch.Tensor.to, (result, old.meta.dtype), {})
            old.expr = builder.placement.moved(result, old.device).expr

    def _refuse_captured(self, node: ast.AST, container: Any) -> None:
        if self.program.captures.is_outside(container):
            kind = type(container).__name__
            self.fail(errors.CapturedContainer(self.span(node), kind))


def _sign(op: ast.operator) -> str:
    signs = {"Add": "+", "Sub": "-", "Mult": "*", "Div": "/", "FloorDiv": "//", "Mod": "%"}
    signs |= {"Pow": "**", "MatMult": "@", "BitAnd": "&", "BitOr": "|", "BitXor": "^"}
    signs |= {"LShift": "<<", "RShift": ">>"}
    return signs[type(op).__name__]
