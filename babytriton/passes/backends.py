"""What each kind of target has of its own: schedule rules, and what is done around them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import IRModule
from tvm.s_tir.dlight.base import ScheduleRule


@dataclass(frozen=True)
class Backend:
    """What is done for one kind of target.

    A rule is None where no kernels are made of such work.

    Attributes:
        rules: the schedule rules, tried in order.
        finish: what is done with scheduled kernels before they are lowered, in order.
        rows: the rule that takes kernels of rows.
        together: the rule that takes several kernels of the same rows as one.
        points: the one that takes elementwise kernels.
        columns: the one that takes kernels which reduce several columns side by side.
        rows_and_columns: the one for kernels that go along rows and reduce their columns.
        short_columns: the one for kernels that go along short columns more than once.
        scans: the one for running sums with what comes before and after them.
        tensor_cores: makes the rule for products by tensor cores, told whether these take float32.
        small: how large a computation on the results of rows may be for `rows` to take it, too.
        little: how many numbers kernels read in less time than it takes to launch one.
        cheap: how much kernels compute again, in nodes of expressions for a number, rather than
            that others write it to memory.
        tables: elements from which on a tensor that is known while compiling, and that kernels
            compute from their indices in no time, is not in memory.
        shares_tables: whether it is where several kernels read it.
        loops: whether kernels have the loops inside whose steps work on elements for themselves.
    """

    rules: tuple[ScheduleRule, ...]
    finish: tuple[Callable[[IRModule], IRModule], ...]
    rows: ScheduleRule
    together: ScheduleRule
    points: ScheduleRule
    columns: ScheduleRule | None = None
    rows_and_columns: ScheduleRule | None = None
    short_columns: ScheduleRule | None = None
    scans: ScheduleRule | None = None
    tensor_cores: Callable[[bool], ScheduleRule] | None = None
    small: int = 0
    little: int = 0
    cheap: int = 0
    tables: int = 2
    shares_tables: bool = False
    loops: bool = False
