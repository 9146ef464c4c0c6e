"""Which dimensions are symbolic, what their sizes are called, and how a call gives them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from babytriton import errors
from babytriton.tensor import Tensor
from babytriton.types import Dim, MemoryFormat, TensorType

if TYPE_CHECKING:
    from babytriton.ops.symbols import Conditions

SMALLEST = 2
"""0 and 1 are constants: a dimension of size 1 broadcasts, and one of size 0 has no elements."""

WHOLES = 2
"""Of so many sizes may be what an argument is part of, each with a program, before it is copied."""

_SAMPLE = 832
"""The first size that a name without one is tried with: a multiple of the usual block sizes, for
the sake of reshapes, and unlikely to be another size of the program."""


class Seen:
    """The sizes that tensors had in the calls that were compiled so far, and how they lay."""

    def __init__(self) -> None:
        self._sizes: dict[tuple[str, int], list[set[int]]] = {}
        self._parts: dict[Any, set[Any]] = {}

    @property
    def varied(self) -> bool:
        """Whether any dimension had several sizes."""
        return any(len(sizes) > 1 for shape in self._sizes.values() for sizes in shape)

    def vary(self, place: str, shape: Sequence[int]) -> list[bool]:
        """Take note of a shape: whether each dimension has had another size as well."""
        known = self._sizes.setdefault((place, len(shape)), [set() for _ in shape])
        for sizes, size in zip(known, shape):
            sizes.add(size)
        return [len(sizes) > 1 for sizes in known]

    def parts_vary(self, place: str, shape: Sequence[int], format: MemoryFormat) -> bool:
        """Take note of what a tensor is part of: whether ones like it were of several others."""
        sizes = tuple((axis, shape[axis]) for axis, _ in format.gaps)
        known = self._parts.setdefault((place, format.order, sizes), set())
        known.add(format.gaps)
        return len(known) > WHOLES


@dataclass
class Dimensions:
    """Names the symbolic dimensions of one program, in the order in which its tensors come up.

    Attributes:
        dynamic: whether all dimensions are symbolic; ``None`` for those that vary or are named.
        annotations: of the function's parameters.
        seen: where ``dynamic`` is ``None``, what varied so far.
        related: sizes that have turned out to be the same as others, or constant.
        captured_vary: whether tensors from outside the function have symbolic dimensions.
        parts_vary: whether an argument is part of tensors of too many sizes.
    """

    dynamic: bool | None = False
    annotations: Mapping[str, Tensor] = field(default_factory=dict)
    seen: Seen = field(default_factory=Seen)
    related: dict[str, str | int] = field(default_factory=dict)
    captured_vary: bool = False
    parts_vary: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        tensors = self.annotations.values()
        self._users = {n for tensor in tensors for n in tensor.shape if isinstance(n, str)}
        self._names = set(self._users)
        self._samples: dict[str, int] = {}
        self._captured: Counter[str] = Counter()

    def restarted(self, related: Mapping[str, str | int]) -> Dimensions:
        """The same for another attempt, with relations between sizes that this one has found."""
        found = dict(self.related)
        for name, other in related.items():
            # Of two names the user's stays.
            swap = isinstance(other, str) and name in self._users and other not in self._users
            found[str(other) if swap else name] = name if swap else other
        return Dimensions(self.dynamic, self.annotations, self.seen, found, self.captured_vary)

    def argument(self, path: str, type: TensorType) -> TensorType:
        """The type of a tensor argument, with names for its symbolic sizes."""
        annotation = self.annotations.get(path)
        return self._named(path, path, type, annotation.shape if annotation else ())

    def lying(self, path: str, tensor: torch.Tensor) -> MemoryFormat | None:
        """How a tensor argument lies; takes note of what it is part of."""
        format = MemoryFormat.of(tensor)
        if format is not None and format.gaps:
            self.parts_vary |= self.seen.parts_vary(path, tensor.shape, format)
        return format

    def captured(self, path: str, type: TensorType) -> TensorType:
        """The type of a tensor from outside, with names for its symbolic sizes."""
        self._captured[path] += 1
        # Names of two modules may be the same.
        found = self._named(f"captured {path} {self._captured[path]}", path, type, ())
        self.captured_vary = self.captured_vary or bool(found.dims)
        return found

    def described(self, path: str, tensor: Tensor) -> TensorType:
        """The type that a description stands for.

        Raises:
            ValueError: a size is a name, and none may be symbolic.
        """
        if self.dynamic is not False:
            return tensor.type(self._size)
        for size in tensor.shape:
            if isinstance(size, str):
                raise errors.NamedSize(None, path, size, str(tensor)).error()
        return tensor.type(self._size)

    def _named(
        self, place: str, path: str, type: TensorType, annotated: Sequence[int | str]
    ) -> TensorType:
        shape = [int(n) for n in type.shape if isinstance(n, int)]
        vary = self.seen.vary(place, shape)
        sizes: list[int | Dim] = []
        for d, size in enumerate(shape):
            name = annotated[d] if d < len(annotated) else None
            varies = vary[d] if self.dynamic is None else self.dynamic
            if isinstance(name, str) and self.dynamic is not False and size >= SMALLEST:
                sizes.append(self._size(name, size))
            elif name is None and varies and size >= SMALLEST:
                sizes.append(self._size(self._unique(f"{path}_{d}"), size))
            else:
                sizes.append(size)
        return TensorType(tuple(sizes), type.dtype)

    def _size(self, name: str, sample: int | None = None) -> int | Dim:
        while name in self.related:
            other = self.related[name]
            if isinstance(other, int):
                return other
            name = other
        if name not in self._samples:
            self._samples[name] = sample or _SAMPLE + 64 * len(self._samples)
        return Dim(name, self._samples[name])

    def _unique(self, path: str) -> str:
        name = re.sub(r"\W+", "_", path).strip("_")
        while name in self._names:
            name += "_"
        self._names.add(name)
        return name


@dataclass(frozen=True)
class Sizes:
    """The symbolic sizes of a program: where a call gives them, and what must hold of them.

    Attributes:
        tensors: how a call reads each tensor of the program from its leaves, what the user calls
            it, and its type.
        conditions: that torch found to matter.
        related: the names of sizes that have turned out to be others, or constants.
        smallest: that a size may be.
    """

    tensors: tuple[tuple[Callable[[Sequence[Any]], Any], str, TensorType], ...]
    conditions: Conditions
    related: Mapping[str, str | int] = field(default_factory=dict)
    smallest: int = SMALLEST

    def of(self, leaves: Sequence[Any]) -> dict[str, int] | None:
        """The sizes of a call by name; ``None`` if it is not one for this program."""
        found: dict[str, int] = {}
        for read, _, type in self.tensors:
            given: int
            for size, given in zip(type.shape, read(leaves).shape):
                if isinstance(size, Dim):
                    if given < self.smallest or found.setdefault(size.name, given) != given:
                        return None
                elif size != given:
                    return None
        return found if self.conditions.hold(found) else None

    def require(self, leaves: Sequence[Any]) -> None:
        """Refuse a call that the program is not for.

        Raises:
            ValueError: sizes of one name differ, or a condition on them does not hold.
        """
        known: dict[str, tuple[int, str, int]] = {}
        for read, path, type in self.tensors:
            tensor = read(leaves)
            n: int
            for d, (size, n) in enumerate(zip(type.shape, tensor.shape)):
                if isinstance(size, Dim):
                    before = known.setdefault(size.name, (n, path, d))
                    if before[0] != n:
                        raise errors.SizesDiffer(None, path, size.name, n, d, *before).error()
                    if n < self.smallest:
                        least = f"{size.name} >= {self.smallest}"
                        raise errors.OtherSizes(None, least, f"{n}").error()
                elif size != n:
                    given = str(TensorType.of(tensor))
                    raise errors.ArgumentShape(None, path, str(type), given).error()
        sizes = {name: size for name, (size, _, _) in known.items()}
        failing = self.conditions.failing(sizes)
        if failing is not None:
            text = ", ".join(f"{name} = {size}" for name, size in sizes.items())
            raise errors.OtherSizes(None, failing, text).error()
