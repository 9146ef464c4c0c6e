"""Functions of the user's that have gradients of their own: compiled as they stand, noted whole."""

from __future__ import annotations

import ast
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from babytriton.ops.refusals import RowFailed
from babytriton.ops.reverse.rows import RowStep
from babytriton.ops.reverse.tape import all_still, still
from babytriton.ops.value import Value, values_in

if TYPE_CHECKING:
    from babytriton.frontend.codegen import CodeGenerator


def noted(
    at: CodeGenerator,
    node: ast.AST,
    fn: types.FunctionType,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    compiled: Callable[[], Any],
) -> Any:
    """What a call of a function gives, with the gradient that was registered for it, if any.

    Args:
        at: what compiles the call.
        node: the call.
        fn: the function.
        args, kwargs: of the call.
        compiled: compiles its body.
    """
    builder = at.program.builder
    row = builder.table.get(fn)
    if row is None or row.gradient is None or not builder.tape.depends((args, kwargs)):
        return compiled()
    given, named = all_still(args, kwargs)
    before = len(at.program.differentiable)
    with builder.tape.paused():
        result = compiled()
    found = [value for value in values_in(result) if isinstance(value, Value)]
    with at.program.blaming(at.span(node), row.name, (args, kwargs)):
        if any(x.expr.same_as(y.expr) for x in found for y in values_in((given, named))):
            raise RowFailed(row.name, "it returns an argument as it is, not a copy of it")
        if len(at.program.differentiable) > before:
            why = "it reads a tensor that requires grad and is no argument of it: pass it as one"
            raise RowFailed(f"the gradient of {row.name}", why)
        values, single = tuple(map(still, found)), isinstance(result, Value)
        builder.tape.note(RowStep(row, fn, given, named, values, single, builder.span))
    return result
