"""A few lines of LLVM IR as machine code in this process, and the addresses that they call."""

from __future__ import annotations

import ctypes
import tempfile
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi


def loaded(code: str) -> Any:
    """The module of some LLVM IR: functions that are named as TVM names its own can be called."""
    empty = tvm_ffi.get_global_func("codegen.LLVMModuleCreate")("llvm", "code")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "code.ll"
        file.write_text(empty.inspect_source("ll") + code)
        return tvm.runtime.load_module(str(file))


def library(package: Any, name: str) -> ctypes.CDLL:
    """A shared library of a Python package.

    Raises:
        OSError: there is none of this name.
    """
    return ctypes.CDLL(str(Path(package.__file__).parent / "lib" / name))


def address(library: ctypes.CDLL, name: str) -> int:
    """That of a function of a library.

    Raises:
        AttributeError: there is none of this name.
    """
    found = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    assert found is not None
    return found
