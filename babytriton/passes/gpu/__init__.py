"""Schedule rules for the GPU, the most particular first."""

from __future__ import annotations

from tvm.s_tir.dlight.base import ScheduleRule

from babytriton.passes.gpu.columns import Columns
from babytriton.passes.gpu.elementwise import Elementwise
from babytriton.passes.gpu.fallback import Fallback
from babytriton.passes.gpu.long_rows import LongRows
from babytriton.passes.gpu.matmul import Matmul
from babytriton.passes.gpu.reduction import Reduction
from babytriton.passes.gpu.rows_and_columns import RowsAndColumns
from babytriton.passes.gpu.rowwise import Rowwise
from babytriton.passes.gpu.scan import Scan
from babytriton.passes.gpu.short_columns import ShortColumns
from babytriton.passes.gpu.transposed import Transposed
from babytriton.passes.gpu.windows import Windows

RULES: tuple[ScheduleRule, ...] = (
    *(Transposed(), Elementwise(), Windows(), Matmul(), LongRows(), Rowwise()),
    *(RowsAndColumns(), ShortColumns(), Columns(), Scan(), Reduction(), Fallback()),
)

PORTABLE_RULES: tuple[ScheduleRule, ...] = (
    *(Transposed(), Elementwise(), Windows(), Rowwise(), ShortColumns(), Columns(), Fallback()),
)
"""Those whose kernels run on any kind of GPU."""
