"""Every row of the table on the GPU target, against torch: on the emulator, or on a real GPU."""

from __future__ import annotations

import pytest
import torch

import babytriton as bt
from tests.conformance import gpu
from tests.conformance.sample import Expected, Sample
from tests.conformance.samples import SAMPLES
from tests.emulator import emulator, toolchain

needs_gpu = pytest.mark.skipif(
    emulator.available_gpu() is None, reason=emulator.missing() or "no GPU"
)
needs_nvcc = pytest.mark.skipif(toolchain.find_nvcc() is None, reason="nvcc is not on PATH")
TRIED = [(i, sample) for i, sample in enumerate(SAMPLES) if sample.gpu]


CASES = [
    pytest.param(sample, dtype, id=f"{sample.op}-{i}-{str(dtype).removeprefix('torch.')}")
    for i, sample in TRIED
    for dtype in sample.dtypes
]


@needs_gpu
@pytest.mark.parametrize(("sample", "dtype"), CASES)
def test_matches_torch(sample: Sample, dtype: torch.dtype) -> None:
    arguments = sample.arguments(dtype)
    expected = Expected(sample, arguments)
    compiled = bt.jit(gpu.TARGET)(sample.fn).lower(*arguments).compile()
    with emulator.thread_order("fixed"):
        expected.check(gpu.call(compiled, arguments))
    with emulator.thread_order("shuffled", seed=1):
        expected.check(gpu.call(compiled, arguments))


CHUNK = 60


@needs_nvcc
@pytest.mark.parametrize("start", range(0, len(TRIED), CHUNK))
def test_compiles_for_sm_80_and_sm_90(start: int) -> None:
    sources = []
    for _, sample in TRIED[start : start + CHUNK]:
        arguments = sample.arguments(sample.dtypes[0])
        source = bt.jit(gpu.TARGET)(sample.fn).lower(*arguments).compile().source()
        if source:  # what runs through torch alone has no kernel
            sources.append(source)
    toolchain.compile_cuda_batch(sources, "sm_80")
    toolchain.compile_cuda_batch(sources, "sm_90")
