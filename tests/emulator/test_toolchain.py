"""TVM's CUDA source compiles for the GPUs of two generations."""

from __future__ import annotations

import pytest

from .generated import compiled, cuda_source, matmul, softmax
from .toolchain import CudaCompileError, compile_cuda_batch, find_nvcc, find_toolkit

pytestmark = pytest.mark.skipif(find_nvcc() is None, reason="nvcc is not on PATH")


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_kernels_compile(arch: str) -> None:
    """Two of them share a preamble, and with it a call of nvcc; two share a name."""
    sources = [cuda_source(compiled(make())) for make in (softmax, softmax, matmul)]
    first, second = compile_cuda_batch(sources, arch)
    assert first.startswith(b"\x7fELF")
    assert second.startswith(b"\x7fELF")


def test_an_error_names_its_source() -> None:
    """hsinh: TVM calls it for a half, CUDA does not have it, and so neither has the emulator."""
    fine = '#include <cuda_fp16.h>\nextern "C" __global__ void f(half* x) {\n*x = hsin(*x); }\n'
    with pytest.raises(CudaCompileError, match=r'source 1\(3\): error: identifier "hsinh"'):
        compile_cuda_batch([fine, fine.replace("hsin", "hsinh")], "sm_90")


def test_the_toolkit_has_headers() -> None:
    toolkit = find_toolkit()
    assert toolkit is not None
    assert toolkit.joinpath("include", "cuda_fp16.h").exists()
