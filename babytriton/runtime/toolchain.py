"""What this machine has for CUDA: torch's, the driver's and TVM's parts, and whether they fit."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
import tvm

from babytriton import errors

RUNTIME = 13
"""The major version of CUDA that TVM's runtime is built for."""

RUNTIME_PACKAGE = f"nvidia-cuda-runtime>={RUNTIME},<{RUNTIME + 1}"

_DRIVER = f"a driver for CUDA {RUNTIME} or newer (580 or newer)"
_NO_MATTER = "lower, schedule, compile and source work without one; calling does not"


@dataclass(frozen=True)
class _UnusableError(Exception):
    """Why kernels cannot run.

    Attributes:
        found: what is there, and does not fit.
        install: what would.
    """

    found: str
    install: str


def require_gpu(function: str, arch: str, index: int | None = None) -> None:
    """Refuse to run a function where the parts that a GPU takes are missing, or do not fit.

    Args:
        function: its name.
        arch: what it was compiled for, such as "sm_80".
        index: of the GPU; the current one if not given.

    Raises:
        RuntimeError: it says what was found, and what to install.
    """
    try:
        _require_gpu()
        _require_arch(arch, torch.cuda.current_device() if index is None else index)
    except _UnusableError as unusable:
        error = errors.NoDevice(None, function, unusable.found, unusable.install).error()
        raise error from None


@cache  # of what is there; what is missing may come
def _require_gpu() -> None:
    built = torch.version.cuda
    if built is None:
        raise _UnusableError(f"this torch ({torch.__version__}) was built without CUDA", _NO_MATTER)
    driver = driver_version()
    if not torch.cuda.is_available():
        raise _without_device(built, driver)
    if not tvm.cuda(0).exist:
        load_runtime()
    if not tvm.cuda(0).exist:
        raise _without_runtime(built, driver)


@cache
def _require_arch(arch: str, index: int) -> None:
    major, minor = torch.cuda.get_device_capability(index)
    built = int(re.sub(r"\D", "", arch))
    if (built // 10, built % 10 <= minor) != (major, True):
        name = torch.cuda.get_device_name(index)
        found = f"it was compiled for {arch}, and {name} is sm_{major}{minor}"
        raise _UnusableError(found, f"compile for Target('cuda', arch='sm_{major}{minor}')")


def _without_device(built: str, driver: str | None) -> _UnusableError:
    if driver is None:
        found = "torch finds no CUDA device, and there is no driver: libcuda.so.1 was not found"
        return _UnusableError(found, f"{_NO_MATTER}; to call, install {_DRIVER}")
    if _number(driver) < _number(built):
        found = f"the driver is for CUDA {driver}; torch {torch.__version__} needs {built}"
        return _UnusableError(found, f"install {_DRIVER}")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    why = "" if visible is None else f" (CUDA_VISIBLE_DEVICES={visible!r})"
    return _UnusableError(f"the driver, for CUDA {driver}, finds no GPU{why}", _NO_MATTER)


def _without_runtime(built: str, driver: str | None) -> _UnusableError:
    if driver is not None and _number(driver) < (RUNTIME, 0):
        found = f"the driver is for CUDA {driver}; TVM's runtime needs {RUNTIME}.0"
        return _UnusableError(found, f"install {_DRIVER}")
    library = f"libcudart.so.{RUNTIME}"
    if not libraries(library):
        found = f"TVM's runtime needs {library}; torch {torch.__version__} brings CUDA {built}"
        return _UnusableError(found, f'pip install "{RUNTIME_PACKAGE}"')
    found = f"TVM's CUDA runtime finds no GPU with {libraries(library)[0]}"
    return _UnusableError(found, "install a torch that is built for CUDA 13")


def load_runtime() -> None:
    """Load TVM's CUDA runtime, for which `import tvm` may have missed a library."""
    runtime = Path(tvm.__file__).parent / "lib" / "libtvm_runtime_cuda.so"
    for path in [*libraries(f"libcudart.so.{RUNTIME}")[:1], str(runtime)]:
        with suppress(OSError):
            ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)


def driver_version() -> str | None:
    """The newest CUDA that NVIDIA's driver runs, such as "13.0"; None without a driver."""
    version = ctypes.c_int()
    try:
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def libraries(pattern: str) -> list[str]:
    """Libraries of NVIDIA's pip packages, the newest first."""
    return sorted(pip_files(f"lib/{pattern}"), key=_number, reverse=True)


def pip_files(pattern: str) -> list[str]:
    """Files of NVIDIA's pip packages, which share the folder ``nvidia`` of site-packages."""
    roots = [Path(entry) / "nvidia" for entry in sys.path if entry]
    return [str(path) for root in roots for path in sorted(root.glob(f"*/{pattern}"))]


def _number(version: str) -> tuple[int, ...]:
    """What a version, or what a library's name ends in, is compared by."""
    _, _, number = version.rpartition(".so.")
    return tuple(int(part) for part in number.split(".") if part.isdigit())
