"""Blocks -> TensorIR functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, s_tir, tirx

from babytriton.frontend.kernel.blocks import Block, blocks_of, groups_of
from babytriton.frontend.kernel.program import (
    ZERO,
    Assign,
    Branch,
    Loop,
    Program,
    Statement,
    While,
    distinct,
    every,
    expressions,
    has,
    index,
    is_buffer,
    is_local,
    loads_in,
    replaced,
    stores_in,
    variables,
)
from babytriton.frontend.kernel.scalars import loads
from babytriton.ops.primfunc import LINES
from babytriton.types import TensorType, find_dtype


@dataclass(frozen=True)
class Argument:
    """An argument of the kernel."""

    index: int


@dataclass(frozen=True)
class Workspace:
    """Memory of the kernel's own, which functions pass values on in."""

    index: int


@dataclass(frozen=True)
class Faults:
    """The tensor that says what failed."""


Slot = Argument | Workspace | Faults


@dataclass(frozen=True)
class Step:
    """A TensorIR function, and what it is called on.

    Attributes:
        name: of the function.
        function: unscheduled.
        slots: what each parameter is.
        written: the parameters that it writes, by number.
        overwritten: those of which it writes every element, and reads none.
    """

    name: str
    function: tirx.PrimFunc
    slots: tuple[Slot, ...]
    written: tuple[int, ...]
    overwritten: tuple[int, ...]


@dataclass(frozen=True)
class Steps:
    """A kernel as TensorIR functions that run one after the other."""

    steps: tuple[Step, ...]
    workspaces: tuple[TensorType, ...]


def steps_of(program: Program, rewrite: Callable[[Block], Block] = lambda block: block) -> Steps:
    """The functions of a kernel.

    Args:
        program: the kernel.
        rewrite: applied to each of its blocks.
    """
    groups = [[rewrite(block) for block in group] for group in groups_of(blocks_of(program))]
    touched = [_touched(blocks) for blocks in groups]
    own = [*program.arguments, program.fault]
    shared = distinct(
        [
            x
            for i, buffers in enumerate(touched)
            for x in buffers
            if not has(own, x) and any(has(other, x) for other in touched[i + 1 :])
        ]
    )
    steps = []
    for i, (blocks, buffers) in enumerate(zip(groups, touched)):
        name = program.name if len(groups) == 1 else f"{program.name}_{i}"
        parameters: list[tuple[Slot, Any]] = []
        parameters += [(Argument(i), x) for i, x in enumerate(program.arguments) if has(buffers, x)]
        parameters += [(Workspace(i), x) for i, x in enumerate(shared) if has(buffers, x)]
        if has(buffers, program.fault):
            parameters.append((Faults(), program.fault))
        steps.append(_step(name, blocks, parameters, program.fault))
    return Steps(tuple(steps), tuple(_type_of(x) for x in shared))


def _step(
    name: str, blocks: Sequence[Block], parameters: list[tuple[Slot, Any]], fault: tirx.Buffer
) -> Step:
    buffers = [x for _, x in parameters]
    temporaries = [x for x in _touched(blocks) if is_buffer(x)]
    temporaries = [x for x in temporaries if not has(buffers, x)]
    body = _sequence([_block(f"{name}_{i}", block, fault) for i, block in enumerate(blocks)])
    root = s_tir.SBlock([], [], [], "root", body, None, temporaries)
    function = tirx.PrimFunc(buffers, s_tir.SBlockRealize([], True, root))
    function = function.with_attr("global_symbol", name).with_attr("tirx.noalias", True)
    function = function.with_attr("s_tir", True)
    lines = {x.line: None for block in blocks for x in stores_in(block.body) if x.line}
    if lines:
        function = function.with_attr(LINES, list(lines))
    written = [x for block in blocks for x in block.written()]
    read = [x for block in blocks for x in block.read()]
    full = [x for block in blocks for x in _filled(block)]
    places = range(len(parameters))
    return Step(
        name,
        function,
        tuple(slot for slot, _ in parameters),
        tuple(i for i in places if has(written, buffers[i])),
        tuple(i for i in places if has(full, buffers[i]) and not has(read, buffers[i])),
    )


def _filled(block: Block) -> list[tirx.Buffer]:
    """The tensor of which a block writes every element, if there is one."""
    [store, *_] = block.body
    if not isinstance(store, Assign) or len(block.body) > 1:
        return []
    indices = [x.var for x in block.spatial]
    shape = [int(x) for x in store.buffer.shape]
    extents = [int(x.extent) for x in block.spatial]
    same = len(indices) == len(store.indices) and all(
        a.same_as(b) for a, b in zip(indices, store.indices)
    )
    return [store.buffer] if same and shape == extents else []


