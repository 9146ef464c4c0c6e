"""The CUDA C++ that people read: functions as they are kept, and what may be done with it."""

from __future__ import annotations

import operator
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import babytriton as bt
from babytriton import config
from babytriton.runtime import cuda
from babytriton.runtime.text.cuda_kernels import Listing, readable
from babytriton.runtime.text.expressions import NotAnExpressionError, assigned, number, simplified
from tests.conformance import gpu
from tests.cuda import functions
from tests.emulator import emulator

HERE = Path(__file__).parent
TARGET = bt.Target("cuda", arch="sm_80")

needs_gpu = pytest.mark.skipif(
    emulator.available_gpu() is None, reason=emulator.missing() or "no GPU"
)


def compiled(name: str) -> bt.Compiled:
    fn = getattr(functions, name)
    return bt.jit(target=TARGET)(fn).lower(*functions.arguments()[name]).compile()


@pytest.mark.parametrize("name", functions.arguments())
def test_golden(name: str, update_golden: bool) -> None:
    golden = HERE / f"{name}.cu"
    text = compiled(name).source() + "\n"
    if update_golden:
        golden.write_text(text)
    assert text == golden.read_text()


@needs_gpu
@pytest.mark.parametrize("name", functions.arguments())
def test_values(name: str) -> None:
    args = functions.arguments()[name]
    wide = [x.double() if torch.is_tensor(x) and x.is_floating_point() else x for x in args]
    found, exact = gpu.call(compiled(name), args), getattr(functions, name)(*wide)
    within = 4e-3 if found.dtype == torch.float16 else 2e-5
    torch.testing.assert_close(found.double(), exact, rtol=within, atol=within * 10)


def test_the_same_in_another_process() -> None:
    program = (
        "import torch; from tests.cuda.test_source import compiled; "
        "torch.randn(3); print(compiled('add').source()); print(compiled('softmax').source())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=HERE.parents[1], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{compiled('add').source()}\n{compiled('softmax').source()}\n"


def test_full_source_has_what_stands_before_the_kernels() -> None:
    program = compiled("swiglu")
    full, short = program.source(full=True), program.source()
    assert "#include <cuda_fp16.h>" in full
    assert "#include" not in short
    assert short in full


@needs_gpu
@pytest.mark.parametrize("full", [False, True])
def test_edited_source_runs_in_place_of_ours(full: bool) -> None:
    x, y = functions.arguments()["add"]
    program = compiled("add")
    source = program.source(full=full)
    assert source.count("a_vector") == 0
    edited = program.with_source(source.replace("[lane] + y", "[lane] - y"))
    assert "[lane] - y" in edited.source()
    assert torch.equal(gpu.call(program, (x, y)), x + y)
    assert torch.equal(gpu.call(edited, (x, y)), x - y)
    with pytest.raises(ValueError, match="BT103"):
        edited(x[:3], y)


@needs_gpu
def test_edited_source_may_have_more() -> None:
    x, y = functions.arguments()["add"]
    program = compiled("add")
    helper = 'extern "C" __global__ void unused(float* x) { x[0] = 1; }\n'
    edited = program.with_source(
        f"// __global__ void add_kernel(int) {{}}\n{helper}{program.source()}"
    )
    assert torch.equal(gpu.call(edited, (x, y)), x + y)
    with pytest.raises(ValueError, match=r"BT207.*\n.*defines none"):
        program.with_source(f"/* {program.source()} */")


@needs_gpu
def test_edited_source_may_name_parameters_otherwise() -> None:
    x, y = functions.arguments()["add"]
    program = compiled("add")
    source = re.sub(r"\by\b", "other", program.source())
    parameter = "const float* __restrict__ other"
    edited = program.with_source(source.replace(parameter, "float *other"))
    assert torch.equal(gpu.call(edited, (x, y)), x + y)
    with pytest.raises(ValueError, match="BT212"):
        program.with_source(source.replace(parameter, "half* other"))


@needs_gpu
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('extern "C" __global__ void', 'extern  "C"  __global__  void'),
        ('extern "C" __global__ void', 'extern "C"\n__global__ void'),
        ('extern "C" __global__ void', 'extern "C" __global__\nvoid'),
        ('extern "C" __global__ void', 'extern "C" void __global__'),
        ("void __launch_bounds__(128)", "__launch_bounds__( 128, 1 )\nvoid"),
        ("__global__ void __launch_bounds__(128)", "__launch_bounds__(128) __global__ void"),
        ("__launch_bounds__(128) ", ""),
        ("add_kernel(", "add_kernel\n  ("),
        ("float* __restrict__ add", "[[maybe_unused]] float *  __restrict__ add = nullptr"),
    ],
)
def test_heads_of_edited_kernels(before: str, after: str) -> None:
    x, y = functions.arguments()["add"]
    program = compiled("add")
    assert before in program.source()
    text = program.source().replace(before, after).replace("[lane] + y", "[lane] - y")
    edited = program.with_source(text)
    assert edited.source() == text
    assert torch.equal(gpu.call(edited, (x, y)), x - y)
    if cuda.has_compiler():
        cuda.cubin(edited.source(full=True), "sm_80")


