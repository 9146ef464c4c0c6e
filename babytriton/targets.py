"""Targets: what a function is compiled for, as data, and the same said in TVM's words."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
import tvm

from babytriton import processors

_NAMES = {
    **dict.fromkeys(("cpu", "llvm"), "cpu"),
    **dict.fromkeys(("gpu", "cuda"), "cuda"),
    **{name: name for name in ("metal", "opencl", "webgpu", "rocm")},
}

_ARCHS = {"cuda": re.compile(r"sm_\d{2,3}[af]?"), "rocm": re.compile(r"gfx[0-9a-f]{3,4}")}
BFLOAT16 = 80
"""The compute capability, times ten, from which TVM takes GPUs to have bfloat16."""

_DEFAULT_ARCHS = {"cuda": "sm_80", "rocm": "gfx90a"}

PRODUCTS = ("torch", "fused", "tf32")
"""Who computes a GPU's large matrix products."""

# What TVM is told of each kind of GPU: threads of a block, and bytes that they share.
_LIMITS: dict[str, dict[str, int]] = {
    # A bare "cuda" target falls back to sm_50 and to limits of its own.
    "cuda": {
        "max_threads_per_block": 1024,
        "max_shared_memory_per_block": 49152,
        "thread_warp_size": 32,
    },
    "metal": {"max_threads_per_block": 1024, "max_shared_memory_per_block": 32768},
    "opencl": {"max_threads_per_block": 256, "max_shared_memory_per_block": 32768},
    "webgpu": {"max_num_threads": 256, "max_shared_memory_per_block": 16384},
    "rocm": {"max_threads_per_block": 256, "max_shared_memory_per_block": 65536},
}


@dataclass(frozen=True)
class Target:
    """A kind of device to compile for.

    Args:
        kind: ``"cpu"`` or ``"cuda"``; ``"gpu"`` is another name for ``"cuda"``. ``"metal"``,
            ``"opencl"``, ``"webgpu"`` and ``"rocm"`` give source of kernels, which other programs
            may run.
        arch: for ``"cuda"`` a compute capability such as ``"sm_80"``, for ``"rocm"`` such as
            ``"gfx90a"``, for ``"cpu"`` an LLVM processor name such as ``"znver4"``. ``None`` takes
            the device that is present; where there is no GPU, these two.
        products: for ``"cuda"``, who computes large matrix products: ``"torch"``, whose library
            has them; or, from ``"sm_80"`` on, ``"fused"`` kernels of ours those of float16 and
            bfloat16, on tensor cores, with what follows computed before they are stored; or
            ``"tf32"``, which is ``"fused"`` with float32's on tensor cores too, of whose numbers
            these take ten bits of the mantissa.

    Raises:
        ValueError: the kind is unknown, or has no such ``arch`` or ``products``.
    """

    kind: str
    arch: str | None = None
    products: str = "torch"

    def __post_init__(self) -> None:
        kind = _NAMES.get(self.kind) if isinstance(self.kind, str) else None
        if kind is None:
            known = ", ".join(repr(name) for name in _NAMES)
            raise ValueError(f"unknown target {self.kind!r}: expected one of {known}")
        if self.arch is not None and not isinstance(self.arch, str):
            raise TypeError(f"arch must be a text such as 'sm_80', not {self.arch!r}")
        if self.arch is not None and kind == "cpu" and self.arch not in processors.names():
            raise ValueError(f"arch={self.arch!r} is no processor that LLVM knows, as 'haswell'")
        if self.arch is not None and kind != "cpu":
            if kind not in _ARCHS:
                raise ValueError(f"arch={self.arch!r}: a {kind} target has no architecture")
            if not _ARCHS[kind].fullmatch(self.arch):
                example = _DEFAULT_ARCHS[kind]
                what = "compute capability" if kind == "cuda" else "AMD architecture"
                raise ValueError(f"arch={self.arch!r} is no {what} such as {example!r}")
        if self.products not in PRODUCTS:
            known = ", ".join(map(repr, PRODUCTS))
            raise ValueError(f"products={self.products!r}: expected one of {known}")
        if self.products != "torch" and kind != "cuda":
            raise ValueError(f"products={self.products!r}: a {kind} target has only its own")
        object.__setattr__(self, "kind", kind)

    @property
    def runs(self) -> bool:
        """Whether what is compiled for it can be called, and is not source alone."""
        return self.kind in ("cpu", "cuda")

    @property
    def device_type(self) -> str:
        """The ``torch.device`` type whose tensors this target's kernels take."""
        return self.kind if self.runs else "meta"

    @property
    def missing(self) -> tuple[str, ...]:
        """LLVM's names of instructions that programs may have and this processor has not."""
        if self.kind != "cpu" or self.arch is None:
            return ()
        return processors.lacking(self.arch)

    def resolved(self, index: int | None = None) -> Target:
        """This target with ``arch`` filled in from a device that is present.

        Args:
            index: of the GPU; the current one if not given.
        """
        if self.arch is not None:
            return self
        return replace(self, arch=_present_arch(self.kind, index))

    def __str__(self) -> str:
        products = None if self.products == "torch" else f"{self.products} products"
        details = [detail for detail in (self.arch, products) if detail is not None]
        return f"{self.kind} ({', '.join(details)})" if details else self.kind


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


