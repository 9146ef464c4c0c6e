"""What TVM needs of ROCm for the source of kernels: nothing, once it does not look for it."""

from __future__ import annotations

from functools import cache

import tvm_ffi


@cache
def need_no_tools() -> None:
    """Have TVM make code for AMD's GPUs without ROCm: it is read, and not linked or loaded."""
    tvm_ffi.register_global_func("tvm_callback_rocm_bitcode_path", _no_libraries, override=True)
    tvm_ffi.register_global_func("tvm_callback_rocm_link", _unlinked, override=True)


def _no_libraries() -> list[str]:
    """The libraries of device functions to link: calls of these stay calls in the source."""
    return []


def _unlinked(code: bytes) -> bytes:
    """The object code as it is."""
    return code
