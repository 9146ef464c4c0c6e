"""What passes over plain loops ask of statements."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Set
from dataclasses import dataclass, field
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, sym, tirx

from babytriton.ops.primfunc import nodes
from babytriton.passes.intrinsics import function_name

Indices = tuple[ir.Expr, ...]

# Calls that give the address of memory, at which anything may be read or written.
ADDRESSES = frozenset(("buffer_data", "address_of", "tvm_access_ptr"))

OPAQUE = (tirx.Evaluate, tirx.While, tirx.AttrStmt, tirx.DeclBuffer)


def has_addresses(body: tirx.Stmt) -> bool:
    """Whether memory is accessed otherwise than by loads and stores."""
    return any(function_name(call) in ADDRESSES for call in nodes(body, ir.Call))


_UPWARDS = (
    *(tirx.Add, tirx.Mul, tirx.Min),
    *(tirx.FloorDiv, tirx.FloorMod, tirx.Div, tirx.Mod),
)
"""What gives no negative number of numbers that are none."""


def is_natural(expr: ir.Expr, naturals: Set[tirx.Var]) -> bool:
    """Whether an integer is surely never negative, as these variables are not."""
    if isinstance(expr, tirx.IntImm):
        return int(expr) >= 0
    if isinstance(expr, ir.Var):
        return expr in naturals
    if isinstance(expr, tirx.Cast):
        narrow, wide = tvm.DataType(str(expr.value.ty.dtype)), tvm.DataType(str(expr.ty.dtype))
        is_kept = narrow.type_code == wide.type_code and narrow.bits <= wide.bits
        return is_kept and is_natural(expr.value, naturals)
    if isinstance(expr, tirx.Max):
        return is_natural(expr.a, naturals) or is_natural(expr.b, naturals)
    return isinstance(expr, _UPWARDS) and all(is_natural(x, naturals) for x in (expr.a, expr.b))


def is_number(expr: ir.Expr, number: int) -> bool:
    """Whether an expression is an integer, and which."""
    return isinstance(expr, tirx.IntImm) and int(expr) == number


def is_constant(expr: ir.Expr, value: float) -> bool:
    """Whether an expression is a number, and which."""
    return isinstance(expr, tirx.IntImm | tirx.FloatImm) and expr.value == value


def statements(stmt: tirx.Stmt) -> list[tirx.Stmt]:
    """The statements that run one after the other."""
    if not isinstance(stmt, tirx.SeqStmt):
        return [stmt]
    return [inner for part in stmt.seq for inner in statements(part)]


def sequence(parts: list[tirx.Stmt]) -> tirx.Stmt:
    """One statement that runs these one after the other."""
    return parts[0] if len(parts) == 1 else tirx.SeqStmt(parts)


def at_step(node: Any, variable: tirx.Var, place: ir.Expr) -> Any:
    """An expression or statement of a loop's body at one step."""
    return tvm_ffi.structural_map(
        node, (ir.Var, lambda var: place if var.same_as(variable) else var)
    )


def without_names(stmt: tirx.Stmt) -> list[tirx.Stmt]:
    """The statements that run, with indices in the places of the names that TVM has for them."""
    rest = statements(stmt)
    done: list[tirx.Stmt] = []
    while rest:
        first, *rest = rest
        is_name = isinstance(first, tirx.Bind)
        if is_name and not nodes(first.value, ir.TensorLoad) and not nodes(first.value, ir.Call):
            rest = [at_step(other, first.var, first.value) for other in rest]
        else:
            done.append(first)
    return done


def with_parts(
    loop: tirx.For, body: tirx.Stmt, extent: ir.Expr | None = None, kind: int | None = None
) -> tirx.For:
    """The loop with another body, and another extent and kind if they are given."""
    return tirx.For(
        loop.loop_var,
        loop.min,
        loop.extent if extent is None else extent,
        loop.kind if kind is None else kind,
        body,
        loop.thread_binding,
        loop.annotations,
        loop.step,
        loop.span,
    )


