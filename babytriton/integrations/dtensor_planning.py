"""Which sizes of a call with DTensors are divided among processes, so that the least is sent.

A size may be divided where the program computes each slice of it by itself, which is proven for the
program that then runs (``passes/sharding.py``). All is decided from shapes and placements of whole
tensors, so that all processes decide the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Placement, Replicate, Shard

from babytriton import dividing
from babytriton.diagnostics import CompileError
from babytriton.frontend.signature import records
from babytriton.jit import JitFunction
from babytriton.passes.sharding import Part, Whole
from babytriton.stages import Lowered
from babytriton.types import TensorType

_FORBIDDEN = 1e18
"""More than any number of bytes: what placing a tensor costs that is written to."""

Placements = tuple[Placement, ...]


@dataclass(frozen=True)
class Division:
    """A function whose symbolic sizes are divided among processes.

    Attributes:
        lowered: the function.
        names: of the sizes that each dimension of the mesh divides: no tensor has two of them.
        parts: of the outputs, by the name of the size.
    """

    lowered: Lowered
    names: tuple[tuple[str, ...], ...]
    parts: Mapping[str, Sequence[Part | None]]

    def input(self, type: TensorType) -> Placements:
        """How a tensor that the program takes is placed."""
        return tuple(_placement(type, names) for names in self.names)

    def gradient(self, type: TensorType) -> Placements:
        """How the gradient of that is: of what all processes have, each has a part of the sum."""
        return tuple(
            Partial() if names and placement.is_replicate() else placement
            for names, placement in zip(self.names, self.input(type))
        )

    def output(self, number: int) -> Placements:
        """How an output is placed."""
        return tuple(self._output(number, names) for names in self.names)

    def _output(self, number: int, names: Sequence[str]) -> Placement:
        found = [self.parts[name][number] for name in names]
        return next((Shard(part.dim) for part in found if part is not None), Replicate())


class Candidates:
    """The sizes of a call that may be divided.

    Args:
        function: that is called.
        values: of its parameters.

    Attributes:
        sizes: its symbolic sizes, and what they are for this call; those that must be equal for it
            to be computed have one name.
        refused: why sizes cannot be divided, by their names, of those that were looked into.
        written: the tensors that the function writes to.
        lowered: the function for any sizes; ``None`` if it cannot be compiled for that.
    """

    def __init__(self, function: JitFunction, values: Sequence[Any]) -> None:
        self._function, self._values = function, values
        self._known: dict[Any, tuple[Lowered, dict[str, Sequence[Part | None]]]] = {}
        self.refused: dict[str, Whole] = {}
        try:
            self.lowered: Lowered | None = function.lower_any_size(values)
        except CompileError as error:
            self.lowered = None
            self.refused["any size"] = _of_error(error)
        self.sizes = {} if self.lowered is None else dividing.samples(self.lowered)
        self.written = [] if self.lowered is None else dividing.written(self.lowered, values)

    def tensors(self) -> list[tuple[Any, TensorType]]:
        """The tensors of the call, captured ones among them, and their types in symbolic sizes."""
        if self.lowered is None:
            return []
        leaves = dividing.leaves(self.lowered, self._values)
        return [(read(leaves), type) for read, type in dividing.tensors(self.lowered)]

    def named(self) -> list[tuple[str, Any]]:
        """What the user calls each of them, and the tensor."""
        paths = [] if self.lowered is None else dividing.named(self.lowered)
        return [(path, x) for (path, _), (x, _) in zip(paths, self.tensors())]

    def reasons(self) -> list[str]:
        """Why sizes cannot be divided, in the user's names."""
        named = [] if self.lowered is None else dividing.named(self.lowered)
        places = {
            str(n): f"{path}.shape[{i}]"
            for path, type in reversed(named)
            for i, n in reversed(list(enumerate(type.shape)))
        }
        return [
            f"{places.get(name, name)} is not divided, as {whole.text}"
            for name, whole in self.refused.items()
        ]

    def parts(self, name: str, meshes: Sequence[int]) -> Sequence[Part | None] | None:
        """What of each output belongs to a slice of a size; None if that cannot be divided.

        Args:
            name: of the size.
            meshes: the numbers of parts that it is divided into, one after the other.
        """
        if name in self.refused:
            return None
        try:
            return self._divided([name], {name: meshes})[1][name]
        except Whole as whole:
            self.refused[name] = whole
            return None

    def division(self, mesh: DeviceMesh, chosen: Sequence[Sequence[str]]) -> Division | None:
        """The function with the chosen sizes divided; None if not all of them can be at once.

        Args:
            mesh: whose dimensions divide.
            chosen: the names of the sizes that each of them divides.
        """
        names = list(dict.fromkeys(name for names in chosen for name in names))
        meshes = {
            name: [mesh.size(i) for i, names in enumerate(chosen) if name in names]
            for name in names
        }
        try:
            lowered, parts = self._divided(names, meshes)
            for own in filter(None, chosen):
                each = zip(*(parts[name] for name in own))
                if any(sum(part is not None for part in of) > 1 for of in each):
                    raise Whole("a result has two of these sizes")
        except Whole as whole:
            self.refused[", ".join(names)] = whole
            return None
        return Division(lowered, tuple(map(tuple, chosen)), parts)

    def allows(self, names: Sequence[str], meshes: Mapping[str, Sequence[int]]) -> bool:
        """Whether sizes can be divided at once."""
        try:
            self._divided(names, meshes)
        except Whole:
            return False
        return True

    def _divided(
        self, names: Sequence[str], meshes: Mapping[str, Sequence[int]]
    ) -> tuple[Lowered, dict[str, Sequence[Part | None]]]:
        """The function with some sizes symbolic, and what belongs to their slices."""
        key = tuple((name, *meshes[name]) for name in names)
        if key not in self._known:
            self._known[key] = self._proven(names, meshes)
        return self._known[key]

    def _proven(
        self, names: Sequence[str], meshes: Mapping[str, Sequence[int]]
    ) -> tuple[Lowered, dict[str, Sequence[Part | None]]]:
        assert self.lowered is not None
        fixed = {name: size for name, size in self.sizes.items() if name not in names}
        related = {**dividing.related(self.lowered), **fixed}
        try:
            lowered = self._function.lower_any_size(self._values, related)
        except CompileError as error:
            raise _of_error(error) from None
        sizes = dividing.samples(lowered)
        if not set(names) <= sizes.keys():
            raise Whole("the size is a constant of the program")
        counts = {name: _counts(sizes[name], meshes[name]) for name in names}
        parts: dict[str, Sequence[Part | None]] = {}
        for name in names:
            parts[name] = dividing.divided(lowered, name, counts)
            is_even = sizes[name] % math.prod(meshes[name]) == 0
            if not is_even and any(part is not None and part.factor > 1 for part in parts[name]):
                raise Whole("it is a part of a larger dimension, and not divided evenly")
        return lowered, parts


