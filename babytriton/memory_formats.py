"""A lowered program -> the one that takes arguments as they lie in memory."""

from __future__ import annotations

from dataclasses import replace

from babytriton.frontend.lowering import Lowering, Output
from babytriton.frontend.program import Hidden
from babytriton.frontend.signature import Signature, TensorSpec
from babytriton.ops.fallback import TorchCall
from babytriton.ops.trees import leaves_in
from babytriton.passes import memory_formats
from babytriton.types import MemoryFormat


def as_given(program: Lowering, signature: Signature) -> Lowering:
    """The program for arguments and captured tensors that are not contiguous, as they are.

    Those that it writes to are read as contiguous tensors all the same.

    Args:
        program: of operators.
        signature: of its calls.
    """
    leaves = signature.leaves()
    apart = {*program.follows, *(write.input for write in program.writes)}
    formats: dict[int, MemoryFormat] = {}
    for i, input in enumerate(program.inputs):
        spec = leaves[input].spec if isinstance(input, int) else None
        given = input if isinstance(input, Hidden) else spec
        if i not in apart and isinstance(given, (Hidden, TensorSpec)) and given.format is not None:
            formats[i] = given.format
    if not formats:
        return program
    # Where the function says how tensors are to lie, torch's functions may depend on it.
    turns_calls = not program.chooses_formats
    stored = memory_formats.as_stored(program.mod, program.entry, formats, turns_calls)
    inputs = [
        input.turning(stored.turned.get(i, {})) if isinstance(input, TorchCall) else input
        for i, input in enumerate(program.inputs)
    ]
    return replace(program, mod=stored.mod, inputs=tuple(inputs), formats=formats)


def free_results(program: Lowering) -> frozenset[int]:
    """The outputs that may lie otherwise than contiguous tensors, by number.

    Those that the function returns, where it does not say itself how tensors are to lie. Gradients
    are computed from contiguous ones.
    """
    if program.gradient is not None or program.chooses_formats:
        return frozenset()
    results = leaves_in(program.result, Output)
    return frozenset(x.index for x in results if not x.is_float)
