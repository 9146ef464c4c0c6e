"""What is known of a value before it exists: dtypes, sizes and tensor types. Pure data, no IR."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch


@dataclass(frozen=True)
class DType:
    """One element type: its name (TVM's and torch's agree), torch's object, and bits an element."""

    name: str
    torch: torch.dtype
    short: str
    bits: int

    @property
    def is_half(self) -> bool:
        """Whether arithmetic on it is done in float32, as torch does."""
        return self.torch in (torch.float16, torch.bfloat16)


DTYPES: tuple[DType, ...] = (
    DType("float64", torch.float64, "f64", 64),
    DType("float32", torch.float32, "f32", 32),
    DType("float16", torch.float16, "f16", 16),
    DType("bfloat16", torch.bfloat16, "bf16", 16),
    DType("int64", torch.int64, "i64", 64),
    DType("int32", torch.int32, "i32", 32),
    DType("int16", torch.int16, "i16", 16),
    DType("int8", torch.int8, "i8", 8),
    DType("uint8", torch.uint8, "u8", 8),
    DType("bool", torch.bool, "bool", 8),
)

_BY_TORCH = {dtype.torch: dtype for dtype in DTYPES}
_BY_NAME = {name: dtype for dtype in DTYPES for name in (dtype.name, dtype.short)}
_BY_NAME |= {"float": _BY_NAME["float32"], "double": _BY_NAME["float64"]}
_BY_NAME |= {"half": _BY_NAME["float16"], "int": _BY_NAME["int32"], "long": _BY_NAME["int64"]}


def find_dtype(dtype: torch.dtype | str) -> DType | None:
    """The row for a torch dtype or a dtype's name; ``None`` for what kernels cannot hold."""
    if isinstance(dtype, torch.dtype):
        return _BY_TORCH.get(dtype)
    return _BY_NAME.get(dtype.removeprefix("torch."))


def dtype_of(dtype: torch.dtype) -> DType:
    """The row for a torch dtype that is known to be supported."""
    return _BY_TORCH[dtype]


@dataclass(frozen=True)
class Dim:
    """A size that is known only at the call.

    Attributes:
        name: of the size; one name is one size, wherever it stands.
        sample: a size it had, or might have: 2 or more, as 0 and 1 are always constants.
    """

    name: str
    sample: int = field(compare=False)

    def __str__(self) -> str:
        return self.name


Size = int | Dim | torch.SymInt
"""A constant, a size named in a signature, or what torch computes with while compiling."""


def size_text(size: Size) -> str:
    """A size in the user's names."""
    # torch has names of its own for symbolic sizes, such as s77; our ShapeEnv knows the user's.
    return str(size.node.shape_env.text(size)) if isinstance(size, torch.SymInt) else str(size)


