"""Targets, and the source of kernels for GPUs that are not run from here."""

from __future__ import annotations

import itertools
import platform
import re
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import babytriton as bt
from babytriton.passes.gpu import long_rows, rowwise
from tests.conformance import gpu
from tests.emulator import emulator
from tests.unit.test_gpu_programs import check

KINDS = ("metal", "opencl", "webgpu", "rocm")
DEFINED = {
    "metal": r"kernel void (\w+)\(",
    "opencl": r"__kernel void (\w+)\([^)]*\) \{",
    "webgpu": r"@compute @workgroup_size\([\d, ]*\)\s*fn (\w+)\(",
    "rocm": r"amdgpu_kernel void @(\w+)\(",
}


def gelu_bias(x, b):
    y = x + b
    return F.gelu(y)


def softmax(x, b):
    return torch.softmax(x + b, -1)


def rms_norm(x, b):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * b


def without_comments(source: str) -> str:
    return re.sub(r"//.*", "", source)


@pytest.mark.parametrize("fn", [gelu_bias, softmax, rms_norm])
@pytest.mark.parametrize("kind", KINDS)
def test_source(kind: str, fn) -> None:
    compiled = bt.jit(kind)(fn).lower(torch.randn(60, 1000), torch.randn(1000)).compile()
    source = compiled.source()
    assert re.findall(DEFINED[kind], source) == [f"{fn.__name__}_kernel"]
    assert compiled.fallbacks == ()
    if kind != "rocm":
        assert compiled.source(kind) == source
        assert re.search(r"// test_targets.py:\d+  (y|return) ", source)
        assert "// x: float32[60, 1000], b: float32[1000]," in source
        assert "// grid " in source
        assert "shfl" not in source
    vector = {"metal": "float4*)", "opencl": "vload4(", "rocm": "load <4 x float>"}
    assert vector.get(kind, "x_ptr[") in source


def test_thread_blocks_are_as_large_as_each_allows() -> None:
    x, b = torch.randn(2, 20000), torch.randn(20000)
    for kind, most in (("metal", 1024), ("opencl", 256), ("webgpu", 256), ("rocm", 256)):
        text = bt.jit(kind)(softmax).lower(x, b).schedule().as_text()
        assert int(re.findall(r'T.thread_binding\((\d+), thread="threadIdx.x"\)', text)[0]) == most


def test_assembly_for_amd() -> None:
    jitted = bt.jit(bt.Target("rocm", arch="gfx942"))(softmax)
    compiled = jitted.lower(torch.randn(4, 100), torch.randn(100)).compile()
    assert "gfx942" in compiled.source("asm")
    assert "global_load_dwordx4" in compiled.source("asm")


@pytest.mark.parametrize("kind", KINDS)
def test_they_are_not_run(kind: str) -> None:
    x = torch.randn(3)
    with pytest.raises(RuntimeError, match=rf"BT210.*\n.*{kind} targets give the source"):
        bt.jit(kind)(lambda x: x + 1)(x)


def test_what_a_language_lacks() -> None:
    with pytest.raises(RuntimeError, match=r"BT211.*metal.*\n.*it has no `lgamma`"):
        bt.jit("metal")(lambda x: torch.lgamma(x)).lower(torch.ones(3)).compile()
    with pytest.raises(RuntimeError, match=r"BT211.*webgpu.*\n.*it has no `int64`"):
        bt.jit("webgpu")(lambda x: x.argmax(-1)).lower(torch.ones(3, 4)).compile()
    with pytest.raises(RuntimeError, match=r"BT211.*webgpu.*\n.*it has no `inf`"):
        bt.jit("webgpu")(lambda x: torch.logsumexp(x, -1)).lower(torch.ones(3, 4)).compile()
    with pytest.raises(RuntimeError, match=r"BT211.*rocm.*\n.*it has no `float64`"):
        bt.jit("rocm")(lambda x: torch.exp(x)).lower(torch.ones(3).double()).compile()
    with pytest.raises(RuntimeError, match=r"BT211.*\n.*`sort` would run through torch"):
        bt.jit("metal")(lambda x: torch.sort(x).values).lower(torch.ones(3)).compile()


@pytest.mark.parametrize("kind", KINDS)
def test_functions_have_the_names_of_each_language(kind: str) -> None:
    def f(x):
        return torch.tan(x) + torch.acos(x) + torch.atanh(x) + torch.log1p(x) + torch.log10(x)

    source = bt.jit(kind)(f).lower(torch.ones(5)).compile().source()
    called = set(re.findall(r"([a-z]\w*)\(", source))
    if kind == "rocm":
        assert {"__ocml_tan_f32", "__ocml_log1p_f32"} <= set(re.findall(r"@(\w+)\(", source))
    else:
        assert {"tan", "acos", "atanh", "log1p" if kind == "opencl" else "log"} <= called
        assert not {"tanf", "acosf", "atanhf", "log1pf", "log10f"} & called


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int8], ids=str)
def test_metal_has_vectors_of_four(dtype: torch.dtype) -> None:
    x = torch.ones(4, 64).to(dtype)
    source = bt.jit("metal")(lambda x, y: x * y + x).lower(x, x).compile().source()
    assert "kernel void" in source
    assert not re.search(r"(half|int|short|char|uint)(8|16)\b", without_comments(source))