def renamed(body: tirx.Stmt) -> tirx.Stmt:
    """The statement with loops of its own variables, and memory of its own."""
    own = [loop.loop_var for loop in nodes(body, tirx.For)]
    own += [each.buffer for each in nodes(body, tirx.AllocBuffer)]
    names = {var: tirx.Var(var.name, var.ty) for var in own}
    return tvm_ffi.structural_map(body, (ir.Var, lambda var: names.get(var, var)))


def without_marks(loop: tirx.For, *marks: str) -> tirx.For:
    """The loop without some of its annotations."""
    rest = {key: note for key, note in loop.annotations.items() if key not in marks}
    if len(rest) == len(loop.annotations):
        return loop
    return tirx.For(
        loop.loop_var,
        loop.min,
        loop.extent,
        loop.kind,
        loop.body,
        loop.thread_binding,
        rest,
        loop.step,
        loop.span,
    )


def conjuncts(test: ir.Expr) -> list[ir.Expr]:
    """The tests that must all hold."""
    if isinstance(test, tirx.And):
        return [*conjuncts(test.a), *conjuncts(test.b)]
    return [test]


def without_decided(stmt: tirx.Stmt, analyzer: sym.Analyzer) -> tirx.Stmt:
    """The statement without conditions that always hold, or never.

    Args:
        stmt: the statement.
        analyzer: knows the ranges of variables.
    """

    def decided(condition: ir.Expr) -> bool | None:
        if nodes(condition, ir.TensorLoad):
            return None  # The simplifier takes floats for real numbers.
        found = analyzer.simplify(condition)
        return bool(found.value) if isinstance(found, tirx.IntImm) else None

    def chosen(expr: ir.Expr) -> ir.Expr:
        if isinstance(expr, tirx.Select):
            condition, one, other = expr.condition, expr.true_value, expr.false_value
        elif isinstance(expr, ir.Call) and function_name(expr) == "if_then_else":
            condition, one, other = expr.args
        else:
            return expr
        known = decided(condition)
        return expr if known is None else one if known else other

    def case(found: tirx.IfThenElse) -> tirx.Stmt:
        return found.then_case if decided(found.condition) else found

    return tvm_ffi.structural_map(
        stmt, [(tirx.Select, chosen), (ir.Call, chosen), (tirx.IfThenElse, case)]
    )


def _by_buffer() -> dict[tirx.Var, list[Indices]]:
    return defaultdict(list)


@dataclass
class Effects:
    """What a statement does to memory.

    Attributes:
        reads: the indices of each read, by buffer.
        writes: of each write; none for a buffer that is only allocated.
        is_known: whether that is all it does.
    """

    reads: dict[tirx.Var, list[Indices]] = field(default_factory=_by_buffer)
    writes: dict[tirx.Var, list[Indices]] = field(default_factory=_by_buffer)
    is_known: bool = True

    @classmethod
    def of(cls, stmt: tirx.Stmt) -> Effects:
        """The effects of a statement."""
        found = cls()
        for load in nodes(stmt, ir.TensorLoad):
            found.reads[load.source].append(tuple(load.indices))
        for store in nodes(stmt, tirx.BufferStore):
            found.writes[store.buffer].append(tuple(store.indices))
        for allocation in nodes(stmt, tirx.AllocBuffer):
            found.writes[allocation.buffer].extend(())
        calls = {function_name(call) for call in nodes(stmt, ir.Call)}
        is_plain = not any(nodes(stmt, kind) for kind in OPAQUE)
        found.is_known = is_plain and not calls & ADDRESSES
        return found

    def conflicts(self, later: Effects) -> set[tirx.Var]:
        """The buffers that make the order of the two matter."""
        touched = later.reads.keys() | later.writes.keys()
        return (self.writes.keys() & touched) | (self.reads.keys() & later.writes.keys())

    def indices(self, buffer: tirx.Var) -> list[Indices]:
        """Of all accesses to the buffer."""
        return [*self.reads.get(buffer, ()), *self.writes.get(buffer, ())]
