"""Functions whose bodies are compiled in the place of their calls."""

from __future__ import annotations

import ast
import functools
import inspect
import types
from typing import TYPE_CHECKING, Any

import torch

from babytriton import errors
from babytriton.diagnostics import CompileError
from babytriton.frontend import own_gradients
from babytriton.frontend.callables import is_hashable
from babytriton.frontend.callee import signature_of
from babytriton.frontend.captures import Place
from babytriton.frontend.scope import Scope
from babytriton.frontend.source import Source
from babytriton.ops.table import Op

if TYPE_CHECKING:
    from babytriton.frontend.calls import LocalFunction
    from babytriton.frontend.codegen import CodeGenerator


def inline(
    at: CodeGenerator,
    node: ast.AST,
    fn: types.FunctionType,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Compile the body of a Python function in place of a call of it."""
    signature = signature_of(fn)
    bound = _bind(at, node, signature, fn.__name__, args, kwargs)
    given = set(bound.arguments)
    bound.apply_defaults()
    names = dict(bound.arguments)
    for name, parameter in signature.parameters.items():
        if name not in given and parameter.default is not parameter.empty:
            place = Place(f"{fn.__name__}_{name}", functools.partial(_default, fn, name))
            names[name] = at.program.captures.lift(place, parameter.default)
    try:
        source = Source.of(fn)
    except CompileError:
        at.fail(errors.NoSource(at.span(node), fn.__qualname__))
    filled = inspect.BoundArguments(signature, names)
    body = functools.partial(_run, at, node, fn, source, Scope(names, fn=fn))
    return own_gradients.noted(at, node, fn, filled.args, filled.kwargs, body)


def has_row(at: CodeGenerator, fn: Any) -> bool:
    """Whether a row of the operator table says how a function is compiled."""
    row = row_of(at, fn)
    return row is not None and not row.inlined


def row_of(at: CodeGenerator, fn: Any) -> Op | None:
    return at.program.builder.table.get(fn) if is_hashable(fn) else None


def inline_local(
    at: CodeGenerator,
    node: ast.AST,
    fn: LocalFunction,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    bound = _bind(at, node, fn.signature(), fn.__name__, args, kwargs)
    bound.apply_defaults()
    home = fn.home.source
    source = Source(home.path, fn.node, home.text)
    return _run(at, node, fn, source, Scope(dict(bound.arguments), fn.scope))


def _run(at: CodeGenerator, node: ast.AST, fn: Any, source: Source, scope: Scope) -> Any:
    # A call of the whole program, such as of a module, stands in no line of the user's.
    span = None if node is at.source.node else at.span(node)
    with at.program.inside(fn, span, scope):
        return type(at)(at.program, source, scope).run()


def _bind(
    at: CodeGenerator,
    node: ast.AST,
    signature: inspect.Signature,
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> inspect.BoundArguments:
    try:
        return signature.bind(*args, **kwargs)
    except TypeError as error:
        at.fail(errors.WrongArguments(at.span(node), name, str(error)))


_OVERRIDES = (
    torch.overrides.has_torch_function,
    torch.overrides.has_torch_function_unary,
    torch.overrides.has_torch_function_variadic,
)


def asks_for_overrides(at: CodeGenerator, fn: Any, given: Any) -> bool:
    """Whether a function of torch's that is inlined asks if its arguments have it another way.

    The program's tensors, which others are to see as tensors that do, have it inlined.
    """
    row = row_of(at, at.scope.of_function.fn)
    return fn in _OVERRIDES and row is not None and row.inlined


def _default(fn: types.FunctionType, name: str) -> Any:
    return signature_of(fn).parameters[name].default
