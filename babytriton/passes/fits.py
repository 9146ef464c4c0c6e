"""Which schedule rules take kernels, before it is settled which kernels there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target

from babytriton.ops.primfunc import with_fields
from babytriton.passes.alike import Alike
from babytriton.passes.reshapes import folded
from babytriton.passes.scheduling import RULE, first_fit


class Fits:
    """Asks rules once of kernels that are alike but for names and lines, as those of layers are.

    Those that a rule refuses it is not asked about again for other places in the same tensors, as
    the steps of a loop have them that is written out.

    Args:
        target: what the kernels are compiled for.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._known: dict[tuple[int, ...], Alike[int | None]] = {}
        self._refused: dict[tuple[int, ...], Alike[list[None]]] = {}

    def place_of(self, kernel: tirx.PrimFunc, rules: Sequence[ScheduleRule]) -> int | None:
        """The place of the first rule that takes a kernel; None if there is none."""

        key, names = tuple(map(id, rules)), [type(rule).__name__ for rule in rules]

        def ask() -> int | None:
            refused = self._refused.setdefault(key, Alike(free=True)).first(_anywhere(kernel), [])
            if refused:
                return None
            found = self.scheduled(kernel, rules)
            if found is None:
                refused.append(None)
                return None
            return names.index(found.attrs[RULE])

        alike = self._known.setdefault(key, Alike(free=True))
        return alike.answer(tirx.PrimFunc(kernel.params, kernel.body, kernel.ret_type), ask)

    def scheduled(
        self, kernel: tirx.PrimFunc, rules: Sequence[ScheduleRule]
    ) -> tirx.PrimFunc | None:
        """A kernel as the first rule that takes it schedules it; None if there is none."""
        return first_fit(folded(kernel), "fused", tuple(rules), self._target)


def _anywhere(kernel: tirx.PrimFunc) -> list[Any]:
    """What a kernel does, wherever in its tensors: the same for kernels with other offsets."""
    places = [(ir.TensorLoad, _load), (tirx.BufferStore, _store), (s_tir.SBlock, _block)]
    return [
        tvm_ffi.structural_map(kernel.body, places),
        [param.ty for param in kernel.params],
    ]


def _load(load: ir.TensorLoad) -> ir.TensorLoad:
    return tirx.BufferLoad(load.source, _moved(load.indices))


def _store(store: tirx.BufferStore) -> tirx.BufferStore:
    return tirx.BufferStore(store.buffer, store.value, _moved(store.indices))


def _block(block: s_tir.SBlock) -> s_tir.SBlock:
    """The block without what it says of the places that it reads and writes."""
    return with_fields(block, reads=[], writes=[])


def _moved(indices: Sequence[Any]) -> list[Any]:
    """Indices with zeros for all numbers."""
    return [
        tvm_ffi.structural_map(index, (tirx.IntImm, lambda x: tirx.IntImm(x.ty.dtype, 0)))
        for index in indices
    ]
