"""A tensor whose elements a mask selects from another one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from tvm import relax

from babytriton.ops.value import DataDependent, Method, Scalar, Value

UNKNOWN = (
    "elementwise functions, reductions, losses and x[mask] = ... take what a mask selects, of "
    "whatever size; torch.where(mask, a, b) keeps the size"
)
"""What can be done in place of what needs the number of elements."""

_OF_WHOLE = frozenset(
    ("device", "dtype", "is_cpu", "is_cuda", "is_leaf", "is_meta", "itemsize", "layout")
)
"""Attributes that are those of the tensor that is selected from."""


class Count(Scalar):
    """How many elements a mask selects.

    Args:
        of: what it has selected.
    """

    def __init__(self, of: Selection) -> None:
        super().__init__(of.emitter, of.selected.expr, 1)
        self.of = of


class Selection(Value):
    """``whole[mask]``: as many elements along one dimension as the mask is true for.

    Whatever asks for its expression, as what knows nothing of selections does, is refused.

    Args:
        whole: what is selected from, in memory of its own. What stands where the mask is false is
            of no meaning, but that it was put to zero where gradients flow through it.
        mask: of as many dimensions as it selects from, which become one.
        axis: the first of these dimensions of ``whole``, and the one they become.
        by: the mask as it was computed, which tells what is selected alike.
    """

    def __init__(self, whole: Value, mask: Value, axis: int, by: Value) -> None:
        # Without ``made``: nothing of it is in the program.
        self.emitter = whole.emitter
        self.meta = whole.meta
        self.device = whole.device
        self.storage = None
        self.version = None
        self.side = None
        self.is_detached = False
        self.whole = whole
        self.mask = mask
        self.axis = axis
        self.by = by

    @property
    def expr(self) -> relax.Expr:
        """Nothing: as long as it is in the program, it is a tensor and a mask.

        Raises:
            DataDependent: whatever asks.
        """
        raise DataDependent("what a mask selects", UNKNOWN)

    @property
    def parts(self) -> tuple[Value, Value, Value]:
        """The tensors that it is made of."""
        return self.whole, self.mask, self.by

    def rebuilt(self, parts: Iterable[Value]) -> Selection:
        """The same of other tensors."""
        whole, mask, by = parts
        return Selection(whole, mask, self.axis, by)

    @property
    def requires_grad(self) -> bool:
        """Whether gradients flow through it."""
        return self.emitter.follows(self.whole)

    @property
    def ndim(self) -> int:
        """Its number of dimensions."""
        return self.whole.meta.ndim - self.mask.meta.ndim + 1

    @property
    def dims(self) -> range:
        """The dimensions of ``whole`` that the mask selects from."""
        return range(self.axis, self.axis + self.mask.meta.ndim)

    @property
    def shape(self) -> tuple[Any, ...]:
        """Its sizes, one of which is a number of the run time."""
        sizes = tuple(self.whole.meta.shape)
        return (*sizes[: self.axis], self.count, *sizes[self.dims.stop :])

    @property
    def count(self) -> Count:
        """How many elements of the mask are true."""
        return Count(self)

    @property
    def selected(self) -> Value:
        """That number as a tensor without dimensions."""
        found: Value = self.mask.sum()
        return found

    @property
    def others(self) -> Any:
        """How many elements there are for each that the mask selects."""
        sizes = self.whole.meta.shape
        number = 1
        for size in (*sizes[: self.axis], *sizes[self.dims.stop :]):
            number *= size
        return number

    @property
    def spread(self) -> Value:
        """The mask, in the dimensions that ``whole`` has."""
        after = self.whole.meta.ndim - self.dims.stop
        found: Value = (
            self.mask.reshape((*self.mask.meta.shape, *[1] * after)) if after else self.mask
        )
        return found

    @property
    def flat(self) -> Selection:
        """The same with a mask of one dimension, in whose place all of them are."""
        if self.mask.meta.ndim == 1:
            return self
        sizes = self.whole.meta.shape
        whole = self.whole.reshape(
            (*sizes[: self.axis], self.mask.meta.numel(), *sizes[self.dims.stop :])
        )
        return Selection(whole, self.mask.reshape(-1), self.axis, self.by)

    def of(self, whole: Value) -> Selection:
        """The same of another tensor of the same sizes."""
        return Selection(whole, self.mask, self.axis, self.by)

    @property
    def refilled(self) -> Selection:
        """The same with zeros where nothing is selected, if it is of floats."""
        return self.of(self.filled(0)) if self.meta.dtype.is_floating_point else self

    def filled(self, number: Any) -> Value:
        """``whole`` with a number where nothing is selected."""
        return where(self.spread, self.whole, number)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _OF_WHOLE:
            return getattr(self.whole, name)
        attribute = getattr(torch.Tensor, name)
        if callable(attribute):
            return Method(self, attribute)
        if name == "data":
            return self.emitter.call(torch.Tensor.detach, (self,), {})
        if name in ("T", "H", "mT", "mH"):
            return self.emitter.call(attribute, (self,), {})
        raise DataDependent(name, UNKNOWN)

    def __len__(self) -> int:
        raise DataDependent("len", UNKNOWN)

    def __iter__(self) -> Iterator[Any]:
        raise DataDependent("iter", UNKNOWN)

    def __repr__(self) -> str:
        return f"Selection({self.whole!r}, {self.mask!r})"

    __hash__ = object.__hash__


def spread(mask: Value, after: int) -> Value:
    """A mask with so many dimensions more, of size 1, behind its own."""
    if not after:
        return mask
    found: Value = mask.reshape((*mask.meta.shape, *[1] * after))
    return found


def where(mask: Value, one: Any, other: Any) -> Value:
    """``torch.where`` of values."""
    found: Value = mask.emitter.call(torch.where, (mask, one, other), {})
    return found
