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

from babytriton.ops.primfunc import nodes, with_kernels
from babytriton.passes.blocks import parameters, uses
from babytriton.passes.cpu.caches import LINE_BYTES, element_bytes, too_large
from babytriton.passes.cpu.lanes import is_arithmetic
from babytriton.passes.intrinsics import has_slow_functions
from babytriton.passes.nests import at_zero, offset
from babytriton.passes.statements import (
    at_step,
    is_number,
    renamed,
    sequence,
    statements,
    with_parts,
)

# Bytes of a row. The processor follows shorter ones by itself; longer ones drive out what else the
# second cache holds, the sooner where a loop writes as much as it asks for.
_SHORTEST, _LONGEST, _LONGEST_WRITTEN = 3 << 10, 256 << 10, 64 << 10

# Lines that are asked for at a time, or a few more: many would wait for each other.
_AT_ONCE = 16

# A loop over single elements is cut behind multiples of so many: LLVM makes vectors of them.
_ELEMENTS = 16


@dataclass(frozen=True)
class _Row:
    """What a loop reads of a tensor in one step of the loop over the rows.

    Attributes:
        first: the first element.
        step: how many elements there are from there to the next row's.
    """

    first: ir.TensorLoad
    step: int

    @property
    def bytes(self) -> int:
        return self.step * element_bytes(self.first.source)

    @property
    def lines(self) -> int:
        return -(-self.bytes // LINE_BYTES)

    def asked(self, part: ir.Expr, parts: int) -> tirx.Stmt:
        """A loop that asks for one of so many parts of the next row.

        That is so far behind this one: the next one's indices would be computed beside this one's,
        and TVM would load no vectors by either.
        """
        dtype = part.ty.dtype
        lines, elements = -(-self.lines // parts), LINE_BYTES // element_bytes(self.first.source)
        line = tirx.Var("line", dtype)
        *others, start = self.first.indices
        place = (part * tirx.const(lines, dtype) + line) * tirx.const(elements, dtype)
        place = start + tirx.const(self.step, dtype) + place
        address = tirx.address_of(tirx.BufferLoad(self.first.source, [*others, place]))
        # To read it, into the first cache, as data.
        how = [tirx.const(number, "int32") for number in (0, 3, 1)]
        asking = tirx.Evaluate(tirx.call_intrin("void", "tirx.prefetch", address, *how))
        return _loop(line, lines, asking)


def next_rows_fetched(mod: IRModule) -> IRModule:
    """Kernels as plain loops -> the same, which ask for rows before they read them."""
    return with_kernels(mod, _fetching)


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
    kinds = (tirx.ForKind.SERIAL, tirx.ForKind.PARALLEL)
    if (
        loop.kind not in kinds
        or len(parts) < 2
        or (from_memory is False and not has_slow_functions(loop))
    ):
        return loop
    rows = [{row.first.source: row for row in _rows(x, loop.loop_var, given)} for x in parts]
    place = _place_to_ask(parts, rows)
    if place is None:
        return loop
    before = {tensor: row for found in rows[:place] for tensor, row in found.items()}
    later, has_time = parts[place], has_slow_functions(parts[place])
    longest = _LONGEST if has_time else _LONGEST_WRITTEN
    condition = has_time or from_memory
    if condition is False or any(row.bytes > longest for row in before.values()):
        return loop
    parts[place] = _asking(later, [*before.values()], condition)
    return with_parts(loop, sequence(parts))


def _place_to_ask(parts: Sequence[tirx.Stmt], rows: Sequence[dict[tirx.Var, _Row]]) -> int | None:
    """Which statement has the time: the last that reads rows again, else the last over as much.

    Args:
        parts: what is done for a row.
        rows: what each statement reads.
    """
    reading = [n for n, found in enumerate(rows) if found]
    if not reading:
        return None
    shortest = min(row.step for row in rows[reading[0]].values()) // 2
    later = [n for n in range(reading[0] + 1, len(parts)) if _steps(parts[n]) > shortest]
    plain = [n for n in later if _is_plain(parts[n])]
    return max(plain, key=lambda n: (n in reading, n), default=None)


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
        first = [analyzer.simplify(at_zero(index, variables)) for index in indices]
        row = _Row(tirx.BufferLoad(load.source, first), int(step))
        # A few elements at a row's end may be another loop's.
        if count <= row.step < 2 * count and _SHORTEST <= row.bytes <= _LONGEST:
            yield row


def _nest(part: tirx.Stmt) -> list[tirx.For] | None:
    """The loops one in the other, all from 0 and as long as is known; None where one is not."""
    nest: list[tirx.For] = []
    while isinstance(part, tirx.For):
        if not is_number(part.min, 0) or not isinstance(part.extent, tirx.IntImm):
            return None
        nest.append(part)
        part = part.body
    return nest


def _steps(part: tirx.Stmt) -> int:
    """Of the innermost of the loops one in the other; 0 where that is not known."""
    nest = _nest(part)
    return math.prod(int(loop.extent) for loop in nest) if nest else 0


def _at_end(place: ir.Expr, nest: Sequence[tirx.For]) -> ir.Expr:
    for loop in nest:
        place = at_step(place, loop.loop_var, loop.extent - 1)
    return place


def _is_plain(stmt: tirx.Stmt) -> bool:
    """Whether it is a loop whose steps come one after the other, and nothing else is said of it."""
    return (
        isinstance(stmt, tirx.For)
        and stmt.kind == tirx.ForKind.SERIAL
        and not stmt.annotations
        and stmt.step is None
    )


def _asking(loop: tirx.For, rows: Sequence[_Row], condition: bool | ir.Expr) -> tirx.Stmt:
    """The loop in parts, before each of which a part of the next row is asked for.

    Args:
        loop: that takes the time, plain.
        rows: what is read of each tensor.
        condition: under which they are asked for.
    """
    extent, dtype = int(loop.extent), loop.loop_var.ty.dtype
    parts = -(-sum(row.lines for row in rows) // _AT_ONCE)
    multiple = 1 if nodes(loop.body, tirx.For) else _ELEMENTS
    length = min(-(-extent // (parts * multiple)) * multiple, extent)
    whole, rest = divmod(extent, length)

    def part(number: ir.Expr, steps: int) -> tirx.Stmt:
        step = tirx.Var(loop.loop_var.name, dtype)
        place = number * tirx.const(length, dtype) + step
        own = _loop(step, steps, at_step(loop.body, loop.loop_var, place))
        asked = sequence([row.asked(number, whole + bool(rest)) for row in rows])
        if not isinstance(condition, bool):
            asked = tirx.IfThenElse(condition, asked, None)
        return sequence([asked, own])

    number = tirx.Var("part", dtype)
    first = _loop(number, whole, part(number, length))
    return sequence([first, renamed(part(tirx.const(whole, dtype), rest))]) if rest else first


def _loop(variable: tirx.Var, steps: int, body: tirx.Stmt) -> tirx.For:
    zero, extent = tirx.const(0, variable.ty.dtype), tirx.const(steps, variable.ty.dtype)
    return tirx.For(variable, zero, extent, tirx.ForKind.SERIAL, body)
