"""Scheduled kernels as plain loops, in the form that vectorizes.

A bound that a schedule has written as a condition at every step becomes the loop's bound, and
loops over the same range that follow each other become one: what the first computes is then still
in a register when the second reads it.
"""

from __future__ import annotations

from collections import Counter

import tvm_ffi
from tvm import IRModule, ir, s_tir, sym, tirx

from babytriton.ops.axes import LONG_SUM
from babytriton.ops.primfunc import nodes, with_kernels
from babytriton.passes.blocks import parameters, uses
from babytriton.passes.cpu.caches import is_too_large
from babytriton.passes.cpu.chunks import in_chunks
from babytriton.passes.cpu.columns import in_blocks
from babytriton.passes.cpu.dots import jammed
from babytriton.passes.cpu.edges import at_edges
from babytriton.passes.cpu.few_rows import sums_in_registers
from babytriton.passes.cpu.flattening import flattened
from babytriton.passes.cpu.in_place import in_place
from babytriton.passes.cpu.invariants import read_before
from babytriton.passes.cpu.lanes import in_lanes, is_arithmetic, moves_by_one, vectorizes
from babytriton.passes.cpu.moments import in_one_pass
from babytriton.passes.cpu.positions import in_one_piece
from babytriton.passes.cpu.ranges import in_ranges
from babytriton.passes.cpu.streams import side_by_side
from babytriton.passes.cpu.transposes import in_registers
from babytriton.passes.statements import (
    Effects,
    Indices,
    at_step,
    conjuncts,
    is_natural,
    is_number,
    sequence,
    statements,
    with_parts,
)


def plain_loops(mod: IRModule) -> IRModule:
    """Scheduled kernels -> plain loops, tight and merged, with float reductions in vector lanes."""
    return with_kernels(flattened(mod), _improved)


def _improved(func: tirx.PrimFunc) -> tirx.PrimFunc:
    places = _places(func)
    unmarked, long_sums = _long_sums(func.body)
    # Of others TVM takes the indices for what it must keep of each dimension.
    given = set(parameters(func))

    def load(node: ir.TensorLoad) -> ir.TensorLoad:
        if node.source not in given:
            return node
        return tirx.BufferLoad(node.source, in_one_piece(node.source, list(node.indices)))

    def store(node: tirx.BufferStore) -> tirx.BufferStore:
        if node.buffer not in given:
            return node
        indices = in_one_piece(node.buffer, list(node.indices))
        return tirx.BufferStore(node.buffer, node.value, indices)

    body = tvm_ffi.structural_map(
        jammed(at_edges(sums_in_registers(unmarked))),
        [
            (ir.TensorLoad, load),
            (tirx.BufferStore, store),
            (tirx.Max, lambda node: _clamped(node, places)),
            (tirx.Add, _folded),
            (tirx.Sub, _folded),
            (tirx.For, _tight),
        ],
    )
    # Where two names may stand for the same memory, any order may matter.
    if func.attrs and func.attrs.get("tirx.noalias", False):
        body = in_one_pass(in_ranges(_merged(in_registers(body))))
        if not is_too_large(func):
            body = in_place(body, list(given))
        body = in_blocks(read_before(side_by_side(body)), long_sums)
        body = in_lanes(in_chunks(body), long_sums)
    # What Relax asks of kernels later, it asks of their outermost block.
    root = s_tir.SBlock([], [], [], "root", body)
    return func.with_body(s_tir.SBlockRealize([], tirx.const(True, "bool"), root))


def _long_sums(body: tirx.Stmt) -> tuple[tirx.Stmt, frozenset[tirx.Var]]:
    """The statement without the marks of long sums, and the buffers that these are added up in."""
    marks = [mark for mark in nodes(body, tirx.AttrStmt) if mark.attr_key == LONG_SUM]
    stores = [store for mark in marks for store in nodes(mark.body, tirx.BufferStore)]
    plain = tvm_ffi.structural_map(
        body, (tirx.AttrStmt, lambda node: node.body if node.attr_key == LONG_SUM else node)
    )
    return plain, frozenset(store.buffer for store in stores)


def _places(func: tirx.PrimFunc) -> set[tirx.Var]:
    """The variables that are never negative: of loops from 0, and sizes."""
    sizes = [n for param in parameters(func) for n in nodes(param.ty.shape, ir.Var)]
    loops = [loop for loop in nodes(func.body, tirx.For) if is_number(loop.min, 0)]
    return {*sizes, *(loop.loop_var for loop in loops)}


def _clamped(node: tirx.Max, places: set[tirx.Var]) -> ir.Expr:
    """The first element that is needed, without a bound of 0 where it is no less anyway."""
    return node.b if is_number(node.a, 0) and is_natural(node.b, places) else node


