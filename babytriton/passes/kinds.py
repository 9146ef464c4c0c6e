"""The kinds of work that kernels of a target can do together, and the rules that take them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial

from tvm import s_tir, tirx
from tvm.s_tir.dlight.base import ScheduleRule

from babytriton.passes.alike import Alike
from babytriton.passes.backends import Backend
from babytriton.passes.contractions import is_product
from babytriton.passes.fits import Fits
from babytriton.passes.fusion import Kind
from babytriton.passes.inlining import inlined, inlined_for
from babytriton.passes.partial_writes import ends_in_box
from babytriton.passes.reshapes import Reshapes
from babytriton.passes.rows import (
    are_of_rows,
    is_on_columns,
    is_on_points,
    is_reduction,
    row_work,
    shared_columns,
    turns,
    with_rows_first,
)
from babytriton.passes.rows_and_columns import rows_and_columns
from babytriton.passes.scans import as_points, is_scan


def kinds_of(backend: Backend, fits: Fits) -> tuple[Kind, ...]:
    """The kinds of work for a kind of target, those first that are looked for first.

    Args:
        backend: has the rules that take kernels of each kind.
        fits: tells whether they do there.
    """
    work = _Work(backend.small)
    # The layers of a network are many blocks that are alike.
    alike: Alike[_Blocks] = Alike(free=True)

    def accepts(rule: ScheduleRule, kernel: tirx.PrimFunc) -> bool:
        return fits.place_of(kernel, (rule,)) is not None

    def kind(
        is_one: Callable[[_Blocks], bool],
        rule: ScheduleRule | None,
        *,
        beside: bool = False,
        reduces: bool = False,
    ) -> tuple[Kind, ...]:
        known = cache(is_one)

        def are_of_kind(blocks: _Blocks) -> bool:
            if reduces and not any(map(is_reduction, blocks)):
                return False
            return known(alike.first(blocks, blocks))

        return () if rule is None else (Kind(are_of_kind, partial(accepts, rule), beside),)

    of_both = backend.rows_and_columns
    return (
        *kind(ends_in_box, backend.points),
        *kind(work.is_down_columns, backend.short_columns, reduces=True),
        *kind(work.is_on_rows, backend.rows, reduces=True),
        *kind(work.is_beside_on_rows, backend.together, beside=True, reduces=True),
        *kind(work.is_around_scan, backend.scans),
        *kind(work.is_on_points, backend.points, beside=True),
        *kind(work.is_on_rows_and_columns, of_both, beside=True, reduces=True),
        *kind(work.is_on_columns, backend.columns, beside=True, reduces=True),
    )


_Blocks = tuple[s_tir.SBlock, ...]


class _Work:
    """What the blocks of several kernels do.

    Args:
        small: how large a computation on the results of rows may be that goes with these.
    """

    def __init__(self, small: int) -> None:
        self._small = small
        self._reshapes = Reshapes()
        self._shaped = cache(self._without_reshapes)  # Of the same blocks all methods are asked.

    def _without_reshapes(self, blocks: _Blocks) -> Sequence[s_tir.SBlock]:
        return self._reshapes.without(blocks)[0]

    def _views(self, blocks: _Blocks, *, repeat_calls: bool) -> Iterator[Sequence[s_tir.SBlock]]:
        """The blocks as they are; and as rules see them, where some only turn what others read."""
        found = self._shaped(blocks)
        yield found
        if any(map(turns, found)):
            yield inlined_for(found, repeat_calls=repeat_calls)

    def is_on_rows(self, blocks: _Blocks) -> bool:
        """Whether they go along rows one after the other."""
        found = self._shaped(blocks)
        work = row_work(found, self._small) or row_work(with_rows_first(found), self._small)
        return work is not None and not any(map(is_product, found))

    def is_beside_on_rows(self, blocks: _Blocks) -> bool:
        """Whether they go along the same rows, each for itself."""
        return self.is_on_rows(blocks) and are_of_rows(self._shaped(blocks))

    def is_down_columns(self, blocks: _Blocks) -> bool:
        """Whether they go along columns one after the other, also of what they read turned."""
        return any(map(_share_columns, self._views(blocks, repeat_calls=False)))

    def is_around_scan(self, blocks: _Blocks) -> bool:
        """Whether one is a running sum, and the others work on its points."""
        return sum(map(is_scan, blocks)) == 1 and is_on_points(as_points(blocks))

    def is_on_points(self, blocks: _Blocks) -> bool:
        """Whether they store numbers at the same points, also of what they put or turn there."""
        return any(map(is_on_points, _inlinings(blocks)))

    def is_on_columns(self, blocks: _Blocks) -> bool:
        """Whether they reduce the same columns, also of what they read turned."""
        return any(map(_reduce_columns, self._views(blocks, repeat_calls=True)))

    def is_on_rows_and_columns(self, blocks: _Blocks) -> bool:
        """Whether they go along rows and reduce the columns of these."""
        found = self._shaped(blocks)
        return rows_and_columns(found) is not None and not any(map(is_product, found))


def _inlinings(blocks: _Blocks) -> Iterator[Sequence[s_tir.SBlock]]:
    """The blocks as they are; and without what is put into the place of what reads it."""
    yield blocks
    yield inlined(blocks)
    if any(map(turns, blocks)):
        yield inlined_for(blocks, repeat_calls=False)


def _share_columns(blocks: Sequence[s_tir.SBlock]) -> bool:
    found = with_rows_first(blocks)
    return shared_columns(found) is not None and not any(map(is_product, found))


def _reduce_columns(blocks: Sequence[s_tir.SBlock]) -> bool:
    return is_on_columns(blocks) and not any(map(is_product, blocks))
