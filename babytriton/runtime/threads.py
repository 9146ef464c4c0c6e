"""CPU kernels on torch's own threads.

TVM's code asks its runtime to run a parallel loop, through a pointer that is set when the code is
loaded. The pointer is set here to a few lines that hand the loop to OpenMP, as torch does: the
number of threads is then always torch's, a thread still awake from torch's last operation takes
up the next loop at once, and no second pool competes for the cores.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import tvm
import tvm_ffi

from babytriton.runtime.llvm_code import address, library, loaded

# The pointer, in code that TVM generates.
_POINTER = b"__TVMBackendParallelLaunch"

# at::get_num_threads(), which is what torch.get_num_threads() gives.
_NUM_THREADS = "_ZN2at15get_num_threadsEv"

# Of less work, as `passes/cpu/work.py` counts it, threads take longer to wake up than one does.
_WORTH_SHARING = 1 << 17

# TVM's interface: a loop is a function of the thread's number, of {a handle for barriers, the
# number of threads}, and of its data; it gives 0, or what went wrong. torch's number of threads
# is that of the calling thread. The data begins with the loop's work. A loop on one thread needs no
# OpenMP.
_LAUNCHER = """
%environment = type {{ ptr, i32 }}
%job = type {{ ptr, ptr, i32 }}

define internal void @share(ptr %job) {{
  %thread = call i32 inttoptr (i64 {thread} to ptr)()
  %count = call i32 inttoptr (i64 {count} to ptr)()
  %code = call i32 @run(ptr %job, i32 %thread, i32 %count)
  %failed = icmp ne i32 %code, 0
  br i1 %failed, label %tell, label %done
tell:
  %place = getelementptr %job, ptr %job, i32 0, i32 2
  store atomic i32 %code, ptr %place monotonic, align 4
  br label %done
done:
  ret void
}}

define internal i32 @run(ptr %job, i32 %thread, i32 %count) {{
  %environment = alloca %environment
  store ptr null, ptr %environment
  %place = getelementptr %environment, ptr %environment, i32 0, i32 1
  store i32 %count, ptr %place
  %loop = load ptr, ptr %job
  %second = getelementptr %job, ptr %job, i32 0, i32 1
  %data = load ptr, ptr %second
  %code = call i32 %loop(i32 %thread, ptr %environment, ptr %data)
  fence seq_cst
  ret i32 %code
}}

define i32 @launch(ptr %loop, ptr %data, i32 %ignored) {{
  %job = alloca %job
  store ptr %loop, ptr %job
  %second = getelementptr %job, ptr %job, i32 0, i32 1
  store ptr %data, ptr %second
  %place = getelementptr %job, ptr %job, i32 0, i32 2
  store i32 0, ptr %place
  %wanted = call i32 inttoptr (i64 {wanted} to ptr)()
  %is_one = icmp eq i32 %wanted, 1
  %work = load i64, ptr %data
  %is_little = icmp slt i64 %work, {worth_sharing}
  %is_alone = or i1 %is_one, %is_little
  br i1 %is_alone, label %alone, label %together
alone:
  %code = call i32 @run(ptr %job, i32 0, i32 1)
  ret i32 %code
together:
  call void inttoptr (i64 {start} to ptr)(ptr @share, ptr %job, i32 %wanted, i32 0)
  %first = load atomic i32, ptr %place monotonic, align 4
  ret i32 %first
}}

define i32 @__tvm_ffi_address(ptr %self, ptr %arguments, i32 %count, ptr %result) {{
  store {{ i32, i32, i64 }} {{ i32 1, i32 0, i64 ptrtoint (ptr @launch to i64) }}, ptr %result
  ret i32 0
}}
"""


@contextmanager
def on_torchs_threads() -> Iterator[None]:
    """Code that TVM loads within this context runs its parallel loops on torch's threads.

    Where torch was built without OpenMP, it runs them on TVM's.
    """
    found = _launchers()
    if found is None:
        yield
        return
    _set_pointer(found.torchs)
    try:
        yield
    finally:
        _set_pointer(found.tvms)  # Others in this process may use TVM, too.


def _set_pointer(address: int) -> None:
    register = library(tvm_ffi, "libtvm_ffi.so").TVMFFIEnvModRegisterContextSymbol
    register(ctypes.c_char_p(_POINTER), ctypes.c_void_p(address))


@dataclass(frozen=True)
class _Launchers:
    """Addresses of ours and of TVM's.

    Attributes:
        module: has the code of ours.
    """

    torchs: int
    tvms: int
    module: Any


@cache
def _launchers() -> _Launchers | None:
    """None if torch has no OpenMP."""
    try:
        libtorch = library(torch, "libtorch_cpu.so")
        places = {
            "start": address(libtorch, "GOMP_parallel"),
            "thread": address(libtorch, "omp_get_thread_num"),
            "count": address(libtorch, "omp_get_num_threads"),
            "wanted": address(libtorch, _NUM_THREADS),
            "worth_sharing": _WORTH_SHARING,
        }
        tvms = address(library(tvm, "libtvm_runtime.so"), "TVMBackendParallelLaunch")
    except (OSError, AttributeError):
        return None
    module = loaded(_LAUNCHER.format(**places))
    return _Launchers(module["address"](), tvms, module)