@dataclass(frozen=True)
class TensorType:
    """Shape and dtype of a tensor, written ``f32[8, 4]``, or ``f32[n, 4]`` for any ``n``."""

    shape: tuple[Size, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorType:
        """The type of a real or meta tensor."""
        return cls(tuple(tensor.shape), tensor.dtype)

    def __hash__(self) -> int:
        # torch's symbolic sizes compare, and have no hash.
        return hash((len(self.shape), self.dtype))

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape, where its sizes are constants; torch's symbolic ones become so."""
        return tuple(int(size) for size in self.shape if not isinstance(size, Dim))

    @property
    def dims(self) -> tuple[Dim, ...]:
        """The sizes that are known only at the call."""
        return tuple(size for size in self.shape if isinstance(size, Dim))

    def covers(self, other: TensorType) -> bool:
        """Whether a tensor of the other type may be one of this, for some symbolic sizes."""
        return (
            self.dtype == other.dtype
            and len(self.shape) == len(other.shape)
            and all(isinstance(n, Dim) or n == m for n, m in zip(self.shape, other.shape))
        )

    def __str__(self) -> str:
        known = find_dtype(self.dtype)
        name = known.short if known else str(self.dtype).removeprefix("torch.")
        return f"{name}[{', '.join(map(size_text, self.shape))}]"


def channels_last(rank: int) -> tuple[int, ...]:
    """The order of the axes of images of so many dimensions in that memory format of torch's."""
    return 0, *range(2, rank), 1


@dataclass(frozen=True)
class MemoryFormat:
    """How a tensor lies in memory, where that is not as a contiguous one.

    Attributes:
        order: all axes, from the one with the longest steps to the one with the shortest; those
            along which there are no steps come first.
        repeated: the axes along which all elements are the same one.
        gaps: the axes at the ends of which there are elements of another tensor, and how many
            elements there are along each with these.
    """

    order: tuple[int, ...]
    repeated: frozenset[int] = frozenset()
    gaps: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, tensor: torch.Tensor) -> MemoryFormat | None:
        """That of a tensor; None for one that is contiguous, and where it is not told so.

        A transposed tensor has one, as have those in ``torch.channels_last``, expanded ones and
        parts of others such as ``x[:, :8]``. One with gaps between all its elements has none.
        """
        if tensor.layout is not torch.strided or tensor.is_contiguous():
            return None
        sizes, steps = tensor.shape, tensor.stride()
        axes = range(len(sizes))
        repeated = frozenset(axis for axis in axes if sizes[axis] > 1 and steps[axis] == 0)
        moving = [axis for axis in axes if sizes[axis] > 1 and axis not in repeated]
        moving.sort(key=lambda axis: -steps[axis])
        if moving and steps[moving[-1]] != 1:
            return None
        gaps = {}
        for outer, inner in pairwise(moving):
            extent, rest = divmod(steps[outer], steps[inner])
            if rest or extent < sizes[inner]:
                return None
            if extent > sizes[inner]:
                gaps[inner] = extent
        still = [axis for axis in axes if axis not in moving]
        return cls((*still, *moving), repeated, tuple(sorted(gaps.items())))

    @property
    def inverse(self) -> tuple[int, ...]:
        """For each axis of the tensor, its place in the order."""
        return tuple(map(self.order.index, range(len(self.order))))

    def read(self, shape: Sequence[Any]) -> list[Any]:
        """The shape of what :meth:`memory` gives, of that of the tensor."""
        return [1 if axis in self.repeated else shape[axis] for axis in self.order]

    def stored(self, shape: Sequence[Any]) -> list[Any]:
        """The shape of the contiguous tensor that is in memory, of that of the tensor.

        What is read is at the front of it along each axis.
        """
        extents = dict(self.gaps)
        return [extents.get(axis, n) for axis, n in zip(self.order, self.read(shape))]

    def memory(self, tensor: torch.Tensor) -> torch.Tensor:
        """What is read of the contiguous tensor in memory, as a view of a tensor that lies so."""
        found = tensor.permute(self.order)
        for place, axis in enumerate(self.order):
            if axis in self.repeated:
                found = found.narrow(place, 0, 1)
        return found

    def is_memory(self, found: torch.Tensor) -> bool:
        """Whether what :meth:`memory` gave is of a tensor that lies so."""
        if not self.gaps:
            return found.is_contiguous()
        return all(
            size == 1 or step == expected
            for size, step, expected in zip(found.shape, found.stride(), self._steps(found))
        )

    def copied(self, found: torch.Tensor) -> torch.Tensor:
        """A copy of what :meth:`memory` gave, of memory in which it lies so."""
        if not self.gaps:
            return found.clone(memory_format=torch.contiguous_format)
        return found.new_empty_strided(found.shape, self._steps(found)).copy_(found)

    def turned(self, memory: torch.Tensor) -> torch.Tensor:
        """A tensor that lies so, without repeated axes, of the contiguous one in its memory."""
        return memory.permute(self.inverse).detach()  # no view to autograd

    def _steps(self, found: torch.Tensor) -> list[int]:
        extents = dict(self.gaps)
        sizes = [extents.get(axis, n) for axis, n in zip(self.order, found.shape)]
        return [math.prod(sizes[n + 1 :]) for n in range(len(sizes))]

    def __str__(self) -> str:
        parts = [f"in memory by axes {', '.join(map(str, self.order))}"]
        if self.repeated:
            parts.append(f"repeated along {', '.join(map(str, sorted(self.repeated)))}")
        parts += [f"part of {extent} along {axis}" for axis, extent in self.gaps]
        return ", ".join(parts)


def without_gaps(format: MemoryFormat | None) -> MemoryFormat | None:
    """A format, if no other tensor lies between the elements; None otherwise."""
    return None if format is None or format.gaps else format


def of_any_sizes(format: MemoryFormat | None, type: TensorType) -> MemoryFormat | None:
    """A format, if what lies so tells the symbolic sizes of a type; None otherwise.

    Memory with one element in the place of many does not tell how many these are, and that of
    which a tensor is a part does not tell how large a part.
    """
    if format is None or format.repeated:
        return None
    return None if any(isinstance(type.shape[axis], Dim) for axis, _ in format.gaps) else format
