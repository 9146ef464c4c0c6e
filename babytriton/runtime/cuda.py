"""CUDA's own tools: a compiler for PTX and machine code, a disassembler for SASS.

The compiler is NVRTC from its pip package, so that no CUDA toolkit is needed; ``nvcc`` where that
is asked for, or alone there. NVRTC's headers are those of pip packages, or a toolkit's. The
disassembler is ``nvdisasm``, from PATH, a toolkit or its pip package.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
import tvm
import tvm_ffi

from babytriton import errors
from babytriton.config import CONFIG
from babytriton.plan import ALLOCATE, FREE
from babytriton.runtime.toolchain import libraries, pip_files
from babytriton.targets import BFLOAT16

_NVRTC_PACKAGES = "nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cuda-cccl"
_CCCL = "cuda/std/cstdint"

# Of TVM's preamble, what NVRTC is given of <type_traits>: it reads a second at that header.
_TRAITS = re.compile(r"^ *#include <cuda/std/type_traits>\n *namespace std \{\n[^}]*\}\n", re.M)
_USE_OF_TRAITS = re.compile(r"\bstd\s*::(?!\s*u?int\d+_t\b)|\bnamespace\s+std\b")


def has_compiler() -> bool:
    """Whether there is a compiler for CUDA here."""
    return shutil.which("nvcc") is not None or (not CONFIG.nvcc and _has_nvrtc())


def _nvrtc_libraries() -> list[str]:
    return libraries("libnvrtc.so.*")


def _has_nvrtc() -> bool:
    """Whether NVRTC is here with its headers: torch brings it without those of CCCL."""
    return bool(_nvrtc_libraries()) and any(Path(at, _CCCL).exists() for at in _include_folders())


def _include_folders() -> list[str]:
    """Where headers are: of pip packages, which fit their NVRTC, before a toolkit's."""
    include = _toolkit() / "include"
    found = [*pip_files("include"), *pip_files("include/cccl"), str(include), str(include / "cccl")]
    return [path for path in found if os.path.isdir(path)]


def _toolkit() -> Path:
    return Path(os.environ.get("CUDA_PATH", "/usr/local/cuda"))


def _chosen_nvcc() -> str | None:
    """The path of nvcc, where it is to compile.

    Raises:
        RuntimeError: it was asked for, and is not there.
    """
    found = shutil.which("nvcc")
    if CONFIG.nvcc and found is None:
        purpose = "BABYTRITON_NVCC=1"
        raise errors.MissingTool(None, "nvcc", purpose, "nvidia-cuda-nvcc").error()
    return found if CONFIG.nvcc or not _has_nvrtc() else None


def ptx(source: str, arch: str) -> str:
    """The PTX of CUDA source.

    Args:
        source: CUDA C++.
        arch: such as ``"sm_80"``.

    Raises:
        RuntimeError: no compiler was found, or it refuses the source.
    """
    if not source.strip():
        return ""
    nvcc = _chosen_nvcc()
    if nvcc is not None:
        return _nvcc(nvcc, source, arch, "ptx").decode()
    return _nvrtc(source, arch.replace("sm_", "compute_"), "PTX", "PTX").decode().rstrip("\0")


def cubin(source: str, arch: str) -> bytes:
    """The machine code of CUDA source, as an ELF file.

    Args:
        source: CUDA C++.
        arch: such as ``"sm_80"``.

    Raises:
        RuntimeError: no compiler was found, or it refuses the source.
    """
    nvcc = _chosen_nvcc()
    if nvcc is not None:
        return _nvcc(nvcc, source, arch, "cubin")
    return _nvrtc(source, arch, "CUBIN", "SASS")


def sass(source: str, arch: str) -> str:
    """The disassembled machine code of CUDA source.

    Args:
        source: CUDA C++.
        arch: such as ``"sm_80"``.

    Raises:
        RuntimeError: the compiler or the disassembler was not found.
    """
    if not source.strip():
        return ""
    tool = _find_program("nvdisasm")
    if tool is None:
        raise errors.MissingTool(None, "nvdisasm", "SASS", "nvidia-cuda-nvdisasm").error()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernels.cubin"
        path.write_bytes(cubin(source, arch))
        return _run([tool, "-c", path.name], folder).decode()


