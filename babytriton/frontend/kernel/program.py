"""Statements of a kernel: assignments of elements and locals, in loops and branches."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tvm import ir, tirx
from tvm_ffi import structural_map, structural_walk

from babytriton.diagnostics import Span
from babytriton.frontend.kernel.scalars import loads
from babytriton.types import TensorType, dtype_of

UNTOUCHED = -(2**63)
"""What a kernel's fault buffer holds where nothing has failed."""


@dataclass(frozen=True, eq=False)
class Update:
    """That an assignment combines the old value with another: a step of a reduction.

    Attributes:
        kind: ``"sum"``, ``"product"``, ``"max"`` or ``"min"``.
        operand: what is combined, in the dtype that ``kind`` is computed in.
    """

    kind: str
    operand: ir.Expr


@dataclass(frozen=True, eq=False)
class Assign:
    """``buffer[indices] = value``: an element of a tensor, or a local.

    Attributes:
        line: of the user's that says so, as a text "file:line"; empty where none does.
    """

    buffer: tirx.Buffer
    indices: tuple[ir.Expr, ...]
    value: ir.Expr
    update: Update | None = None
    line: str = ""


@dataclass(frozen=True, eq=False)
class Loop:
    """``for var in range(extent)``."""

    var: tirx.Var
    extent: ir.Expr
    body: tuple[Statement, ...]


@dataclass(frozen=True, eq=False)
class While:
    """Repeats while the condition is true."""

    condition: ir.Expr
    body: tuple[Statement, ...]


@dataclass(frozen=True, eq=False)
class Branch:
    """One of two bodies."""

    condition: ir.Expr
    then: tuple[Statement, ...]
    otherwise: tuple[Statement, ...] = ()


Statement = Assign | Loop | While | Branch


@dataclass(frozen=True)
class Fault:
    """What may fail at a place, for the message about it.

    Attributes:
        span: the place.
        what: the tensor as the user calls it; empty for a division by zero.
        dim: the dimension that an index is in.
        size: of that dimension.
    """

    span: Span
    what: str
    dim: int = 0
    size: int = 0


@dataclass(frozen=True)
class Program:
    """A kernel as statements.

    Attributes:
        name: of the function.
        arguments: a buffer for each tensor, a variable for each float, in the order of the call.
        body: the statements.
        faults: what may fail, by the place in ``fault`` that says so.
        fault: the buffer that failures are written to.
    """

    name: str
    arguments: tuple[tirx.Var, ...]
    body: tuple[Statement, ...]
    faults: tuple[Fault, ...]
    fault: tirx.Buffer


def index(value: int) -> tirx.IntImm:
    """A constant index."""
    return tirx.IntImm("int64", value)


ZERO = index(0)


def buffer(name: str, type: TensorType, scope: str = "") -> tirx.Buffer:
    """A buffer for a tensor of a type, or for values within a kernel."""
    shape = [index(size) for size in type.sizes]
    return tirx.decl_buffer(shape, dtype_of(type.dtype).name, name, scope=scope)


def local(name: str, dtype: torch.dtype) -> tirx.Buffer:
    """A buffer for one number."""
    return buffer(name, TensorType((1,), dtype), "local")


def children(statement: Statement) -> tuple[Statement, ...]:
    """The statements inside a statement."""
    if isinstance(statement, Branch):
        return (*statement.then, *statement.otherwise)
    return () if isinstance(statement, Assign) else statement.body


def every(statements: Sequence[Statement]) -> Iterator[Statement]:
    """All statements, those inside others included."""
    for statement in statements:
        yield statement
        yield from every(children(statement))


def expressions(statement: Statement) -> tuple[ir.Expr, ...]:
    """The expressions that a statement itself evaluates."""
    if isinstance(statement, Assign):
        return (*statement.indices, statement.value)
    return (statement.extent,) if isinstance(statement, Loop) else (statement.condition,)


def loads_in(statements: Sequence[Statement]) -> list[Any]:
    """Every load of the statements."""
    found = [expressions(statement) for statement in every(statements)]
    return [load for expr in itertools.chain(*found) for load in loads(expr)]