@needs_gpu
def test_errors_count_the_lines_of_the_edited_text() -> None:
    lines = ["// The sum.", "", *compiled("add").source().splitlines()]
    place = next(n for n, line in enumerate(lines) if ")(x +" in line)
    lines[place] = re.sub(r"\bx\b", "unknown", lines[place])
    with pytest.raises(RuntimeError, match=rf"edited.cu:{place + 1}:.* error: .*unknown"):
        compiled("add").with_source("\n".join(lines))


@needs_gpu
@pytest.mark.skipif(not cuda.has_compiler(), reason="no CUDA compiler")
@pytest.mark.parametrize("nvcc", [False, True])
def test_compilers_count_the_lines_of_the_edited_text(
    nvcc: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if nvcc and shutil.which("nvcc") is None:
        pytest.skip("no nvcc")
    monkeypatch.setattr("babytriton.runtime.cuda.CONFIG", config.Config(False, nvcc=nvcc))
    text = "\n" + compiled("add").source()
    place = next(n for n, line in enumerate(text.splitlines(), 1) if ")(x +" in line)
    whole = compiled("add").with_source(text).source(full=True)
    with pytest.raises(RuntimeError, match=rf"edited.cu\({place}\): error: .*unknown"):
        cuda.ptx(whole.replace(")(x +", ")(unknown +"), "sm_80")


@needs_gpu
def test_edited_kernels_may_stand_in_a_block() -> None:
    x, y = functions.arguments()["add"]
    program = compiled("add")
    plain = program.source().replace('extern "C" ', "")
    edited = program.with_source(f'extern "C" {{\n{plain}\n}}\n')
    assert torch.equal(gpu.call(edited, (x, y)), x + y)
    for text in (
        plain,
        f'extern "C" {{}}\n{plain}',
        f"namespace of_mine {{\n{plain}\n}}",
        program.source().replace('extern "C" __global__', "template <class T> __global__"),
        "#define KERNEL __global__\n" + plain.replace("__global__", "KERNEL"),
        program.source().replace('extern "C" __global__', "__device__"),
    ):
        with pytest.raises(ValueError, match=r"BT216(.|\n)*write `extern .C. __global__ void add_"):
            program.with_source(text)


@needs_gpu
def test_edited_source_may_have_conditions_for_a_compiler() -> None:
    """What stands in TVM's preamble as well is no preamble."""
    x, y = functions.arguments()["add"]
    program = compiled("add")
    before = "#ifndef __CUDACC_RTC__\n#include <cstdio>\n#endif\n"
    for source in (program.source(), program.source(full=True)):
        edited = program.with_source(before + source)
        assert torch.equal(gpu.call(edited, (x, y)), x + y)
        assert edited.source(full=True).count("#define TVM_ENABLE_L2_PREFETCH 1") == 1
        if cuda.has_compiler():
            cuda.cubin(edited.source(full=True), "sm_80")


def test_lines_that_name_a_kernel_are_no_kernels() -> None:
    def named_kernel(x):
        return x * 2

    def named(x):
        return named_kernel(x) + 1

    program = bt.jit(target=TARGET)(named).lower(torch.randn(8)).compile()
    assert "named_kernel(x) + 1" in program.source()
    program.with_source(program.source())


@pytest.mark.parametrize("bounds", ["(4*64)", "(0x100)", "(256, 2)", "(THREADS)", "(512)"])
def test_launch_bounds_that_allow_the_launch(bounds: str) -> None:
    program = compiled("add")
    source = "#define THREADS 256\n" + program.source().replace(
        "__launch_bounds__(128)", f"__launch_bounds__{bounds}"
    )
    assert f"__launch_bounds__{bounds}" in source
    program.with_source(source.replace("float* __restrict__ x", "volatile float x[]"))


def test_names_are_ascii_where_the_users_are_not() -> None:
    def énergie(α):
        é = α * 2
        return torch.sort(é).values + α

    program = bt.jit(target=TARGET)(énergie).lower(torch.randn(8)).compile()
    kernels = [line for line in program.source().splitlines() if not line.startswith("//")]
    assert "\n".join(kernels).isascii()
    assert set(program.kernels) == {"energie_kernel", "energie_e_kernel"}


def test_launches() -> None:
    (launch,) = compiled("softmax").launches
    assert (launch.grid, launch.block) == ((64,), (256,))
    assert launch.shared == 64  # what eight warps have, of the maximum and of the sum
    first, second = compiled("total").launches
    assert first.function == second.function
    assert [first.name, second.name] == list(Listing.of(compiled("total").source()).kernels)
    if not cuda.has_compiler():
        pytest.skip("no compiler for CUDA: nvcc, or nvidia-cuda-nvrtc")
    assert launch.registers is not None
    assert 16 <= launch.registers <= 128
    assert launch.spilled == 0


def test_spills_are_seen() -> None:
    """A kernel whose array is indexed by what only the run tells has it in memory."""
    if not cuda.has_compiler():
        pytest.skip("no compiler for CUDA: nvcc, or nvidia-cuda-nvrtc")
    program = compiled("add")
    text = program.source()
    body = text.index("  const int block")
    edited = program.with_source(
        text[:body] + "  volatile float kept[100]; kept[threadIdx.x % 100] = x[0];\n" + text[body:]
    )
    (launch,) = edited.launches
    assert launch.spilled is not None
    assert launch.spilled >= 400


def test_a_cpu_has_no_launches() -> None:
    x = torch.randn(3)
    assert bt.jit("cpu")(functions.add).lower(x, x).compile().launches == ()


def test_stages_as_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("babytriton.sources.CONFIG", config.Config(False, dump=tmp_path / "all"))
    program = compiled("add")
    (folder,) = (tmp_path / "all").iterdir()
    assert folder.name.startswith("add-")
    found = {path.name: path.read_text() for path in folder.iterdir()}
    assert found["cuda.cu"] == program.source("cuda", full=True)
    assert found["tir.tir"] == program.source("tir")
    assert {"ast.ast", "python.py", "relax.relax", "llvm.ll", "asm.s", "signature.txt"} < set(found)
    compiled("add")
    assert len(list((tmp_path / "all").iterdir())) == 1
    for factor in (2, 3):

        def add(x, y, factor=factor):
            return x + y * factor

        bt.jit(target=TARGET)(add).lower(*functions.arguments()["add"]).compile()
    assert len(list((tmp_path / "all").iterdir())) == 3


def test_llvm_is_the_same_in_each_process() -> None:
    code = "import torch, babytriton as bt; from tests.cuda.functions import softmax;"
    code += "print(bt.jit('cpu')(softmax).lower(torch.zeros(64, 64)).compile().source('llvm'))"
    command = [sys.executable, "-c", code]
    runs = [subprocess.run(command, cwd=HERE.parents[1], capture_output=True) for _ in range(2)]
    assert runs[0].stdout == runs[1].stdout
    assert b"buffer0" in runs[0].stdout


def test_a_folder_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setattr("babytriton.sources.CONFIG", config.Config(False, dump=file))
    with pytest.raises(NotADirectoryError, match=f"BABYTRITON_DUMP={file}"):
        compiled("add")


def test_the_folder_is_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BABYTRITON_DUMP", "somewhere")
    assert config.Config.from_environment().dump == Path("somewhere")
    monkeypatch.delenv("BABYTRITON_DUMP")
    assert config.Config.from_environment().dump is None


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("((a + b) + c)", "a + b + c"),
        ("(a + (b + c))", "a + (b + c)"),
        ("((a * b) + (c / d))", "a * b + c / d"),
        ("((a - b) - (c - d))", "a - b - (c - d)"),
        ("x[((i * 4) + (j + 1))]", "x[i * 4 + j + 1]"),
        ("x[(int)(a + (b + c))]", "x[(int)(a + (b + c))]"),
        ("x[f(a + (b + c)) + (d + 1)]", "x[f(a + (b + c)) + d + 1]"),
        ("x[((a + (b + c)) < d) ? i : (j + (k + 1))]", "x[a + (b + c) < d ? i : j + k + 1]"),
        ("*(float4*)(x + ((a * 4) + 0))", "*(float4*)(x + a * 4)"),
        ("(((int)a) % 32)", "(int)a % 32"),
        ("((half)(a + b))", "(half)(a + b)"),
        ("-(-(a))", "- -a"),
        ("(((a < b)) ? (c) : ((d ? e : f)))", "a < b ? c : d ? e : f"),
        ("((a & 3) + (b >> 2))", "(a & 3) + (b >> 2)"),
        ("((a < b) && ((c == d) || e))", "a < b && (c == d || e)"),
        ("f((a + b), (c))[0].x", "f(a + b, c)[0].x"),
        ("0x1.4f8b58p-17f/*1.000000e-05*/", "1e-05f"),
        ("(0x1p+0f/*1.0e+00*/ / 0x1.8p+1/*3*/)", "1.0f / 3.0"),
        ("(a * -0x1p+0f)", "-a"),
        ("((a + b) * -0x1p+0)", "-(a + b)"),
        ("(((a * b) * -0x1p+0f) * c)", "-(a * b) * c"),
        ("((a * -0x1p+0f) * -0x1p+0f)", "- -a"),
        ("(a + (b * -0x1p+0f))", "a - b"),
        ("(a - ((b - c) * -0x1p+0f))", "a + (b - c)"),
        ("(a + ((b + c) * -0x1p+0f))", "a - (b + c)"),
        ("(a * -0x1p+1f)", "a * -2.0f"),
        ("expf((0x0p+0f/*0*/ - (a + b)))", "expf(-(a + b))"),
        ("sinf((0x0p+0f/*0*/ - a))", "sinf(0.0f - a)"),
        ("((a < b) ? ((bool)0) : ((bool)1))", "!(a < b)"),
        ("(a * __int_as_float(__float_as_int(0x0p+0f)))", "a * 0.0f"),
        ("__int_as_float(a)", "__int_as_float(a)"),
        ("(a ^ (uint)0)", "a"),
    ],
)
def test_expressions(given: str, expected: str) -> None:
    assert simplified(given) == expected


