"""What is done for GPUs alone: schedule rules, the most particular first, and what follows."""

from __future__ import annotations

from collections.abc import Callable

from tvm import IRModule
from tvm.s_tir.dlight.base import ScheduleRule

from babytriton.passes.backends import Backend
from babytriton.passes.gpu.columns import Columns, ColumnsTogether
from babytriton.passes.gpu.elementwise import CHEAP, Elementwise
from babytriton.passes.gpu.exact_products import exact_products
from babytriton.passes.gpu.fallback import Fallback
from babytriton.passes.gpu.intrinsics import precise_math
from babytriton.passes.gpu.long_rows import LongRows
from babytriton.passes.gpu.matmul import Matmul
from babytriton.passes.gpu.order_keys import order_keys_by_name
from babytriton.passes.gpu.portable import (
    math_for,
    with_short_vectors,
    without_unrolling,
    without_vectors,
    without_words,
)
from babytriton.passes.gpu.reduction import Reduction
from babytriton.passes.gpu.rows_and_columns import RowsAndColumns
from babytriton.passes.gpu.rowwise import Rowwise, RowwiseTogether
from babytriton.passes.gpu.scan import Scan
from babytriton.passes.gpu.short_columns import ShortColumns, ShortColumnsTogether
from babytriton.passes.gpu.tensor_cores import TensorCores
from babytriton.passes.gpu.transposed import Transposed
from babytriton.passes.gpu.values import users_values
from babytriton.passes.gpu.windows import Windows
from babytriton.passes.needless_roundings import without_needless_roundings

RULES: tuple[ScheduleRule, ...] = (
    *(Transposed(), Elementwise(), Windows(), Matmul(), LongRows(), Rowwise()),
    *(RowsAndColumns(), ShortColumns(), Columns(), Scan(), Reduction(), Fallback()),
)

PORTABLE_RULES: tuple[ScheduleRule, ...] = (
    *(Transposed(), Elementwise(), Windows(), Rowwise(), ShortColumns(), Columns(), Fallback()),
)
"""Those whose kernels run on any kind of GPU."""

FINISH = (
    *(users_values, order_keys_by_name),
    *(precise_math, without_needless_roundings, exact_products),
)
"""Values by the user's names, and math functions as precise as torch's."""


def _portable(*finish: Callable[[IRModule], IRModule]) -> Backend:
    """One of those that are given source alone."""
    return Backend(
        rules=PORTABLE_RULES,
        finish=(without_words, *finish),
        rows=Rowwise(),
        together=RowwiseTogether(),
        points=Elementwise(),
        little=1 << 14,
        cheap=CHEAP,
    )


BACKENDS = {
    "cuda": Backend(
        rules=RULES,
        finish=FINISH,
        rows=Rowwise(),
        together=RowwiseTogether(),
        points=Elementwise(),
        columns=ColumnsTogether(),
        rows_and_columns=RowsAndColumns(),
        short_columns=ShortColumnsTogether(),
        scans=Scan(),
        tensor_cores=TensorCores,
        little=1 << 14,
        cheap=CHEAP,
        loops=True,
    ),
    "metal": _portable(math_for("metal"), with_short_vectors),
    "opencl": _portable(math_for("opencl")),
    "webgpu": _portable(math_for("webgpu"), without_vectors),
    "rocm": _portable(math_for("rocm"), without_unrolling),
}