def _nvcc(nvcc: str, source: str, arch: str, format: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        made = f"kernels.{format}"
        Path(folder, "kernels.cu").write_text(source)
        options = [f"--{format}", f"-arch={arch}", "-std=c++17", "-o", made]
        _run([nvcc, *options, "kernels.cu"], folder)  # where its messages name no folder
        return Path(folder, made).read_bytes()


def _run(command: list[str], folder: str | None = None) -> bytes:
    done = subprocess.run(command, capture_output=True, check=False, cwd=folder)
    if done.returncode:
        output = (done.stderr or done.stdout).decode(errors="replace").strip()
        raise errors.ToolFailed(None, Path(command[0]).name, output).error()
    return done.stdout


def _find_program(name: str) -> str | None:
    candidates = [shutil.which(name), str(_toolkit() / "bin" / name), *pip_files(f"bin/{name}")]
    return next((path for path in candidates if path and os.access(path, os.X_OK)), None)


def _nvrtc(source: str, arch: str, result: str, purpose: str) -> bytes:
    if not _has_nvrtc():
        tool = "nvcc or NVRTC with its headers"
        raise errors.MissingTool(None, tool, purpose, _NVRTC_PACKAGES).error()
    nvrtc = ctypes.CDLL(_nvrtc_libraries()[0])
    _require_known(nvrtc, arch)
    program = ctypes.c_void_p()
    text = _without_unused_traits(source).encode()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, b"kernels.cu", 0, None, None)
    includes = [f"-I{path}" for path in _include_folders()]
    flags = [f"--gpu-architecture={arch}", "-default-device", *includes]
    options = (ctypes.c_char_p * len(flags))(*(flag.encode() for flag in flags))
    try:
        if nvrtc.nvrtcCompileProgram(program, len(flags), options):
            log = _nvrtc_bytes(nvrtc, program, "ProgramLog").decode(errors="replace")
            raise errors.ToolFailed(None, "NVRTC", log.strip("\0\n")).error()
        return _nvrtc_bytes(nvrtc, program, result)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _without_unused_traits(source: str) -> str:
    """The text without TVM's traits of types where nothing else names one; lines keep numbers."""
    without = _TRAITS.sub(lambda traits: "\n" * traits[0].count("\n"), source)
    return source if _USE_OF_TRAITS.search(without) else without


def _require_known(nvrtc: ctypes.CDLL, arch: str) -> None:
    """Refuse a GPU that this version does not compile for."""
    count, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    nvrtc.nvrtcGetNumSupportedArchs(ctypes.byref(count))
    known = (ctypes.c_int * count.value)()
    nvrtc.nvrtcGetSupportedArchs(known)
    if int(re.sub(r"\D", "", arch)) not in list(known):
        tool = f"NVRTC {major.value}.{minor.value}"
        archs = ", ".join(f"sm_{number}" for number in known)
        wanted = arch.replace("compute_", "sm_")
        raise errors.UnknownArch(None, tool, wanted, archs, "nvidia-cuda-nvrtc").error()


def _nvrtc_bytes(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, f"nvrtcGet{what}")(program, buffer)
    return buffer.raw


# What makes the text that is compiled of TVM's, for the programs that are built meanwhile.
_FINISH: ContextVar[Callable[[str], str] | None] = ContextVar("finish", default=None)


@contextmanager
def finished_by(finish: Callable[[str], str]) -> Iterator[None]:
    """CUDA C++ that TVM writes within this context goes through a function."""
    before = _FINISH.set(finish)
    try:
        yield
    finally:
        _FINISH.reset(before)


def _finished(source: str, *_: Any) -> str:
    finish = _FINISH.get()
    return source if finish is None else finish(source)


tvm_ffi.register_global_func("tvm_callback_cuda_postproc", _finished, override=True)


def _compile_for_tvm(source: str, *_: Any) -> bytes:
    asked, present = tvm.target.Target.current(allow_none=True), _present()
    # Older ones are called by another name where code is generated for them.
    is_older = int(present.removeprefix("sm_")) < BFLOAT16
    return cubin(source, present if asked is None or is_older else str(asked.attrs["arch"]))


def _present() -> str:
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"


def _allocate(device: int, bytes: int) -> int:
    """Memory of torch's on the current stream of a GPU, which is the current one."""
    stream = torch._C._cuda_getCurrentRawStream(device)
    return int(torch._C._cuda_cudaCachingAllocator_raw_alloc(bytes, stream))


def _free(address: int) -> None:
    """What is on the stream already may use the memory to the end."""
    torch._C._cuda_cudaCachingAllocator_raw_delete(address)


# What the allocator raises comes out of kernels as itself.
tvm_ffi.register_error("OutOfMemoryError", torch.OutOfMemoryError)

if torch.cuda.is_available():
    tvm_ffi.register_global_func(ALLOCATE, _allocate, override=True)
    tvm_ffi.register_global_func(FREE, _free, override=True)
    # TVM's own callback compiles with fast-math, whose results differ from torch's.
    tvm_ffi.register_global_func("tvm_callback_cuda_compile", _compile_for_tvm, override=True)
