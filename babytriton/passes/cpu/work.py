"""How much work a parallel loop has: a little is done by one thread before another is awake.

What runs parallel loops (`runtime/threads.py`) finds it where the data of a loop begins: TVM hands
over the variables that a loop reads, in the order in which it reads them.
"""

from __future__ import annotations

from collections.abc import Mapping

import tvm
import tvm_ffi
from tvm import IRModule, ir, sym, tirx

from babytriton.ops.primfunc import nodes
from babytriton.passes.statements import at_step, statements

_DTYPE = "int64"

# Of what cannot be counted, such as a loop that ends where a tensor says so.
_MUCH = 1 << 20

# What TVM's code generator hands to threads is all that this has in it.
_LAUNCH = "pragma_parallel_launch_point"

_ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Max, tirx.Min, tirx.Select, ir.Call)


def tell_work() -> tvm.transform.Pass:
    """Parallel loops that read their work before all else, for right before code generation."""

    def run(mod: IRModule, _: tvm.transform.PassContext) -> IRModule:
        functions = {
            var: tvm_ffi.structural_map(func, (tirx.For, _told))
            if isinstance(func, tirx.PrimFunc) and not _launches(func)
            else func
            for var, func in mod.functions_items()
        }
        return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)

    return tvm.transform.module_pass(run, opt_level=0, name="babytriton.TellWork")


def _launches(func: tirx.PrimFunc) -> bool:
    """Whether the function says itself, as a user's own may, what is handed to threads."""
    return any(mark.attr_key == _LAUNCH for mark in nodes(func.body, tirx.AttrStmt))


def _told(loop: tirx.For) -> tirx.Stmt:
    if loop.kind != tirx.ForKind.PARALLEL:
        return loop
    work = tirx.Var("work", _DTYPE)
    count = sym.Analyzer().simplify(_work(loop, _Places()))
    reads = tirx.SeqStmt([tirx.Evaluate(work), loop])
    launch = tirx.AttrStmt(tirx.const(0, "int32"), _LAUNCH, tirx.const(1, "int32"), reads)
    return tirx.SeqStmt([tirx.Bind(work, count), launch])


class _Places:
    """Where the loops inside of a statement may be: at their first steps, or at their last.

    Args:
        first: what variables stand for at the first steps.
        last: at the last ones.
    """

    def __init__(
        self,
        first: Mapping[tirx.Var, ir.Expr] | None = None,
        last: Mapping[tirx.Var, ir.Expr] | None = None,
    ) -> None:
        self._first, self._last = dict(first or {}), dict(last or {})

    def with_name(self, var: tirx.Var, first: ir.Expr, last: ir.Expr) -> _Places:
        """The same, and a variable."""
        return _Places({**self._first, var: first}, {**self._last, var: last})

    def ends(self, expr: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
        """An expression at both ends, of what is known outside."""

        def at(places: Mapping[tirx.Var, ir.Expr]) -> ir.Expr:
            return tvm_ffi.structural_map(plain, (ir.Var, lambda var: places.get(var, var)))

        # Names within an expression would be those of something else at each end.
        plain = tvm_ffi.structural_map(
            expr, (tirx.Let, lambda let: at_step(let.body, let.var, let.value))
        )
        return at(self._first), at(self._last)


def _work(stmt: tirx.Stmt, places: _Places) -> ir.Expr:
    """About how many operations a statement takes."""
    zero, much = tirx.const(0, _DTYPE), tirx.const(_MUCH, _DTYPE)
    if isinstance(stmt, tirx.For):
        begin, dtype = tirx.const(0, stmt.loop_var.ty.dtype), stmt.loop_var.ty.dtype
        first, last = places.ends(stmt.extent)
        if any(nodes((first, last), kind) for kind in (ir.TensorLoad, ir.Call)):
            return much
        inner = places.with_name(stmt.loop_var, begin, tirx.max(last - tirx.const(1, dtype), begin))
        steps = first if tvm_ffi.structural_equal(first, last) else tirx.max(first, last)
        return tirx.max(steps, begin).astype(_DTYPE) * _work(stmt.body, inner)
    if isinstance(stmt, tirx.SeqStmt):
        count = zero
        for part in statements(stmt):
            count += _work(part, places)
            if isinstance(part, tirx.Bind) and not _is_float(part.value):
                places = places.with_name(part.var, *places.ends(part.value))
        return count
    if isinstance(stmt, tirx.IfThenElse):
        cases = [case for case in (stmt.then_case, stmt.else_case) if case is not None]
        found = [_work(case, places) for case in cases]
        return found[0] if len(found) == 1 else tirx.max(*found)
    if isinstance(stmt, tirx.AttrStmt):
        return _work(stmt.body, places)
    if isinstance(stmt, (tirx.AllocBuffer, tirx.DeclBuffer)):
        return zero
    if isinstance(stmt, (tirx.BufferStore, tirx.Bind, tirx.Evaluate)):
        return tirx.const(_operations(stmt.value), _DTYPE)
    return much


def _operations(value: ir.Expr) -> int:
    """How many a value takes, with what becomes of it; of indices they do not count."""
    found = [node for kind in _ARITHMETIC for node in nodes(value, kind)]
    return sum(_lanes(node) for node in (value, *found) if _is_float(node)) or _lanes(value)


def _is_float(expr: ir.Expr) -> bool:
    return "float" in str(getattr(expr.ty, "dtype", ""))  # an address has no dtype


def _lanes(expr: ir.Expr) -> int:
    return max(1, int(expr.ty.dtype.lanes)) if hasattr(expr.ty, "dtype") else 1
