"""Elementwise kernels on the GPU."""

from __future__ import annotations

from collections.abc import Callable

from tvm import ir, s_tir, sym, tirx
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target

from babytriton.passes.blocks import inline_numbers, is_pointwise, open_kernel
from babytriton.passes.gpu.extents import is_multiple
from babytriton.passes.gpu.program import Program
from babytriton.passes.gpu.registers import Vector
from babytriton.passes.gpu.sweeps import Sweeps
from babytriton.passes.gpu.threads import bind_flat, bind_one, most_threads
from babytriton.passes.gpu.writer import Statements, Writer
from babytriton.passes.gpu.writing import (
    as_expr,
    below,
    each,
    guarded,
    launched,
    number,
    only,
    written_out,
)
from babytriton.passes.intrinsics import has_slow_functions
from babytriton.passes.nests import Nest, fuse_nest, inlined_nests
from babytriton.passes.statements import sequence

# Threads of a block: with more, its last blocks would keep fewer processors busy for longer.
THREADS = 128

# Vectors of a thread, whose loads are all on the way at once; and elements of a kernel from which
# on it has as many. With fewer, more threads do the same. Where functions are computed it has one,
# since no load moves over what these take.
SEVERAL, MANY = 2, 1 << 20

CHEAP = 512
"""How much threads compute again for a number rather than that others write it to memory."""


class Elementwise(ScheduleRule):
    """Takes functions of pointwise blocks alone.

    A thread loads, computes and stores vectors of 16 bytes, the last elements one by one where
    there is no whole vector left of them. What does not lie along the vector is loaded by itself.
    """

    def apply(self, func: tirx.PrimFunc, target: Target, _: bool) -> s_tir.Schedule | None:
        kernel = open_kernel(func)
        if kernel is None:
            return None
        sch, infos = kernel
        if not all(is_pointwise(sch, info) for info in infos):
            return None
        infos = inline_numbers(sch, infos)
        nests = inlined_nests(sch, infos, side_by_side=True, cheap=CHEAP)
        programs = [Program.of(sch, nest, []) for nest in nests]
        if not all(programs):
            return None
        most = most_threads(target)
        kernels = [vector_kernel(program, most) for program in programs if program is not None]
        return written_out(sch.mod["main"], kernels)


def vector_kernel(program: Program, most: int) -> tirx.Stmt:
    """A kernel of a program of a single row, whose blocks have at most so many threads."""
    if not program.elements:
        return single_number(program)
    length, width = program.length, program.vector(has_tail=True)
    several, threads = 1, min(THREADS, most)
    if isinstance(length, int):
        computes_functions = has_slow_functions([block.value for block in program.blocks])
        several = SEVERAL if length >= MANY and not computes_functions else 1
        threads = min(threads, -(-length // width))
    writer = Writer(program, width, width)
    load = writer.keep(Sweeps.of(program).shared(0, keeps=False))

    def thread(ids: dict[str, ir.Expr]) -> Statements:
        def of_vector(n: ir.Expr) -> Statements:
            place = (ids["blockIdx.x"] * number(several) + n) * number(threads)
            first = (place + ids["threadIdx.x"]) * number(width)
            return _one_vector(program, writer, load, first, threads * several)

        body = each("vector", several, of_vector)
        return [*map(tirx.AllocBuffer, writer.allocations), *body]

    blocks = tirx.ceildiv(as_expr(length), number(threads * several * width))
    extents = {"blockIdx.x": sym.Analyzer().simplify(blocks), "threadIdx.x": threads}
    return launched(extents, thread)


def single_number(program: Program) -> tirx.Stmt:
    """A kernel of a program of a single element."""
    writer = Writer(program, 1, 1)

    def thread(_: dict[str, ir.Expr]) -> Statements:
        body: Statements = []
        for block in program.blocks:
            value, done = writer.value_of_row(block)
            body += done
            if block.is_result:
                indices = list(block.store.indices)
                body.append(tirx.BufferStore(block.buffer, only(value), indices))
        return [*map(tirx.AllocBuffer, writer.allocations), *body]

    return launched({"blockIdx.x": 1, "threadIdx.x": 1}, thread)


def _one_vector(
    program: Program,
    writer: Writer,
    load: Callable[[Vector], Statements],
    first: ir.Expr,
    vectors: int,
) -> Statements:
    """What a thread does for the elements from one on, once it has loaded what several are of."""
    length, width = program.length, writer.width

    def of(vector: Vector) -> Statements:
        parts = [load, *(writer.pointwise(block) for block in program.blocks)]
        return [stmt for part in parts for stmt in part(vector)]

    whole = of(Vector(first, number(0), width))
    if is_multiple(length, width):
        return guarded(below(first, length, vectors * width), whole)

    def single(n: ir.Expr) -> Statements:
        return of(Vector(first + n, number(0), 1))

    if isinstance(length, int):
        rest = each("rest", length % width, single, tirx.ForKind.SERIAL)
        otherwise = guarded(first < as_expr(length), rest)
    else:
        otherwise = each(
            "rest",
            width,
            lambda n: guarded(first + n < as_expr(length), single(n)),
            tirx.ForKind.SERIAL,
        )
    fits = first + number(width) <= as_expr(length)
    return [tirx.IfThenElse(fits, sequence(whole), sequence(otherwise))]


def spread(sch: s_tir.Schedule, nest: Nest, target: Target) -> None:
    """One thread for each point of the nest."""
    depth = len(nest[0].iters)
    if depth == 0:  # A single number.
        bind_one(sch, sch.get_loops(nest[0].block_rv)[0])
        return
    _, flat = fuse_nest(sch, nest, depth)
    bind_flat(sch, flat, target)
