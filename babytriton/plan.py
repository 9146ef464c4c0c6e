"""Programs as steps, one after the other: what the passes find, and the runtime runs. Pure data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
        shape: a number, or a Python expression of sizes, for each dimension.
        dtype: of its elements.
    """

    name: str
    shape: tuple[int | str, ...]
    dtype: DType

    @property
    def sizes(self) -> list[str]:
        """The dimensions that no number is known for."""
        return [size for size in self.shape if isinstance(size, str)]

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
        writers: how many of the tensors that they are given other calls of torch write to, the
            first ones, by the numbers of these parameters. What is left there comes first in what
            they give.
        own: whether nothing else sees what is written, also where the program fails.
    """

    entry: str = ""
    pairs: tuple[tuple[int, int], ...] = ()
    fresh: tuple[int, ...] = ()
    writers: Mapping[int, int] = field(default_factory=dict)
    own: bool = False


NO_UPDATES = Updates()
"""Those of a program that writes to none."""


@dataclass(frozen=True)
class Row:
    """A part of a tensor that lies in one piece, or all of it in another shape.

    Attributes:
        of: the variable for the tensor.
        terms: where it begins behind that: Python expressions of numbers, each with how many bytes
            it is multiplied by.
        constant: how many more bytes.
    """

    of: str
    terms: tuple[tuple[str, int], ...]
    constant: int

    @property
    def offset(self) -> str:
        """How many bytes it begins behind the tensor, as a Python expression."""
        terms = [f"{number} * {bytes}" for number, bytes in self.terms]
        return " + ".join([*terms, *([str(self.constant)] if self.constant else [])]) or "0"

    @property
    def multiple(self) -> int:
        """A number that this is surely a multiple of; 0 where it is none."""
        return math.gcd(self.constant, *(bytes for _, bytes in self.terms))


@dataclass(frozen=True)
class Launch:
    """A call of a kernel.

    Attributes:
        kernel: the name of its TensorIR function.
        arguments: the variables that it takes.
        outputs: what it takes after these, and writes.
        updated: those of the arguments that it writes to as well.
        kinds: of the arguments and of the outputs.
        row: where it copies a part, or all, and does nothing else, which one.
        stored: what it copies to the row; None where it copies from it.
    """

    kernel: str
    arguments: tuple[str, ...]
    outputs: tuple[Allocation, ...]
    updated: tuple[str, ...] = ()
    kinds: tuple[Kind, ...] = ()
    row: Row | None = None
    stored: str | None = None

    @property
    def written(self) -> tuple[str, ...]:
        """The variables for what it gives."""
        return tuple(output.name for output in self.outputs)

    @property
    def kept(self) -> tuple[str, ...]:
        """What it takes as tensors: of what it is given, memory is enough."""
        return ()


@dataclass(frozen=True)
class OutsideCall:
    """A call of torch.

    Attributes:
        function: the parameter that runs it.
        arguments: the variables that it takes.
        written: the variables for the tensors that it gives.
        updated: those of the arguments that it writes to.
    """

    function: str
    arguments: tuple[str, ...]
    written: tuple[str, ...]
    updated: tuple[str, ...] = ()

    @property
    def kept(self) -> tuple[str, ...]:
        """What it takes as tensors."""
        return self.arguments


@dataclass(frozen=True)
class Block:
    """Steps that run in order.

    Attributes:
        steps: these.
        results: the variables that hold what they are for.
    """

    steps: tuple[Step, ...]
    results: tuple[str, ...]


@dataclass(frozen=True)
class Branch:
    """One of two blocks, as a condition has it.

    Attributes:
        condition: a variable for a tensor with one element, or a Python expression of numbers.
        of_tensor: which of the two.
        then, orelse: the blocks.
        written: the variables for what the one that runs gives.
    """

    condition: str
    of_tensor: bool
    then: Block
    orelse: Block
    written: tuple[str, ...]

    @property
    def arguments(self) -> tuple[str, ...]:
        """What it reads of tensors from outside."""
        inside = (*self.then.results, *self.orelse.results, *_read((self.then, self.orelse)))
        return (*((self.condition,) if self.of_tensor else ()), *inside)

    @property
    def kept(self) -> tuple[str, ...]:
        """What it takes, and gives on, as tensors."""
        asked = (self.condition,) if self.of_tensor else ()
        return (*asked, *self.then.results, *self.orelse.results)


@dataclass(frozen=True)
class Loop:
    """A block that runs several times.

    Attributes:
        number: the variable for the step's number; none where a tensor tells when it ends.
        low, high: Python expressions for the number of the first step, and for that after the last.
        initial: what the states hold before the first step; None for those that no step reads.
        written: the variables for the states.
        body: a step, which gives the states for the next one.
        again: the number of the state that tells whether there is another step, if one does; then
            there is one at least.
    """

    number: str
    low: str
    high: str
    initial: tuple[str | None, ...]
    written: tuple[str, ...]
    body: Block
    again: int | None = None

    @property
    def arguments(self) -> tuple[str, ...]:
        """What it reads of tensors from outside."""
        first = (name for name in self.initial if name is not None)
        return (*first, *self.body.results, *_read((self.body,)))

    @property
    def kept(self) -> tuple[str, ...]:
        """What it takes, and gives on, as tensors."""
        return (*(name for name in self.initial if name is not None), *self.body.results)


@dataclass(frozen=True)
class Call:
    """A call of one of the program's functions.

    Attributes:
        function: its name.
        arguments: variables, and Python expressions of numbers.
        written: the variables for what it gives.
    """

    function: str
    arguments: tuple[str, ...]
    written: tuple[str, ...]

    @property
    def kept(self) -> tuple[str, ...]:
        """What it takes as tensors."""
        return self.arguments


Step = Launch | OutsideCall | Branch | Loop | Call


@dataclass(frozen=True)
class Function:
    """A function of a program, which calls itself, or others that do.

    Attributes:
        parameters: a variable for each.
        sizes: a variable for each size that a parameter tells, with its name and the dimension.
        body: what it does.
    """

    parameters: tuple[str, ...]
    sizes: tuple[tuple[str, str, int], ...]
    body: Block


def all_of(steps: Sequence[Step]) -> Iterator[Step]:
    """Steps, and those inside of them."""
    for step in steps:
        yield step
        if isinstance(step, Branch):
            yield from all_of((*step.then.steps, *step.orelse.steps))
        elif isinstance(step, Loop):
            yield from all_of(step.body.steps)


def names_in(expression: str) -> set[str]:
    """The variables of a Python expression."""
    return set(compile(expression, "", "eval").co_names)


def _read(blocks: Sequence[Block]) -> tuple[str, ...]:
    """What the steps of some blocks read."""
    return tuple(name for block in blocks for step in block.steps for name in step.arguments)


@dataclass(frozen=True)
class Plan:
    """A program as steps.

    Attributes:
        parameters: a variable for each parameter of the program.
        sizes: a variable for each size that a parameter tells, with its name and the dimension.
        steps: to run in order.
        results: the variables that are the program's outputs.
        constants: the variables for tensors that are known while compiling, with these.
        functions: that it calls, by their names.
    """

    parameters: tuple[str, ...]
    sizes: tuple[tuple[str, str, int], ...]
    steps: tuple[Step, ...]
    results: tuple[str, ...]
    constants: tuple[tuple[str, Any], ...] = ()
    functions: tuple[tuple[str, Function], ...] = ()

    @property
    def is_straight(self) -> bool:
        """Whether each step runs once."""
        return all(isinstance(step, (Launch, OutsideCall)) for step in self.steps)

    @property
    def all_steps(self) -> Iterator[Step]:
        """Those inside of others as well, and those of functions."""
        yield from all_of(self.steps)
        for _, function in self.functions:
            yield from all_of(function.body.steps)

    @property
    def launches(self) -> list[Launch]:
        """The calls of kernels in all steps."""
        return [step for step in self.all_steps if isinstance(step, Launch)]

    @property
    def updated(self) -> list[str]:
        """The parameters that its steps write to by these names; loops have their own."""
        steps = [step for step in self.all_steps if isinstance(step, (Launch, OutsideCall))]
        changed = {name for step in steps for name in step.updated}
        return [name for name in self.parameters if name in changed]

    @property
    def allocations(self) -> list[Allocation]:
        """All tensors that its kernels write."""
        return [output for step in self.launches for output in step.outputs]

    @property
    def taken(self) -> list[Allocation]:
        """The tensors whose memory takes time to get: of loops, those of their steps.

        What is outside of these is allocated once, for as many steps as there are.
        """
        loops = [step for step in self.all_steps if isinstance(step, Loop)]
        steps = [*all_of([inner for loop in loops for inner in loop.body.steps])]
        steps += [*all_of([inner for _, each in self.functions for inner in each.body.steps])]
        if not steps:
            return self.allocations
        return [output for x in steps if isinstance(x, Launch) for output in x.outputs]

    @property
    def bytes(self) -> str:
        """How many these take, each once, as a Python expression of the call's sizes."""
        told = {name for name, _, _ in self.sizes}
        counted = [x.bytes for x in self.taken if names_in(x.bytes) <= told]
        return " + ".join(counted) or "0"

    @property
    def known_bytes(self) -> int | None:
        """How many these take, each once; None where a size is known at the call alone."""
        taken = self.taken
        if any(output.sizes for output in taken):
            return None
        itemsize = [output.dtype.torch.itemsize for output in taken]
        counts = [math.prod(map(int, output.shape)) for output in taken]
        return sum(map(math.prod, zip(itemsize, counts)))


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
