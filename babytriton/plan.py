"""Programs as steps, one after the other: what the passes find, and the runtime runs. Pure data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from babytriton.types import DType

ALLOCATE, FREE = "babytriton.allocate_on_gpu", "babytriton.free_on_gpu"
"""TVM's names of what functions get memory from between the kernels that they launch: of a GPU's
number and a number of bytes to an address, and of that address."""


class Kind(IntEnum):
    """What a kernel asks of an argument."""

    ADDRESS = 0
    """Where a tensor lies, of which it knows all else."""
    TENSOR = 1
    """Of a tensor more than that."""
    FLOAT = 2
    INTEGER = 3


@dataclass(frozen=True)
class Allocation:
    """A tensor that a kernel writes.

    Attributes:
        name: of the variable for it.
        shape: a number or the name of a size for each dimension.
        dtype: of its elements.
    """

    name: str
    shape: tuple[int | str, ...]
    dtype: DType

    @property
    def bytes(self) -> str:
        """How many it takes, as a Python expression of the sizes."""
        return " * ".join(map(str, (self.dtype.torch.itemsize, *self.shape)))


@dataclass(frozen=True)
class Updates:
    """What a program writes to its arguments.

    Attributes:
        entry: the program's function.
        pairs: the number of a parameter, and that of the output that it is to hold.
        fresh: the numbers of the parameters that are calls of torch which give new tensors.
        own: whether nothing else sees what is written, also where the program fails.
    """

    entry: str = ""
    pairs: tuple[tuple[int, int], ...] = ()
    fresh: tuple[int, ...] = ()
    own: bool = False


NO_UPDATES = Updates()
"""Those of a program that writes to none."""


@dataclass(frozen=True)
class Launch:
    """A call of a kernel.

    Attributes:
        kernel: the name of its TensorIR function.
        arguments: the variables that it takes.
        outputs: what it takes after these, and writes.
        updated: those of the arguments that it writes to as well.
        kinds: of the arguments and of the outputs.
    """

    kernel: str
    arguments: tuple[str, ...]
    outputs: tuple[Allocation, ...]
    updated: tuple[str, ...] = ()
    kinds: tuple[Kind, ...] = ()

    @property
    def written(self) -> tuple[str, ...]:
        """The variables for what it gives."""
        return tuple(output.name for output in self.outputs)


@dataclass(frozen=True)
class OutsideCall:
    """A call of torch.

    Attributes:
        function: the parameter that runs it.
        arguments: the variables that it takes.
        written: the variables for the tensors that it gives.
    """

    function: str
    arguments: tuple[str, ...]
    written: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """A program without branches.

    Attributes:
        parameters: a variable for each parameter of the program.
        sizes: a variable for each size that a parameter tells, with its name and the dimension.
        steps: to run in order.
        results: the variables that are the program's outputs.
        constants: the variables for tensors that are known while compiling, with these.
    """

    parameters: tuple[str, ...]
    sizes: tuple[tuple[str, str, int], ...]
    steps: tuple[Launch | OutsideCall, ...]
    results: tuple[str, ...]
    constants: tuple[tuple[str, Any], ...] = ()

    @property
    def updated(self) -> list[str]:
        """The parameters that its kernels write to."""
        launches = [step for step in self.steps if isinstance(step, Launch)]
        changed = {name for step in launches for name in step.updated}
        return [name for name in self.parameters if name in changed]

    @property
    def allocations(self) -> list[Allocation]:
        """All tensors that its kernels write."""
        launches = [step for step in self.steps if isinstance(step, Launch)]
        return [output for step in launches for output in step.outputs]

    @property
    def bytes(self) -> str:
        """How many its kernels write, as a Python expression of the sizes."""
        return " + ".join(output.bytes for output in self.allocations) or "0"

    @property
    def known_bytes(self) -> int | None:
        """How many its kernels write; None where a size is known at the call alone."""
        total = 0
        for output in self.allocations:
            sizes = [size for size in output.shape if isinstance(size, int)]
            if len(sizes) < len(output.shape):
                return None
            total += output.dtype.torch.itemsize * math.prod(sizes)
        return total


@dataclass(frozen=True)
class KernelLaunch:
    """How a kernel of a GPU is launched.

    Attributes:
        name: of its CUDA function.
        function: the TensorIR function that it is of.
        grid: thread blocks along x, y and z; expressions of sizes that calls tell, as texts.
        block: threads of each, likewise.
        shared: bytes of memory that the threads of a block share; None without a compiler.
        registers: of a thread; None without a compiler for CUDA.
        spilled: bytes of a thread that its registers do not hold; None without a compiler.
    """

    name: str
    function: str
    grid: tuple[int | str, ...]
    block: tuple[int | str, ...]
    shared: int | None = None
    registers: int | None = None
    spilled: int | None = None