def _present_arch(kind: str, index: int | None = None) -> str | None:
    if kind == "cpu":
        return processors.present()
    if kind == "cuda" and torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability(index)
        return f"sm_{major}{minor}"
    return _DEFAULT_ARCHS.get(kind)


UNSOUND_PASSES = [
    "tirx.StmtSimplify",
    "s_tir.StmtSimplify",
    "tirx.RemoveNoOp",
    "s_tir.RenormalizeSplitPattern",
]
"""Those of TVM's passes over kernels that no target has.

Their simplifier takes floats for real numbers: x - x becomes 0, also for NaN, and
(x + 1e20) - 1e20 becomes x.
"""


WITHOUT_SLP = "-vectorize-slp:bool=0"
"""For LLVM, whose vectorizer of straight-line code makes invalid code of some kernels."""


@lru_cache
def tvm_target(target: Target, options: tuple[str, ...] = ()) -> tvm.target.Target:
    """The target in TVM's words, host included.

    Args:
        target: what is compiled for.
        options: for LLVM, as its command line takes them.
    """
    arch = target.resolved().arch
    is_cpu = target.kind == "cpu"
    cpu = arch if is_cpu else _present_arch("cpu")
    unwanted = (*processors.ARITHMETIC_OF_HALVES, processors.SHORT_VECTORS)
    without = [f"-{name}" for name in unwanted if name in processors.features(cpu)]
    host = {"kind": "llvm", "mcpu": cpu, "mattr": without, "cl-opt": list(options)}
    if is_cpu:
        return tvm.target.Target(host, host)
    device: dict[str, object] = {"kind": target.kind, **_LIMITS[target.kind]}
    if target.kind == "rocm":
        # Where a barrier of the hardware leaves stores on their way, LLVM waits for none before it:
        # that is told it by fences, which TVM does not write. And sums of products of bytes that
        # are bytes themselves, it turns into instructions for sums of int32, and crashes.
        device["mattr"] = ["-back-off-barrier", "-dot1-insts", "-dot7-insts"]
    if target.kind == "cuda" and arch is not None and int(re.sub(r"\D", "", arch)) < BFLOAT16:
        # CUDA has bfloat16 for all, whose arithmetic is float's. TVM would take it apart into
        # integers, and vectors of these that CUDA has not.
        arch = f"sm_{BFLOAT16}"
    if arch is not None:
        device["arch" if target.kind == "cuda" else "mcpu"] = arch
    return tvm.target.Target(device, host)