def _folded(node: tirx.Add | tirx.Sub) -> ir.Expr:
    """Sums of integers without the zeros that moving blocks leaves in them."""
    if not str(node.ty.dtype).startswith("int"):
        return node
    if isinstance(node, tirx.Sub) and tvm_ffi.structural_equal(node.a, node.b):
        return tirx.const(0, node.ty.dtype)
    return node.a + node.b if isinstance(node, tirx.Add) else node.a - node.b


def _tight(loop: tirx.For) -> tirx.Stmt:
    """The loop with what its body asks of the variable as its bound, if that is all it asks.

    Splits by factors that do not divide leave `for i in range(16): if o * 16 + i < n: ...`, with
    other loops between the two. What is asked of other variables is asked before the loop.
    """
    condition = _as_one_condition(loop.body)
    if condition is None:
        return loop
    variable, kind = loop.loop_var, tirx.ForKind
    kinds = (kind.SERIAL, kind.PARALLEL, kind.VECTORIZED)
    tests = conjuncts(condition.condition)
    reads = [*nodes(tests, ir.TensorLoad), *nodes(tests, ir.Call)]
    are_bounds = all(isinstance(test, tirx.LT) for test in tests) and not reads
    if not are_bounds or loop.kind not in kinds or loop.step is not None:
        return loop
    if len(tests) > 1 and loop.kind != kind.VECTORIZED:
        return loop  # LLVM masks the elements of short loops; bounds of both would be tails.
    if any(str(test.a.ty.dtype) != str(variable.ty.dtype) for test in tests):
        return loop
    of_others = [test for test in tests if not uses(test, variable)]
    if of_others:
        own = [test for test in tests if uses(test, variable)]
        body = tirx.IfThenElse(_all(own), condition.then_case, None) if own else condition.then_case
        return tirx.IfThenElse(_all(of_others), _tight(with_parts(loop, body)), None)
    if len(tests) > 1:
        return loop
    (test,) = tests
    if uses(test.b, variable):
        return loop
    base = sym.Analyzer().simplify(test.a - variable)
    if uses(base, variable):
        return loop
    if loop.kind == kind.VECTORIZED:
        return _whole_or_in_part(loop, test, condition.then_case)
    steps = tirx.Min(loop.extent, test.b - base - loop.min)
    extent = tirx.Max(steps, tirx.const(0, variable.ty.dtype))
    return with_parts(loop, condition.then_case, extent)


def _as_one_condition(body: tirx.Stmt) -> tirx.IfThenElse | None:
    """A body of which all is done under one condition, as a single statement.

    The condition is asked once then: it must be one that the body does not change.
    """
    parts = statements(body)
    memory = [part for part in parts if isinstance(part, tirx.AllocBuffer)]
    others = [part for part in parts if not isinstance(part, tirx.AllocBuffer)]
    if not all(isinstance(part, tirx.IfThenElse) and part.else_case is None for part in others):
        return None
    tests = [part.condition for part in others]
    if not tests or not all(tvm_ffi.structural_equal(test, tests[0]) for test in tests):
        return None
    whole = sequence([*memory, *(part.then_case for part in others)])
    return tirx.IfThenElse(tests[0], whole, None)


def _whole_or_in_part(loop: tirx.For, test: tirx.LT, body: tirx.Stmt) -> tirx.Stmt:
    """A vector operation where the test holds at its last step, else single ones where it holds."""
    last = at_step(test, loop.loop_var, loop.min + loop.extent - 1)
    one = tirx.Var(loop.loop_var.name, loop.loop_var.ty.dtype)
    single = at_step(loop.body, loop.loop_var, one)
    part = tirx.For(one, loop.min, loop.extent, tirx.ForKind.SERIAL, single)
    return tirx.IfThenElse(last, with_parts(loop, body), part)


def _all(tests: list[ir.Expr]) -> ir.Expr:
    whole, *others = tests
    for test in others:
        whole = tirx.And(whole, test)
    return whole


def _merged(stmt: tirx.Stmt) -> tirx.Stmt:
    """The statement with one loop for those over one range, at every level."""
    if isinstance(stmt, tirx.For):
        return with_parts(stmt, _merged(stmt.body))
    if not isinstance(stmt, tirx.SeqStmt):
        return stmt
    done: list[tirx.Stmt] = []
    for part in statements(stmt):
        if not (isinstance(part, tirx.For) and _merged_into(done, part)):
            done.append(part)
    return sequence([_merged(part) for part in done])


