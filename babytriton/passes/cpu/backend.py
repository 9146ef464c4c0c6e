"""What is done for the CPU alone: schedule rules, the most particular first, and what follows."""

from __future__ import annotations

from tvm.s_tir.dlight.base import ScheduleRule

from babytriton.passes.backends import Backend
from babytriton.passes.cpu.elementwise import Elementwise
from babytriton.passes.cpu.intrinsics import precise_math
from babytriton.passes.cpu.loops import plain_loops
from babytriton.passes.cpu.matmul import Matmul
from babytriton.passes.cpu.memory import any_address
from babytriton.passes.cpu.parallel import Parallel
from babytriton.passes.cpu.prefetching import next_rows_fetched
from babytriton.passes.cpu.products import fused_multiply_adds
from babytriton.passes.cpu.reduction import Reduction
from babytriton.passes.cpu.roundings import rounded_products
from babytriton.passes.cpu.rows_and_columns import RowsAndColumns
from babytriton.passes.cpu.rowwise import SMALL, Rowwise
from babytriton.passes.cpu.scan import Scan
from babytriton.passes.cpu.streaming import past_caches
from babytriton.passes.needless_roundings import without_needless_roundings

RULES: tuple[ScheduleRule, ...] = (
    *(Elementwise(), Matmul(), RowsAndColumns(), Rowwise(), Reduction(), Scan(), Parallel()),
)

FINISH = (
    *(precise_math, without_needless_roundings),
    *(any_address, plain_loops, next_rows_fetched, past_caches),
    *(fused_multiply_adds, rounded_products),
)
"""Math functions as precise as torch's, parameters at any address, loops that become vectors."""

BACKEND = Backend(
    rules=RULES,
    finish=FINISH,
    rows=Rowwise(),
    small=SMALL,
    together=Rowwise(),
    points=Elementwise(),
    columns=Reduction(),
    rows_and_columns=RowsAndColumns(),
    cheap=64,  # no functions of math, and no branches
    tables=1 << 14,  # shorter ones are read in vectors, and stay in caches
    shares_tables=True,
)
