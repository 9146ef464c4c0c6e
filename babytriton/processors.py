"""Processors as LLVM knows them: their names, and what instructions they have."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import tvm
import tvm_ffi

ARITHMETIC_OF_HALVES = ("avx512fp16", "fullfp16")
"""Features of processors with which LLVM computes halves in halves, and contracts multiplications
and additions of them, where torch computes each operator in float32 and rounds."""

SHORT_VECTORS = "prefer-256-bit"
"""The feature of Intel's processors with AVX-512 with which LLVM leaves half of each vector
register unused: the clock of older ones fell where programs used all of it now and then. Our
kernels use nothing else."""

_INSTRUCTIONS = (
    *("avx", "f16c", "fma", "gfni", "sse", "xop"),  # x86's for vectors,
    *("bmi", "cmov", "lzcnt", "movbe", "popcnt", "tbm"),  # and for integers
    *("bf16", "dotprod", "fullfp16", "i8mm", "neon", "sve"),  # Arm's
)
"""How LLVM's names of instructions begin that it chooses for programs like ours by itself. Other
features say what is fast, or are of operating systems."""


@cache
def names() -> frozenset[str]:
    """LLVM's names of the processors of this machine's kind."""
    return frozenset(map(str, tvm.target.codegen.llvm_get_cpu_archlist(tvm.target.Target("llvm"))))


@cache
def features(cpu: str | None) -> frozenset[str]:
    """LLVM's names of what a processor has."""
    target = tvm.target.Target({"kind": "llvm", "mcpu": cpu})
    return frozenset(map(str, tvm.target.codegen.llvm_get_cpu_features(target)))


@cache
def present() -> str:
    """The name of this machine's processor.

    Where a virtual machine hides some of the instructions of the model, it is the name of the
    processor most like it that has no others than are left.
    """
    named = _named()
    if not lacking(named):
        return named

    def likeness(cpu: str) -> tuple[int, int, str]:
        return len(_instructions(cpu)), len(features(cpu) & features(named)), cpu

    return max((cpu for cpu in names() if not lacking(cpu)), key=likeness, default="generic")


def lacking(cpu: str) -> tuple[str, ...]:
    """LLVM's names of instructions that programs for a processor may have, and this one has not."""
    found, own = _found(), features(_named())
    return tuple(sorted(n for n in _instructions(cpu) if not found.get(n, n in own)))


def _instructions(cpu: str) -> frozenset[str]:
    found = features(cpu).difference(ARITHMETIC_OF_HALVES)
    return frozenset(name for name in found if name.startswith(_INSTRUCTIONS))


@cache
def _named() -> str:
    """LLVM's name of this machine's processor, which it tells by the model alone."""
    # mcpu="native" silently means a generic processor: ask LLVM for the name instead.
    return str(tvm.target.codegen.llvm_get_system_cpu())


@cache
def _found() -> Mapping[str, bool]:
    """Whether this machine has what LLVM can tell of, by LLVM's names."""
    ask = tvm_ffi.get_global_func("tvm.codegen.llvm.GetHostCPUFeatures")
    return {str(name): bool(has) for name, has in ask().items()}
