"""First fit among rules: who wins, what is recorded, what happens where none fits."""

from __future__ import annotations

import logging

import pytest
import tvm
import tvm_ffi
from tvm import relax, s_tir, te, tirx
from tvm.s_tir.dlight.base import ScheduleRule

from babytriton.passes.fits import Fits
from babytriton.passes.pipeline import backend_of
from babytriton.passes.scheduling import RULE, SCHEDULED, NoScheduleError, schedule
from tests.unit.kernels import CPU, CUDA, as_one, fused, kernels, rules_of

TYPES = ((8, 8), "float32"), ((8, 8), "float32")


class Takes(ScheduleRule):
    def apply(self, func, target, tunable):
        assert tvm.target.Target.current() is not None
        return s_tir.Schedule(func)


class TakesList(ScheduleRule):
    def apply(self, func, target, tunable):
        return [s_tir.Schedule(func)]


class StandsAside(ScheduleRule):
    def apply(self, func, target, tunable):
        return None


class Fails(ScheduleRule):
    def apply(self, func, target, tunable):
        raise ValueError("not this one")


def module():
    return fused(lambda bb, x, y: bb.emit(relax.op.add(x, y)), *TYPES)


def test_first_fitting_rule_wins_and_is_recorded():
    scheduled = schedule(module(), (StandsAside(), Takes(), TakesList()), CPU)
    assert rules_of(scheduled) == ["Takes"]
    assert all(func.attrs[SCHEDULED] for func in kernels(scheduled))


class Counts(ScheduleRule):
    def __init__(self, takes):
        self.takes = takes
        self.asked = 0

    def apply(self, func, target, tunable):
        self.asked += 1
        return s_tir.Schedule(func) if self.takes else None


def slices(start, length):
    """A kernel of some elements of 64."""
    x = te.placeholder((64,), "float32", name="x")
    y = te.compute((length,), lambda i: x[i + start] * 2, name="y")
    return te.create_prim_func([x, y])


@pytest.mark.parametrize(("takes", "asked"), [(False, 2), (True, 3)])
def test_who_refuses_a_kernel_is_not_asked_for_other_places(takes, asked):
    fits, rule = Fits(CPU), Counts(takes)
    for start, length in ((1, 8), (2, 8), (2, 16), (1, 8)):
        assert (fits.place_of(slices(start, length), (rule,)) is not None) == takes
    assert rule.asked == asked
    other = Counts(not takes)
    assert (fits.place_of(slices(1, 8), (other,)) is None) == takes


def test_module_given_stays_as_it_is():
    mod = module()
    before = mod.script()
    scheduled = schedule(mod, (Takes(),), CPU)
    assert mod.script() == before
    assert rules_of(mod) == []
    assert {var.name_hint for var in scheduled.get_global_vars()} == {
        var.name_hint for var in mod.get_global_vars()
    }


def test_of_several_schedules_the_first_is_taken():
    assert rules_of(schedule(module(), (TakesList(),), CPU)) == ["TakesList"]


def test_failing_rule_is_logged_and_skipped(caplog):
    with caplog.at_level(logging.DEBUG, logger="babytriton"):
        scheduled = schedule(module(), (Fails(), Takes()), CPU)
    assert rules_of(scheduled) == ["Takes"]
    assert "rule Fails failed on add: not this one" in caplog.text


def test_scheduled_kernel_is_left_alone():
    once = schedule(module(), (Takes(),), CPU)
    assert rules_of(schedule(once, (TakesList(),), CPU)) == ["Takes"]


def test_cpu_kernel_without_rule_stays():
    mod = module()
    scheduled = schedule(mod, (StandsAside(),), CPU)
    assert tvm_ffi.structural_equal(mod, scheduled)


def test_gpu_kernel_without_rule_is_an_internal_error():
    with pytest.raises(NoScheduleError, match="`add`"):
        schedule(module(), (StandsAside(), Fails()), CUDA)


def test_a_kernel_with_its_own_target_is_scheduled_for_that():
    mod = module()
    (var,) = (v for v, f in mod.functions_items() if isinstance(f, tirx.PrimFunc))
    mod[var] = mod[var].with_attr("target", CPU)
    scheduled = schedule(mod, (StandsAside(),), CUDA)
    assert RULE not in scheduled[var].attrs


def test_a_block_called_root_is_none():
    def square_root(x):
        total = te.compute((), lambda: x[0] + x[1], "total")
        return te.compute((), lambda: te.sqrt(total[()]), "root")

    for target, kind in ((CPU, "cpu"), (CUDA, "cuda")):
        mod = fused(lambda bb, x: as_one(bb, square_root, x), ((2,), "float32"))
        scheduled = schedule(mod, backend_of(kind).rules, target)
        assert rules_of(scheduled) == ["Elementwise"]
        tvm.compile(scheduled, target=target)
