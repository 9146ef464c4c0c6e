"""``torch.utils.checkpoint``: what is kept for a gradient is the program's to decide.

So a checkpointed function is one that is inlined, which changes neither results nor gradients.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import operator
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import checkpoint as torchs

from babytriton import errors
from babytriton.frontend import calls
from babytriton.ops.value import Value

if TYPE_CHECKING:
    from babytriton.frontend.codegen import CodeGenerator

_CONTEXTS = (torchs.noop_context_fn, torchs.create_selective_checkpoint_contexts)
"""What says no more than what is to be kept."""


def is_checkpoint(at: CodeGenerator, fn: Any, given: Any) -> bool:
    """Whether it is one of torch's functions that call others so."""
    return fn is torchs.checkpoint or fn is torchs.checkpoint_sequential


def call(
    at: CodeGenerator, node: ast.AST, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Compile a call of such a function."""
    try:
        bound = inspect.signature(fn).bind(*args, **kwargs)
    except TypeError as error:
        at.fail(errors.WrongArguments(at.span(node), fn.__name__, str(error)))
    given = bound.arguments
    named = dict(given.get("kwargs", {}))
    reentrant = given.get("use_reentrant") is None or bool(given["use_reentrant"])
    if fn is torchs.checkpoint_sequential:
        named.pop("preserve_rng_state", None)
        _require_none(at, node, named)
        functions = given["functions"]
        if isinstance(functions, torch.nn.Sequential):  # of which torch takes each module once
            functions = calls.call(at, node, functions.children, (), {})
        listed = calls.call(at, node, list, (functions,), {})
        return _sequential(at, node, listed, given["segments"], given["input"], reentrant)
    context = given.get("context_fn", torchs.noop_context_fn)
    held = context.func if isinstance(context, functools.partial) else context
    if not any(held is each for each in _CONTEXTS[: 1 if reentrant else None]):
        why = "its context_fn may do anything"
        at.fail(errors.UnsupportedCall(at.span(node), fn.__name__, why, "leave it out"))
    named.pop("preserve_rng_state", None)
    if reentrant:
        _require_none(at, node, named)
    rest = given.get("args", ())
    with _recording(at, rest, reentrant):
        return calls.call(at, node, given["function"], rest, named)


def _require_none(at: CodeGenerator, node: ast.AST, named: dict[str, Any]) -> None:
    if named:
        why = f"Unexpected keyword arguments: {','.join(named)}"
        at.fail(errors.PythonError(at.span(node), "ValueError", why))


def _sequential(
    at: CodeGenerator, node: ast.AST, functions: list[Any], segments: int, x: Any, reentrant: bool
) -> Any:
    """The functions one after another, in segments of which all but the last are checkpointed."""
    size = at.python(node, operator.floordiv, len(functions), segments)
    starts = at.python(node, range, 0, size * (segments - 1), size)
    for start in starts:
        with _recording(at, (x,), reentrant):
            for function in functions[start : start + size]:
                x = calls.call(at, node, function, (x,), {})
    for function in functions[size * len(starts) :]:
        x = calls.call(at, node, function, (x,), {})
    return x


def _recording(
    at: CodeGenerator, args: Iterable[Any], reentrant: bool
) -> contextlib.AbstractContextManager[None]:
    """Inside, gradients flow where they would in torch.

    A reentrant checkpoint has none if none of its arguments has, whatever its function reads.
    """
    tensors = [arg for arg in args if isinstance(arg, Value)]
    if reentrant and not any(tensor.requires_grad for tensor in tensors):
        return at.program.builder.tape.switched(off=True)
    return contextlib.nullcontext()
