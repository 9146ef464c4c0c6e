"""Plain Python functions over torch tensors, compiled to fused CPU and CUDA kernels."""

import sys as _sys

# The first of these to load TVM loads torch before it, and with that the CUDA runtime TVM needs.
from babytriton import excepthook as _excepthook
from babytriton import integrations, testing
from babytriton.config import CONFIG as _CONFIG
from babytriton.cuda_code import cuda_function, cuda_kernel
from babytriton.device import device
from babytriton.diagnostics import CompileError
from babytriton.frontend.grid import grid
from babytriton.integrations.torch_library import LibraryOp, library_op
from babytriton.jit import JitFunction, jit, register
from babytriton.kernel import KernelFunction, kernel
from babytriton.kernel_stages import (
    CompiledKernel,
    LoweredKernel,
    ScheduledKernel,
)
from babytriton.specializations import Specialization
from babytriton.stages import Compiled, Lowered, Scheduled
from babytriton.targets import Target
from babytriton.tensor import Tensor

_sys.excepthook = _excepthook.BEFORE_TVM
_CONFIG.start_logging()

__version__ = "0.1.0"
__all__ = [
    "CompileError",
    "Compiled",
    "CompiledKernel",
    "JitFunction",
    "KernelFunction",
    "LibraryOp",
    "Lowered",
    "LoweredKernel",
    "Scheduled",
    "ScheduledKernel",
    "Specialization",
    "Target",
    "Tensor",
    "__version__",
    "cuda_function",
    "cuda_kernel",
    "device",
    "grid",
    "integrations",
    "jit",
    "kernel",
    "library_op",
    "register",
    "testing",
]