INTEGERS = {"i": "int", "j": "int", "n": "int64_t", "m": "int64_t"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("((((int64_t)i) * (int64_t)32) + ((int64_t)j))", "(int64_t)i * 32 + j"),
        ("(((int64_t)i) * n)", "i * n"),
        ("(n * ((int64_t)(i + j)))", "n * (i + j)"),
        ("(((int64_t)i) < n)", "i < n"),
        ("(n < ((int64_t)i))", "n < i"),
        ("x[(((int64_t)i) + (((int64_t)j) + n))]", "x[(int64_t)i + (int64_t)j + n]"),
        ("((int)((m + (int64_t)255) >> (int64_t)8))", "(int)((m + 255) >> 8)"),
        ("(((int64_t)i) << ((int64_t)j))", "(int64_t)i << j"),
        ("*(float4*)(x + ((int64_t)0))", "*(float4*)x"),
        ("(n + ((int64_t)y))", "n + (int64_t)y"),
        ("(n * ((int64_t)4.5f))", "n * (int64_t)4.5f"),
        ("(n + ((int64_t)x[i]))", "n + (int64_t)x[i]"),
        ("max((int64_t)0, n)", "max((int64_t)0, n)"),
        ("(((int64_t)-100) <= n)", "-100 <= n"),
        ("(((n < (int64_t)0) ? (n + (int64_t)9) : n) * (int64_t)4)", "(n < 0 ? n + 9 : n) * 4"),
        ("((int64_t)(((uint64_t)n) - ((uint64_t)1ULL)))", "(int64_t)((uint64_t)n - 1)"),
        ("(((uint64_t)1ULL) - ((uint64_t)2ULL))", "(uint64_t)1ULL - 2"),
    ],
)
def test_casts_that_say_nothing(given: str, expected: str) -> None:
    assert simplified(given, INTEGERS) == expected


