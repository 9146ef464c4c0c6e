"""Statements of kernels that are written out thread by thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tvm_ffi
from tvm import IRModule, ir, s_tir, sym, tirx

from babytriton.ops.primfunc import nodes
from babytriton.passes.intrinsics import function_name, rewrite
from babytriton.passes.nests import offset
from babytriton.passes.statements import at_step, is_number, sequence, statements, with_parts
from babytriton.passes.unchecked_schedules import schedule_of
from babytriton.types import find_dtype

WARP = 32
"""Threads that run together, and pass values to each other without memory."""

VECTOR = 16
"""Bytes that a thread loads or stores at once, at most."""

INDEX = "int32"
"""The dtype of what counts threads and steps. Positions are of 64 bits, which TVM makes 32 where
these are enough: for each by itself, so that numbers from a tensor do not widen other indices."""

# Keeps loops in the source as loops, with a pragma that has the compiler unroll them.
_AS_PRAGMA = "pragma_unroll_explicit"


def number(value: int) -> ir.Expr:
    """An index that is known."""
    return tirx.const(value, "int64")


def as_expr(extent: int | ir.Expr) -> ir.Expr:
    """An extent as an index."""
    return number(extent) if isinstance(extent, int) else extent


def as_index(extent: int | ir.Expr) -> ir.Expr:
    """An extent as a loop has it."""
    if isinstance(extent, int | tirx.IntImm):
        return tirx.const(int(extent), INDEX)
    if isinstance(extent, tirx.Cast) and str(extent.value.ty.dtype) == INDEX:
        return extent.value
    return tirx.Cast(INDEX, extent)


def item_bytes(dtype: str) -> int:
    """Bytes of an element; bools take one."""
    found = find_dtype(dtype)
    return max(1, found.bits // 8) if found is not None else 8


def local(shape: int, dtype: str, name: str) -> tirx.Var:
    """Registers of a thread."""
    return tirx.decl_buffer((number(shape),), dtype, name, scope="local")


def shared(shape: int, dtype: str, name: str) -> tirx.Var:
    """Memory that the threads of a block share."""
    return tirx.decl_buffer((number(shape),), dtype, name, scope="shared")


def kept_whole(buffers: Sequence[tirx.Var]) -> list[tirx.Stmt]:
    """Mentions of buffers of which TVM does not see all accesses: it leaves them as they are.

    They go when TVM has laid memory out: :func:`without_mentions`.
    """
    return [tirx.Evaluate(buffer.data) for buffer in buffers]


def without_mentions(mod: IRModule) -> IRModule:
    """Kernels without the mentions of buffers, of which nothing is left when they are built."""
    return rewrite(mod, tirx.Evaluate, _without_mention)


def _without_mention(stmt: tirx.Evaluate) -> tirx.Evaluate:
    value = stmt.value
    if isinstance(value, ir.Call) and function_name(value) == "buffer_data":
        return tirx.Evaluate(tirx.const(0, INDEX))
    return stmt


def each(
    name: str,
    extent: int | ir.Expr,
    body: Callable[[ir.Expr], Sequence[tirx.Stmt]],
    kind: int = tirx.ForKind.UNROLLED,
) -> list[tirx.Stmt]:
    """A loop; no loop where it has one step."""
    if isinstance(extent, int) and extent == 1:
        return list(body(number(0)))
    variable = tirx.Var(name, INDEX)
    whole = sequence(list(body(tirx.Cast("int64", variable))))
    return [tirx.For(variable, tirx.const(0, INDEX), as_index(extent), kind, whole)]


LANE = "lane"
"""The variable of a loop that computes with each element of a vector."""


def by_lane(stmts: Sequence[tirx.Stmt], width: int) -> list[tirx.Stmt]:
    """Statements, with one loop for those over a vector's elements that follow each other.

    No element needs what another has become; and what is computed for several has a name then.
    Loops that move numbers are none of these: an element may need what any step of them moves.
    """
    done: list[tirx.Stmt] = []
    for stmt in stmts:
        if done and _is_over(stmt, width) and _is_over(done[-1], width):
            first = done.pop()
            body = at_step(stmt.body, stmt.loop_var, first.loop_var)
            stmt = with_parts(first, sequence([*statements(first.body), *statements(body)]))
        done.append(stmt)
    return done


def _is_over(stmt: tirx.Stmt, width: int) -> bool:
    is_loop = isinstance(stmt, tirx.For) and stmt.kind == tirx.ForKind.UNROLLED
    return is_loop and stmt.loop_var.name == LANE and is_number(stmt.extent, width)


BOOLS = "of_bools"
"""The variable of a loop that moves bools which lie together, at an address for all of them."""

Place = tuple[tirx.Var, ir.Expr]
"""A buffer, and the row-major position of an element in it."""


def copy_vector(width: int, to: Place, source: Place) -> list[tirx.Stmt]:
    """Elements one beside the other, moved at once, or in as many vectors as they take.

    Args:
        width: how many.
        to: where the first is moved to.
        source: where it is.
    """
    fitting = VECTOR // item_bytes(str(to[0].ty.dtype))
    if width > fitting:

        def part(n: ir.Expr) -> list[tirx.Stmt]:
            first = n * number(fitting)
            return copy_vector(fitting, (to[0], to[1] + first), (source[0], source[1] + first))

        return each("part", width // fitting, part)

    def one(lane: ir.Expr) -> list[tirx.Stmt]:
        return [store(to[0], load(source[0], source[1] + lane), to[1] + lane)]

    if width == 1:
        return each("lane", width, one)
    if str(to[0].ty.dtype) == "bool":  # of which TVM has no vectors: `runtime/text/` makes them
        return each(BOOLS, width, one)
    # Of as many bits as positions: else TVM does not see a vector where positions need them all.
    lane = tirx.Var("lane", "int64")
    kind = tirx.ForKind.VECTORIZED
    return [tirx.For(lane, number(0), number(width), kind, sequence(one(lane)))]


def flat(buffer: tirx.Var, place: ir.Expr) -> list[ir.Expr]:
    """Indices of the element at a row-major position."""
    return [*(number(0) for _ in buffer.shape[1:]), place]


def load(buffer: tirx.Var, place: ir.Expr) -> ir.Expr:
    """The element at a row-major position."""
    return tirx.BufferLoad(buffer, flat(buffer, place) if len(buffer.shape) else [])


def store(buffer: tirx.Var, value: ir.Expr, place: ir.Expr) -> tirx.Stmt:
    """A store of the element at a row-major position."""
    return tirx.BufferStore(buffer, value, flat(buffer, place) if len(buffer.shape) else [])


def only(value: tirx.Var) -> ir.Expr:
    """The one number in a register."""
    return tirx.BufferLoad(value, [number(0)])


def guarded(test: ir.Expr | None, body: Sequence[tirx.Stmt]) -> list[tirx.Stmt]:
    """Statements under a condition, if there is one."""
    return list(body) if test is None else [tirx.IfThenElse(test, sequence(list(body)), None)]


def with_one_test(stmts: Sequence[tirx.Stmt]) -> list[tirx.Stmt]:
    """Statements, of which those after each other that ask the same, or the opposite, are one."""
    done: list[tirx.Stmt] = []
    for stmt in stmts:
        merged = _merged(done[-1], stmt) if done else None
        if merged is None:
            done.append(stmt)
        else:
            done[-1] = merged
    return done


def _merged(first: tirx.Stmt, second: tirx.Stmt) -> tirx.Stmt | None:
    """Two statements that follow each other as one, if they ask the same, or the opposite."""
    if not isinstance(first, tirx.IfThenElse) or not isinstance(second, tirx.IfThenElse):
        return None
    cases = second.then_case, second.else_case
    if tvm_ffi.structural_equal(tirx.Not(first.condition), second.condition):
        cases = cases[::-1]
    elif not tvm_ffi.structural_equal(first.condition, second.condition):
        return None
    ways = zip((first.then_case, first.else_case), cases)
    return tirx.IfThenElse(first.condition, *(_one_after_other(*way) for way in ways))


def _one_after_other(*stmts: tirx.Stmt | None) -> tirx.Stmt | None:
    parts = [part for stmt in stmts if stmt is not None for part in statements(stmt)]
    return sequence(parts) if parts else None


def both(*tests: ir.Expr | None) -> ir.Expr | None:
    """All of the conditions that there are."""
    found = [test for test in tests if test is not None]
    whole = found[0] if found else None
    for test in found[1:]:
        whole = tirx.And(whole, test)
    return whole


def below(place: ir.Expr, count: int | ir.Expr, step: int | ir.Expr) -> ir.Expr | None:
    """Whether a place is one of so many; None if each is, since these are a number of steps."""
    if isinstance(count, int) and isinstance(step, int) and count % step == 0:
        return None
    return place < as_expr(count)


def named(
    name: str, place: ir.Expr, extent: int | ir.Expr, width: int = 1
) -> tuple[ir.Expr, list[tirx.Stmt]]:
    """A place on an axis under a name, and what gives it that name.

    As it stands on an axis of known length: what is computed from a name has 64 bits, since TVM
    does not know how large it gets. Nor does it know of which numbers that is a multiple, so it is
    the number of a vector that has a name, where there are vectors.

    Args:
        name: of the variable.
        place: that.
        extent: of the axis.
        width: of vectors; the place is a multiple of it.
    """
    if isinstance(extent, int):
        return place, []
    if width == 1:
        variable = tirx.Var(name, "int64")
        return variable, [tirx.Bind(variable, place)]
    variable = tirx.Var("vector", "int64")
    own = sym.Analyzer().simplify(tirx.floordiv(place, number(width)))
    return variable * number(width), [tirx.Bind(variable, own)]


def told(name: str, extent: int | ir.Expr) -> tuple[int | ir.Expr, list[tirx.Stmt]]:
    """An extent that kernels are told; what computes it before they are launched, if that does.

    Args:
        name: of the kernels' parameter.
        extent: a number, which needs no telling, or what the call computes of sizes.
    """
    if isinstance(extent, int):
        return extent, []
    variable = tirx.Var(name, INDEX)
    return tirx.Cast("int64", variable), [tirx.Bind(variable, as_index(extent))]


def launched(
    extents: dict[str, int | ir.Expr],
    body: Callable[[dict[str, ir.Expr]], Sequence[tirx.Stmt]],
) -> tirx.Stmt:
    """A kernel: what each of its threads does.

    Args:
        extents: of the indices that threads and blocks have, such as "threadIdx.x".
        body: from these indices.
    """
    variables = {tag: tirx.Var(tag.replace(".", "_"), INDEX) for tag in extents}
    indices = {tag: tirx.Cast("int64", variable) for tag, variable in variables.items()}
    whole = sequence(list(body(indices)))
    whole = tirx.AttrStmt(number(0), _AS_PRAGMA, number(0), whole)
    for tag, extent in reversed(extents.items()):
        axis = tirx.IterVar(None, variables[tag], tirx.IterVar.ThreadIndex, tag)
        size = as_index(extent)
        kind, zero = tirx.ForKind.THREAD_BINDING, tirx.const(0, INDEX)
        whole = tirx.For(variables[tag], zero, size, kind, whole, axis)
    return whole


def written_out(
    func: tirx.PrimFunc, kernels: Sequence[tirx.Stmt], passed: Sequence[tirx.Var] = ()
) -> s_tir.Schedule:
    """The function with kernels for its body, which are launched one after the other.

    Args:
        func: as it was.
        kernels: in order.
        passed: memory for what one leaves for another, besides that of the function.
    """
    body = sequence(list(kernels))
    used = {store.buffer for store in nodes(body, tirx.BufferStore)}
    # Of one axis each: TVM would cut others down to the indices that it sees along each of them.
    own = {
        buffer: _with_one_axis(buffer) for buffer in func.body.block.alloc_buffers if buffer in used
    }
    body = tvm_ffi.structural_map(
        body,
        [
            (tirx.BufferStore, lambda node: _moved(node, own)),
            (ir.TensorLoad, lambda node: _moved(node, own)),
        ],
    )
    memory = [*own.values(), *passed]
    # Where sizes are not known, TVM would count positions from the first that it takes to be used.
    body = sequence([*kept_whole(memory), body])
    root = s_tir.SBlock([], [], [], "root", body, alloc_buffers=memory)
    return schedule_of(func.with_body(s_tir.SBlockRealize([], tirx.const(True, "bool"), root)))


def _with_one_axis(buffer: tirx.Var) -> tirx.Var:
    size: ir.Expr = number(1)
    for extent in buffer.shape:
        size = size * extent
    return tirx.decl_buffer((size,), buffer.ty.dtype, buffer.name)


def _moved(
    node: tirx.BufferStore | ir.TensorLoad, buffers: dict[tirx.Var, tirx.Var]
) -> tirx.BufferStore | ir.TensorLoad:
    """A store or a load in the buffer that is in the place of its own, if one is."""
    is_store = isinstance(node, tirx.BufferStore)
    before = node.buffer if is_store else node.source
    after = buffers.get(before)
    if after is None:
        return node
    place = [offset(before, list(node.indices))]
    if is_store:
        return tirx.BufferStore(after, node.value, place)
    return tirx.BufferLoad(after, place)
