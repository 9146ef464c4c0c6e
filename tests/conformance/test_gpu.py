"""Every row of the table on the GPU target, against torch: on the emulator, or on a real GPU."""

from __future__ import annotations

from typing import Any

import pytest

import babytriton as bt
from tests.conformance import gpu
from tests.conformance.sample import Sample, Together
from tests.conformance.samples import SAMPLES
from tests.emulator import emulator, toolchain

needs_gpu = pytest.mark.skipif(
    emulator.available_gpu() is None, reason=emulator.missing() or "no GPU"
)
needs_nvcc = pytest.mark.skipif(toolchain.find_nvcc() is None, reason="nvcc is not on PATH")
TRIED = [(i, sample) for i, sample in enumerate(SAMPLES) if sample.gpu]


# Each program costs a start of g++ and of a virtual machine.
TOGETHER = 3
FIRST = list({sample.op: (i, sample) for i, sample in reversed(TRIED)}.values())
"""The first sample of each row."""
OTHERS = [(i, sample) for i, sample in TRIED if (i, sample) not in FIRST]


def _cases(tried: list[tuple[int, Sample]]) -> list[Any]:
    return [
        pytest.param([sample for _, sample in group], id="+".join(f"{x.op}-{i}" for i, x in group))
        for start in range(0, len(tried), TOGETHER)
        for group in [tried[start : start + TOGETHER]]
    ]


@needs_gpu
@pytest.mark.parametrize("samples", _cases(FIRST))
def test_matches_torch(samples: list[Sample]) -> None:
    _check(samples)


@pytest.mark.exhaustive
@needs_gpu
@pytest.mark.parametrize("samples", _cases(OTHERS))
def test_matches_torch_in_other_uses(samples: list[Sample]) -> None:
    _check(samples)


def _check(samples: list[Sample]) -> None:
    together = Together(tuple((sample, dtype) for sample in samples for dtype in sample.dtypes))
    compiled = bt.jit(gpu.TARGET)(together.fn).lower(*together.arguments).compile()
    with emulator.thread_order("fixed"):
        together.check(gpu.call(compiled, together.arguments))
    with emulator.thread_order("shuffled", seed=1):
        together.check(gpu.call(compiled, together.arguments))


CHUNK = 60


@pytest.mark.exhaustive
@needs_nvcc
@pytest.mark.parametrize("start", range(0, len(TRIED), CHUNK))
def test_compiles_for_sm_80_and_sm_90(start: int) -> None:
    sources = []
    for _, sample in TRIED[start : start + CHUNK]:
        arguments = sample.arguments(sample.dtypes[0])
        source = bt.jit(gpu.TARGET)(sample.fn).lower(*arguments).compile().source(full=True)
        if source:  # what runs through torch alone has no kernel
            sources.append(source)
    toolchain.compile_cuda_batch(sources, "sm_80")
    toolchain.compile_cuda_batch(sources, "sm_90")
