"""Assignment: names, unpacking, augmented assignment, and what may not be written to."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

from babytriton import errors
from babytriton.frontend.operators import OPERATORS
from babytriton.frontend.visitor import Visitor
from babytriton.ops.mutation import set_items
from babytriton.ops.storage import is_view
from babytriton.ops.value import Scalar, Value

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
_SHORTER = "build the shorter one: torch.cat((x[:i], x[i + 1:]))"

_INSTEAD = "write into a tensor that the object holds: self.total.add_(1)"


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
        value, inside = self.visit(node.value), self.scope
        self.scope = inside.of_function
        self.bind(node.target, value)
        self.scope = inside
        return value

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        target = node.target
        if isinstance(target, ast.Name):
            old = self.read(target.id, target)
            self.scope.bind(target.id, self._augmented(node, old), self.span(target))
        elif isinstance(target, ast.Subscript):
            owner, key = self.visit(target.value), self.visit(target.slice)
            old = self.item(target, owner, key)
            new = self._augmented(node, old)
            # What is a view of its owner has been written to it already.
            if new is not old or not (isinstance(owner, Value) and is_view(old, owner)):
                self._set_item(target, owner, key, new)
        else:
            old = self.visit_Attribute(target)
            if not isinstance(old, Value):
                self.fail(
                    errors.UnsupportedSyntax(
                        self.span(target), "assignment to an attribute", _INSTEAD
                    )
                )
            self._augmented(node, old)

    def _augmented(self, node: ast.AugAssign, old: Any) -> Any:
        """``old += new``: in place where Python does it in place."""
        new = self.visit(node.value)
        tensor = isinstance(old, Value) and not isinstance(old, Scalar)
        if tensor or not (isinstance(old, Value) or isinstance(new, Value)):
            self._refuse_captured(node, old)
            return self.emit(node, IN_PLACE[type(node.op)], old, new)
        return self.emit(node, OPERATORS[type(node.op)], old, new)

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
            self._bind_name(target, value)
        elif isinstance(target, (ast.Tuple, ast.List)):
            self._unpack(target, value)
        elif isinstance(target, (ast.Subscript, ast.Attribute)):
            self._store(target, value)
        else:
            self.generic_visit(target)

    def _bind_name(self, target: ast.Name, value: Any) -> None:
        self.scope.bind(target.id, value, self.span(target))
        if isinstance(value, Value):
            self.program.name_value(target.id, value)

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
        if isinstance(target, ast.Attribute):
            self.fail(
                errors.UnsupportedSyntax(self.span(target), "assignment to an attribute", _INSTEAD)
            )
        self._set_item(target, self.visit(target.value), self.visit(target.slice), value)

    def _set_item(self, target: ast.Subscript, owner: Any, key: Any, value: Any) -> None:
        self._refuse_captured(target, owner)
        if isinstance(owner, Value):
            key = self.places(target, owner, key)
            with self.program.blaming(self.span(target), "setitem", (owner, value)):
                set_items(self.program.builder, owner, key, value)
        else:
            self.python(target, operator.setitem, owner, key, value)

    def _refuse_captured(self, node: ast.AST, container: Any) -> None:
        if self.program.captures.is_outside(container):
            kind = type(container).__name__
            self.fail(errors.CapturedContainer(self.span(node), kind))
