"""Targets, and the source of kernels for GPUs that are not run from here."""

from __future__ import annotations

import itertools
import math
import platform
import re
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F

import babytriton as bt
from babytriton import processors
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


def source_of(kind: str, fn, *args, **options) -> str:
    return bt.jit(kind, **options)(fn).lower(*args).compile().source()


@pytest.mark.parametrize("kind", KINDS)
def test_kernels_are_in_the_order_of_the_program(kind: str) -> None:
    compiled = bt.jit(kind)(lambda x: (x - x.mean(0)).var(0)).lower(torch.ones(4096, 33)).compile()
    names = [launch.name for launch in compiled.launches]
    assert len(names) > 2
    assert all(launch.grid and launch.block for launch in compiled.launches)
    found = re.findall(DEFINED[kind], compiled.source())
    assert found == names if kind != "rocm" else set(found) == set(names)
    assert compiled.source().count(" grid ") == len(names)


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_that_kernels_are_given_are_told(kind: str) -> None:
    source = source_of(kind, lambda x: x.sum(0), torch.ones(30, 33), dynamic=True)
    comment = ";" if kind == "rocm" else "//"
    assert f"{comment} pieces = max(min(1024 // " in source
    assert f"{comment} turns = x_0 // (pieces * 64)" in source


@pytest.mark.parametrize("kind", ["metal", "opencl", "webgpu"])
def test_the_least_integer_is_no_literal(kind: str) -> None:
    x = torch.ones(4, 8)
    for source in (
        source_of(kind, lambda x: x.amax(-1), x),
        source_of(kind, lambda x: torch.where(x > 0, -2147483648, 1).int(), x.int()),
    ):
        assert "2147483648" not in without_comments(source)
        assert re.search(r"\(-2147483647i? - 1i?\)", source)


@pytest.mark.parametrize("kind", KINDS)
def test_what_floats_leave_of_a_division(kind: str) -> None:
    source = source_of(kind, lambda x, y: (torch.fmod(x, y), x % 2.5), *[torch.ones(8)] * 2)
    assert "fmodf" not in source
    assert {"metal": "fmod(", "opencl": "fmod(", "webgpu": "trunc(", "rocm": "fmod"}[kind] in source


@pytest.mark.parametrize("kind", KINDS)
def test_names_are_no_words_of_a_language(kind: str) -> None:
    source = without_comments(source_of(kind, lambda größe, λ: größe * λ, *[torch.ones(8)] * 2))
    assert not re.search(r"\b__(?!kernel|global|local|TVM|attribute|constant|private)\w+", source)
    if kind == "opencl":
        source = without_comments(source_of(kind, lambda x, half: x * half, torch.ones(7), 2.5))
        assert "double half_value)" in source


def test_opencl_has_float64_by_its_bits() -> None:
    x = torch.ones(8).double()
    assert "as_double((long)4614256656552045848)" in source_of("opencl", lambda x: x * math.pi, x)
    source = source_of("opencl", lambda x: torch.where(x > 0, x, float("-inf")), x)
    assert re.search(r"convert_double\(-?INFINITY\)|\(double\)-?INFINITY", source)