def stores_in(statements: Sequence[Statement]) -> list[Assign]:
    """Every assignment of the statements."""
    return [statement for statement in every(statements) if isinstance(statement, Assign)]


def has(buffers: Sequence[Any], buffer: Any) -> bool:
    """Whether a buffer or variable is among others; their ``==`` would make an expression."""
    return any(buffer.same_as(other) for other in buffers)


def is_buffer(variable: Any) -> bool:
    """Whether a variable is a buffer, not a number."""
    return not isinstance(variable.ty, ir.PrimType)


def is_local(buffer: tirx.Buffer) -> bool:
    """Whether a buffer holds one number of the kernel's own."""
    return bool(buffer.scope() == "local")


def variables(expr: ir.Expr) -> list[Any]:
    """The variables of an expression that are numbers."""
    found: list[Any] = []
    structural_walk(expr, [(ir.Var, found.append)], order="post")
    return [var for var in found if not is_buffer(var)]


def distinct(buffers: Sequence[Any]) -> list[Any]:
    """The buffers or variables without repetitions, in order."""
    found: list[Any] = []
    for buffer in buffers:
        if not has(found, buffer):
            found.append(buffer)
    return found


def exposed(statements: Sequence[Statement]) -> list[tirx.Buffer]:
    """The locals that are read before they are certainly written."""
    return distinct(_flow(statements, [])[0])


def _flow(
    statements: Sequence[Statement], written: list[tirx.Buffer]
) -> tuple[list[tirx.Buffer], list[tirx.Buffer]]:
    """The exposed locals of statements, and those that are certainly written after them."""
    found: list[tirx.Buffer] = []
    for statement in statements:
        read = [load.source for expr in expressions(statement) for load in loads(expr)]
        found += [x for x in read if is_local(x) and not has(written, x)]
        if isinstance(statement, Assign):
            written = [*written, statement.buffer]
        elif isinstance(statement, Branch):
            then = _flow(statement.then, written)
            otherwise = _flow(statement.otherwise, written)
            found += then[0] + otherwise[0]
            written = [x for x in then[1] if has(otherwise[1], x)]
        else:
            inside = _flow(statement.body, written)
            found += inside[0]
            runs = isinstance(statement, Loop) and isinstance(statement.extent, tirx.IntImm)
            written = inside[1] if runs else written
    return found, written


Replacements = Sequence[tuple[Any, ir.Expr]]
"""Variables, or locals, and what takes the place of each."""


def replaced_in(expr: ir.Expr, replacements: Replacements) -> ir.Expr:
    """An expression with variables and locals replaced."""

    def variable(var: Any) -> Any:
        return next((new for old, new in replacements if old.same_as(var)), var)

    def load(node: Any) -> Any:
        return next((new for old, new in replacements if old.same_as(node.source)), node)

    # Loads first: a local is a variable, too, and must not be replaced inside its own load.
    found = structural_map(expr, (ir.TensorLoad, load), order="pre")
    return structural_map(found, (ir.Var, variable))


def replaced(statement: Statement, replacements: Replacements) -> Statement:
    """A statement with variables and locals replaced where they are read."""

    def expr(old: ir.Expr) -> ir.Expr:
        return replaced_in(old, replacements)

    def all_of(statements: Sequence[Statement]) -> tuple[Statement, ...]:
        return tuple(replaced(inner, replacements) for inner in statements)

    if isinstance(statement, Assign):
        step = statement.update
        step = None if step is None else Update(step.kind, expr(step.operand))
        indices = tuple(expr(x) for x in statement.indices)
        return Assign(statement.buffer, indices, expr(statement.value), step, statement.line)
    if isinstance(statement, Loop):
        return Loop(statement.var, expr(statement.extent), all_of(statement.body))
    if isinstance(statement, While):
        return While(expr(statement.condition), all_of(statement.body))
    condition = expr(statement.condition)
    return Branch(condition, all_of(statement.then), all_of(statement.otherwise))
