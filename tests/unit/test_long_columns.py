"""Long sums of columns on the CPU, of which a few rows are summed up in float32 first."""

from __future__ import annotations

import pytest
import tvm_ffi
from tvm import ir, tirx

from babytriton.ops.primfunc import nodes
from babytriton.passes.cpu.columns import in_blocks

ROWS, COLUMNS = 1000, 24
WIDE = ir.PrimType("float64")


def number(value: int) -> ir.Expr:
    return tirx.const(value, "int64")


X = tirx.decl_buffer((ROWS, COLUMNS), "float32", "x")
OUT = tirx.decl_buffer((ROWS, COLUMNS), "float32", "out")
FIRST = tirx.decl_buffer((COLUMNS,), "float64", "first")
SECOND = tirx.decl_buffer((COLUMNS,), "float64", "second")
ROW = tirx.Var("row", "int64")


def over(extent: int, body, variable: tirx.Var | None = None) -> tirx.For:
    """A loop over what a function gives for its variable."""
    variable = tirx.Var("column", "int64") if variable is None else variable
    return tirx.For(variable, number(0), number(extent), tirx.ForKind.SERIAL, body(variable))


def added(total: tirx.Var, value, column: tirx.Var) -> tirx.BufferStore:
    wide = tirx.Cast(WIDE, value)
    return tirx.BufferStore(total, tirx.BufferLoad(total, [column]) + wide, [column])


def at(column: tirx.Var) -> ir.Expr:
    return tirx.BufferLoad(X, [ROW, column])


def summed(total: tirx.Var) -> tirx.For:
    return over(COLUMNS, lambda column: added(total, at(column), column))


def doubled() -> tirx.For:
    def body(column: tirx.Var) -> tirx.Stmt:
        return tirx.BufferStore(OUT, at(column) * tirx.const(2, "float32"), [ROW, column])

    return over(COLUMNS, body)


def of_rows(*parts: tirx.Stmt) -> tirx.For:
    body = parts[0] if len(parts) == 1 else tirx.SeqStmt(list(parts))
    return over(ROWS, lambda _: body, ROW)


def reading(total: tirx.Var) -> tirx.For:
    """What stores a sum that is not there yet."""

    def body(column: tirx.Var) -> tirx.Stmt:
        value = tirx.Cast(ir.PrimType("float32"), tirx.BufferLoad(total, [column]))
        return tirx.BufferStore(OUT, value, [ROW, column])

    return over(COLUMNS, body)


def of_sums(total: tirx.Var, other: tirx.Var) -> tirx.For:
    """What adds another sum up."""

    def body(column: tirx.Var) -> tirx.Stmt:
        value = tirx.Cast(ir.PrimType("float32"), tirx.BufferLoad(other, [column]))
        return added(total, value, column)

    return over(COLUMNS, body)


@pytest.mark.parametrize(
    ("parts", "sums"),
    [
        ((summed(FIRST),), 1),
        ((summed(FIRST), summed(SECOND)), 2),
        ((doubled(), summed(FIRST)), 1),
    ],
)
def test_sums_are_by_blocks_of_rows(parts: tuple[tirx.Stmt, ...], sums: int) -> None:
    changed = in_blocks(of_rows(*parts), frozenset((FIRST, SECOND)))
    made = nodes(changed, tirx.AllocBuffer)
    assert len(made) == sums
    assert all(str(each.buffer.ty.dtype) == "float32" for each in made)
    stores = [store.buffer.name for store in nodes(changed, tirx.BufferStore)]
    assert stores.count("out") == (len(parts) > sums)


@pytest.mark.parametrize(
    "parts",
    [
        (summed(FIRST), of_sums(SECOND, FIRST)),
        (summed(FIRST), reading(FIRST)),
        (reading(FIRST),),
        (summed(FIRST), summed(FIRST)),
        (doubled(),),
    ],
)
def test_what_needs_the_sums_of_every_row_stays(parts: tuple[tirx.Stmt, ...]) -> None:
    loop = of_rows(*parts)
    changed = in_blocks(loop, frozenset((FIRST, SECOND)))
    assert tvm_ffi.structural_equal(changed, loop, map_free_vars=True)
