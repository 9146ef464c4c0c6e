"""Modules that compute their forward by compiled functions: by their class, one object at a time.

An object whose class is exchanged for a subclass keeps its parameters, buffers, hooks and name, so
that checkpoints, copies, replicas and optimizers take no notice; and the way back is its old class.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from babytriton.jit import jit
from babytriton.targets import Target

Method = Callable[..., Any]
"""A forward: it takes the module first."""


@dataclass(frozen=True)
class Replacement(ABC):
    """What takes the place of the forward of modules: equal ones share what they compile.

    Attributes:
        target: what to compile for; ``None`` lets the device of the arguments decide.
    """

    target: Target | None

    @abstractmethod
    def method(self, original: type[nn.Module]) -> Method:
        """The new forward for modules of a class."""

    @abstractmethod
    def lines(self) -> Sequence[tuple[str, str]]:
        """For the report: the switch of :func:`optimize` it belongs to, and what is compiled."""

    @abstractmethod
    def agrees(self, module: nn.Module) -> bool:
        """Whether the forward of a module is the one that this is written for.

        It is tried out on a few numbers, without compiling anything.
        """

    def compile(self, fn: Callable[..., Any], dynamic: bool | None = None) -> Callable[..., Any]:
        """A function of this replacement, compiled."""
        return jit(self.target, dynamic=dynamic)(fn)


class Compile(Protocol):
    """Makes a compiled function of a plain one, or leaves it as it is."""

    def __call__(self, fn: Callable[..., Any], dynamic: bool | None = None) -> Callable[..., Any]:
        """The function to call in its place."""


def as_it_is(fn: Callable[..., Any], dynamic: bool | None = None) -> Callable[..., Any]:
    """The plain function."""
    return fn


def swap(module: nn.Module, replacement: Replacement) -> None:
    """Let a module compute its forward by a replacement."""
    kind: Any = type(module)
    module.__class__ = _swapped(kind, replacement)


def is_swapped(module: nn.Module) -> bool:
    """Whether a module computes its forward by a replacement."""
    return _ORIGINAL in vars(type(module))


def swap_back(module: nn.Module) -> None:
    """Let a module compute its forward as it did before."""
    module.__class__ = vars(type(module))[_ORIGINAL]


def left_to_torch() -> bool:
    """Whether torch's own operations are asked for, and not only their results."""
    return torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None


def close(found: Any, expected: Any) -> bool:
    """Whether two results are the same but for the order of operations."""
    if not all(isinstance(x, torch.Tensor) for x in (found, expected)):
        return False
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    rounding = 16 * torch.finfo(expected.dtype).eps
    return torch.allclose(found, expected, rtol=rounding, atol=rounding, equal_nan=True)


_ORIGINAL = "__babytriton_original__"


@functools.cache  # pickled modules are of the same class again when they are loaded
def _swapped(original: Any, replacement: Replacement) -> type[nn.Module]:
    """The subclass of a class that differs in its forward.

    It goes by the same name: to tell layers apart by the names of their classes is common.
    """

    def reduced(self: Any, protocol: Any) -> Any:
        parts: tuple[Any, ...] = original.__reduce_ex__(self, protocol)
        return _new, (original, replacement), *parts[2:]

    def described(self: Any) -> str:
        return ", ".join(filter(None, (original.extra_repr(self), "compiled")))

    body = {
        _ORIGINAL: original,
        "__module__": original.__module__,
        "__qualname__": original.__qualname__,
        "__doc__": original.__doc__,
        "__reduce_ex__": reduced,
        "extra_repr": described,
        "forward": replacement.method(original),
    }
    return type(original.__name__, (original,), body)


def _new(original: Any, replacement: Replacement) -> nn.Module:
    """An empty module, which unpickling fills."""
    swapped = _swapped(original, replacement)
    return swapped.__new__(swapped)
