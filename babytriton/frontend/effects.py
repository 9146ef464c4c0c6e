"""Calls for what they do and not for a result: they happen at each run, in program order."""

from __future__ import annotations

import ast
import io
import logging
import types
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from babytriton import errors
from babytriton.diagnostics import Span
from babytriton.ops.refusals import Unavailable
from babytriton.ops.value import Scalar, Text, values_in, written

if TYPE_CHECKING:
    from babytriton.frontend.visitor import Visitor

_LEVELS = ("debug", "info", "warning", "error", "critical", "exception", "log")
_FUNCTIONS: frozenset[Any] = frozenset(
    {print, warnings.warn, *(getattr(logging, name) for name in _LEVELS)}
)
# By name: importing torch._dynamo, which torch does by itself, wraps the first.
_TORCH_FUNCTIONS = frozenset(
    {"torch.random.manual_seed", "torch.cuda.random.manual_seed"}
    | {"torch.cuda.random.manual_seed_all", "torch.cuda.synchronize"}
)
_METHODS: frozenset[Any] = frozenset(getattr(logging.Logger, name) for name in _LEVELS)


def is_effect(fn: Any) -> bool:
    """Whether a callable is called for what it does, and so belongs to the run alone."""
    if fn is torch.Generator or isinstance(getattr(fn, "__self__", None), torch.Generator):
        return True
    if isinstance(fn, types.MethodType):
        return fn.__func__ in _METHODS
    if isinstance(getattr(fn, "__self__", None), io.IOBase):
        return fn.__name__ in ("write", "writelines", "flush")
    if not isinstance(fn, (types.FunctionType, types.BuiltinFunctionType)):
        return False
    return fn in _FUNCTIONS or f"{fn.__module__}.{fn.__name__}" in _TORCH_FUNCTIONS


def emit(
    at: Visitor,
    node: ast.AST,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> torch.Generator | None:
    """Call ``fn`` from the user's line each time the program runs.

    A generator of random numbers is made once, and begins anew in each run.
    """
    name, made = fn.__name__, getattr(fn, "__self__", None)
    module = str(at.scope.globals().get("__name__", ""))
    with at.program.blaming(at.span(node), name, (args, kwargs)):
        if fn is torch.Generator:
            made = fn(*args, **kwargs)
            fn, args, kwargs = made.manual_seed, (made.initial_seed(),), {}
        elif isinstance(made, torch.Generator) and name != "manual_seed":
            why = "how a generator stands is known only at run time"
            raise Unavailable(why, "use manual_seed(), or do this outside the function")
        at.program.builder.effect(name, FromLine(fn, at.span(node), module), args, kwargs)
    return made if isinstance(made, torch.Generator) else None


def check(at: Visitor, node: ast.Assert, test: Scalar, why: Any) -> None:
    """Raise ``AssertionError`` in each run in which a bool is false."""
    assertion = Assertion(at.span(node.test))
    with at.program.blaming(at.span(node), "assert", (test, why)):
        at.program.builder.effect("assert", assertion, (test, why), {})


@dataclass(frozen=True)
class Assertion:
    """``assert test, why`` at run time, with the user's line in its message."""

    span: Span

    def __call__(self, test: bool, why: Any) -> None:
        if not test:
            label = "this is false" if why is None else str(written(why))
            raise errors.AssertionFailed(self.span, label).error()


class FromLine:
    """A function that is called from a line of the user's, for whoever asks where that was.

    ``warnings`` and ``logging`` look at the frame of their caller.

    Args:
        fn: the function.
        span: of the call.
        module: the name of the user's module.
    """

    def __init__(self, fn: Callable[..., None], span: Span, module: str) -> None:
        call = ast.parse("fn(*args, **kwargs)", mode="eval")
        for node in ast.walk(call):
            if isinstance(node, ast.expr):
                node.lineno = node.end_lineno = span.line
        self._code = compile(call, span.path, "eval")
        # Kept from call to call: warnings writes down here which it has shown.
        self._globals = {"__name__": module, "fn": fn}

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        args, kwargs = written((args, kwargs))
        eval(self._code, self._globals, {"args": args, "kwargs": kwargs})


def text_of(fn: Callable[..., str]) -> Callable[..., Text]:
    """A function that makes a string, put off until the numbers are there."""
    return lambda *args, **kwargs: Text(fn, *args, **kwargs)


def defers(fn: Any, args: Any) -> bool:
    """Whether a method of a string makes another from numbers of the program."""
    owner = getattr(fn, "__self__", None)
    named = getattr(fn, "__name__", "") in ("format", "format_map", "join")
    return isinstance(owner, str) and named and bool(values_in(args))
