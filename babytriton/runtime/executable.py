"""Scheduled IR -> machine code, and the sources it can show."""

from __future__ import annotations

import gc
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
import tvm
from tvm import ir, relax, tirx
from tvm.error import InternalError
from tvm.ir import IRModule

from babytriton.ops.primfunc import nodes
from babytriton.runtime import cuda, rocm
from babytriton.runtime.threads import on_torchs_threads
from babytriton.targets import UNSOUND_PASSES, WITHOUT_SLP, Target, tvm_target

# TVM's passes and code generators share state: two threads compiling at once crash.
COMPILE_LOCK = threading.RLock()
if hasattr(os, "register_at_fork"):  # a copy of a process without the thread that would unlock it
    os.register_at_fork(
        before=COMPILE_LOCK.acquire,
        after_in_parent=COMPILE_LOCK.release,
        after_in_child=COMPILE_LOCK.release,
    )


@contextmanager
def uncollected() -> Iterator[None]:
    """No garbage collection meanwhile, for who has the lock.

    Of all that torch and TVM have made, one takes a tenth of a second: twice as long as a small
    function takes to compile.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


# Gives names to what expressions share.
_SHARING = "tirx.CommonSubexprElim"

# Looks for less memory than is used, which there seldom is by then.
_COMPACTING = "s_tir.CompactBufferAllocation"

# Gives indices 32 bits where they are enough. A variable that is in another index as well, which
# needs 64, keeps these: then the loads of a vector become one of separate numbers.
_NARROWING = "tirx.NarrowDataType"

FORGET = "babytriton_forget"
"""A function of a virtual machine that gives nothing: a machine holds what it gave last."""

# LLVM runs a few vectors of a short loop side by side, as many as have room in its registers, and
# one of loops of more than so many instructions. Those of formulas have more, and each of theirs
# waits for the one before.
_SIDE_BY_SIDE = "-small-loop-cost:uint=256"


# Of a buffer, as TVM's names of kinds of memory have it.
_PLACE = re.compile(r'(?<=!")0x[0-9a-f]+')


@dataclass(frozen=True)
class Executable:
    """Compiled code, which may be run by one virtual machine a thread.

    Attributes:
        vm_executable: TVM's executable.
        entry: the name of the program's function in it.
        target: what it was compiled for.
    """

    vm_executable: Any
    entry: str
    target: Target

    def cuda(self) -> str:
        """The CUDA C++ that is compiled; empty without kernels."""
        return "\n".join(self._sources("cuda", ""))

    def portable(self) -> str:
        """The kernels for a GPU without CUDA, in the language of its kind."""
        return "\n".join(self._sources(self.target.kind, ""))

    def llvm(self) -> str:
        """The LLVM IR of all kernels and of the host code; for ROCm, of the kernels."""
        text = "\n".join(self._machine("ll", "llvm"))
        # TVM tells buffers apart by where it has them, which is another place in each process.
        places = {
            place: f"buffer{n}" for n, place in enumerate(dict.fromkeys(_PLACE.findall(text)))
        }
        return _PLACE.sub(lambda match: places[match[0]], text)

    def asm(self) -> str:
        """The CPU's assembly of all kernels and of the host code; for ROCm, that of the kernels."""
        return "\n".join(self._machine("s", "asm"))

    def _machine(self, format: str, of_rocm: str) -> list[str]:
        if self.target.kind == "rocm":
            return self._sources("hip", of_rocm)
        return self._sources("llvm", format)

    def kernel(self, name: str) -> Any:
        """One of its kernels, as a function of its arguments and the tensors that it writes."""
        host = next(m for m in _modules(self.vm_executable.mod) if m.kind == "llvm")
        return host.get_function(name)

    def _sources(self, kind: str, format: str) -> list[str]:
        modules = [m for m in _modules(self.vm_executable.mod) if m.kind == kind]
        return [str(module.inspect_source(format)) for module in modules]


