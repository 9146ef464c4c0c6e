"""The kinds of work that kernels of a target can do together, and the rules that take them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

from tvm import s_tir, tirx
from tvm.s_tir.dlight.base import ScheduleRule

from babytriton.passes.contractions import is_product
from babytriton.passes.cpu.elementwise import Elementwise as ElementwiseOnCpu
from babytriton.passes.cpu.reduction import Reduction as ReductionOnCpu
from babytriton.passes.cpu.rows_and_columns import RowsAndColumns as RowsAndColumnsOnCpu
from babytriton.passes.cpu.rowwise import SMALL
from babytriton.passes.cpu.rowwise import Rowwise as RowwiseOnCpu
from babytriton.passes.devices import PORTABLE
from babytriton.passes.fits import Fits
from babytriton.passes.fusion import Kind
from babytriton.passes.gpu.columns import Columns as ColumnsOnGpu
from babytriton.passes.gpu.elementwise import Elementwise as ElementwiseOnGpu
from babytriton.passes.gpu.rows_and_columns import RowsAndColumns as RowsAndColumnsOnGpu
from babytriton.passes.gpu.rowwise import Rowwise as RowwiseOnGpu
from babytriton.passes.gpu.rowwise import RowwiseTogether
from babytriton.passes.gpu.scan import Scan as ScanOnGpu
from babytriton.passes.gpu.short_columns import ShortColumns as ShortColumnsOnGpu
from babytriton.passes.inlining import inlined
from babytriton.passes.partial_writes import ends_in_box
from babytriton.passes.reshapes import without_reshapes
from babytriton.passes.rows import (
    are_of_rows,
    is_on_columns,
    is_on_points,
    row_work,
    shared_columns,
    with_rows_first,
)
from babytriton.passes.rows_and_columns import rows_and_columns
from babytriton.passes.scans import as_points, is_scan

ROWS = {
    "cpu": (RowwiseOnCpu(), SMALL),
    "cuda": (RowwiseOnGpu(), 0),
    **dict.fromkeys(PORTABLE, (RowwiseOnGpu(), 0)),
}
"""The rule of each kind of target that takes kernels of rows; and how large a computation on the
rows' results may be for it to take that too."""

TOGETHER = {
    "cpu": RowwiseOnCpu(),
    "cuda": RowwiseTogether(),
    **dict.fromkeys(PORTABLE, RowwiseTogether()),
}
"""The rule of each kind of target that takes several kernels of the same rows as one."""

POINTS = {
    "cpu": ElementwiseOnCpu(),
    "cuda": ElementwiseOnGpu(),
    **dict.fromkeys(PORTABLE, ElementwiseOnGpu()),
}
"""The rule of each kind of target that takes elementwise kernels."""

SHORT_COLUMNS = {"cuda": (ShortColumnsOnGpu(),)}
"""The rule of a kind of target that takes kernels which go along short columns more than once."""

SCANS = {"cuda": (ScanOnGpu(),)}
"""The rule of a kind of target that takes running sums with what comes before and after them."""

ROWS_AND_COLUMNS = {"cpu": (RowsAndColumnsOnCpu(),), "cuda": (RowsAndColumnsOnGpu(),)}
"""The rule of a kind of target that takes kernels which go along rows and reduce their columns."""

COLUMNS = {"cpu": (ReductionOnCpu(),), "cuda": (ColumnsOnGpu(),)}
"""The rule of a kind of target that takes kernels which reduce several columns side by side."""

LITTLE = {"cpu": 0, "cuda": 1 << 14, **dict.fromkeys(PORTABLE, 1 << 14)}
"""How many numbers kernels of each kind of target read in less time than it takes to launch one."""


def kinds_of(name: str, fits: Fits) -> tuple[Kind, ...]:
    """The kinds of work for a kind of target, those first that are looked for first.

    Args:
        name: of the kind of target.
        fits: tells which rules take kernels there.
    """
    rows, small = ROWS[name]
    work = _Work(small)

    def accepts(rule: ScheduleRule, kernel: tirx.PrimFunc) -> bool:
        return fits.rule_of(kernel, (rule,)) is not None

    def by(rule: ScheduleRule) -> Callable[[tirx.PrimFunc], bool]:
        return partial(accepts, rule)

    return (
        Kind(ends_in_box, by(POINTS[name])),
        *(Kind(work.is_down_columns, by(rule)) for rule in SHORT_COLUMNS.get(name, ())),
        Kind(work.is_on_rows, by(rows)),
        Kind(work.is_beside_on_rows, by(TOGETHER[name]), True),
        *(Kind(work.is_around_scan, by(rule)) for rule in SCANS.get(name, ())),
        Kind(work.is_on_points, by(POINTS[name]), True),
        *(
            Kind(work.is_on_rows_and_columns, by(rule), True)
            for rule in ROWS_AND_COLUMNS.get(name, ())
        ),
        *(Kind(work.is_on_columns, by(rule), True) for rule in COLUMNS.get(name, ())),
    )


_Blocks = tuple[s_tir.SBlock, ...]


class _Work:
    """What the blocks of several kernels do.

    Args:
        small: how large a computation on the results of rows may be that goes with these.
    """

    def __init__(self, small: int) -> None:
        self._small = small
        self._shaped = cache(without_reshapes)  # Of the same blocks all methods are asked.

    def is_on_rows(self, blocks: _Blocks) -> bool:
        """Whether they go along rows one after the other."""
        found = self._shaped(blocks)
        work = row_work(found, self._small) or row_work(with_rows_first(found), self._small)
        return work is not None and not any(map(is_product, found))

    def is_beside_on_rows(self, blocks: _Blocks) -> bool:
        """Whether they go along the same rows, each for itself."""
        return self.is_on_rows(blocks) and are_of_rows(self._shaped(blocks))

    def is_down_columns(self, blocks: _Blocks) -> bool:
        """Whether they go along columns one after the other."""
        found = with_rows_first(self._shaped(blocks))
        return shared_columns(found) is not None and not any(map(is_product, found))

    def is_around_scan(self, blocks: _Blocks) -> bool:
        """Whether one is a running sum, and the others work on its points."""
        return sum(map(is_scan, blocks)) == 1 and is_on_points(as_points(blocks))

    def is_on_points(self, blocks: _Blocks) -> bool:
        """Whether they store numbers at the same points, also of what they have put there."""
        return is_on_points(blocks) or is_on_points(inlined(blocks))

    def is_on_columns(self, blocks: _Blocks) -> bool:
        """Whether they reduce the same columns."""
        found = self._shaped(blocks)
        return is_on_columns(found) and not any(map(is_product, found))

    def is_on_rows_and_columns(self, blocks: _Blocks) -> bool:
        """Whether they go along rows and reduce the columns of these."""
        found = self._shaped(blocks)
        return rows_and_columns(found) is not None and not any(map(is_product, found))