def _merged_into(done: list[tirx.Stmt], loop: tirx.For) -> bool:
    """Merge a loop into an earlier one of the statements before it, if there is one for it."""
    places = [n for n, other in enumerate(done) if isinstance(other, tirx.For)]
    for place in reversed(places):
        if not _may_merge(done[place], loop):
            continue
        between = [Effects.of(stmt) for stmt in done[place + 1 :]]
        if _is_free(Effects.of(done[place]), between):
            # What stands between the two loops comes before both.
            done.append(_joined(done.pop(place), loop))
            return True
        if _is_free(Effects.of(loop), between):
            done[place] = _joined(done[place], loop)
            return True
    return False


def _is_free(own: Effects, others: list[Effects]) -> bool:
    """Whether a statement may change places with others."""
    return all(other.is_known and not own.conflicts(other) for other in others)


def _may_merge(first: tirx.For, second: tirx.For) -> bool:
    """Whether each step of the second loop may run right after that step of the first."""
    if not _have_one_range(first, second):
        return False
    joint = _joined(first, second)
    left, right = Effects.of(first.body), Effects.of(_over(first.loop_var, second).body)
    if not (left.is_known and right.is_known):
        return False
    conflicts = left.conflicts(right)
    ranges = _ranges(joint) if conflicts else sym.Analyzer()
    if not all(
        _are_of_one_step([*left.indices(buffer), *right.indices(buffer)], first.loop_var, ranges)
        for buffer in conflicts
    ):
        return False
    if not nodes(joint.body, tirx.For):
        return vectorizes(joint)
    return not (_only_clears(first) or _only_clears(second))


def _only_clears(loop: tirx.For) -> bool:
    """Whether a loop stores constants alone, as vectors: it would not, around other loops."""
    stores = statements(loop.body)
    numbers = (tirx.IntImm, tirx.FloatImm)
    return loop.kind == tirx.ForKind.SERIAL and all(
        isinstance(store, tirx.BufferStore) and isinstance(store.value, numbers) for store in stores
    )


def _have_one_range(left: tirx.For, right: tirx.For) -> bool:
    return (
        left.kind == right.kind
        and left.kind in (tirx.ForKind.SERIAL, tirx.ForKind.PARALLEL)
        and not left.annotations
        and not right.annotations
        and bool(tvm_ffi.structural_equal(left.min, right.min))
        and bool(tvm_ffi.structural_equal(left.extent, right.extent))
    )


def _over(variable: tirx.Var, loop: tirx.For) -> tirx.For:
    """The loop with another variable."""
    own = loop.loop_var
    return tvm_ffi.structural_map(loop, (ir.Var, lambda var: variable if var.same_as(own) else var))


def _joined(first: tirx.For, second: tirx.For) -> tirx.For:
    body = statements(first.body) + statements(_over(first.loop_var, second).body)
    return with_parts(first, tirx.SeqStmt(body))


def _are_of_one_step(accesses: list[Indices], variable: tirx.Var, ranges: sym.Analyzer) -> bool:
    """Whether what a step of the loop accesses, no other step does.

    Args:
        accesses: their indices.
        variable: the loop's.
        ranges: knows those of the loops inside.
    """
    first, *others = accesses
    return any(
        moves_by_one(index, variable)
        and all(tvm_ffi.structural_equal(index, other[axis]) for other in others)
        for axis, index in enumerate(first)
    ) or any(
        (size := _part_of_step(index, variable, ranges))
        and all(_part_of_step(other[axis], variable, ranges) == size for other in others)
        for axis, index in enumerate(first)
    )


def _ranges(body: tirx.Stmt) -> sym.Analyzer:
    """What is known of the variables of the loops in a statement; of two loops' ones, nothing."""
    found, loops = sym.Analyzer(), nodes(body, tirx.For)
    counts = Counter(loop.loop_var for loop in loops)
    for loop in loops:
        if counts[loop.loop_var] == 1:
            found.bind(loop.loop_var, ir.Range.from_min_extent(loop.min, loop.extent))
    return found


def _part_of_step(index: ir.Expr, variable: tirx.Var, ranges: sym.Analyzer) -> int:
    """How many indices each step has to itself, if this is one of them; 0 if it is of no such part.

    Those of a piece of `n` rows are `piece * n + row`.
    """
    if not uses(index, variable) or not is_arithmetic(index):
        return 0
    size = ranges.simplify(at_step(index, variable, variable + 1) - index)
    if not isinstance(size, tirx.IntImm) or size < 1:
        return 0
    rest = ranges.simplify(index - variable * size)
    is_inside = not uses(rest, variable) and ranges.can_prove(tirx.And(rest >= 0, rest < size))
    return int(size) if is_inside else 0
