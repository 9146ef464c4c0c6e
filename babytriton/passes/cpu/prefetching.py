"""The next row is fetched while a later loop over a row goes on.

A kernel that goes through rows more than once waits for memory in the first loop over a row, and
lets memory wait in the others: a processor fetches by itself only what follows what is being read.
So one of the others asks for the lines of the next row, some at a time. A loop that computes
functions has time for that; any other takes it from what it writes, which pays where the last cache
does not hold the row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import IRModule, ir, sym, tirx

from babytriton.ops.primfunc import nodes
from babytriton.passes.blocks import parameters, uses
from babytriton.passes.cpu.caches import LINE_BYTES, element_bytes, too_large
from babytriton.passes.cpu.lanes import is_arithmetic
from babytriton.passes.intrinsics import FLOAT_FUNCTIONS, function_name
from babytriton.passes.nests import at_zero, offset
from babytriton.passes.statements import at_step, is_number, sequence, statements, with_parts

# Bytes of a row. The processor follows shorter ones by itself; longer ones drive out what else the
# second cache holds, the sooner where a loop writes as much as it asks for.
_SHORTEST, _LONGEST, _LONGEST_WRITTEN = 3 << 10, 256 << 10, 64 << 10

# Lines that are asked for at a time: more would wait for each other.
_AT_ONCE = 16

# A loop is cut into such steps: whole vectors.
_STEPS = 16

_KINDS = (tirx.ForKind.SERIAL, tirx.ForKind.PARALLEL)


@dataclass(frozen=True)
class _Row:
    """What a loop reads of a tensor in one step of the loop over the rows.

    Attributes:
        first: the first element.
        bytes: from there to the next row's.
    """

    first: ir.TensorLoad
    bytes: int

    @property
    def lines(self) -> int:
        return -(-self.bytes // LINE_BYTES)

    def asked(self, row: tirx.Var, part: ir.Expr, parts: int) -> tirx.Stmt:
        """A loop that asks for one of so many parts of the next row."""
        dtype = part.ty.dtype
        lines, elements = -(-self.lines // parts), LINE_BYTES // element_bytes(self.first.source)
        line = tirx.Var("line", dtype)
        *others, start = [at_step(index, row, row + 1) for index in self.first.indices]
        place = start + (part * tirx.const(lines, dtype) + line) * tirx.const(elements, dtype)
        address = tirx.address_of(tirx.BufferLoad(self.first.source, [*others, place]))
        # To read it, into the first cache, as data.
        how = [tirx.const(number, "int32") for number in (0, 3, 1)]
        asking = tirx.Evaluate(tirx.call_intrin("void", "tirx.prefetch", address, *how))
        return _loop(line, lines, asking)


def next_rows_fetched(mod: IRModule) -> IRModule:
    """Kernels as plain loops -> the same, which ask for rows before they read them."""
    functions = {
        var: _fetching(func) if isinstance(func, tirx.PrimFunc) else func
        for var, func in mod.functions_items()
    }
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def _fetching(func: tirx.PrimFunc) -> tirx.PrimFunc:
    given, from_memory = set(parameters(func)), too_large(func)
    over_rows = (tirx.For, lambda loop: _over_rows(loop, given, from_memory))
    return func.with_body(tvm_ffi.structural_map(func.body, over_rows))


def _over_rows(loop: tirx.For, given: set[tirx.Var], from_memory: bool | ir.Expr) -> tirx.For:
    """A loop over rows with what asks for the next one; any other as it is.

    Args:
        loop: any.
        given: the tensors that the rows may be of.
        from_memory: whether the last cache does not hold these.
    """
    parts = statements(loop.body)
    is_held = from_memory is False
    if loop.kind not in _KINDS or len(parts) < 2 or (is_held and not _computes(loop)):
        return loop
    rows = [[*_rows(part, loop.loop_var, given)] for part in parts]
    reading = [n for n, found in enumerate(rows) if found]
    if not reading:
        return loop
    # What only one loop reads, the last does not wait for.
    place = reading[-1] if len(reading) > 1 else len(parts) - 1
    later, before = parts[place], {row.first.source: row for x in rows[:place] for row in x}
    has_time = _computes(later)
    longest = _LONGEST if has_time else _LONGEST_WRITTEN
    fits = before and all(row.bytes <= longest for row in before.values())
    if fits and _is_plain(later) and (has_time or not is_held):
        asked_if = True if has_time else from_memory
        parts[place] = _asking(later, loop.loop_var, [*before.values()], asked_if)
    return with_parts(loop, sequence(parts))


def _computes(stmt: tirx.Stmt) -> bool:
    """Whether functions such as exponentials are computed there."""
    return any(function_name(call) in FLOAT_FUNCTIONS for call in nodes(stmt, ir.Call))


def _rows(part: tirx.Stmt, outer: tirx.Var, given: set[tirx.Var]) -> Iterator[_Row]:
    """The rows that a statement reads as a whole, of the tensors given that it does not change."""
    nest = _nest(part)
    if not nest:
        return
    variables, analyzer = [loop.loop_var for loop in nest], sym.Analyzer()
    count = math.prod(int(loop.extent) for loop in nest)
    read = given - {store.buffer for store in nodes(part, tirx.BufferStore)}
    for load in nodes(part, ir.TensorLoad):
        indices = list(load.indices)
        if load.source not in read or not all(map(is_arithmetic, indices)):
            continue
        place = offset(load.source, indices)
        if not uses(place, outer):
            continue
        step = analyzer.simplify(at_step(place, outer, outer + 1) - place)
        whole = analyzer.simplify(_at_end(place, nest) - at_zero(place, variables) + 1)
        if not isinstance(step, tirx.IntImm) or not is_number(whole, count):
            continue
        # A few elements at a row's end may be another loop's.
        size = int(step) * element_bytes(load.source)
        if count <= int(step) < 2 * count and _SHORTEST <= size <= _LONGEST:
            first = [at_zero(index, variables) for index in indices]
            yield _Row(tirx.BufferLoad(load.source, first), size)


def _is_plain(stmt: tirx.Stmt) -> bool:
    """Whether it is a loop of single steps from 0, as long as is known."""
    return (
        isinstance(stmt, tirx.For)
        and stmt.kind in _KINDS
        and is_number(stmt.min, 0)
        and isinstance(stmt.extent, tirx.IntImm)
    )


def _nest(part: tirx.Stmt) -> list[tirx.For] | None:
    """The loops one in the other, all from 0 and as long as is known; None where one is not."""
    nest: list[tirx.For] = []
    while isinstance(part, tirx.For):
        if not is_number(part.min, 0) or not isinstance(part.extent, tirx.IntImm):
            return None
        nest.append(part)
        part = part.body
    return nest


def _at_end(place: ir.Expr, nest: Sequence[tirx.For]) -> ir.Expr:
    for loop in nest:
        place = at_step(place, loop.loop_var, loop.extent - 1)
    return place


def _asking(
    loop: tirx.For, row: tirx.Var, rows: Sequence[_Row], condition: bool | ir.Expr
) -> tirx.Stmt:
    """The loop in parts, before each of which a part of the next row is asked for.

    Args:
        loop: that takes the time.
        row: the variable of the loop over rows.
        rows: what is read of each tensor.
        condition: under which they are asked for.
    """
    extent, dtype = int(loop.extent), loop.loop_var.ty.dtype
    parts = -(-max(each.lines for each in rows) // _AT_ONCE)
    if extent < parts:
        return loop
    length = min(-(-extent // (parts * _STEPS)) * _STEPS, extent)
    whole, rest = divmod(extent, length)

    def part(number: ir.Expr, steps: int) -> tirx.Stmt:
        step = tirx.Var(loop.loop_var.name, dtype)
        place = number * tirx.const(length, dtype) + step
        own = _loop(step, steps, at_step(loop.body, loop.loop_var, place), loop.kind)
        asked = sequence([each.asked(row, number, whole + bool(rest)) for each in rows])
        if not isinstance(condition, bool):
            asked = tirx.IfThenElse(condition, asked, None)
        return sequence([asked, own])

    number = tirx.Var("part", dtype)
    last = [part(tirx.const(whole, dtype), rest)] if rest else []
    return sequence([_loop(number, whole, part(number, length)), *last])


def _loop(
    variable: tirx.Var, steps: int, body: tirx.Stmt, kind: int = tirx.ForKind.SERIAL
) -> tirx.For:
    dtype = variable.ty.dtype
    return tirx.For(variable, tirx.const(0, dtype), tirx.const(steps, dtype), kind, body)
