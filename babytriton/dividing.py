"""What a lowered program takes and gives, where processes share the slices of a symbolic size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from tvm import ir, relax, tirx

from babytriton.frontend.lowering import Lowering, Selected
from babytriton.frontend.program import Computed, Hidden, reader
from babytriton.frontend.signature import leaves_of
from babytriton.ops.trees import leaves_in
from babytriton.passes import sharding
from babytriton.passes.sharding import Part, Whole
from babytriton.runtime.executable import COMPILE_LOCK
from babytriton.stages import Compiled, Lowered
from babytriton.types import Dim, TensorType, find_dtype

Reader = Callable[[Sequence[Any]], Any]


def samples(lowered: Lowered) -> dict[str, int]:
    """The symbolic sizes of a function, as they are for what it was lowered for."""
    types = (type for _, type in tensors(lowered))
    return {dim.name: dim.sample for type in types for dim in type.dims}


def tensors(lowered: Lowered) -> list[tuple[Reader, TensorType]]:
    """How a call reads each tensor, captured ones among them, and its type in symbolic sizes."""
    sizes = lowered.lowering.sizes
    return [] if sizes is None else [(read, type) for read, _, type in sizes.tensors]


def named(lowered: Lowered) -> list[tuple[str, TensorType]]:
    """What the user calls each tensor, captured ones among them, and its type."""
    sizes = lowered.lowering.sizes
    return [] if sizes is None else [(path, type) for _, path, type in sizes.tensors]


def related(lowered: Lowered) -> Mapping[str, str | int]:
    """The names of symbolic sizes that have turned out to be others, or constants."""
    return {} if lowered.lowering.sizes is None else lowered.lowering.sizes.related


def inputs(lowered: Lowered) -> list[TensorType | None]:
    """The types of what the program that runs at a call takes; None for what is no tensor."""
    program = lowered.forward.lowering
    return [
        TensorType(tuple(map(_size, param.ty.shape)), _dtype(param.ty))
        if isinstance(param.ty, relax.TensorType)
        else None
        for param in program.mod[program.entry].params
    ]


def outputs(lowered: Lowered, sizes: Mapping[str, int]) -> list[TensorType]:
    """The types of what the program that runs at a call gives: results, then what it writes.

    Args:
        lowered: the function.
        sizes: its symbolic sizes by name.
    """
    program = lowered.forward.lowering
    numbers: dict[str, Any] = dict(sizes)
    for input, param in zip(program.inputs, program.mod[program.entry].params):
        if isinstance(input, Computed):
            numbers[param.name] = input.of(sizes)

    def number(size: Any) -> int:
        return int(size) if isinstance(size, tirx.IntImm) else int(numbers[size.name])

    return [TensorType(tuple(map(number, x.ty.shape)), _dtype(x.ty)) for x in _results(program)]


def divided(lowered: Lowered, size: str, counts: Mapping[str, Sequence[int]]) -> list[Part | None]:
    """Which dimension of each output is that of a symbolic size, slice by slice.

    An output without such a dimension depends on no tensor that has one.

    Args:
        lowered: a function with symbolic sizes.
        size: the name of one.
        counts: of each size that is divided, what it is for the whole, and for each part that the
            program is to run on.

    Raises:
        Whole: the program does not compute each slice of that size by itself.
    """
    program, known = lowered.forward.lowering, samples(lowered)
    multiples: dict[str, int | None] = {}
    for input, param in zip(program.inputs, program.mod[program.entry].params):
        if isinstance(input, Computed) and (times := _times(input, size, counts, known)) != 0:
            multiples[param.name] = times
    if any(_times(x, size, counts, known) != 0 for x in leaves_in(program.result, Computed)):
        raise Whole("the size is a result")
    if leaves_in(program.result, Selected):
        raise Whole("a mask selects the result")
    with COMPILE_LOCK:
        found = sharding.divide(program.mod, program.entry, lowered.target, size, multiples)
    return found[: len(_results(program))]


def holds(lowered: Lowered | None, size: str, counts: Sequence[int]) -> bool:
    """Whether a symbolic size may have some values, for all that the program asks of it."""
    if lowered is None or lowered.lowering.sizes is None:
        return False
    conditions, known = lowered.lowering.sizes.conditions, samples(lowered)
    return all(conditions.hold({**known, size: count}) for count in counts)


def writes(lowered: Lowered) -> list[int]:
    """The numbers of the inputs that the program writes to."""
    return [write.input for write in lowered.lowering.writes]


def written(lowered: Lowered, values: Sequence[Any]) -> list[torch.Tensor]:
    """The tensors of a call that the program writes to.

    Args:
        lowered: the function.
        values: of its parameters, in order.
    """
    given = leaves(lowered, values)
    every = [lowered.lowering.inputs[number] for number in writes(lowered)]
    return [reader(x)(given) for x in every if isinstance(x, (int, Hidden))]


def read(compiled: Compiled, values: Sequence[Any]) -> list[tuple[str, Any]]:
    """What a call gives each input of its program, and what the user calls that.

    Args:
        compiled: the program.
        values: of the function's parameters, in order.

    Returns:
        A path and a value each; None as the value of what is computed from sizes.
    """
    return compiled.runner.read(leaves(compiled.scheduled.lowered, values))


def leaves(lowered: Lowered, values: Sequence[Any]) -> list[Any]:
    """The tensors and variable floats among the values of a function's parameters."""
    return leaves_of(values, lowered.signature.static, lowered.parameters.names)


def _results(program: Lowering) -> list[Any]:
    fields = list(program.mod[program.entry].body.body.fields)
    return fields if program.gradient is None else fields[: program.gradient.results]


def _times(
    number: Computed, size: str, counts: Mapping[str, Sequence[int]], samples: Mapping[str, int]
) -> int | None:
    """How many times a size a number is; 0 if it is the same for all, None for anything else."""

    def of(name: str) -> list[Any]:
        return [number.of({**samples, name: count}) for count in counts[name]]

    try:
        values = of(size)
        is_of_others = any(len(set(of(other))) > 1 for other in counts if other != size)
    except ArithmeticError:
        return None
    if len(set(values)) == 1:
        return 0
    times = values[0] // counts[size][0] if isinstance(values[0], int) else 0
    fits = all(value == count * times for value, count in zip(values, counts[size]))
    return times if fits and not is_of_others else None


def _size(size: Any) -> Any:
    return Dim(str(size.name), 2) if isinstance(size, ir.Var) else int(size)


def _dtype(type: relax.TensorType) -> Any:
    found = find_dtype(str(type.dtype))
    assert found is not None
    return found.torch