def test_assignments() -> None:
    assert assigned("a[(i + 1)]", "(a[(i + 1)] + (b * c))") == "a[i + 1] += b * c"
    assert assigned("a", "((a + b) + c)") == "a = a + b + c"
    assert assigned("a", "(b + a)") == "a = b + a"


@pytest.mark.parametrize("text", ["", "(a", "a b", "a +", "asm { }", "a ? b", "#"])
def test_what_is_no_expression_is_left_alone(text: str) -> None:
    with pytest.raises(NotAnExpressionError):
        simplified(text)
    kernel = f'extern "C" __global__ void k() {{\n  {text} !!;\n}}\n'
    assert f"  {text} !!;" in readable(kernel, {}, {})


def test_numbers_are_the_same() -> None:
    generator = random.Random(0)
    for _ in range(2000):
        value = torch.tensor(generator.uniform(-1, 1) * 10 ** generator.randint(-38, 38)).item()
        again = float(number(value.hex().lstrip("-") + "f").rstrip("f"))
        assert torch.tensor(again).item() == abs(value)


PYTHON = {"+": operator.add, "-": operator.sub, "*": operator.mul, "&": operator.and_}
PYTHON |= {"|": operator.or_, "^": operator.xor, "<": operator.lt, "==": operator.eq}


