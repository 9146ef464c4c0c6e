"""Targets: what a function is compiled for, as data, and the same said in TVM's words."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

import torch
import tvm

_NAMES = {"cpu": "cpu", "llvm": "cpu", "gpu": "cuda", "cuda": "cuda"}
_DEFAULT_CUDA_ARCH = "sm_80"
_ARCH = re.compile(r"sm_\d{2,3}[af]?")


@dataclass(frozen=True)
class Target:
    """A kind of device to compile for.

    Args:
        kind: ``"cpu"`` or ``"cuda"``; ``"gpu"`` is another name for ``"cuda"``.
        arch: for ``"cuda"`` a compute capability such as ``"sm_80"``, for ``"cpu"`` an LLVM
            processor name such as ``"znver4"``. ``None`` takes the device that is present;
            where there is no GPU, ``"sm_80"``.

    Raises:
        ValueError: the kind is unknown, or ``arch`` is no compute capability.
    """

    kind: str
    arch: str | None = None

    def __post_init__(self) -> None:
        kind = _NAMES.get(self.kind)
        if kind is None:
            known = ", ".join(repr(name) for name in _NAMES)
            raise ValueError(f"unknown target {self.kind!r}: expected one of {known}")
        if kind == "cuda" and self.arch is not None and not _ARCH.fullmatch(self.arch):
            raise ValueError(f"arch={self.arch!r} is no compute capability such as 'sm_80'")
        object.__setattr__(self, "kind", kind)

    @property
    def device_type(self) -> str:
        """The ``torch.device`` type whose tensors this target's kernels take."""
        return self.kind

    def resolved(self) -> Target:
        """This target with ``arch`` filled in from the device that is present."""
        return self if self.arch is not None else Target(self.kind, _present_arch(self.kind))

    def __str__(self) -> str:
        return self.kind if self.arch is None else f"{self.kind} ({self.arch})"


def as_target(target: Target | str) -> Target:
    """The target that a user named, as a :class:`Target`.

    Raises:
        TypeError: it is neither a name nor a :class:`Target`.
        ValueError: the name is unknown.
    """
    if isinstance(target, Target):
        return target
    if isinstance(target, str):
        return Target(target)
    raise TypeError(f"target must be a name or a Target, not {type(target).__name__}")


def _present_arch(kind: str) -> str:
    if kind == "cpu":
        # mcpu="native" silently means a generic processor: ask LLVM for the name instead.
        return str(tvm.target.codegen.llvm_get_system_cpu())
    if torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability()
        return f"sm_{major}{minor}"
    return _DEFAULT_CUDA_ARCH


@lru_cache
def tvm_target(target: Target, options: tuple[str, ...] = ()) -> tvm.target.Target:
    """The target in TVM's words, host included.

    Args:
        target: what is compiled for.
        options: for LLVM, as its command line takes them.
    """
    arch = target.resolved().arch
    host = {"kind": "llvm", "mcpu": _present_arch("cpu"), "cl-opt": list(options)}
    if target.kind == "cpu":
        return tvm.target.Target({"kind": "llvm", "mcpu": arch, "cl-opt": list(options)}, host)
    # A bare "cuda" target falls back to sm_50 and to limits of its own.
    device = {
        "kind": "cuda",
        "arch": arch,
        "max_threads_per_block": 1024,
        "max_shared_memory_per_block": 49152,
        "thread_warp_size": 32,
    }
    return tvm.target.Target(device, host)
