"""Plain Python functions over torch tensors, compiled to fused CPU and CUDA kernels."""

import sys as _sys

_excepthook = _sys.excepthook
# torch first: it loads the CUDA runtime library that TVM's CUDA runtime needs.
import torch as _torch  # noqa: E402, F401
import tvm as _tvm  # noqa: E402, F401

# TVM replaces the hook; a user's uncaught error would then print without its message.
_sys.excepthook = _excepthook

from babytriton.config import CONFIG as _CONFIG  # noqa: E402
from babytriton.device import device  # noqa: E402
from babytriton.diagnostics import CompileError  # noqa: E402
from babytriton.frontend.grid import grid  # noqa: E402
from babytriton.jit import JitFunction, jit, register  # noqa: E402
from babytriton.kernel import KernelFunction, kernel  # noqa: E402
from babytriton.kernel_stages import (  # noqa: E402
    CompiledKernel,
    LoweredKernel,
    ScheduledKernel,
)
from babytriton.specializations import Specialization  # noqa: E402
from babytriton.stages import Compiled, Lowered, Scheduled  # noqa: E402
from babytriton.targets import Target  # noqa: E402
from babytriton.tensor import Tensor  # noqa: E402

_CONFIG.start_logging()

__version__ = "0.1.0"
__all__ = [
    "CompileError",
    "Compiled",
    "CompiledKernel",
    "JitFunction",
    "KernelFunction",
    "Lowered",
    "LoweredKernel",
    "Scheduled",
    "ScheduledKernel",
    "Specialization",
    "Target",
    "Tensor",
    "__version__",
    "device",
    "grid",
    "jit",
    "kernel",
    "register",
]