def _of_error(error: CompileError) -> Whole:
    span = error.diagnostic.span
    title = error.diagnostic.render().splitlines()[0].partition(": ")[2]
    return Whole(f"for any size, {title}", f"{span.path}:{span.line}" if span else "")


class Choice:
    """Which sizes a dimension of the mesh divides so that the least is sent.

    Where gradients are recorded, each output has one of them: the gradient of what all processes
    compute would count once for each of them.

    Args:
        found: the sizes of the call.
        mesh: the mesh.
        number: of its dimension.
        tensors: the DTensors of the call, and their types in symbolic sizes.
    """

    def __init__(
        self,
        found: Candidates,
        mesh: DeviceMesh,
        number: int,
        tensors: Sequence[tuple[Any, TensorType]],
    ) -> None:
        self._found, self._mesh, self._number = found, mesh, number
        self._tensors = tensors
        self._is_recorded = any(map(records, [x for x, _ in tensors]))

    def names(self) -> list[str]:
        """Of the sizes; none where it is best that each process computes all."""
        chosen: list[str] = []
        done: set[int] = set()
        wanted = False
        whole = self._cost(())
        order = sorted(self._found.sizes, key=lambda name: self._cost((name,)))
        for name in order if whole else ():
            is_better = self._cost((*chosen, name)) < self._cost(chosen)
            if any(self._share(name, other) for other in chosen) or not (
                is_better or self._is_recorded
            ):
                continue
            parts = self._found.parts(name, self._meshes(name))
            own = {i for i, part in enumerate(parts or ()) if part is not None}
            if own and not own & done:
                chosen.append(name)
                done |= own
            wanted = self._is_recorded and len(done) < len(parts or ())
        return [] if wanted or self._cost(chosen) >= whole else chosen

    def _meshes(self, name: str) -> list[int]:
        """How many parts the size may be divided into, by all dimensions of the mesh."""
        own = self._mesh.size(self._number)
        placed = [
            self._mesh.size(i)
            for i in range(self._mesh.ndim)
            if i != self._number
            and any(
                name in map(str, type.shape) and x.placements[i].is_shard()
                for x, type in self._tensors
            )
        ]
        return [own, *placed]

    def _share(self, name: str, other: str) -> bool:
        """Whether a tensor has both sizes."""
        return any({name, other} <= set(map(str, type.shape)) for _, type in self._tensors)

    def _cost(self, names: Sequence[str]) -> float:
        """About how many bytes each process gets."""
        count, number = self._mesh.size(self._number), self._number
        total = 0.0
        for x, type in self._tensors:
            now, needed = x.placements[number], _placement(type, names)
            is_moved = now != needed and any(x is other for other in self._found.written)
            total += _FORBIDDEN if is_moved else cost(count, x, now, needed)
        return total


def _placement(type: TensorType, names: Sequence[str]) -> Placement:
    """How a tensor is placed where sizes of some names are divided."""
    dims = [i for i, n in enumerate(type.shape) if str(n) in names]
    return Shard(dims[0]) if dims else Replicate()


def cost(count: int, tensor: torch.Tensor, now: Placement, needed: Placement) -> float:
    """About how many bytes each of some processes gets for placing a tensor as it is needed."""
    size = tensor.numel() * tensor.element_size()
    if now == needed or now.is_replicate():
        return 0.0
    if now.is_partial():
        return float(size if needed.is_shard() else 2 * size)
    return size / count if needed.is_shard() else float(size)


def _counts(size: int, meshes: Sequence[int]) -> list[int]:
    """A size, and what its parts are on all processes, but for empty ones."""
    parts = {size}
    for count in meshes:
        chunks = [(part, -(-part // count)) for part in parts]
        parts = {
            min(chunk, part - i * chunk) for part, chunk in chunks for i in range(count) if chunk
        }
    return [size, *sorted(n for n in parts if 0 < n < size)]
