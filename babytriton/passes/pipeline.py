"""The order of passes, readable aloud."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.ir import IRModule

from babytriton.passes import cpu, devices, gpu
from babytriton.passes.cpu.alignment import any_address
from babytriton.passes.cpu.intrinsics import precise_math as precise_math_on_cpu
from babytriton.passes.gpu.intrinsics import precise_math as precise_math_on_gpu
from babytriton.passes.scheduling import schedule
from babytriton.targets import Target, tvm_target

FUSE = (
    relax.transform.Normalize(),
    relax.transform.ConvertToDataflow(),
    relax.transform.DeadCodeElimination(),
    relax.transform.LegalizeOps(),
    relax.transform.AnnotateTIROpPattern(),
    relax.transform.FoldConstant(),
    relax.transform.FuseOps(),
    relax.transform.FuseTIR(),
    relax.transform.DeadCodeElimination(),
)
"""One TensorIR function for each group of operators that fuse."""

RULES = {"cpu": cpu.RULES, "cuda": gpu.RULES}
"""The schedule rules of each kind of target, tried in order."""

FINISH = {"cpu": (precise_math_on_cpu, any_address), "cuda": (precise_math_on_gpu,)}
"""What each kind of target does with scheduled kernels: math functions as precise as torch's, and
on the CPU parameters at any address."""


def fuse(mod: IRModule, target: Target) -> IRModule:
    """Relax operators -> calls of fused, unscheduled TensorIR functions."""
    with tvm_target(target):
        return tvm.transform.Sequential(FUSE)(mod)


def fuse_and_schedule(mod: IRModule, target: Target) -> IRModule:
    """Relax operators -> calls of fused TensorIR functions, scheduled for the target."""
    return schedule_kernels(devices.place(fuse(devices.cross_once(mod), target)), target)


def schedule_kernels(mod: IRModule, target: Target) -> IRModule:
    """Unscheduled TensorIR functions -> the same with loops for the target, or their own one."""
    functions = dict(mod.functions_items())
    for own, kernels in devices.by_target(mod, tvm_target(target)):
        kind = devices.KINDS[own.kind.name]
        scheduled = finish(schedule(kernels, RULES[kind], own), kind)
        functions.update(scheduled.functions_items())
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def finish(mod: IRModule, kind: str) -> IRModule:
    """Scheduled kernels, however they were scheduled -> what is lowered for a kind of target."""
    for step in FINISH[kind]:
        mod = step(mod)
    return mod
