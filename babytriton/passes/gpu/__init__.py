"""Schedule rules for the GPU, the most particular first."""

from __future__ import annotations

from tvm.s_tir.dlight.base import ScheduleRule

from babytriton.passes.gpu.elementwise import Elementwise
from babytriton.passes.gpu.fallback import Fallback
from babytriton.passes.gpu.matmul import Matmul
from babytriton.passes.gpu.reduction import Reduction
from babytriton.passes.gpu.rowwise import Rowwise

RULES: tuple[ScheduleRule, ...] = (Elementwise(), Matmul(), Rowwise(), Reduction(), Fallback())
