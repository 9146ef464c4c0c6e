"""Which schedule rules take kernels, before it is settled which kernels there are."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target

from babytriton.passes.alike import Alike
from babytriton.passes.reshapes import folded
from babytriton.passes.scheduling import RULE, first_fit


class Fits:
    """Asks rules once of kernels that are alike but for names and lines, as those of layers are.

    Args:
        target: what the kernels are compiled for.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._known: dict[tuple[int, ...], Alike[str | None]] = {}

    def rule_of(self, kernel: tirx.PrimFunc, rules: Sequence[ScheduleRule]) -> str | None:
        """The name of the first rule that takes a kernel; None if there is none."""

        def ask() -> str | None:
            found = first_fit(folded(kernel), "fused", tuple(rules), self._target)
            return None if found is None else str(found.attrs[RULE])

        alike = self._known.setdefault(tuple(map(id, rules)), Alike(free=True))
        return alike.answer(tirx.PrimFunc(kernel.params, kernel.body, kernel.ret_type), ask)
