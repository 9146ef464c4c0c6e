"""The code generator: one visit method a syntax node, one way to emit.

Python values are evaluated as Python evaluates them; tensors of the program are ``Value`` and
what is applied to them goes through :meth:`CodeGenerator.emit` into Relax.
"""

from __future__ import annotations

import ast
import importlib
import operator
from typing import Any, NoReturn

import torch

from babytriton import errors
from babytriton.frontend import calls, numbers
from babytriton.frontend.captures import Place
from babytriton.frontend.contexts import Contexts
from babytriton.frontend.grown import Grown
from babytriton.frontend.loops import Loops
from babytriton.frontend.operators import OPERATORS
from babytriton.frontend.program import describe
from babytriton.frontend.texts import Texts
from babytriton.ops.table import called
from babytriton.ops.value import NeedsConstant, Text, Value, values_in


class CodeGenerator(Loops, Contexts, Texts):
    """Compiles one function body into the program."""

    def run(self) -> Any:
        """Compile the body and return what the function returns."""
        node = self.source.node
        if isinstance(node, ast.Lambda):
            return self.visit(node.body)
        if isinstance(node, ast.AsyncFunctionDef):
            self.generic_visit(node)
        exits = self.block(node.body)
        self.returns_at = exits.node or node
        if not exits.always and exits.value is not None:
            span, value = self.span(self.returns_at), describe(exits.value)
            where = "where no return is reached, a function gives None"
            why = "this return is reached or not"
            self.fail(errors.Unmerged(span, "the result", value, "None", why, where))
        return exits.value

    # ------------------------------------------------------------ statements

    def visit_Expr(self, node: ast.Expr) -> None:
        self.visit(node.value)

    def visit_Pass(self, node: ast.Pass) -> None:
        pass

    def visit_Raise(self, node: ast.Raise) -> NoReturn:
        raised = None if node.exc is None else self.visit(node.exc)
        kind = raised if isinstance(raised, type) else type(raised)
        if self.program.apart:
            if self.program.deciding:
                raise NeedsConstant(self.program.deciding)
            self.fail(errors.RaisedApart(self.span(node), kind.__name__))
        why = "" if isinstance(raised, type) else str(raised)
        self.fail(errors.PythonError(self.span(node), kind.__name__, why or "no message"))

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            module = self.python(node, importlib.import_module, alias.name)
            top = alias.name.partition(".")[0]
            value = module if alias.asname else importlib.import_module(top)
            self.scope.bind(alias.asname or top, value)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.level or node.module is None:
            self.fail(errors.UnsupportedSyntax(self.span(node), "relative import"))
        module = self.python(node, importlib.import_module, node.module)
        for alias in node.names:
            found = self.python(node, getattr, module, alias.name)
            place = Place.of_module(module, alias.name)
            self.scope.bind(alias.asname or alias.name, self.program.captures.lift(place, found))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        decorators = [(self.visit(decorator), decorator) for decorator in node.decorator_list]
        fn: Any = self._closure(node)
        for decorator, place in reversed(decorators):
            fn = calls.call(self, place, decorator, (fn,), {})
        self.scope.bind(node.name, fn)

    # ------------------------------------------------------------ names

    def visit_Name(self, node: ast.Name) -> Any:
        return self.read(node.id, node)

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        owner = self.visit(node.value)
        try:
            with self.program.blaming(self.span(node), node.attr, owner):
                return calls.attribute(self, node, owner, node.attr)
        except AttributeError:
            text = f"a {describe(owner)} tensor" if isinstance(owner, Value) else _named(owner)
            self.fail(errors.NoAttribute(self.span(node), text, node.attr))
        except calls.OURS:
            raise
        except Exception as error:  # whatever a property of the user's raises
            kind, why = type(error).__name__, str(error) or "no message"
            self.fail(errors.PythonError(self.span(node), kind, why))

    # ------------------------------------------------------------ expressions

    def visit_Constant(self, node: ast.Constant) -> Any:
        return node.value

    def visit_Tuple(self, node: ast.Tuple) -> tuple[Any, ...]:
        return tuple(self._items(node.elts))

    def visit_List(self, node: ast.List) -> list[Any]:
        return Grown(self._items(node.elts))

    def visit_Dict(self, node: ast.Dict) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values):
            if key is None:
                found.update(self.python(value, dict, self.visit(value)))
            else:
                # A dict is looked into by number.
                name = numbers.as_constants(self.visit(key))
                self.python(key, operator.setitem, found, name, self.visit(value))
        return found

    def visit_Set(self, node: ast.Set) -> set[Any]:
        return set(self.python(node, set, self._items(node.elts)))

    def _items(self, nodes: list[ast.expr]) -> list[Any]:
        found: list[Any] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                found.extend(self.python(node, list, self.visit(node.value)))
            else:
                found.append(self.visit(node))
        return found

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        left, right = self.visit(node.left), self.visit(node.right)
        if isinstance(node.op, ast.Mod) and isinstance(left, str) and values_in(right):
            return Text(operator.mod, left, right)
        return self.emit(node, OPERATORS[type(node.op)], left, right)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        operand = self.visit(node.operand)
        if isinstance(node.op, ast.Not):
            truth = self.condition(node.operand, operand)
            if isinstance(truth, bool):
                return not truth
            return self.logical(node, torch.logical_not, truth)
        return self.emit(node, OPERATORS[type(node.op)], operand)

    def visit_Compare(self, node: ast.Compare) -> Any:
        left = self.visit(node.left)
        result: Any = None
        for i, (op, comparator) in enumerate(zip(node.ops, node.comparators)):
            if i > 0 and not isinstance(result, Value) and not self.condition(node, result):
                return result
            right = self.visit(comparator)
            step = self._compare(node, op, left, right)
            if i == 0 or not isinstance(result, Value):
                result = step
            else:
                result = self.both(node, torch.logical_and, result, step)
            left = right
        return result

    def _compare(self, node: ast.Compare, op: ast.cmpop, left: Any, right: Any) -> Any:
        if isinstance(op, (ast.Is, ast.IsNot)):
            return self._is(node, left, right) == isinstance(op, ast.Is)
        if isinstance(op, (ast.In, ast.NotIn)):
            found = self.python(node, operator.contains, right, left)
            return found == isinstance(op, ast.In)
        return self.emit(node, OPERATORS[type(op)], left, right)

    def _is(self, node: ast.Compare, left: Any, right: Any) -> bool:
        if not (isinstance(left, Value) and isinstance(right, Value)):
            return left is right
        found = self.program.is_same(left, right)
        if found is None:
            why = "which tensor is outside may be another at each call"
            self.fail(errors.Unavailable(self.span(node), "is", why, "pass both as arguments"))
        return found

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        owner, index = self.visit(node.value), self.visit(node.slice)
        found = self.item(node, owner, index)
        if isinstance(owner, (Value, list, dict, tuple, str)):
            return found
        # An object of the user's: what it holds may be another thing at the next call.
        place = self.program.captures.item_place(owner, index)
        return self.program.captures.lift(place, found)

    def visit_Slice(self, node: ast.Slice) -> slice:
        parts = (node.lower, node.upper, node.step)
        return slice(*(None if part is None else self.visit(part) for part in parts))

    def visit_Call(self, node: ast.Call) -> Any:
        fn = self.visit(node.func)
        args = self._items(node.args)
        kwargs: dict[str, Any] = {}
        for keyword in node.keywords:
            value = self.visit(keyword.value)
            if keyword.arg is None:
                given = self.python(keyword.value, _keywords, value)
            else:
                given = {keyword.arg: value}
            twice = next((name for name in given if name in kwargs), None)
            if twice is not None:
                why = f"got multiple values for keyword argument '{twice}'"
                self.fail(errors.WrongArguments(self.span(node), called(fn), why))
            kwargs.update(given)
        return calls.call(self, node, fn, args, kwargs)

    def visit_Lambda(self, node: ast.Lambda) -> calls.LocalFunction:
        return self._closure(node)

    def _closure(self, node: ast.FunctionDef | ast.Lambda) -> calls.LocalFunction:
        defaults = [self.visit(default) for default in node.args.defaults]
        keyword_defaults = [
            None if default is None else self.visit(default) for default in node.args.kw_defaults
        ]
        return calls.LocalFunction(self, self.scope, node, defaults, keyword_defaults)


def _keywords(mapping: Any) -> dict[str, Any]:
    """What ``**mapping`` passes on."""
    if not hasattr(mapping, "keys"):
        raise TypeError(f"argument after ** must be a mapping, not {type(mapping).__name__}")
    return dict(**mapping)


def _named(owner: Any) -> str:
    name = getattr(owner, "__name__", None)
    kind = type(owner).__name__
    return f"{kind} `{name}`" if isinstance(name, str) else f"a {kind}"