def build(
    mod: IRModule, entry: str, target: Target, lowering: str, finish: Callable[[str], str]
) -> Executable:
    """Compile scheduled IR.

    Args:
        mod: the program and its scheduled TensorIR functions.
        entry: the program's function.
        target: what to compile for.
        lowering: TVM's name of the passes that lower kernels.
        finish: makes the CUDA C++ that is compiled of what TVM wrote.
    """
    if target.kind == "rocm":
        rocm.need_no_tools()
    # With a name in an address, TVM's CUDA does not know that it is a vector's.
    disabled = UNSOUND_PASSES if target.kind == "cpu" else [*UNSOUND_PASSES, _SHARING]
    if target.kind == "cpu" and (has_variable_sizes(mod) or has_indices_from_tensors(mod)):
        disabled = [*disabled, _NARROWING]
    with COMPILE_LOCK, cuda.finished_by(finish):
        try:
            return Executable(_compiled(mod, target, lowering, disabled), entry, target)
        except InternalError:
            if target.kind != "cpu" or not has_variable_sizes(mod):
                raise
        # Of sizes that are variables: one makes of `n // n` what code generators refuse, the other
        # takes divisors for zeros under some conditions.
        disabled = [*disabled, _SHARING, _COMPACTING]
        return Executable(_compiled(mod, target, lowering, disabled), entry, target)


def _compiled(mod: IRModule, target: Target, lowering: str, disabled: list[str]) -> Any:
    context = tvm.transform.PassContext(
        opt_level=3,
        disabled_pass=disabled,
        config={
            # A value in the place of another would have that one's name, and where threads share
            # the place, they would wait for those that read the other.
            "tirx.disable_storage_rewrite": target.kind != "cpu",
        },
    )
    # Those that TVM has for GPUs would fuse kernels that are scheduled already.
    program = relax.get_pipeline("default")
    functions = [func for func in mod.functions.values() if isinstance(func, relax.Function)]
    if len(functions) > 1:
        # Else it would make views of what is only read in another shape, which functions write to.
        mod = relax.transform.ToNonDataflow()(mod)
    mod = _forgetting(mod)

    def code(*options: str) -> Any:
        device = tvm_target(target, (_SIDE_BY_SIDE, *options))
        return tvm.compile(mod, target=device, relax_pipeline=program, tir_pipeline=lowering)

    with context, on_torchs_threads():
        try:
            return _loaded(code())
        except InternalError as error:
            if "LLVM module verification failed" not in str(error):
                raise
            return _loaded(code(WITHOUT_SLP))


def _forgetting(mod: IRModule) -> IRModule:
    """A program with the function that makes a virtual machine let go of what it gave."""
    nothing = relax.Function([], relax.SeqExpr([], relax.Tuple([])), relax.TupleType([]))
    functions = dict(mod.functions_items())
    functions[ir.GlobalVar(FORGET)] = nothing.with_attr("global_symbol", FORGET)
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def _loaded(built: Any) -> Any:
    """The executable with its machine code in place, which TVM else does at the first call."""
    for module in _modules(built.mod):
        if module.kind == "llvm":
            with suppress(AttributeError):
                module.get_function("")  # There is none, and it had to look.
    return built


def has_variable_sizes(mod: IRModule) -> bool:
    """Whether a kernel takes tensors of sizes that are known only at the call."""
    functions = [fn for _, fn in mod.functions_items() if isinstance(fn, tirx.PrimFunc)]
    buffers = [x for fn in functions for x in fn.params if isinstance(x.ty, tirx.BufferType)]
    return any(not isinstance(n, tirx.IntImm) for buffer in buffers for n in buffer.shape)


def has_indices_from_tensors(mod: IRModule) -> bool:
    """Whether a kernel reads or writes elements whose places it has from a tensor of 64 bits."""
    for _, func in mod.functions_items():
        if not isinstance(func, tirx.PrimFunc):
            continue
        for kind in (ir.TensorLoad, tirx.BufferStore):
            for access in nodes(func.body, kind):
                loads = nodes(list(access.indices), ir.TensorLoad)
                if any(str(load.ty.dtype) == "int64" for load in loads):
                    return True
    return False


def _modules(module: Any) -> Iterator[Any]:
    yield module
    for imported in module.imports:
        yield from _modules(imported)


def virtual_machine(executable: Executable, devices: Sequence[torch.device]) -> Any:
    """A virtual machine for the calling thread; sharing one between threads crashes."""
    found = [tvm.device(device.type, device.index or 0) for device in devices]
    with COMPILE_LOCK:
        return relax.VirtualMachine(executable.vm_executable, found)
