"""What every part of the code generator shares: emitting, running plain Python, and failing."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from babytriton import errors
from babytriton.diagnostics import Diagnostic, Span
from babytriton.frontend import calls, numbers, outside
from babytriton.frontend.program import Program
from babytriton.frontend.scope import Scope, Unusable
from babytriton.frontend.source import Source
from babytriton.frontend.unsupported import described
from babytriton.ops.subscript import numbered, of_dims
from babytriton.ops.value import NeedsConstant, Scalar, Value

_IN_A_TENSOR = "index a tensor: torch.stack(items)[i], or rows that the steps of a loop write"


class Visitor(ast.NodeVisitor):
    """Visits one function body.

    Args:
        program: what all bodies share.
        source: where the body stands.
        scope: its names, with the parameters bound.
    """

    def __init__(self, program: Program, source: Source, scope: Scope) -> None:
        self.program = program
        self.source = source
        self.scope = scope
        self.returns_at: ast.AST = source.node
        """The statement that returned the result."""

    def span(self, node: ast.AST) -> Span:
        """Where a node stands in the user's file."""
        return self.source.span(node)

    def fail(self, diagnostic: Diagnostic) -> NoReturn:
        """Raise a message about the user's code."""
        self.program.fail(diagnostic)

    def emit(self, node: ast.AST, fn: Callable[..., Any], *operands: Any) -> Any:
        """Apply an operator, to Python values as Python does, to tensors in the program."""
        if not any(isinstance(operand, Value) for operand in operands):
            return self.python(node, fn, *operands)
        name = getattr(fn, "__name__", str(fn))
        with self.program.blaming(self.span(node), name, operands):
            return self.program.builder.call(fn, operands, {})

    def item(self, node: ast.AST, owner: Any, index: Any) -> Any:
        """``owner[index]``."""
        if isinstance(owner, Value):
            return self.emit(node, operator.getitem, owner, self.places(node, owner, index))
        is_list = isinstance(owner, (list, tuple)) and not getattr(owner, "head", None)
        if is_list and isinstance(index, Scalar) and not index.arguments:
            self.fail(errors.DataDependent(self.span(node), "list[i]", _IN_A_TENSOR))
        return self.python(node, operator.getitem, owner, index)

    def places(self, node: ast.AST, owner: Value, index: Any) -> Any:
        """The places of a tensor that stand between brackets, in lists or not."""
        with self.program.blaming(self.span(node), "[]", (owner, index)):
            return numbered(of_dims(index), owner.shape)

    def python(self, node: ast.AST, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run plain Python; what it raises becomes a message at the node."""
        self.hand(node, fn, (*args, *kwargs.values(), getattr(fn, "__self__", None)))
        name = getattr(fn, "__name__", str(fn))
        with self.program.blaming(self.span(node), name, (args, kwargs)):
            try:
                return numbers.python(fn, args, kwargs)
            except calls.OURS:
                raise
            except Exception as error:
                kind, why = type(error).__name__, str(error) or "no message"
                self.fail(errors.PythonError(self.span(node), kind, why))

    def hand(self, node: ast.AST, fn: Callable[..., Any], values: Iterable[Any]) -> None:
        """Hand values to plain Python, which may read what is in objects from outside."""
        captures = self.program.captures
        path = captures.used_up(fn, given := tuple(values))
        if path is not None:
            self.fail(errors.OutsideEffect(self.span(node), path, *outside.USED_UP))
        captures.watch_whole(fn, given)

    def generic_visit(self, node: ast.AST) -> NoReturn:
        self.fail(errors.UnsupportedSyntax(self.span(node), *described(node)))

    def read(self, name: str, node: ast.AST) -> Any:
        """The value of a name, inside the function or captured from around it."""
        try:
            found = self.scope.local(name)
        except KeyError:
            pass
        else:
            if isinstance(found, Unusable):
                if found.arguments:
                    raise NeedsConstant(found.arguments)
                self.fail(found.diagnostic(self.span(node)))
            return found
        place = self.scope.place(name)
        if place is None:
            self.fail(errors.UndefinedName(self.span(node), name))
        try:
            found = place.read()
        except ValueError:  # a closure cell that is still empty
            self.fail(errors.UndefinedName(self.span(node), name))
        with self.program.blaming(self.span(node), name, ()):
            return self.program.captures.lift(place, found)
