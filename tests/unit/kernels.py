"""Small kernels through the rules: built from Relax, scheduled, run, compared with torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import tvm
from tvm import relax, tirx
from tvm.script import tirx as T

from babytriton import processors
from babytriton.passes.lowering import LOWERING
from babytriton.passes.pipeline import backend_of, finish
from babytriton.passes.scheduling import RULE, schedule
from tests.conformance.gpu import ARCH
from tests.emulator import emulator

CPU = tvm.target.Target({"kind": "llvm", "mcpu": processors.present(), "num-cores": 2})
CUDA = tvm.target.Target(
    {
        "kind": "cuda",
        "arch": ARCH,
        "max_threads_per_block": 1024,
        "max_shared_memory_per_block": 49152,
        "thread_warp_size": 32,
    },
    host="llvm",
)

Build = Callable[..., Any]
Type = tuple[tuple[Any, ...], str]

FUSE = tvm.transform.Sequential(
    [
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
        relax.transform.DeadCodeElimination(),
    ]
)


def fused(build: Build, *types: Type) -> tvm.IRModule:
    """The Relax function that `build(builder, *inputs)` gives, as fused unscheduled kernels."""
    builder = relax.BlockBuilder()
    inputs = [relax.Var(f"x{i}", relax.TensorType(*type_)) for i, type_ in enumerate(types)]
    with builder.function("main", inputs):
        with builder.dataflow():
            result = build(builder, *inputs)
            if isinstance(result, tuple):
                result = relax.Tuple(list(result))
            output = builder.emit_output(result)
        builder.emit_func_output(output)
    return FUSE(builder.get())


def as_one(builder: relax.BlockBuilder, function: Callable[..., Any], *inputs: Any) -> Any:
    """A te function as one kernel (FuseOps cuts others where it will not fuse)."""
    return builder.emit_te(function, *inputs, primfunc_name_hint="kernel")


def running_sum(rows: int, columns: int) -> Build:
    """A scan as the operator table writes one: a block for each row, with a loop inside."""

    @T.prim_func(s_tir=True, private=True)
    def kernel(
        x: T.Buffer((T.int64(rows), T.int64(columns)), "float32"),
        y: T.Buffer((T.int64(rows), T.int64(columns)), "float32"),
    ):
        T.func_attr({"tirx.noalias": True})
        for i in range(T.int64(rows)):
            with T.sblock("scan"):
                row = T.axis.spatial(T.int64(rows), i)
                total = T.sblock_alloc_buffer((T.int64(1),), "float32", scope="local")
                total[T.int64(0)] = T.float32(0)
                for j in range(T.int64(columns)):
                    total[T.int64(0)] = total[T.int64(0)] + x[row, j]
                    y[row, j] = total[T.int64(0)]

    def build(builder: relax.BlockBuilder, x: Any) -> Any:
        type_ = relax.TensorType((rows, columns), "float32")
        return builder.emit(relax.call_tir(builder.add_func(kernel, "scan"), [x], out_ty=type_))

    return build


def rules_of(mod: tvm.IRModule) -> list[str]:
    """Which rule took each kernel."""
    return [str(func.attrs[RULE]) for func in kernels(mod) if RULE in func.attrs]


def kernels(mod: tvm.IRModule) -> list[tirx.PrimFunc]:
    return [func for _, func in mod.functions_items() if isinstance(func, tirx.PrimFunc)]


def on_cpu(build: Build, *types: Type) -> tvm.IRModule:
    """The module scheduled for the CPU."""
    return finish(schedule(fused(build, *types), backend_of("cpu").rules, CPU), "cpu")


def on_gpu(build: Build, *types: Type) -> tvm.IRModule:
    """The module scheduled for the GPU."""
    return finish(schedule(fused(build, *types), backend_of("cuda").rules, CUDA), "cuda")


def samples(types: Sequence[Type]) -> list[torch.Tensor]:
    """Reproducible inputs."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for shape, name in types:
        dtype = getattr(torch, name)
        if dtype.is_floating_point:
            made.append(torch.randn(shape, generator=generator).to(dtype))
        else:
            made.append(torch.randint(0, 2, shape, generator=generator).to(dtype))
    return made


def run_cpu(mod: tvm.IRModule, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    machine = relax.VirtualMachine(tvm.compile(mod, target=CPU, tir_pipeline=LOWERING), tvm.cpu())
    result = machine["main"](*inputs)
    return [result] if isinstance(result, torch.Tensor) else list(result)


def check_cpu(
    build: Build, reference: Callable[..., Any], *types: Type, within: float = 1e-5
) -> Any:
    """Schedule for the CPU, compare with `reference` in float64; the scheduled module."""
    mod = on_cpu(build, *types)
    inputs = samples(types)
    compare(run_cpu(mod, inputs), reference, inputs, within)
    return mod


def check_gpu(
    build: Build, reference: Callable[..., Any], *types: Type, within: float = 1e-5
) -> Any:
    """Schedule for CUDA, compare with `reference` in three orders of threads; the module."""
    mod = on_gpu(build, *types)
    inputs = samples(types)
    executable = tvm.compile(mod, target=CUDA)
    for order in emulator.ORDERS:
        with emulator.thread_order(order, lockstep=False):
            compare(emulator.run(executable, "main", inputs), reference, inputs, within)
    return mod


def compare(
    results: list[torch.Tensor],
    reference: Callable[..., Any],
    inputs: Sequence[torch.Tensor],
    within: float,
) -> None:
    wide = [x.double() if x.is_floating_point() else x for x in inputs]
    expected = reference(*wide)
    expected = list(expected) if isinstance(expected, tuple | list) else [expected]
    assert len(results) == len(expected)
    for result, want in zip(results, expected):
        assert result.shape == want.shape
        torch.testing.assert_close(
            result.double(), want.double(), rtol=within, atol=within, equal_nan=True
        )
