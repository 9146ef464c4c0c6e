"""Calls in a kernel: functions of numbers, plain Python, and helpers inlined from their source."""

from __future__ import annotations

import ast
import inspect
import sys
import types
from typing import Any

from babytriton import errors
from babytriton.diagnostics import CompileError
from babytriton.frontend.kernel.expressions import Expressions
from babytriton.frontend.kernel.frames import Frame, names_of
from babytriton.frontend.kernel.functions import FUNCTIONS
from babytriton.frontend.kernel.scalars import Number
from babytriton.frontend.kernel.tensors import Tensor
from babytriton.frontend.program import MAX_DEPTH
from babytriton.frontend.scope import Scope
from babytriton.frontend.source import Source


class Calls(Expressions):
    """Visits calls."""

    def run(self) -> Any:
        """Compile the frame's function body; what it returns."""
        raise NotImplementedError

    def visit_Call(self, node: ast.Call) -> Any:
        fn = self.visit(node.func)
        args = [self.visit(arg) for arg in node.args]
        kwargs: dict[str, Any] = {}
        for keyword in node.keywords:
            if keyword.arg is None:
                self.fail(errors.UnsupportedSyntax(self.span(node), "Starred"))
            kwargs[keyword.arg] = self.visit(keyword.value)
        return self.call(node, fn, args, kwargs)

    def call(self, node: ast.AST, fn: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Compile a call of whatever ``fn`` is."""
        given = [*args, *kwargs.values()]
        fn = getattr(fn, "__babytriton_function__", fn)
        kernel = getattr(fn, "__babytriton_kernel__", None)
        fn = fn if kernel is None else kernel.fn
        if isinstance(fn, types.FunctionType) and _is_users(fn):
            return self.inline(node, fn, args, kwargs)
        if fn is len and len(args) == 1 and isinstance(args[0], Tensor):
            return self.python(node, len, args[0])
        if not any(isinstance(x, (Number, Tensor)) for x in given):
            return self.python(node, fn, *args, **kwargs)
        name = getattr(fn, "__name__", type(fn).__name__)
        meaning = FUNCTIONS.get(fn) if _is_hashable(fn) else None
        if meaning is None or kwargs:
            what = f"`{name}` cannot be called on a number of the run time"
            self.refuse(node, what, "use operators, math.*, or a function of your own")
        for arg in given:
            self.number(node, arg)
        if fn is round:
            self.typed(node, round, *args)
        if fn is abs:
            self.typed(node, abs, *args)
        return self.python(node, meaning, *args)

    def inline(
        self,
        node: ast.AST,
        fn: types.FunctionType,
        args: list[Any],
        kwargs: dict[str, Any],
    ) -> Any:
        """Compile the body of a Python function in place of a call of it."""
        try:
            bound = inspect.signature(fn, follow_wrapped=False).bind(*args, **kwargs)
        except TypeError as error:
            self.fail(errors.WrongArguments(self.span(node), fn.__name__, str(error)))
        bound.apply_defaults()
        try:
            source = Source.of(fn)
        except CompileError:
            self.fail(errors.NoSource(self.span(node), fn.__qualname__))
        if len(self.trail) >= MAX_DEPTH:
            self.fail(errors.TooDeep(self.span(node), fn.__name__, MAX_DEPTH))
        outer = self.frame
        self.inlined += 1
        names = {name: self.kept(value, name) for name, value in bound.arguments.items()}
        self.trail.append(self.span(node))
        self.frame = Frame(
            source,
            Scope(names, fn=fn),
            (*outer.key, self.inlined),
            names_of(source.node),
            set(names),
        )
        try:
            self.enter(names)
            return self.run()
        finally:
            self.frame = outer
            self.trail.pop()

    def enter(self, names: dict[str, Any]) -> None:
        """Give the parameters that change in the body their first numbers."""
        for name in self.frame.names.changing & names.keys():
            self.number(self.frame.source.node, names[name])
            self.store_local(name, names[name])

    def kept(self, value: Any, name: str = "value") -> Any:
        """A value as it is now, whatever is written later."""
        if not isinstance(value, Number):
            return value
        return Number(self.keep(value.expr, name), value.type)


def _is_users(fn: types.FunctionType) -> bool:
    """Whether a function is the user's own, to be compiled from its source."""
    top = str(getattr(fn, "__module__", None) or "").partition(".")[0]
    return top not in sys.stdlib_module_names and "site-packages" not in fn.__code__.co_filename


def _is_hashable(fn: Any) -> bool:
    return getattr(type(fn), "__hash__", None) is not None
