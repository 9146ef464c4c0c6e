"""Calls whose meaning lies outside a program: they would happen once, while compiling."""

from __future__ import annotations

import builtins
import contextvars
import os
import weakref
from typing import Any

import torch

_DEBUG = "set BABYTRITON_INTERPRET=1, which runs the Python itself"
_ARGUMENT = "call it outside, and pass the value as an argument"
_ANEW = "it gives another value at each call, and would run once, while compiling"
USED_UP = (
    "an iterator gives other items at each call, and would be gone through while compiling",
    "make it within the function, or pass its items as a list",
)
"""Why none from outside is gone through, and what to do instead."""
_BUILTINS: dict[str, tuple[str, str]] = {
    "breakpoint": ("the function is not run line by line", _DEBUG),
    "input": (_ANEW, _ARGUMENT),
    "open": ("files are not read while a program runs", _ARGUMENT),
    "exec": ("the text is no part of the function's source", "write the code out"),
    "eval": ("the text is no part of the function's source", "write the expression out"),
    "globals": ("a program has no names at run time", "read the name itself"),
    "locals": ("a program has no names at run time", "read the name itself"),
    "setattr": ("a program does not change objects", "return the value, and set it outside"),
    "delattr": ("a program does not change objects", "do it outside"),
}
_GRADIENT = (
    "gradients flow back through what a function returns, and not within it",
    "return the loss, and call backward() on it, or torch.func.grad on the function",
)
_GRADIENTS = (torch.Tensor.backward, torch.autograd.backward, torch.autograd.grad)
_TRANSFORMS = ("grad", "grad_and_value", "vjp", "jvp", "jacrev", "jacfwd", "hessian", "linearize")
_CHANGING_MODULES = ("random", "time", "secrets", "uuid", "numpy.random", "queue", "threading")
_CHANGING_TYPES = (contextvars.ContextVar, weakref.ref)
_OPERATOR = (
    "it makes an operator, which would be another one at each call",
    "make it outside the function",
)
_OPERATORS_MODULE, _OPERATORS = "babytriton.cuda_code", ("cuda_function", "cuda_kernel")
_CHANGING_METHODS = ("now", "utcnow", "today")
_TORCH_SETTINGS = ("set_", "use_deterministic", "seed", "_set_")


def refusal(fn: Any) -> tuple[str, str] | None:
    """Why a callable cannot be called while compiling, and what to do instead."""
    name = getattr(fn, "__name__", "")
    if getattr(builtins, name, None) is fn and name in _BUILTINS:
        return _BUILTINS[name]
    owner = getattr(fn, "__self__", None)
    module = str(getattr(fn, "__module__", None) or type(owner).__module__)
    if module in _CHANGING_MODULES or module.startswith("numpy.random"):
        return _ANEW, "use torch.rand and its like, or pass the value as an argument"
    if isinstance(owner, _CHANGING_TYPES) or isinstance(fn, _CHANGING_TYPES) or fn is os.urandom:
        return _ANEW, _ARGUMENT
    if module == _OPERATORS_MODULE and name in _OPERATORS:
        return _OPERATOR
    if name in _CHANGING_METHODS and getattr(owner, "__module__", "") == "datetime":
        return _ANEW, _ARGUMENT
    if any(fn is each for each in _GRADIENTS):
        return _GRADIENT
    if module == "torch.func" and name in _TRANSFORMS:
        return _GRADIENT
    if fn is torch.set_grad_enabled:
        return "it changes a setting of the process", "use with torch.no_grad(): in its place"
    if module.partition(".")[0] == "torch" and name.startswith(_TORCH_SETTINGS):
        return "it changes a setting of the process", "call it outside the function"
    return None
