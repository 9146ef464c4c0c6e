"""Schedule rules for the CPU, the most particular first."""

from __future__ import annotations

from tvm.s_tir.dlight.base import ScheduleRule

from babytriton.passes.cpu.elementwise import Elementwise
from babytriton.passes.cpu.matmul import Matmul
from babytriton.passes.cpu.parallel import Parallel
from babytriton.passes.cpu.reduction import Reduction
from babytriton.passes.cpu.rows_and_columns import RowsAndColumns
from babytriton.passes.cpu.rowwise import Rowwise
from babytriton.passes.cpu.scan import Scan

RULES: tuple[ScheduleRule, ...] = (
    *(Elementwise(), Matmul(), RowsAndColumns(), Rowwise(), Reduction(), Scan(), Parallel()),
)
