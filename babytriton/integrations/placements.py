"""What processes may share of a compiled function, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from babytriton import dividing
from babytriton.integrations.dtensor_planning import Candidates
from babytriton.integrations.torch_library import LibraryOp
from babytriton.jit import JitFunction
from babytriton.types import Dim, TensorType


@dataclass(frozen=True)
class Divisible:
    """A size of a function's tensors, and whether it may be divided among processes.

    Attributes:
        inputs: the dimensions that have it, of arguments and captured tensors: ``("x", 0)``.
        outputs: likewise of the results, by their numbers.
        why: it cannot be divided; empty where it can.
    """

    inputs: tuple[tuple[str, int], ...]
    outputs: tuple[tuple[int, int], ...] = ()
    why: str = ""

    def __str__(self) -> str:
        own = ", ".join(f"{path}.shape[{dim}]" for path, dim in self.inputs)
        if self.why:
            return f"{own}: whole, as {self.why}"
        results = [f"result {number}, dimension {dim}" for number, dim in self.outputs]
        return f"{own}: divides {'; '.join(results) or 'no result'}"


@dataclass(frozen=True)
class Placeable:
    """What processes may share of a function's tensors.

    Attributes:
        sizes: those of 2 and more, one for all dimensions that must be alike.
    """

    sizes: tuple[Divisible, ...]

    def __str__(self) -> str:
        return "\n".join(map(str, self.sizes))


def placeable(function: JitFunction | LibraryOp, *args: Any, **kwargs: Any) -> Placeable:
    """Say what processes may share, of a call with these arguments; nothing runs.

    Args:
        function: a compiled function, or an operator.
        args, kwargs: of the call: tensors, meta tensors or DTensors, as a whole.

    Raises:
        CompileError: the function cannot be compiled.
    """
    own = function.function if isinstance(function, LibraryOp) else function
    values = own.bind(*args, **kwargs)
    found = Candidates(own, values)
    if found.lowered is None:
        [whole] = found.refused.values()
        types = [(path, TensorType.of(x)) for path, x in _tensors(own.names, values)]
        every = tuple((path, dim) for path, type in types for dim in range(len(type.shape)))
        own.compiled_for(values)
        return Placeable((Divisible(every, (), whole.text),))
    types = dividing.named(found.lowered)
    sizes = []
    for name in found.sizes:
        inputs = tuple(
            (path, i)
            for path, type in types
            for i, n in enumerate(type.shape)
            if isinstance(n, Dim) and n.name == name
        )
        parts = found.parts(name, [found.sizes[name]])  # as many processes as can be
        if parts is None:
            sizes.append(Divisible(inputs, (), found.refused[name].text))
        else:
            outputs = [(i, part.dim) for i, part in enumerate(parts) if part is not None]
            sizes.append(Divisible(inputs, tuple(outputs)))
    return Placeable(tuple(sizes))


def _tensors(names: Sequence[str], values: Sequence[Any]) -> list[tuple[str, torch.Tensor]]:
    return [(name, x) for name, x in zip(names, values) if isinstance(x, torch.Tensor)]
