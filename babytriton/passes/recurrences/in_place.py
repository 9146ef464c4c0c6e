"""Loops in kernels that write rows of a tensor where this lies."""

from __future__ import annotations

import tvm_ffi
from tvm import ir, s_tir, tirx

from babytriton.ops.primfunc import with_fields
from babytriton.passes.statements import sequence, statements, with_parts

PLACES = "babytriton.places"
"""An attribute of kernels with loops inside: by twos, the numbers of a parameter and of a result
that begins as a copy of it. Of the parameter a thread reads only its own elements, before it writes
any."""


def in_one_place(func: tirx.PrimFunc, contents: tirx.Var, out: tirx.Var) -> tirx.PrimFunc | None:
    """The kernel without the copy, for where the result takes the place of the parameter.

    Args:
        func: an unscheduled kernel with a loop inside.
        contents: the parameter.
        out: the result.

    Returns:
        The kernel; None where it needs both.
    """
    pairs = _pairs(func)
    if not any(one.same_as(contents) and other.same_as(out) for one, other in pairs):
        return None

    def changed(block: s_tir.SBlock) -> s_tir.SBlock:
        if not block.iter_vars:
            return block
        reads = [region for region in block.reads if not region.source.same_as(contents)]
        body = sequence(_without_copies(block.body, contents, out))
        return with_fields(block, reads=reads, body=body)

    return func.with_body(tvm_ffi.structural_map(func.body, (s_tir.SBlock, changed)))


def with_other_parameters(func: tirx.PrimFunc, before: tirx.PrimFunc) -> tirx.PrimFunc:
    """A kernel that tells of its own parameters what it told when it had others.

    Args:
        func: with some of the parameters, in another order.
        before: with all of them.
    """
    if not before.attrs or PLACES not in before.attrs:
        return func
    numbers = {param: n for n, param in enumerate(func.params)}
    left = [pair for pair in _pairs(before) if all(param in numbers for param in pair)]
    return func.with_attr(PLACES, [numbers[param] for pair in left for param in pair])


def _pairs(func: tirx.PrimFunc) -> list[tuple[tirx.Var, tirx.Var]]:
    """The parameters, and the results that begin as copies of these."""
    places = list(map(int, func.attrs[PLACES]))
    return [(func.params[n], func.params[m]) for n, m in zip(places[::2], places[1::2])]


def _without_copies(stmt: tirx.Stmt, contents: tirx.Var, out: tirx.Var) -> list[tirx.Stmt]:
    kept: list[tirx.Stmt] = []
    for part in statements(stmt):
        if isinstance(part, tirx.For):
            inner = _without_copies(part.body, contents, out)
            if inner:
                kept.append(with_parts(part, sequence(inner)))
        elif not _is_copy(part, contents, out):
            kept.append(part)
    return kept


def _is_copy(stmt: tirx.Stmt, contents: tirx.Var, out: tirx.Var) -> bool:
    if not isinstance(stmt, tirx.BufferStore) or not stmt.buffer.same_as(out):
        return False
    value = stmt.value
    return (
        isinstance(value, ir.TensorLoad)
        and value.source.same_as(contents)
        and bool(tvm_ffi.structural_equal(list(value.indices), list(stmt.indices)))
    )
