"""Every example runs and shows what it says; the snippets of the documents do, too.

The examples run in this process: importing torch and TVM again for each would take longer than
all of them together.
"""

import contextlib
import doctest
import io
import linecache
import re
import runpy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import babytriton as bt
from tests.conformance.gpu import call as call_on_gpu

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
DOCUMENTS = (
    ROOT / "README.md",
    *(
        ROOT / "docs" / f"{name}.md"
        for name in ("tour", "gradients", "adding_an_operator", "distributed")
    ),
)


@dataclass(frozen=True)
class Run:
    """What an example printed, and the globals that it left."""

    text: str
    names: dict[str, Any]

    def shows(self, *parts: str) -> None:
        """Assert that these parts stand in the output, in this order."""
        at = 0
        for part in parts:
            found = self.text.find(part, at)
            assert found >= 0, f"{part!r} is missing after:\n{self.text[:at]}"
            at = found + len(part)


def run(path: Path) -> Run:
    """Run an example as a script."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        names = runpy.run_path(str(path), run_name="__main__")
    return Run(printed.getvalue(), names)


def quickstart(example: Run) -> None:
    example.shows("__global__", "calls that run through torch instead: 0")
    example.shows("out = gelu_bias(x, b)", "shape (1000, 1024)", "The compiled function matches")
    assert example.text.count("__global__") == 1, "one fused kernel, shown once"


def inspect_stages(example: Run) -> None:
    headings = re.findall(r"^=+ (\w+):", example.text, re.MULTILINE)
    stages = ["ast", "python", "relax", "tir", "llvm", "asm", "tir", "cuda", "ptx", "sass"]
    assert headings == [*stages, "kernels", "fallbacks"]
    example.shows("FunctionDef(", "def gate(x, b):", "R.add(x, b)", "T.prim_func")
    example.shows("define internal", "_compute_:", 'thread="blockIdx.x"', "__global__")
    ptx, sass = (example.text.split(f"= {kind}: ")[1].split("\n====")[0] for kind in stages[-2:])
    assert ".visible .entry" in ptx or "error[BT203]" in ptx
    assert ".section" in sass or "error[BT203]" in sass
    assert re.search(r"^line \d+: \S*det: .+", example.text.split("fallbacks: ")[1], re.MULTILINE)


def decorator(example: Run) -> None:
    example.shows("<jit add for cpu>", "is function")
    example.shows(
        "first call:\nadd\nsecond call:\nadd\nthe plain function, called twice:\nadd\nadd\n"
    )


def syntax_tree(example: Run) -> None:
    example.shows("FunctionDef(name='add'", "body=[Pass()]", "\n  name='add',", "def add():")
    line = int(re.search(r"the definition is in line (\d+)", example.text)[1])
    source = (EXAMPLES / "baby_triton" / "02_syntax_tree.py").read_text()
    assert source.splitlines()[line - 1] == "def add():"


def target(example: Run) -> None:
    example.shows("on_cpu for cpu>", "on_gpu for cuda>", "cuda (sm_90)>", "its arguments>")
    example.shows("ValueError: unknown target 'tpu'")
    assert example.names["on_hopper"].target == bt.Target("cuda", "sm_90")


def visitor(example: Run) -> None:
    example.shows("visit FunctionDef", "visit Assign", "visit Return", "visit BinOp", "visit Add")
    example.shows("error[BT001]", "yield 1", "^^^^^^^")


def module(example: Run) -> None:
    example.shows("Lowered of add for cpu", "@I.ir_module", "@R.function", "def add()")


def empty_function(example: Run) -> None:
    example.shows("def add() -> R.Tuple:", "add() returns None")


def constants(example: Run) -> None:
    python, tensors = example.text.split("tensors: two bindings")
    assert "R.add" not in python
    assert re.search(r"\bone: R.Tensor\(\(\), dtype=\"float32\"\) = ", tensors)
    assert re.search(r"\btwo: R.Tensor\(\(\), dtype=\"float32\"\) = ", tensors)
    assert "R.add(one, one)" in tensors


def call(example: Run) -> None:
    example.shows("Lowered -> Scheduled -> Compiled", ": 2", ": 2")
    example.shows("tensor(2.)", "tensor(2.)")


def legalize(example: Run) -> None:
    before, after = example.text.split("after the pass:")
    assert "R.add(a, b)" in before
    assert "R.add" not in after
    assert "T_add[()] = a[()] + b[()]" in after
    assert "R.call_tir" in after


def tensor(example: Run) -> None:
    example.shows("f32[2, 3] holds None", "tensor([[1., 1., 1.]", "the same memory: True")
    example.shows("ValueError: error[BT103]", "TypeError: error[BT102]")


def parameters(example: Run) -> None:
    example.shows('def add(a: R.Tensor((2, 3), dtype="float32"), b: R.Tensor((2, 3)', "R.add(a, b)")
    example.shows("boxes:\ntensor([[2., 2., 2.]", "tensors:\ntensor([[2., 2., 2.]")
    example.shows("ValueError: error[BT103]: argument `b`")


def gpu(example: Run) -> None:
    example.shows('thread="blockIdx.x"', 'thread="threadIdx.x"', "CUDA:", "__global__")
    example.shows("threadIdx.x", "tensor([[2." if torch.cuda.is_available() else "no GPU here")


def fusion(example: Run) -> None:
    relax, tir, cuda = re.split(r"TensorIR: |CUDA:", example.text)
    assert relax.count("R.add(") == 2
    assert example.names["scheduled"].kernels == ("add_kernel",)
    assert tir.count("@T.prim_func") == 1
    assert tir.count("T.thread_binding(") == 2, "the blocks and threads of one kernel"
    assert cuda.count("__global__") == 1
    torch.testing.assert_close(example.names["result"].cpu(), torch.full((2, 3), 3.0))


def devices(example: Run) -> None:
    example.shows(
        "R.to_vdevice(", "R.to_vdevice(", "a kernel for each device, add_total_kernel", "define"
    )
    example.shows("__global__", "on the CPU alone: add_on_cpu_kernel\ntensor([[3., 3., 3.]")
    example.shows("on both:" if torch.cuda.is_available() else "no GPU here")
    assert example.text.count("R.to_vdevice(") == 2


def multiplication(example: Run) -> None:
    own, registered = example.text.split("with a row of our own:")
    assert own.count("R.multiply(") == 1
    assert "('scaled_kernel',)" in own
    assert "R.multiply(" not in registered
    assert "R.exp(" in registered
    example.shows("the row: mul", "one row for all spellings: True", "both give what torch gives")


def meta_schedule(example: Run) -> None:
    example.shows("by rules", *(f"schedule {i} " for i in range(8)), "the best drawn is")
    example.shows("sample_perfect_tile(", "TensorIR by rules:", "TensorIR by MetaSchedule:")
    assert example.names["gpu_drawn"].source() != example.names["gpu_by_rules"].source()
    x, w = example.names["x"], example.names["w"]
    for compiled in (example.names["gpu_by_rules"], example.names["gpu_drawn"]):
        found = call_on_gpu(compiled, (x, w))
        torch.testing.assert_close(found, torch.relu(x @ w), rtol=1e-4, atol=1e-4)


def if_else(example: Run) -> None:
    before, after = example.text.split("after the passes")
    assert "with R.dataflow()" not in before
    assert "if gv" in before
    assert "with R.dataflow()" in after
    example.shows("every branch gives what Python gives", "error[BT019]: `out` may not be defined")
    a, compiled = example.names["a"], example.names["compiled"]
    for b in (a, -2 * a):
        torch.testing.assert_close(call_on_gpu(compiled, (a, b)), example.names["choose"].fn(a, b))


def loops(example: Run) -> None:
    unrolled, _ = example.text.split("1,000,000 steps")
    assert "('unrolled_kernel',)" in unrolled
    example.shows("cls.steps(0, 1000000,", "(low + high) // 2", "cls.steps(62,")
    example.shows("all give what Python gives; the last loop took 22 steps", "__global__")
    a, compiled = example.names["a"], example.names["compiled"]
    found, steps = call_on_gpu(compiled, (a * 100,))
    expected, expected_steps = example.names["until"].fn(a * 100)
    torch.testing.assert_close(found, expected)
    assert steps == expected_steps


def relax_functions(example: Run) -> None:
    example.shows("R.add(a, b)", "R.sigmoid(out)", "one kernel: add_kernel", "__global__", "expf(")
    example.shows("both give what torch gives", "error[BT003]: `relax.op.matmul`", "^^^^^^")
    a, b = example.names["a"], example.names["b"]
    found = call_on_gpu(example.names["compiled"], (a, b))
    torch.testing.assert_close(found, torch.sigmoid(a + b))


def user_tensorir(example: Run) -> None:
    example.shows("add: one kernel, add_kernel", "add_without_placeholder: one kernel, add_")
    example.shows("def custom_add(", "R.call_tir(cls.custom_add, (x, gv)", "__global__")
    example.shows(
        "torch.Size([5, 7]) torch.Size([5])", "error[BT103]", "error[BT003]: `custom_add`"
    )
    x, y = example.names["x"], example.names["y"]
    torch.testing.assert_close(call_on_gpu(example.names["compiled"], (x, y)), x + (x + y))


def tensorir(example: Run) -> None:
    unscheduled, scheduled, cuda = re.split(r"scheduled for a GPU:|CUDA:", example.text)
    assert "for i, j in T.grid(T.int64(2), T.int64(3)):" in unscheduled
    assert 'thread="threadIdx.x"' in scheduled
    assert cuda.count("__global__") == 1
    torch.testing.assert_close(example.names["out"], torch.full((2, 3), 3.0))


def stencil(example: Run) -> None:
    example.shows("20 steps on the", "as torch says", "__global__", "blockIdx.x")


def histogram(example: Run) -> None:
    example.shows("counts: [", "error[BT120]", "counts[values[i]] += 1", "which has size 10")


def mandelbrot(example: Run) -> None:
    rows = example.text.splitlines()
    assert len(rows) == 12
    assert example.text.count("@") > 100
    assert rows[5] == rows[7], "the set is symmetrical"


def gemv(example: Run) -> None:
    example.shows(
        "gemv equals torch; scheduled by: Rowwise", "in a compiled function: layer_kernel"
    )


def advantages(example: Run) -> None:
    example.shows("1000 environments give what torch gives", "for (int step = 0; step < 128;")
    example.shows("advantages_kernel: grid (32,), block (32,)", "advantages_2_kernel")
    assert example.text.count("__global__") == 2
    compiled, arguments = example.names["compiled"], example.names["arguments"]
    wanted = example.names["advantages"](*arguments)
    torch.testing.assert_close(call_on_gpu(compiled, arguments), wanted)


def state_space(example: Run) -> None:
    example.shows("512 channels give what torch gives", "float h[16];", "step < 256;")
    assert example.text.count("__global__") == 1


def linear_gelu(example: Run) -> None:
    example.shows("kernels: <linear_gelu(x: f32[8, 10, 64]", "keeps: aten.linear.default example_")
    example.shows("error[BT009]", "weight is (256, 63), and rows of x have 64")


def rms_norm(example: Run) -> None:
    example.shows("kernels: rms_norm_backward_kernel", "in place gives the same", "add_rms_norm_k")
    example.shows("passed   6x256 256 float32, gradients", "odd sizes", "opcheck")


CHECKS: dict[str, Callable[[Run], None]] = {
    "quickstart.py": quickstart,
    "inspect_stages.py": inspect_stages,
    "baby_triton/01_decorator.py": decorator,
    "baby_triton/02_syntax_tree.py": syntax_tree,
    "baby_triton/03_target.py": target,
    "baby_triton/04_visitor.py": visitor,
    "baby_triton/05_module.py": module,
    "baby_triton/06_empty_function.py": empty_function,
    "baby_triton/07_constants.py": constants,
    "baby_triton/08_run.py": call,
    "baby_triton/09_legalize.py": legalize,
    "baby_triton/10_tensor.py": tensor,
    "baby_triton/11_parameters.py": parameters,
    "baby_triton/12_gpu.py": gpu,
    "baby_triton/13_fusion.py": fusion,
    "baby_triton/exercise_1_multiplication.py": multiplication,
    "baby_triton/exercise_2_meta_schedule.py": meta_schedule,
    "baby_triton/exercise_3_if_else.py": if_else,
    "baby_triton/exercise_4_loops.py": loops,
    "baby_triton/exercise_5_relax_functions.py": relax_functions,
    "baby_triton/exercise_6_user_tensorir.py": user_tensorir,
    "baby_triton/exercise_7_devices.py": devices,
    "baby_triton/exercise_8_tensorir.py": tensorir,
    "kernels/gemv.py": gemv,
    "kernels/histogram.py": histogram,
    "kernels/mandelbrot.py": mandelbrot,
    "kernels/stencil.py": stencil,
    "loops/advantages.py": advantages,
    "loops/state_space.py": state_space,
    "operators/linear_gelu.py": linear_gelu,
    "operators/rms_norm.py": rms_norm,
}

ELSEWHERE = {"jax_interop.py", "transformers_llama.py"}
"""Examples that need other frameworks: `tests/integrations` runs them."""


@pytest.mark.parametrize("name", CHECKS)
def test_example_shows_what_it_says(name: str) -> None:
    CHECKS[name](run(EXAMPLES / name))


def test_every_example_is_checked() -> None:
    found = {str(path.relative_to(EXAMPLES)) for path in EXAMPLES.rglob("*.py")}
    assert found == {*CHECKS, *ELSEWHERE}


def test_every_step_is_listed() -> None:
    folder = EXAMPLES / "baby_triton"
    listed = re.findall(r"\((\w+\.py)\)", (folder / "README.md").read_text())
    assert listed == sorted(path.name for path in folder.glob("*.py"))


# ---------------------------------------------------------------- README.md, docs/tour.md

FENCE = re.compile(r"^```(\w+)( output)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block: Python to run, or the output that the snippet before it must print."""

    language: str
    is_output: bool
    text: str
    line: int


def blocks(path: Path) -> Iterator[Block]:
    text = path.read_text(encoding="utf-8")
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start(3)) + 1
        yield Block(match[1], match[2] is not None, match[3], line)


def execute(block: Block, names: dict[str, Any]) -> str:
    """Run a snippet as a file of its own, named by its first line if that is a comment."""
    named = re.match(r"# (\w+\.py)\n", block.text)
    path = named[1] if named else f"line_{block.line}.py"
    # Compiled functions read their source: to linecache a snippet is a file.
    linecache.cache[path] = (len(block.text), None, block.text.splitlines(True), path)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block.text, path, "exec"), names)
    return printed.getvalue()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_document_prints_what_it_shows(path: Path) -> None:
    """A block marked ``output`` is what the snippet above it prints; ``...`` is any text."""
    names: dict[str, Any] = {"__name__": path.stem}
    checker = doctest.OutputChecker()
    printed = ""
    checked = 0
    for block in blocks(path):
        if block.is_output:
            place = f"{path.name}:{block.line} shows\n{block.text}\nbut the snippet prints\n"
            assert checker.check_output(block.text, printed, doctest.ELLIPSIS), place + printed
            checked += 1
        elif block.language == "python":
            printed = execute(block, names)
    assert checked
