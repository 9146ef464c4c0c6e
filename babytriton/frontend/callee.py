"""What may be compiled: functions, methods, modules, and other objects that can be called."""

from __future__ import annotations

import ast
import functools
import inspect
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch

_TORCH_COMPILE = "_torchdynamo_orig_callable"


def seen_through(fn: Any) -> Any:
    """What stands behind ``torch.compile``, which only chooses how a function runs."""
    inner = _torch_compiled(fn)
    return fn if inner is None else seen_through(inner)


def behind(fn: Any) -> Any:
    """What stands behind ``torch.compile`` and ``jit``."""
    fn = seen_through(fn)
    inner = getattr(fn, "__babytriton_function__", None)
    return fn if inner is None else behind(inner)


def function_of(fn: Any) -> types.FunctionType:
    """The Python function that a call of ``fn`` runs; of a module, its ``forward``.

    Raises:
        TypeError: there is none, as behind a builtin.
    """
    fn = behind(fn)
    if isinstance(fn, types.FunctionType):
        return fn
    if isinstance(fn, types.MethodType):
        return function_of(fn.__func__)
    if isinstance(fn, functools.partial):
        return function_of(fn.func)
    if isinstance(fn, torch.nn.Module):
        return function_of(fn.forward)
    if isinstance(fn, (staticmethod, classmethod)):
        kind = type(fn).__name__
        raise TypeError(f"jit compiles Python functions: write @{kind} above @jit, not below it")
    method = inspect.getattr_static(type(fn), "__call__", None)
    if isinstance(fn, type) or not isinstance(method, types.FunctionType):
        kind = type(fn).__name__
        raise TypeError(f"jit compiles Python functions, not a {kind}: it has no source to read")
    return method


def signature_of(fn: Callable[..., Any]) -> inspect.Signature:
    """The parameters that a call of ``fn`` takes; of a wrapper, its own."""
    called = fn.forward if isinstance(fn, torch.nn.Module) else fn
    return inspect.signature(called, follow_wrapped=False)


def name_of(fn: Callable[..., Any]) -> str:
    """What a message calls ``fn``."""
    if isinstance(fn, torch.nn.Module):
        return type(fn).__name__
    return str(getattr(fn, "__name__", None) or function_of(fn).__name__)


def _torch_compiled(fn: Any) -> Any:
    if isinstance(fn, torch.nn.Module):
        return vars(fn)["_modules"].get("_orig_mod") if _in_dynamo(type(fn).__module__) else None
    # functools.wraps copies the attribute onto wrappers that mean something of their own.
    if isinstance(fn, types.FunctionType) and _in_dynamo(fn.__globals__.get("__name__", "")):
        return vars(fn).get(_TORCH_COMPILE)
    return None


def _in_dynamo(module: str) -> bool:
    return module.startswith("torch._dynamo")


def signature_of_node(
    args: ast.arguments, defaults: Sequence[Any], keyword_defaults: Sequence[Any]
) -> inspect.Signature:
    """The parameters of a ``def`` or ``lambda``, as ``inspect`` describes those of a function."""
    kinds = inspect.Parameter
    positional = [*args.posonlyargs, *args.args]
    required = len(positional) - len(defaults)
    parameters = [
        kinds(
            arg.arg,
            kinds.POSITIONAL_ONLY if i < len(args.posonlyargs) else kinds.POSITIONAL_OR_KEYWORD,
            default=defaults[i - required] if i >= required else kinds.empty,
        )
        for i, arg in enumerate(positional)
    ]
    if args.vararg:
        parameters.append(kinds(args.vararg.arg, kinds.VAR_POSITIONAL))
    for arg, default, given in zip(args.kwonlyargs, keyword_defaults, args.kw_defaults):
        shown = kinds.empty if given is None else default
        parameters.append(kinds(arg.arg, kinds.KEYWORD_ONLY, default=shown))
    if args.kwarg:
        parameters.append(kinds(args.kwarg.arg, kinds.VAR_KEYWORD))
    return inspect.Signature(parameters)