def _touched(blocks: Sequence[Block]) -> list[Any]:
    """The buffers and variables from outside that blocks use."""
    found: list[Any] = []
    for block in blocks:
        inits = () if block.init is None else (block.init,)
        for statement in (*every(block.body), *inits):
            found += [x.source for x in loads_in([statement])]
            if isinstance(statement, Assign):
                found.append(statement.buffer)
            found += [v for expr in expressions(statement) for v in variables(expr)]
    return [x for x in distinct(found) if not _is_inner(x)]


def _is_inner(x: Any) -> bool:
    """Whether it is a loop's variable, or a local."""
    return is_local(x) if is_buffer(x) else str(x.ty.dtype) == "int64"


def _type_of(buffer: tirx.Buffer) -> TensorType:
    dtype = find_dtype(str(buffer.dtype))
    assert dtype is not None
    return TensorType(tuple(int(x) for x in buffer.shape), dtype.torch)


def _block(name: str, block: Block, fault: tirx.Buffer) -> tirx.Stmt:
    """A block in its loops, with variables of its own."""
    axes = [*((x, "S") for x in block.spatial), *((x, "R") for x in block.reduced)]
    iterations, replacements, outer = [], [], []
    for loop, kind in axes:
        inner = tirx.Var(f"v{loop.var.name}", "int64")
        kinds = {"S": tirx.IterVar.DataPar, "R": tirx.IterVar.CommReduce}
        iterations.append(tirx.IterVar(ir.Range(index(0), loop.extent), inner, kinds[kind]))
        replacements.append((loop.var, inner))
        outer.append(tirx.Var(loop.var.name, "int64"))
    body = [replaced(statement, replacements) for statement in block.body]
    init = None if block.init is None else _statement(replaced(block.init, replacements))
    locals = distinct([x for x in _buffers(body) if is_local(x)])
    statement = _sequence([_statement(x) for x in body])
    reads, writes = _regions(
        iterations, statement, init, locals, distinct(_buffers(body)), fault, block.reduced
    )
    inside = s_tir.SBlock(iterations, reads, writes, name, statement, init, locals)
    found: tirx.Stmt = s_tir.SBlockRealize(list(outer), True, inside)
    for var, (loop, _) in reversed(list(zip(outer, axes))):
        found = tirx.For(var, index(0), loop.extent, tirx.ForKind.SERIAL, found)
    return found


def _regions(
    iterations: list[Any],
    body: tirx.Stmt,
    init: tirx.Stmt | None,
    locals: list[tirx.Buffer],
    buffers: list[tirx.Buffer],
    fault: tirx.Buffer,
    reduced: Sequence[Loop],
) -> tuple[list[Any], list[Any]]:
    """What a block reads and writes, as schedules are to see it.

    Where a point reads a tensor that it also writes, it reads elements that no other point
    writes; TVM, which does not look that closely, would refuse to run the points in parallel. Any
    point may write that it failed.
    """
    bare = s_tir.SBlock(iterations, [], [], "bare", body, init, locals)
    reads, writes, *_ = s_tir.analysis.get_sblock_access_region(bare, {x: x for x in buffers})
    writes = [x for x in writes if not has([fault, *locals], x.source)]
    hidden = [fault, *locals, *(() if reduced else (x.source for x in writes))]
    reads = [x for x in reads if not has(hidden, x.source)]
    return [_known(x) for x in reads], [_known(x) for x in writes]


def _known(region: Any) -> Any:
    """A region; all of the tensor where only the block itself can say which part."""
    ends = [end for axis in region.region for end in (axis.min, axis.extent)]
    if not any(is_local(load.source) for end in ends for load in loads(end)):
        return region
    axes = [ir.Range(index(0), size) for size in region.source.shape]
    return tirx.BufferRegion(region.source, axes)


def _buffers(statements: Sequence[Statement]) -> list[Any]:
    stored = [store.buffer for store in stores_in(statements)]
    return stored + [load.source for load in loads_in(statements)]


def _statement(statement: Statement) -> tirx.Stmt:
    if isinstance(statement, Assign):
        return tirx.BufferStore(statement.buffer, statement.value, list(statement.indices))
    if isinstance(statement, Loop):
        body = _sequence([_statement(x) for x in statement.body])
        return tirx.For(statement.var, ZERO, statement.extent, tirx.ForKind.SERIAL, body)
    if isinstance(statement, While):
        return tirx.While(statement.condition, _sequence([_statement(x) for x in statement.body]))
    assert isinstance(statement, Branch)
    then = _sequence([_statement(x) for x in statement.then])
    otherwise = _sequence([_statement(x) for x in statement.otherwise])
    return tirx.IfThenElse(statement.condition, then, otherwise if statement.otherwise else None)


def _sequence(statements: Sequence[tirx.Stmt]) -> tirx.Stmt:
    if len(statements) == 1:
        return statements[0]
    return tirx.SeqStmt(list(statements)) if statements else tirx.Evaluate(index(0))
