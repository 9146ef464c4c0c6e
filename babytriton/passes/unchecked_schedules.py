"""TVM's schedules, which here do not look at the types of what their primitives are given."""

from __future__ import annotations

import inspect

import tvm_ffi
from tvm import s_tir, tirx

_COPY = tvm_ffi.get_global_func("s_tir.schedule.ScheduleCopy")


class _Schedule(s_tir.Schedule):
    """As TVM's own, whose primitives look at each argument of each call by its annotation.

    That is a tenth of what a kernel takes to compile; and the type checker has looked already.
    """

    def copy(self) -> _Schedule:
        made = _Schedule.__new__(_Schedule)
        made.__init_handle_by_constructor__(_COPY, self)
        return made


def _take_as_they_are() -> None:
    for name, member in vars(s_tir.Schedule).items():
        if inspect.isfunction(member) and hasattr(member, "__wrapped__"):
            setattr(_Schedule, name, member.__wrapped__)


_take_as_they_are()


def schedule_of(func: tirx.PrimFunc) -> s_tir.Schedule:
    """A schedule of a kernel, whose errors do not come with the kernel's text."""
    return _Schedule(func, error_render_level="none")
