"""Kernels that go along columns more than once: a softmax or a norm over channels."""

from __future__ import annotations

from tvm import s_tir, tirx
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target

from babytriton.passes.blocks import inline_cheap, open_kernel
from babytriton.passes.gpu.program import Program
from babytriton.passes.gpu.rowwise import WORDS, Layout, RowWriter
from babytriton.passes.gpu.sweeps import Sweeps
from babytriton.passes.gpu.threads import most_threads, thread_count
from babytriton.passes.gpu.writing import WARP, item_bytes, written_out
from babytriton.passes.nests import at_zero, is_equal, offset
from babytriton.passes.rows import rows_first, shared_columns

# Words of registers for a column that a thread has for itself, and for its part of one.
WHOLE, PART = WORDS, 32

# Bytes that a thread block may share.
SHARED = 48 * 1024

# Columns of a thread block whose threads share them, at least; and its threads.
COLUMNS, BLOCK = WARP, 256


class ShortColumns(ScheduleRule):
    """Takes what goes along columns more than once, if registers hold these.

    A thread goes down a column, and its neighbours down those beside it; where it is too long, a
    few threads share it, which lie across the block. Each number is read once. Stands aside for
    what one sweep does, of which columns are read in vectors.
    """

    def apply(self, func: tirx.PrimFunc, target: Target, _: bool) -> s_tir.Schedule | None:
        kernel = open_kernel(func)
        if kernel is None:
            return None
        sch, infos = kernel
        infos = rows_first(sch, inline_cheap(sch, infos))
        columns = shared_columns([sch.get(info.block_rv) for info in infos])
        program = None if columns is None else Program.of(sch, infos, columns, is_apart=True)
        if program is None:
            return None
        layout = _layout(program, target)
        if layout is None or not self._suits(program):
            return None
        writer = RowWriter(program, layout, shuffles=False)
        return written_out(sch.mod["main"], [writer.kernel()])

    def _suits(self, program: Program) -> bool:
        """Whether it is good to do all of a program so."""
        return True


class ShortColumnsTogether(ShortColumns):
    """Takes what several kernels would do apart, if neighbours store side by side.

    Otherwise each number is a piece of memory of its own that is written, and a kernel that turns
    what another one stores takes less time.
    """

    def _suits(self, program: Program) -> bool:
        neighbours, _ = program.rows[-1]
        stores = [block.store for block in program.blocks if block.is_result]
        places = [offset(one.buffer, list(one.indices)) for one in stores]
        return all(is_equal(place - at_zero(place, [neighbours]), neighbours) for place in places)


def _layout(program: Program, target: Target) -> Layout | None:
    """How columns are shared out; None of those that registers do not hold, or are read once."""
    sweeps, length = Sweeps.of(program), program.length
    if sweeps.count == 1 or not isinstance(length, int):
        return None
    words = max(sweeps.words(), 1)
    if words * length <= WHOLE:
        return Layout(1, thread_count(target), 1, length, True)
    threads = 2
    while words * -(-length // threads) > PART:
        threads *= 2
    columns = max(COLUMNS, BLOCK // threads)
    reductions = [block for block in program.blocks if block.combine is not None]
    shared = columns * threads * sum(item_bytes(block.dtype) for block in reductions)
    if columns * threads > most_threads(target) or shared > SHARED:
        return None
    return Layout(threads, columns, 1, -(-length // threads), True)
