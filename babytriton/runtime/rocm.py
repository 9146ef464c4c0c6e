"""What TVM needs of ROCm for the source of kernels: nothing, once it does not look for it."""

from __future__ import annotations

import tvm_ffi


def _no_libraries() -> list[str]:
    """The libraries of device functions to link: calls of these stay calls in the source."""
    return []


def _unlinked(code: bytes) -> bytes:
    """The object code as it is: it is read, and not loaded."""
    return code


tvm_ffi.register_global_func("tvm_callback_rocm_bitcode_path", _no_libraries, override=True)
tvm_ffi.register_global_func("tvm_callback_rocm_link", _unlinked, override=True)