def test_simplified_expressions_mean_the_same() -> None:
    """Random ones, with all parentheses before; Python reads what is left of them as C does."""
    generator = random.Random(0)

    def drawn(depth: int) -> tuple[str, int]:
        if depth == 0 or generator.random() < 0.1:
            value = generator.randint(0, 9)
            return str(value), value
        (left, a), (right, b) = drawn(depth - 1), drawn(depth - 1)
        name = generator.choice(list(PYTHON))
        return f"({left} {name} {right})", int(PYTHON[name](a, b))

    for _ in range(500):
        text, value = drawn(4)
        assert int(eval(simplified(text))) == value, text


@needs_gpu
@pytest.mark.parametrize(
    ("benchmark", "parts", "cases"),
    [
        ("gpu", ["softmax", "gemv", "dense"], 27),
        ("gpu_constants", ["add 4096x1024", "row_sums 7", "transpose 4096x4096"], 6),
    ],
)
def test_benchmarks_run_without_a_gpu(benchmark: str, parts: list[str], cases: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{benchmark}", "--emulated", *parts],
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(": right\n") == cases


def extremes(x):
    return x.abs().amax(-1), x.amin(-1)


@needs_gpu
def test_floats_are_compared_by_a_function_that_is_shown() -> None:
    """It is the reader's to see, and to edit."""
    x = torch.randn(40, 64, generator=torch.Generator().manual_seed(0))
    x[3, 5] = torch.nan
    x[1] = -torch.inf
    own = bt.jit(gpu.TARGET)(extremes).lower(x).compile()
    source = own.source()
    assert "= max(amax_key_of_row, order_key(" in source
    assert source.count("__float_as_int(") == 2  # in as many functions
    again = own.with_source(source)
    other = own.with_source(source.replace("return x != x", "return x == 0 ? 1 << 30 : x != x"))
    whole = own.with_source(own.source(full=True))
    for program in (own, again, other, whole):
        for found, exact in zip(gpu.call(program, (x,)), extremes(x)):
            assert torch.equal(found.nan_to_num(7), exact.nan_to_num(7))
    zeros = torch.zeros(40, 64)
    assert gpu.call(other, (zeros,))[0].max() > 1


def test_parameters_are_in_the_order_of_the_function() -> None:
    """What is read is constant; after it results, and what a kernel leaves for the next."""

    def norm(zeta, weight, bias):
        return F.layer_norm(zeta, (96,), weight, bias)

    zeta = torch.randn(300, 96, requires_grad=True)
    weight, bias = (torch.randn(96, requires_grad=True) for _ in range(2))
    program = bt.jit(target=TARGET)(norm).lower(zeta, weight, bias).compile()
    (forward,), (rows, columns) = (
        re.findall(r"_kernel\w*\(([^)]*)\)", each.source()) for each in (program, program.backward)
    )
    assert re.findall(r"const float\* __restrict__ (\w+)", forward) == ["zeta", "weight", "bias"]
    results = re.split(r",\s+", forward)[3:]
    assert results
    assert not any(each.strip().startswith("const") for each in results)
    names = re.findall(r"(\w+)(?:,|$)", rows)
    constants = re.findall(r"const float\* __restrict__ (\w+)", rows)
    assert constants == names[: len(constants)]
    assert set(constants) >= {"zeta", "weight", "grad"}
    assert names[-2:] == re.findall(r"const float\* __restrict__ (\w+)", columns)
    assert names[-3:] == ["grad_zeta", "grad_bias_of_pieces", "grad_weight_of_pieces"]
    assert re.findall(r"(?<!const )float\* __restrict__ (\w+)", columns) == [
        "grad_weight",
        "grad_bias",
    ]


def test_what_a_kernel_writes_to_is_not_constant() -> None:
    def updated(x, y):
        x.add_(y)
        return x * 2

    x, y = torch.randn(1024), torch.randn(1024)
    source = bt.jit(target=TARGET)(updated).lower(x, y).compile().source()
    assert re.search(r"(?<!const )float\* __restrict__ x\b", source)
    assert "const float* __restrict__ y" in source
