"""The order of passes, readable aloud."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import tvm
from tvm import relax
from tvm.ir import IRModule
from tvm.s_tir.dlight.base import ScheduleRule

from babytriton.passes import (
    constants,
    devices,
    forms,
    items,
    kernel_names,
    lines,
    names,
    updates,
    whole_rows,
)
from babytriton.passes.backends import Backend
from babytriton.passes.cpu.backend import BACKEND
from babytriton.passes.duplicates import without_duplicates
from babytriton.passes.fits import Fits
from babytriton.passes.folding import fold_constants
from babytriton.passes.fusion import fuse_kernels
from babytriton.passes.group_sizes import given_as_one_shape
from babytriton.passes.kinds import kinds_of
from babytriton.passes.legalizing import LEGALIZATIONS
from babytriton.passes.lowering import as_pass
from babytriton.passes.memory_formats import as_parts
from babytriton.passes.needless_copies import without_needless_copies
from babytriton.passes.orders import CONTIGUOUS, Wanted, as_they_lie
from babytriton.passes.partial_sums import summed_by_rows
from babytriton.passes.patterns import reductions_as_such
from babytriton.passes.recomputing import recomputed
from babytriton.passes.recurrences import loops_in_kernels
from babytriton.passes.repeated_values import without_repeated_values
from babytriton.passes.reshapes import kernels_folded, typed_by_calls
from babytriton.passes.reversed_scans import scans_from_the_end
from babytriton.passes.scheduling import schedule
from babytriton.passes.step_numbers import told_as_numbers
from babytriton.passes.uniform import numbers_inside
from babytriton.passes.unread_results import without_unread_results
from babytriton.plan import NO_UPDATES, Updates
from babytriton.targets import Target, tvm_target

LEGALIZE = (
    relax.transform.Normalize(),
    relax.transform.AnnotateTIROpPattern(),
    as_pass(without_repeated_values),
    relax.transform.ConvertToDataflow(),
    relax.transform.DeadCodeElimination(),
    as_pass(without_unread_results),
    as_pass(scans_from_the_end),
    relax.transform.DeadCodeElimination(),
    lines.kept_by(names.of_operators(relax.transform.LegalizeOps(LEGALIZATIONS))),
)
"""A TensorIR function for each operator that is needed."""


def group(backend: Backend) -> tuple[tvm.transform.Pass, ...]:
    """A function for each group of operators that fuse."""

    def constants_folded(mod: IRModule) -> IRModule:
        return numbers_inside(fold_constants(mod, backend.tables, backend.shares_tables))

    return (
        relax.transform.AnnotateTIROpPattern(),
        as_pass(reductions_as_such),
        as_pass(constants_folded),
        as_pass(items.taken_by_calls),
        relax.transform.FuseOps(),
        as_pass(items.taken_as_such),
        as_pass(given_as_one_shape),
    )


MERGE = (relax.transform.FuseTIR(), relax.transform.DeadCodeElimination())
"""One TensorIR function for each group."""


def fuse(
    mod: IRModule, target: Target, written: Updates = NO_UPDATES, wanted: Wanted = CONTIGUOUS
) -> IRModule:
    """Relax operators -> calls of fused, unscheduled TensorIR functions.

    Args:
        mod: a program.
        target: what it is compiled for.
        written: what it writes to its arguments.
        wanted: which tensors may lie as its arguments do.
    """
    device = tvm_target(target)
    kind = devices.KINDS[device.kind.name]
    backend = backend_of(kind)
    with device:
        mod = tvm.transform.Sequential(LEGALIZE)(mod)
        mod = as_they_lie(updates.kept_apart(mod, written), wanted)
        groups = tvm.transform.Sequential(group(backend))(mod)
        parts = names.of_parts(groups, names.of_calls(mod))
        returned = names.of_results(mod)
        mod = names.without_endings(tvm.transform.Sequential(MERGE)(parts))
    mod = constants.of_their_own(lines.attached(mod, lines.of_groups(groups)))

    fits = Fits(device)
    kinds = kinds_of(backend, fits)
    mod = fuse_kernels(mod, kinds, backend.little)
    divided = summed_by_rows(mod)
    mod = mod if divided is mod else fuse_kernels(divided, kinds, backend.little)
    rules = rules_of(kind, target)
    place_of = partial(fits.place_of, rules=rules)
    mod = told_as_numbers(recomputed(mod, place_of, backend.cheap))
    mod = loops_in_kernels(mod) if backend.loops else mod
    mod = without_needless_copies(mod, wanted.entry, wanted.fresh)
    mod = names.with_results(mod, returned)
    mod = without_duplicates(mod)
    mod = kernel_names.named(mod)
    mod = names.without_marks(forms.attached(mod) if kind == "cuda" else mod)
    scheduled = partial(fits.scheduled, rules=rules)
    return whole_rows.marked(updates.parts_in_place(mod, written, scheduled))


def fuse_and_schedule(
    mod: IRModule, target: Target, written: Updates, wanted: Wanted = CONTIGUOUS
) -> IRModule:
    """Relax operators -> calls of fused TensorIR functions, scheduled for the target.

    Args:
        mod: a program.
        target: what it is compiled for.
        written: what it writes to its arguments.
        wanted: which tensors may lie as its arguments do.
    """
    mod = devices.place(fuse(devices.cross_once(mod), target, written, wanted))
    scheduled = names.apart(schedule_kernels(mod, target, written))
    return typed_by_calls(as_parts(scheduled, wanted.entry))


def schedule_kernels(mod: IRModule, target: Target, written: Updates = NO_UPDATES) -> IRModule:
    """Unscheduled TensorIR functions -> the same with loops for the target, or their own one.

    Args:
        mod: has the functions, and may call them.
        target: what they are compiled for.
        written: what the program that calls them writes to its arguments.
    """
    home = tvm_target(target)

    def with_loops(kernels: IRModule, own: Any) -> IRModule:
        return schedule(
            kernels_folded(kernels), rules_of(devices.KINDS[own.kind.name], target), own
        )

    mod = updates.in_place(_of_each_target(mod, home, with_loops), written)
    mod = updates.in_place_by_torch(mod, written)
    return _of_each_target(mod, home, lambda x, own: finish(x, devices.KINDS[own.kind.name]))


def _of_each_target(
    mod: IRModule, home: Any, change: Callable[[IRModule, Any], IRModule]
) -> IRModule:
    """A module with the kernels of each target changed together."""
    functions = dict(mod.functions_items())
    for own, kernels in devices.by_target(mod, home):
        functions.update(change(kernels, own).functions_items())
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


@cache
def backend_of(kind: str) -> Backend:
    """What is done for a kind of target alone."""
    if kind == "cpu":
        return BACKEND
    # Those of GPUs take a tenth of the time that it takes to import this package.
    from babytriton.passes.gpu.backend import BACKENDS

    return BACKENDS[kind]


def rules_of(kind: str, target: Target) -> tuple[ScheduleRule, ...]:
    """The schedule rules for a kind of target's kernels, in a program that is for another one."""
    backend = backend_of(kind)
    if backend.tensor_cores is None or target.products == "torch":
        return backend.rules
    return (backend.tensor_cores(target.products == "tf32"), *backend.rules)


def finish(mod: IRModule, kind: str) -> IRModule:
    """Scheduled kernels, however they were scheduled -> what is lowered for a kind of target."""
    for step in backend_of(kind).finish:
        mod = step(mod)
    return mod
