"""A lowered program -> the one that takes arguments as they lie in memory."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

from tvm.ir import IRModule

from babytriton.frontend.lowering import Lowering, Output
from babytriton.frontend.program import Hidden, Input
from babytriton.frontend.signature import Signature, TensorSpec
from babytriton.ops.fallback import TorchCall
from babytriton.ops.trees import leaves_in
from babytriton.ops.unseen_writes import Writer
from babytriton.passes import memory_formats
from babytriton.passes.needless_copies import shapes_of_results
from babytriton.passes.orders import (
    Wanted,
    is_channels_last,
    turned_operands,
    turned_results,
)
from babytriton.passes.updates import written_by_torch
from babytriton.types import Dim, MemoryFormat, Size


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


def wanted_orders(program: Lowering) -> Wanted:
    """Which tensors of a program may lie otherwise than contiguous ones.

    None where the function says itself how tensors are to lie. Of its outputs those that it
    returns; gradients are computed from contiguous ones.
    """
    calls = {i: x for i, x in enumerate(program.inputs) if isinstance(x, TorchCall)}
    fresh = tuple(i for i, call in calls.items() if call.is_new)
    if program.chooses_formats:
        return Wanted(program.entry, fresh=fresh)
    following = {
        i: any(map(is_channels_last, call.turns)) for i, call in calls.items() if call.keeps_format
    }
    if program.gradient is not None:
        return Wanted(program.entry, turns_calls=True, following=following, fresh=fresh)
    laid_out = tuple(i for i, call in calls.items() if call.layout)
    results = leaves_in(program.result, Output)
    written = {output for _, output in program.updates.pairs}
    free = frozenset(x.index for x in results if not x.is_float and x.index not in written)
    return Wanted(program.entry, free, True, following, laid_out, fresh)


def as_scheduled(program: Lowering, mod: IRModule) -> Lowering:
    """The program whose calls of torch take what its kernels give them.

    Args:
        program: of operators.
        mod: the same, scheduled.
    """
    operands, layouts = turned_operands(mod, program.entry), turned_results(mod, program.entry)
    shapes = shapes_of_results(mod, program.entry)
    written = written_by_torch(mod, program.entry)

    def given(input: Input, i: int) -> Input:
        if not isinstance(input, TorchCall):
            return input
        found = input.turning(operands[i]) if i in operands else input
        if i in written and isinstance(input.fn, Writer):
            found = replace(found, fn=input.fn.where_they_lie(written[i]))
        found = found.laying_out(layouts[i]) if i in layouts else found
        sizes = {n: tuple(map(_size, shape)) for n, shape in shapes.get(i, {}).items()}
        return found.in_shapes(sizes) if sizes else found

    return replace(program, inputs=tuple(map(given, program.inputs, count())))


def _size(told: int | str) -> Size:
    return Dim(told, 2) if isinstance(told, str) else told