def test_running_sums_take_no_float64() -> None:
    x = torch.ones(4, 64)
    source = bt.jit("opencl")(lambda x: x.cumsum(-1)).lower(x).compile().source()
    assert "double" not in without_comments(source)


@pytest.mark.parametrize("fn", [torch.erf, torch.log1p], ids=["erf", "log1p"])
def test_formulas(fn, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the emulator, in the place of CUDA's functions."""
    if emulator.available_gpu() is None:
        pytest.skip(emulator.missing() or "no GPU")
    from babytriton.passes import pipeline

    backend_of = pipeline.backend_of
    on_webgpu = replace(backend_of("cuda"), finish=backend_of("webgpu").finish)
    backends = {"cuda": on_webgpu, "cpu": backend_of("cpu")}
    monkeypatch.setattr(pipeline, "backend_of", backends.__getitem__)
    more = torch.tensor([1e-10, -1e-7, 0.0, 80.0, 3e38, torch.inf, torch.nan])
    x = torch.cat([torch.linspace(-0.9999, 5, 4001), more])
    compiled = bt.jit(target=gpu.TARGET)(lambda x: fn(x)).lower(x).compile()
    assert f"{fn.__name__}f(" not in compiled.source()
    within = 5e-7 if fn is torch.erf else 0.0  # its formula's 1.5e-7, and float32's roundings
    torch.testing.assert_close(
        gpu.call(compiled, (x,)).double(),
        fn(x.double()),
        rtol=4e-7,
        atol=within,
        equal_nan=True,
    )


def test_constants_are_exact() -> None:
    def f(x):
        return x * 0.1234567891 + 16777217.0 - 0.5

    source = bt.jit("metal")(f).lower(torch.ones(4)).compile().source()
    found = re.findall(r"[-\d.]+e[-+]\d+(?=f)", source)
    assert "5.000000e-01" in found
    single = torch.tensor(0.1234567891).item()
    pairs = itertools.pairwise(found)
    assert any(torch.tensor(float(a) + float(b)).item() == single for a, b in pairs)


def test_rows_are_reduced_without_shuffles(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the emulator, which sees a missing barrier."""
    if emulator.available_gpu() is None:
        pytest.skip(emulator.missing() or "no GPU")
    monkeypatch.setattr(rowwise, "has_shuffles", lambda target: False)
    monkeypatch.setattr(long_rows.LongRows, "apply", lambda *_: None)

    def several(x, b):
        return softmax(x, b), rms_norm(x, b), torch.logsumexp(x, -1), x.argmax(-1).double()

    for rows, length in ((5, 1), (300, 7), (7, 33), (6, 1000), (3, 50001)):
        x, b = torch.randn(rows, length), torch.rand(length)
        check(several, x, b, within=3e-5)
        source = bt.jit(target=gpu.TARGET)(several).lower(x, b).compile().source()
        assert "shfl" not in source
        assert ("__syncthreads()" in source) == (length > 4)


@pytest.mark.parametrize(
    ("kind", "arch", "words"),
    [
        ("vulkan", None, "unknown target 'vulkan'"),
        ("cuda", "80", "no compute capability such as 'sm_80'"),
        ("rocm", "sm_80", "no AMD architecture such as 'gfx90a'"),
        ("metal", "m1", "a metal target has no architecture"),
        ("cpu", "hasswell", "no processor that LLVM knows"),
    ],
)
def test_unknown_targets(kind: str, arch: str | None, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        bt.Target(kind, arch=arch)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="needs LLVM's processors of x86")
def test_halves_are_rounded_where_a_processor_computes_in_halves() -> None:
    def f(x):
        return x * x + x

    compiled = (
        bt.jit(bt.Target("cpu", arch="sapphirerapids"))(f)
        .lower(torch.ones(64, dtype=torch.float16))
        .compile()
    )
    assembly = compiled.source("asm")
    assert not re.search(r"\bv\w*(add|mul)\w*[ps]h\b", assembly)
    assert "vcvtps2ph" in assembly


@pytest.mark.skipif(platform.machine() != "x86_64", reason="needs LLVM's processors of x86")
@pytest.mark.parametrize("arch", ["sapphirerapids", "skylake-avx512", "znver4"])
def test_all_of_a_vector_register_is_used(arch: str) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * x + 1

    compiled = bt.jit(bt.Target("cpu", arch=arch))(f).lower(torch.ones(4096)).compile()
    assert "%zmm" in compiled.source("asm")
