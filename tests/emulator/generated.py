"""Kernels as TVM generates them, to try the emulator and the toolchain on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .emulator import available_gpu, compile_kernels, install

Rewrite = Callable[[str], str]
Schedule = tuple[Any, Any]  # a module and the target to build it for


def scheduled(build: Callable[..., Any], *types: tuple[tuple[int, ...], str]) -> Schedule:
    """A Relax function of these inputs, fused and scheduled by TVM's own GPU rules."""
    if available_gpu() == "emulated":
        install()
    import tvm
    from tvm import relax
    from tvm.s_tir import dlight as dl

    target = tvm.target.Target(
        {
            "kind": "cuda",
            "arch": "sm_90",
            "max_threads_per_block": 1024,
            "max_shared_memory_per_block": 49152,
            "thread_warp_size": 32,
        }
    )
    builder = relax.BlockBuilder()
    inputs = [relax.Var(f"x{i}", relax.TensorType(*type_)) for i, type_ in enumerate(types)]
    with builder.function("main", inputs):
        with builder.dataflow():
            result = builder.emit_output(build(*inputs))
        builder.emit_func_output(result)
    with target:
        module = relax.transform.LegalizeOps()(builder.get())
        rules = (dl.gpu.Matmul(), dl.gpu.Reduction(), dl.gpu.GeneralReduction(), dl.gpu.Fallback())
        module = dl.ApplyDefaultSchedule(*rules)(module)
    return module, tvm.target.Target(target, "llvm")


def compiled(schedule: Schedule, rewrite: Rewrite | None = None) -> Any:
    """Built, with the CUDA source changed by `rewrite`."""
    import tvm
    import tvm_ffi

    module, target = schedule
    if rewrite is None:
        return tvm.compile(module, target=target)

    def changed(source: str) -> bytes:
        return compile_kernels(rewrite(source))

    name = "tvm_callback_cuda_compile"
    tvm_ffi.register_global_func(name, changed, override=True)
    try:
        return tvm.compile(module, target=target)
    finally:
        tvm_ffi.register_global_func(name, compile_kernels, override=True)


def cuda_source(executable: Any) -> str:
    [library] = executable.mod.imports
    [kernels] = library.imports
    return str(kernels.inspect_source())


def softmax() -> Schedule:
    from tvm import relax

    return scheduled(relax.op.nn.softmax, ((4, 1000), "float32"))


def matmul() -> Schedule:
    from tvm import relax

    return scheduled(relax.op.matmul, ((64, 96), "float32"), ((96, 64), "float32"))
