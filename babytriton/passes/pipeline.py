"""The order of passes, readable aloud."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.ir import IRModule
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.tirx.compilation_pipeline import get_tir_pipeline, register_tir_pipeline

from babytriton.passes import (
    constants,
    devices,
    forms,
    indices,
    items,
    kernel_names,
    launch_names,
    lines,
    names,
    updates,
    whole_rows,
)
from babytriton.passes.addresses import by_address
from babytriton.passes.backends import Backend
from babytriton.passes.bfloat16 import in_integers
from babytriton.passes.bounded_sums import as_signed
from babytriton.passes.cpu import vector_math
from babytriton.passes.cpu.backend import BACKEND
from babytriton.passes.cpu.memory import in_vectors, on_the_stack
from babytriton.passes.cpu.remainders import own_remainders
from babytriton.passes.cpu.streaming import store_past_caches
from babytriton.passes.cpu.work import tell_work
from babytriton.passes.cpu.zeros import define_zeros
from babytriton.passes.divisions import towards_zero
from babytriton.passes.duplicates import without_duplicates
from babytriton.passes.fits import Fits
from babytriton.passes.folding import fold_constants
from babytriton.passes.fusion import fuse_kernels
from babytriton.passes.gpu.memory import from_torch
from babytriton.passes.gpu.parameters import in_order, names_of_parameters
from babytriton.passes.gpu.portable import choices_of_one_type
from babytriton.passes.gpu.values import named_values
from babytriton.passes.gpu.writing import without_mentions
from babytriton.passes.group_sizes import given_as_one_shape
from babytriton.passes.kinds import kinds_of
from babytriton.passes.legalizing import LEGALIZATIONS
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


def _pass(change: Callable[[IRModule], IRModule]) -> tvm.transform.Pass:
    return tvm.transform.module_pass(
        lambda mod, _: change(mod), opt_level=0, name=f"babytriton.{change.__name__}"
    )


LEGALIZE = (
    relax.transform.Normalize(),
    relax.transform.AnnotateTIROpPattern(),
    _pass(without_repeated_values),
    relax.transform.ConvertToDataflow(),
    relax.transform.DeadCodeElimination(),
    _pass(without_unread_results),
    _pass(scans_from_the_end),
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
        _pass(reductions_as_such),
        _pass(constants_folded),
        _pass(items.taken_by_calls),
        relax.transform.FuseOps(),
        _pass(items.taken_as_such),
        _pass(given_as_one_shape),
    )


MERGE = (relax.transform.FuseTIR(), relax.transform.DeadCodeElimination())
"""One TensorIR function for each group."""

LOWERING = "babytriton"
"""The name TVM knows its own lowering of scheduled kernels by, with our math and memory."""


def _lowering() -> tuple[Any, ...]:
    whole, finish_host, finish_device = get_tir_pipeline("default")
    lower = in_integers(whole)

    def begin(mod: IRModule) -> IRModule:
        names = names_of_parameters(mod)
        # The guard of a call has checked shapes and dtypes: to ask again in every kernel would be
        # much of the code to compile.
        lowered = tirx.transform.SkipAssert()(lower(indices.as_they_stand(as_signed(mod))))
        return by_address(in_order(lowered, names))

    def finish() -> tvm.transform.Pass:
        host = tvm.transform.Sequential(
            [
                *map(_pass, (launch_names.launching, from_torch)),
                *(on_the_stack(), in_vectors(), _pass(towards_zero), finish_host()),
            ]
        )
        own = (
            *(vector_math.lower_intrinsics(host), store_past_caches()),
            *(_pass(own_remainders), _pass(define_zeros), tell_work()),
        )
        return tvm.transform.Sequential(own)

    def of_device() -> tvm.transform.Pass:
        own = (launch_names.of_launches, without_mentions, indices.in_short, towards_zero)
        after = (indices.of_one_width, indices.of_whole_vectors, named_values, choices_of_one_type)
        return tvm.transform.Sequential([*map(_pass, own), finish_device(), *map(_pass, after)])

    return begin, finish, of_device


register_tir_pipeline(LOWERING, _lowering)


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
    rule_of = partial(fits.rule_of, rules=rules)
    mod = told_as_numbers(recomputed(mod, rule_of, backend.cheap))
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
