"""What programs ask of tensor arguments besides their types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from babytriton import errors
from babytriton.tensor import Tensor


@dataclass(frozen=True)
class Known:
    """What is so of a tensor among the arguments, as far as the program depends on it.

    Attributes:
        path: as the user would reach it.
        first: the path of the first of such tensors that is this one.
        requires_grad, is_leaf: as torch says, also where no gradients are recorded.
        grad: whether there is a tensor in its ``grad``.
    """

    path: str
    first: str | None = None
    requires_grad: bool | None = None
    is_leaf: bool | None = None
    grad: bool | None = None

    def require(self, given: Known) -> None:
        """Refuse another tensor than this one.

        Raises:
            ValueError: it is so for a tensor that is not as this one.
        """
        if self != given:
            now, before = given.differs_from(self), self.differs_from(given)
            raise errors.ArgumentValue(None, self.path, before, now).error()

    def differs_from(self, other: Known) -> str:
        """What is so of it and not of another one, in words."""
        if self.first != other.first:
            is_first = self.path == self.first
            return "another tensor" if is_first else f"the same tensor as {self.first}"
        if self.requires_grad != other.requires_grad:
            return f"a tensor whose requires_grad is {self.requires_grad}"
        if self.is_leaf != other.is_leaf:
            return "a leaf" if self.is_leaf else "a tensor that torch has computed from others"
        return "a tensor with a gradient" if self.grad else "a tensor without a gradient"


def grad_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The gradient that torch has left with a tensor; without its warning that there is none."""
    return tensor.grad if tensor.is_leaf or tensor.retains_grad else None


def known_of(
    names: Sequence[str], values: Sequence[Any], static: frozenset[str]
) -> tuple[Known, ...]:
    """What is so of each tensor that a program asks something of.

    Args:
        names: of the parameters.
        values: theirs.
        static: what is asked: a path, or a parameter's name, asks which tensor it is; with the name
            of an attribute behind it, such as ``x.is_leaf``, for that.
    """
    first: dict[int, str] = {}
    found = []

    def note(path: str, value: Any) -> None:
        if isinstance(value, (torch.Tensor, Tensor)):
            asked = [name for name in _ASKED if f"{path}.{name}" in static]
            given = None
            if is_static(path, static):
                given = first.setdefault(id(value), path)
            if given is not None or asked:
                found.append(Known(path, given, **{name: _ASKED[name](value) for name in asked}))
        elif isinstance(value, (tuple, list)):
            for i, item in enumerate(value):
                note(f"{path}[{i}]", item)
        elif isinstance(value, dict):
            for key, item in value.items():
                note(f"{path}[{key!r}]", item)

    if static:
        for name, value in zip(names, values):
            note(name, value)
    return tuple(found)


def is_static(path: str, static: frozenset[str]) -> bool:
    """Whether more is known of an argument than its type: by its own path, or its parameter's."""
    return bool(static) and (path in static or path.partition("[")[0] in static)


_ASKED: dict[str, Callable[[Any], bool]] = {
    "requires_grad": lambda x: not isinstance(x, Tensor) and x.requires_grad,
    "is_leaf": lambda x: isinstance(x, Tensor) or x.is_leaf,
    "grad": lambda x: not isinstance(x, Tensor) and grad_of(x) is not None,
}
"""The answers for a tensor, or for what stands for any, by the names in :class:`Known`."""
