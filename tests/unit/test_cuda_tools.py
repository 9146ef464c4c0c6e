"""PTX and SASS: by nvcc, or by NVIDIA's pip packages alone."""

from __future__ import annotations

import dataclasses
import shutil

import pytest
import torch

import babytriton as bt
from babytriton.config import CONFIG
from babytriton.runtime import cuda
from babytriton.runtime.toolchain import libraries, pip_files

HAS_NVRTC = bool(libraries("libnvrtc.so.*")) and bool(pip_files("include/cccl"))
HAS_NVDISASM = cuda._find_program("nvdisasm") is not None
needs_nvrtc = pytest.mark.skipif(not HAS_NVRTC, reason="pip packages of NVRTC are not installed")
needs_nvdisasm = pytest.mark.skipif(not HAS_NVDISASM, reason="nvdisasm is not installed")
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on PATH")

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def compiled(dtype: torch.dtype, arch: str = "sm_80") -> bt.Compiled:
    def f(x, y):
        return torch.softmax(x * y, -1) + torch.exp(x)

    x = torch.ones(7, 100, dtype=dtype)
    return bt.jit(bt.Target("cuda", arch=arch))(f).lower(x, x).compile()


@pytest.fixture
def without_nvcc(monkeypatch: pytest.MonkeyPatch) -> None:
    found = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "nvcc" else found(name))


@pytest.fixture
def nvcc_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "CONFIG", dataclasses.replace(CONFIG, nvcc=True))
    monkeypatch.setattr(cuda, "_nvrtc", lambda *_: pytest.fail("NVRTC was called"))


@needs_nvcc
@pytest.mark.usefixtures("nvcc_asked_for")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_ptx_by_nvcc(arch: str) -> None:
    assert f".target {arch}" in compiled(torch.float32, arch).source("ptx")


@needs_nvrtc
@pytest.mark.usefixtures("without_nvcc")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_ptx_by_nvrtc(dtype: torch.dtype) -> None:
    assert ".target sm_80" in compiled(dtype).source("ptx")


@needs_nvrtc
@needs_nvdisasm
@pytest.mark.usefixtures("without_nvcc")
def test_sass_by_pip_packages() -> None:
    assert "MUFU.EX2" in compiled(torch.float32).source("sass")


@needs_nvcc
@needs_nvdisasm
@pytest.mark.usefixtures("nvcc_asked_for")
def test_sass_by_nvcc() -> None:
    assert "MUFU.EX2" in compiled(torch.float32).source("sass")


@needs_nvrtc
def test_nvrtc_says_what_it_refuses() -> None:
    with pytest.raises(RuntimeError, match="identifier"):
        cuda._nvrtc("__global__ void f() { no_such_name; }", "sm_80", "CUBIN", "SASS")


@needs_nvrtc
@pytest.mark.usefixtures("without_nvcc")
@pytest.mark.parametrize(
    "body",
    [
        "return std::is_same_v<decltype(x), float> ? x + 1 : x;",
        "return std :: conditional<true, float, int>::type(x) + 1;",
        "using namespace std; return is_same_v<decltype(x), float> ? x + 1 : x;",
    ],
)
def test_nvrtc_reads_the_header_of_types_for_those_who_use_it(body: str) -> None:
    """It takes longer than all the rest of a kernel."""
    source = compiled(torch.float32).source("cuda", full=True)
    assert source.count("#include <cuda/std/type_traits>") == 1
    given = cuda._without_unused_traits(source)
    assert "#include <cuda/std/type_traits>" not in given
    assert len(given.splitlines()) == len(source.splitlines())

    fancy = bt.cuda_function(
        f"__device__ float fancy(float x) {{ {body} }}", name="fancy", cpu=lambda x: x + 1
    )
    program = bt.jit(bt.Target("cuda", arch="sm_80"))(lambda x: fancy(x) * 2)
    stage = program.lower(torch.ones(8)).compile()
    assert cuda._without_unused_traits(stage.source("cuda", full=True)).count("type_traits") == 2
    assert ".target sm_80" in stage.source("ptx")


@needs_nvcc
@pytest.mark.usefixtures("nvcc_asked_for")
def test_nvcc_says_what_it_refuses() -> None:
    with pytest.raises(RuntimeError, match="no_such_name"):
        cuda.ptx("__global__ void f() { no_such_name; }", "sm_80")


def test_nothing_to_compile() -> None:
    through_torch = bt.jit(bt.Target("cuda", arch="sm_80"))(lambda x: torch.sort(x).values)
    stage = through_torch.lower(torch.ones(3)).compile()
    assert stage.source() == stage.source("ptx") == ""


@pytest.mark.usefixtures("without_nvcc")
def test_asking_for_nvcc_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "CONFIG", dataclasses.replace(CONFIG, nvcc=True))
    assert not cuda.has_compiler()
    with pytest.raises(RuntimeError, match="nvcc was not found"):
        compiled(torch.float32).source("ptx")


@needs_nvrtc
def test_an_architecture_that_nvrtc_does_not_know() -> None:
    with pytest.raises(RuntimeError, match=r"BT209.*sm_30\n.*it knows sm_.*sm_90"):
        compiled(torch.float32, "sm_30").source("ptx")


@needs_nvcc
def test_missing_disassembler_names_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "_find_program", lambda name: None)
    with pytest.raises(RuntimeError, match="pip install nvidia-cuda-nvdisasm"):
        compiled(torch.float32).source("sass")
