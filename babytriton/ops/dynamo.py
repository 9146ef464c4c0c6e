"""Typing calls without loading torch's compiler.

Some of torch's meta kernels ask to be hidden from torch.compile, and for that import all of it,
which takes one and a half seconds, at the first multiplication of two meta tensors. As long as
nothing else has loaded it there is nothing to hide from.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

_NAME = "torch._dynamo"


@contextmanager
def unneeded() -> Iterator[None]:
    """In this context torch's compiler is loaded only for more than to hide from it."""
    if _NAME in sys.modules:
        yield
        return
    standin = _StandIn(_NAME)
    sys.modules[_NAME] = torch._dynamo = standin
    try:
        yield
    finally:
        _remove(standin)


class _StandIn(ModuleType):
    """Has the one function that hides others; for any other name it loads the module itself."""

    def disable(
        self, fn: Callable[..., Any], recursive: bool = True, **options: Any
    ) -> Callable[..., Any]:
        """A function that is hidden from the compiler once there is one."""
        hidden = None

        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal hidden
            loaded = sys.modules.get(_NAME)
            if hidden is None and loaded is not None and not isinstance(loaded, _StandIn):
                hidden = loaded.disable(fn, recursive, **options)
            return (hidden or fn)(*args, **kwargs)

        return call

    def __getattr__(self, name: str) -> Any:
        _remove(self)
        return getattr(importlib.import_module(_NAME), name)


def _remove(standin: ModuleType) -> None:
    if sys.modules.get(_NAME) is standin:
        del sys.modules[_NAME]
    if vars(torch).get("_dynamo") is standin:
        del torch._dynamo