def test_opencl_chooses_between_numbers_of_one_type() -> None:
    x = torch.ones(16, dtype=torch.int8)
    source = without_comments(source_of("opencl", lambda x: (x // 3, x % 3, x.abs()), x))
    assert source.count("(convert_char(select((convert_int(") == source.count("select(") == 3


def test_webgpu_has_what_it_has_no_constants_for() -> None:
    x = torch.ones(3, 20000)
    source = source_of("webgpu", lambda x: x.softmax(-1), x)
    assert "fn infinity() -> f32 {" in source
    assert "INFINITY" not in source
    source = source_of("webgpu", lambda x, y: x**y, x, x)
    assert "fn not_a_number() -> f32 {" in source
    assert re.search(r"pow\(abs\(", source)
    source = source_of("webgpu", lambda x: x.half() * float("inf"), x)
    assert source.index("enable f16;") < source.index("fn ")
    assert ">= podArgs.packGridDimX" in source


def test_webgpu_has_thread_blocks_along_two_axes() -> None:
    turned = bt.jit("webgpu")(lambda x: x.permute(2, 0, 1).contiguous() + 1)
    assert turned.lower(torch.ones(64, 64, 64)).compile().launches[0].grid == (256,)


def test_amd_shares_memory_by_its_own_addresses() -> None:
    compiled = bt.jit("rocm")(softmax).lower(torch.randn(4, 1000), torch.randn(1000)).compile()
    source = compiled.source()
    assert "addrspace(3)" in source
    assert not re.search(r"addrspacecast \(ptr addrspace\(3\)", source)
    assert "__truncsfhf2" not in source
    lines = [line.split()[0] for line in compiled.source("asm").splitlines() if line.strip()]
    barriers = [n for n, word in enumerate(lines) if word == "s_barrier"]
    assert barriers
    for place in barriers:
        before = lines[:place]
        stores = [n for n, word in enumerate(before) if word.startswith("ds_write")]
        waits = [n for n, word in enumerate(before) if word == "s_waitcnt"]
        assert not stores or waits[-1] > stores[-1]


@pytest.mark.parametrize("arch", ["gfx906", "gfx90a", "gfx942", "gfx1100"])
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
def test_amd_adds_products_of_bytes(arch: str, dtype: torch.dtype) -> None:
    x = torch.ones(32, 64, dtype=dtype)
    compiled = bt.jit(bt.Target("rocm", arch=arch))(lambda x, y: x @ y.T).lower(x, x).compile()
    assert "mul <16 x i8>" in compiled.source()
    assert "v_dot" not in compiled.source("asm")


def test_amd_has_functions_of_all_digits() -> None:
    x = torch.ones(8)
    source = source_of("rocm", lambda x, y: torch.sin(x) + torch.cos(x) + x**y, x, x)
    called = set(re.findall(r"@(__ocml_\w+)\(", source))
    assert called == {"__ocml_sin_f32", "__ocml_cos_f32", "__ocml_pow_f32"}


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


def _halved(x: torch.Tensor) -> torch.Tensor:
    while x.sum() > 1:
        x = x * 0.5
    return x


def test_what_a_language_lacks() -> None:
    with pytest.raises(RuntimeError, match=r"BT211.*metal.*\n.*it has no `lgamma`"):
        bt.jit("metal")(lambda x: torch.lgamma(x)).lower(torch.ones(3)).compile()
    with pytest.raises(RuntimeError, match=r"BT211.*webgpu.*\n.*it has no `int64`"):
        bt.jit("webgpu")(lambda x: x.argmax(-1)).lower(torch.ones(3, 4)).compile()
    with pytest.raises(RuntimeError, match=r"BT211.*metal.*\n.*`float64`, which the number `s` is"):
        bt.jit("metal")(lambda x, s: x * s).lower(torch.ones(3), 2.5).compile()
    for kind in KINDS:
        lowered = bt.jit(kind)(lambda x: x + 1 if x.sum() > 0 else x - 1).lower(torch.ones(3))
        with pytest.raises(RuntimeError, match=r"BT211.*\n.*chooses between its kernels"):
            lowered.compile()
    for kind in KINDS:
        lowered = bt.jit(kind)(_halved).lower(torch.ones(64, 64))
        with pytest.raises(RuntimeError, match=r"BT211.*\n.*a loop calls its kernels"):
            lowered.compile()
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
        (["cuda"], None, "unknown target"),
        ("cuda", "80", "no compute capability such as 'sm_80'"),
        ("rocm", "sm_80", "no AMD architecture such as 'gfx90a'"),
        ("metal", "m1", "a metal target has no architecture"),
        ("cpu", "hasswell", "no processor that LLVM knows"),
    ],
)
def test_unknown_targets(kind: Any, arch: str | None, words: str) -> None:
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


@pytest.mark.skipif(platform.machine() != "x86_64", reason="needs LLVM's processors of x86")
@pytest.mark.parametrize(
    ("named", "hidden", "found"),
    [
        ("znver4", r"avx512|gfni", "znver3"),
        ("znver4", r"pku|rdpru|mwaitx|wbnoinvd", "znver4"),
        ("sapphirerapids", r"amx", "sapphirerapids"),
        ("cascadelake", r"avx512", "skylake"),
        ("haswell", r"avx2", "ivybridge"),
    ],
)
def test_instructions_that_a_virtual_machine_hides(named: str, hidden: str, found: str) -> None:
    has = {name: not re.match(hidden, name) for name in processors.features(named)}
    has |= {name: False for cpu in processors.names() for name in processors.features(cpu) - {*has}}
    with (
        mock.patch.object(processors, "_named", return_value=named),
        mock.patch.object(processors, "_found", return_value=has),
    ):
        assert processors.present.__wrapped__() == found
        assert not processors.lacking(found)
