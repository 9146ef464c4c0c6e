"""What every part of a kernel's generator shares: names, messages, and where statements go."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch
from tvm import ir, tirx

from babytriton import errors
from babytriton.diagnostics import CompileError, Diagnostic, Span
from babytriton.errors import kernels as kernel_errors
from babytriton.frontend.captures import Captures
from babytriton.frontend.kernel import scalars
from babytriton.frontend.kernel.frames import Frame
from babytriton.frontend.kernel.program import ZERO, Assign, Fault, Statement, Update, local
from babytriton.frontend.kernel.scalars import Number, ScalarType, is_number
from babytriton.frontend.kernel.tensors import Ranges, Tensor
from babytriton.types import find_dtype


class Visitor(ast.NodeVisitor):
    """Visits syntax; the statements that it makes go to ``out``.

    Args:
        frame: the function body.
        captures: what is taken from outside.
        types: of the locals, as far as they are known; extended.
        checks: whether indices that may be out of range are checked when the kernel runs.
        fault: what failures are written to.
    """

    def __init__(
        self,
        frame: Frame,
        captures: Captures,
        types: dict[tuple[Any, ...], ScalarType],
        checks: bool,
        fault: tirx.Buffer,
    ) -> None:
        self.frame = frame
        self.captures = captures
        self.types = types
        self.checks = checks
        self.out: list[Statement] = []
        self.ranges = Ranges()
        self.certain = True
        """Whether the current place is reached in every iteration of the loops around."""
        self.faults: list[Fault] = []
        self.fault = fault
        self.locals: list[tirx.Buffer] = []
        self.buffers: dict[tuple[Any, ...], tirx.Buffer] = {}
        """The local of each name that changes."""
        self.outside: list[ir.Expr] = []
        """Of the subscript being visited, what tells that an access must not happen."""
        self.views: set[tuple[Any, ...]] = set()
        self.trail: list[Span] = []
        self.inlined = 0
        self.line = ""
        """Where the statement stands that is being visited, as a text "file:line"."""

    # ------------------------------------------------------------ messages

    def span(self, node: ast.AST) -> Span:
        """Where a node stands in the user's file."""
        return self.frame.source.span(node)

    def fail(self, diagnostic: Diagnostic) -> NoReturn:
        """Raise a message about the user's code."""
        raise CompileError(diagnostic, tuple(self.trail))

    def refuse(self, node: ast.AST, what: str, instead: str) -> NoReturn:
        """Raise the message that something is no part of a kernel's language."""
        self.fail(kernel_errors.KernelLanguage(self.span(node), what, instead))

    def generic_visit(self, node: ast.AST) -> NoReturn:
        self.fail(errors.UnsupportedSyntax(self.span(node), type(node).__name__))

    def python(self, node: ast.AST, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run plain Python; what it raises becomes a message at the node."""
        try:
            return fn(*args, **kwargs)
        except CompileError:
            raise
        except Exception as error:
            kind, why = type(error).__name__, str(error) or "no message"
            self.fail(errors.PythonError(self.span(node), kind, why))

    def number(self, node: ast.AST, value: Any) -> Any:
        """A value that must be a number."""
        if not is_number(value):
            kind = f"tensor `{value.name}`" if isinstance(value, Tensor) else type(value).__name__
            self.refuse(node, f"this is a {kind}, not a number", "index tensors by all dimensions")
        return value

    # ------------------------------------------------------------ names

    def visit_Name(self, node: ast.Name) -> Any:
        frame = self.frame
        if node.id in frame.names.own and node.id not in frame.assigned:
            self.fail(kernel_errors.MayBeUnbound(self.span(node), node.id))
        if node.id in frame.names.changing:
            return self.load_local(node.id)
        if node.id in frame.scope.names:
            return frame.scope.names[node.id]
        place = frame.scope.place(node.id)
        if place is None:
            self.fail(errors.UndefinedName(self.span(node), node.id))
        try:
            found = place.read()
        except ValueError:  # a closure cell that is still empty
            self.fail(errors.UndefinedName(self.span(node), node.id))
        return self.captures.lift(place, found)

    def load_local(self, name: str) -> Number:
        """The number that a local holds."""
        key = (*self.frame.key, name)
        type = self.types[key]
        load = tirx.BufferLoad(self.buffers[key], [ZERO])
        return Number(load, ScalarType(type.dtype, type.is_element))

    def store_local(self, name: str, value: Any, update: Update | None = None) -> None:
        """Write a number to a local, whose type becomes one that holds it."""
        key = (*self.frame.key, name)
        found = scalars.type_of(value)
        known = self.types.get(key)
        self.types[key] = type = found if known is None else scalars.common(known, found)
        if key not in self.buffers or str(self.buffers[key].dtype) != type.name:
            self.buffers[key] = self.new_local(name, type.dtype)
        expr = scalars.convert(value, type.dtype)
        self.out.append(Assign(self.buffers[key], (ZERO,), expr, update, self.line))
        self.frame.assigned.add(name)

    # ------------------------------------------------------------ statements

    @contextlib.contextmanager
    def under(self, condition: ir.Expr | None) -> Iterator[list[Statement]]:
        """Collect the statements that are made inside, which run where a condition holds."""
        before, certain = self.out, self.certain
        self.out, self.certain = [], False
        with contextlib.ExitStack() as stack:
            if condition is not None and not scalars.reads(condition):
                stack.enter_context(self.ranges.analyzer.constraint_scope(condition))
            try:
                yield self.out
            finally:
                self.out, self.certain = before, certain

    def keep(self, expr: ir.Expr, name: str = "value") -> ir.Expr:
        """The value that an expression has now, whatever is written later."""
        if not scalars.reads(expr):
            return expr
        dtype = find_dtype(str(expr.ty.dtype))
        assert dtype is not None
        place = self.new_local(name, dtype.torch)
        self.out.append(Assign(place, (ZERO,), expr, line=self.line))
        return tirx.BufferLoad(place, [ZERO])

    def new_local(self, name: str, dtype: torch.dtype) -> tirx.Buffer:
        """A place for one number."""
        found = local(name, dtype)
        self.locals.append(found)
        return found

    def set(self, flag: tirx.Buffer | None) -> None:
        """Note that a jump is taken."""
        assert flag is not None
        self.out.append(Assign(flag, (ZERO,), tirx.const(True, "bool")))
