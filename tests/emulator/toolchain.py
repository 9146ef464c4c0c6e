"""The real CUDA compiler, where there is one: what the emulator accepts, nvcc must accept too."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from babytriton.runtime.text.cuda_kernels import Listing

# As tvm.support.nvcc calls it, without -O3: most of the time is spent in ptxas. And without
# fast-math, as babytriton compiles: torch's results are those of precise functions.
TVM_FLAGS = (
    "-U__CUDA_NO_HALF_OPERATORS__",
    "-U__CUDA_NO_HALF_CONVERSIONS__",
    "-U__CUDA_NO_BFLOAT16_OPERATORS__",
    "-U__CUDA_NO_BFLOAT16_CONVERSIONS__",
    "-U__CUDA_NO_BFLOAT162_OPERATORS__",
    "-U__CUDA_NO_BFLOAT162_CONVERSIONS__",
    "--expt-relaxed-constexpr",
    "--expt-extended-lambda",
)

KERNEL_NAME = re.compile(
    r'extern "C" __global__ void (?:__launch_bounds__\((?:[^()]|\([^()]*\))*\) )?(\w+)\('
)


class CudaCompileError(RuntimeError):
    """nvcc refuses a source."""


def find_nvcc() -> Path | None:
    """The nvcc on PATH. It may be a script that calls another: its own place says nothing."""
    found = shutil.which("nvcc")
    return Path(found) if found else None


def find_toolkit() -> Path | None:
    """The folder with nvcc's headers and libraries, as nvcc itself names it."""
    nvcc = find_nvcc()
    if nvcc is None:
        return None
    with tempfile.NamedTemporaryFile(suffix=".cu") as empty:
        told = subprocess.run([nvcc, "--dryrun", "-c", empty.name], capture_output=True, text=True)
    top = re.search(r"^#\$ TOP=(.+)$", told.stderr, re.MULTILINE)
    return Path(top.group(1)).resolve() if top else None


def compile_cuda(source: str, arch: str) -> bytes:
    """One source, as a cubin for `arch` (``"sm_90"``), with the flags TVM compiles with."""
    nvcc = find_nvcc()
    if nvcc is None:
        raise CudaCompileError("nvcc is not on PATH")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "kernel.cu").write_text(source)
        command = [
            str(nvcc),
            "--cubin",
            f"-arch={arch}",
            *TVM_FLAGS,
            "-o",
            "kernel.cubin",
            "kernel.cu",
        ]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if done.returncode:
            raise CudaCompileError(f"nvcc refuses the source for {arch}:\n{done.stderr}")
        return Path(folder, "kernel.cubin").read_bytes()


def compile_cuda_batch(sources: Sequence[str], arch: str) -> list[bytes]:
    """Many sources in few calls of nvcc, each of which takes a second before it starts.

    Sources that share TVM's preamble word for word share a call. Their kernels get a number, for
    each module has a ``fused_add_kernel``. An error names its source: ``source 17(126): error``.
    """
    bodies: dict[str, list[str]] = {}
    for number, source in enumerate(sources):
        preamble = Listing.of(source).preamble
        body = source.removeprefix(preamble)
        names = KERNEL_NAME.findall(body)
        if names:
            # All at once: a renamed `f_kernel` must not be taken for another `f_kernel_1`.
            body = re.sub(rf"\b({'|'.join(set(names))})\b", rf"\1_of_{number}", body)
        line = preamble.count("\n") + 1
        bodies.setdefault(preamble, []).append(f'#line {line} "source {number}"\n{body}\n')
    return [compile_cuda(preamble + "".join(group), arch) for preamble, group in bodies.items()]
