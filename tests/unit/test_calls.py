"""Calls: what arguments may be, what is compiled again for them, and how they may lie in memory."""

from __future__ import annotations

import copy
import functools
import gc
import importlib
import pickle
import subprocess
import sys
import threading
import traceback
from typing import Annotated, Any

import pytest
import torch
import torch.nn.functional as F

import babytriton as bt


def affine(x, scale=2.0, shift=1):
    return x * scale + shift


def compiled_count(fn: bt.JitFunction) -> int:
    return len(fn.specializations())


# ------------------------------------------------------------ what compiles again


def test_a_new_float_does_not_compile_again() -> None:
    fn, x = bt.jit(affine), torch.randn(5)
    for scale in (2.0, 3.5, float("inf"), -0.0):
        torch.testing.assert_close(fn(x, scale), affine(x, scale))
    assert compiled_count(fn) == 1


def test_a_float_keeps_its_precision_and_promotes_as_a_number() -> None:
    fn = bt.jit(lambda x, s: (x * s, x.double() + s, x.half() - s, x.int() * s, s))
    x = torch.arange(1.0, 6.0)
    for s in (0.1, 1e-9, 3.0):
        for ours, theirs in zip(fn(x, s), fn.fn(x, s)):
            assert type(ours) is type(theirs)
            torch.testing.assert_close(ours, theirs)
    assert compiled_count(fn) == 1


def test_arithmetic_among_floats_stays_at_run_time() -> None:
    fn = bt.jit(lambda x, a, b: (x * (1 - a) + b * -a, a * b + 1))
    x = torch.randn(4)
    for a, b in ((0.5, 2.0), (0.25, -1.0)):
        for ours, theirs in zip(fn(x, a, b), fn.fn(x, a, b)):
            assert type(ours) is type(theirs)
            torch.testing.assert_close(ours, theirs)
    assert compiled_count(fn) == 1


def test_a_float_that_must_be_a_constant_compiles_again() -> None:
    # The shape of the result depends on it.
    fn = bt.jit(lambda x, limit: torch.exp(x) if limit > 1 else x.sum())
    x = torch.randn(4)
    torch.testing.assert_close(fn(x, 2.0), torch.exp(x))
    torch.testing.assert_close(fn(x, 0.5), x.sum())
    torch.testing.assert_close(fn(x, 2.0), torch.exp(x))
    assert compiled_count(fn) == 2


def test_floats_in_containers_are_variable_too() -> None:
    fn = bt.jit(lambda x, options: x * options["scale"][0] + options["shift"])
    x = torch.randn(4)
    for scale, shift in ((2.0, 1), (3.0, 1)):
        options = {"scale": [scale], "shift": shift}
        torch.testing.assert_close(fn(x, options), fn.fn(x, options))
    assert compiled_count(fn) == 1


def test_ints_bools_and_strings_are_constants() -> None:
    def f(x, dim, keep, mode):
        return x.sum(dim, keepdim=keep) * {"one": 1, "two": 2}[mode]

    fn, x = bt.jit(f), torch.randn(3, 4)
    for arguments in ((0, True, "one"), (1, False, "two"), (0, True, "one"), (0, True, "two")):
        torch.testing.assert_close(fn(x, *arguments), f(x, *arguments))
    assert compiled_count(fn) == 3


def test_shapes_and_dtypes_compile_again() -> None:
    fn = bt.jit(affine)
    for x in (torch.randn(3), torch.randn(4), torch.randn(3).double(), torch.arange(3)):
        torch.testing.assert_close(fn(x), affine(x))
        torch.testing.assert_close(fn(x), affine(x))
    assert compiled_count(fn) == 4


def test_nested_arguments() -> None:
    def f(pair, table):
        (a, b), c = pair
        return [a + b, {"c": c * table["w"]}], table["none"]

    x = torch.randn(3)
    arguments = (((x, 2.0), x * 3), {"w": torch.ones(3), "none": None})
    found, expected = bt.jit(f)(*arguments), f(*arguments)
    torch.testing.assert_close(found[0][0], expected[0][0])
    torch.testing.assert_close(found[0][1]["c"], expected[0][1]["c"])
    assert found[1] is None


# ------------------------------------------------------------ how tensors may lie


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(6, 4).T,
        torch.randn(8, 12)[::2, ::3],
        torch.randn(100)[1:25].view(4, 6),
        torch.randn(4, 1).expand(4, 6),
        torch.randn(6).flip(0),
        torch.tensor(2.5),
        torch.empty(0, 6),
        torch.empty(6, 0).T,
        torch.empty_strided((1, 6), (77, 1)).fill_(1.0),
        torch.complex(torch.randn(6), torch.randn(6)).imag,
        torch.complex(torch.randn(6), torch.randn(6)).conj().imag,
        torch.randn(6).neg().view(2, 3),
        torch._neg_view(torch.randn(6)),
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    ],
    ids=lambda x: f"{tuple(x.shape)} {x.stride()}",
)
def test_layouts(x: torch.Tensor) -> None:
    def f(x):
        return x * 2 + 1, x.sum(), x.reshape(-1)

    for ours, theirs in zip(bt.jit(f)(x), f(x)):
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs)


def test_every_alignment() -> None:
    fn, memory = bt.jit(affine), torch.randn(64)
    for offset in range(20):
        x = memory[offset : offset + 40]
        torch.testing.assert_close(fn(x), affine(x))


def test_results_are_not_overwritten_by_later_calls() -> None:
    fn = bt.jit(affine)
    inputs = [torch.full((1000,), float(i)) for i in range(5)]
    results = [fn(x) for x in inputs]
    for x, result in zip(inputs, results):
        torch.testing.assert_close(result, affine(x))


def test_copies_are_copies() -> None:
    fn = bt.jit(lambda x: (x.clone(), x + 0, x.repeat(1)))
    x = torch.randn(16)
    before = x.clone()
    results = fn(x)
    x.zero_()
    for result in results:
        torch.testing.assert_close(result, before)


def test_an_argument_handed_back_is_the_argument() -> None:
    fn = bt.jit(lambda x: (x, x.contiguous(), x.to(torch.float32)))
    x = torch.randn(3)
    assert all(result is x for result in fn(x))


def test_gradients_are_recorded_where_they_are_enabled() -> None:
    fn, x = bt.jit(affine), torch.randn(3, requires_grad=True)
    assert fn(x).requires_grad
    with torch.no_grad():
        torch.testing.assert_close(fn(x), affine(x))
    with torch.inference_mode():
        torch.testing.assert_close(fn(x), affine(x))
    torch.testing.assert_close(fn(x.detach()), affine(x.detach()))


@pytest.mark.parametrize(
    ("x", "error", "words"),
    [
        (torch.eye(3).to_sparse(), TypeError, "sparse_coo"),
        (torch.eye(3).to_sparse_csr(), TypeError, "sparse_csr"),
        (torch.ones(3, dtype=torch.complex64), TypeError, "complex64"),
        (torch.ones(3).to(torch.float8_e4m3fn), TypeError, "float8_e4m3fn"),
        (torch.ones(3, device="meta"), ValueError, "no data"),
        (object(), TypeError, "object"),
        ([1, {2}], TypeError, r"x\[1\]"),
    ],
    ids=["coo", "csr", "complex", "float8", "meta", "object", "set in a list"],
)
def test_refused_arguments(x: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        bt.jit(affine)(x)


# ------------------------------------------------------------ threads


def test_threads() -> None:
    fn = bt.jit(lambda x, s: torch.softmax(x * s, -1) + x)
    x = torch.randn(50, 37)
    wrong: list[Any] = []

    def run(number: int) -> None:
        try:
            for i in range(20):
                s = float(number + i)
                torch.testing.assert_close(fn(x, s), fn.fn(x, s))
                if i % 5 == 0:  # and compile something of its own meanwhile
                    y = torch.randn(3 + number, 1 + i)
                    torch.testing.assert_close(bt.jit(affine)(y), affine(y))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[0]


# ------------------------------------------------------------ stages


def test_lower_takes_meta_tensors_and_specs() -> None:
    fn = bt.jit("cpu")(affine)
    spec = bt.Tensor(shape=(3, 4), dtype="float32")
    texts = {
        fn.lower(torch.ones(3, 4)).as_text(),
        fn.lower(torch.ones(3, 4, device="meta")).as_text(),
        fn.lower(spec).as_text(),
    }
    assert len(texts) == 1
    x = torch.randn(3, 4)
    torch.testing.assert_close(fn.lower(spec).compile()(x), affine(x))


def test_lower_by_annotations() -> None:
    @bt.jit
    def add(a: bt.Tensor((2, 3), "float32"), b: bt.Tensor[(2, 3), "float32"]):  # noqa: F821
        return a + b

    a, b = torch.randn(2, 3), torch.randn(2, 3)
    torch.testing.assert_close(add.lower().compile()(a, b), a + b)


def test_boxed_tensors() -> None:
    @bt.jit
    def add(a, b):
        return a + b

    box = bt.Tensor(shape=(2, 3), dtype="float32")
    with pytest.raises(TypeError, match="without data"):
        add(box, torch.ones(2, 3))
    box.data = torch.full((2, 3), 2.0)
    torch.testing.assert_close(add(box, box), torch.full((2, 3), 4.0))
    with pytest.raises(ValueError, match="wrong shape"):
        box.data = torch.ones(3, 2)
    with pytest.raises(TypeError, match="wrong dtype"):
        box.data = torch.ones(2, 3, dtype=torch.float64)


def test_annotations_are_held() -> None:
    @bt.jit
    def f(
        x: bt.Tensor["n", 4],  # noqa: F821
        w: Annotated[torch.Tensor, bt.Tensor(("n",), "float32")],
        scale: float = 1.0,
        other: "no such thing" = None,  # noqa: F722
    ):
        return x * w[:, None] * scale

    x, w = torch.randn(3, 4), torch.randn(3)
    torch.testing.assert_close(f(x, w), f.fn(x, w))
    with pytest.raises(ValueError, match="`n` is 2"):
        f(x, torch.randn(2))
    with pytest.raises(TypeError, match="`x`"):
        f(x.double(), w)


def test_compiled_checks_its_arguments() -> None:
    compiled = bt.jit(affine).lower(torch.ones(3), 2.0).compile()
    x = torch.randn(3)
    torch.testing.assert_close(compiled(x, 5.0), affine(x, 5.0))
    torch.testing.assert_close(compiled(x, shift=1, scale=5.0), affine(x, 5.0))
    with pytest.raises(ValueError, match="`x`"):
        compiled(torch.ones(4))
    with pytest.raises(TypeError, match="`x`"):
        compiled(torch.ones(3).double())
    with pytest.raises(ValueError, match="`shift`"):
        compiled(x, 2.0, 2)
    with pytest.raises(TypeError, match="unexpected"):
        compiled(x, wrong=2)


def test_sources() -> None:
    fn = bt.jit("cpu")(affine)
    fn(torch.ones(3))
    assert fn.source("python").startswith("def affine(x, scale=2.0, shift=1):")
    assert "FunctionDef" in fn.source("ast")
    assert "R.multiply" in fn.source("relax")
    assert "T.prim_func" in fn.source("tir")
    assert "define" in fn.source()
    assert ".text" in fn.source("asm")
    assert "float64" in fn.source(torch.ones(3).double(), kind="relax")


def test_targets() -> None:
    assert bt.Target("gpu") == bt.Target("cuda")
    assert bt.jit(target=bt.Target("cuda", arch="sm_90"))(affine).target.arch == "sm_90"
    assert bt.jit()(affine).target is None
    with pytest.raises(TypeError, match="dynamic must be True, False or None"):
        bt.jit(dynamic="yes")
    with pytest.raises(ValueError, match="unknown target"):
        bt.jit("tpu")
    with pytest.raises(ValueError, match="compute capability"):
        bt.Target("cuda", arch="hopper")
    with pytest.raises(TypeError, match="Python functions"):
        bt.jit(len)


def test_cuda_source_without_a_gpu() -> None:
    for arch in ("sm_80", "sm_90"):
        fn = bt.jit(bt.Target("cuda", arch=arch))(affine)
        source = fn.lower(torch.ones(3)).compile().source()
        assert 'extern "C" __global__' in source
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError, match="no GPU"):
            fn(torch.ones(3))


# ------------------------------------------------------------ the process around


def run_python(code: str, **environment: str) -> str:
    import os

    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=True,
    )
    return done.stdout.strip()


def test_import_leaves_the_excepthook() -> None:
    code = "import sys; hook = sys.excepthook; import babytriton; print(sys.excepthook is hook)"
    assert run_python(code) == "True"


def test_stages_take_what_calls_take() -> None:
    scaled = bt.jit("cpu")(lambda x, *, k: x * k)
    box = bt.Tensor((2,), "float32")
    box.data = torch.ones(2)
    assert scaled.lower(box, k=3).compile()(box, k=3).tolist() == [3.0, 3.0]
    empty = bt.Tensor((2,), "float32")
    with pytest.raises(TypeError, match="a Tensor without data"):
        scaled.lower(empty, k=3).compile()(empty, k=3)
    assert "T.float32(3.0)" in scaled.source(empty, k=3, kind="tir")
    assert not scaled.specializations()


def test_interpret_runs_the_plain_function(tmp_path: Any) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch, babytriton as bt\n"
        "@bt.jit\n"
        "def f(x):\n"
        "    print('running')\n"
        "    return x\n"
        "f(torch.ones(2)); f(torch.ones(2))\n"
    )
    code = f"import runpy; runpy.run_path({str(script)!r})"
    assert run_python(code, BABYTRITON_INTERPRET="1").split() == ["running", "running"]


# ------------------------------------------------------------ copies, files, settings


def test_compiled_functions_are_copied_and_pickled_by_name() -> None:
    assert copy.deepcopy(SQUARED)(torch.ones(2)).tolist() == [1.0, 1.0]
    assert pickle.loads(pickle.dumps(SQUARED)) is SQUARED
    compiled = SQUARED.lower(torch.ones(2)).compile()
    assert copy.deepcopy(compiled) is compiled
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(compiled)


@bt.jit
def SQUARED(x):
    return x * x


def test_the_default_dtype_belongs_to_the_program() -> None:
    fn = bt.jit(lambda n: n / 2)
    n = torch.arange(3)
    assert fn(n).dtype == torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert fn(n).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_file_edited_after_import_is_compiled_as_imported(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "edited_later.py"
    script.write_text("import babytriton as bt\n\n\n@bt.jit\ndef f(x):\n    return x + 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("edited_later")
    script.write_text("import babytriton as bt\n\n\n@bt.jit\ndef f(x):\n    return x - 5\n")
    assert module.f(torch.ones(1)).tolist() == [2.0]


def test_static_argnames() -> None:
    fn = bt.jit(static_argnames="scale")(affine)
    x = torch.randn(3)
    for scale in (2.0, 3.0, 2.0):
        torch.testing.assert_close(fn(x, scale), affine(x, scale))
    assert compiled_count(fn) == 2
    with pytest.raises(ValueError, match="no parameter 'zoom'"):
        bt.jit("cpu", static_argnames=["zoom"])(affine)


def test_boxes_in_containers() -> None:
    box = bt.Tensor((2,), "float32")
    fn = bt.jit(lambda pair: pair[0] + pair[1])
    with pytest.raises(TypeError, match="without data"):
        fn([box, 1.0])
    box.data = torch.ones(2)
    assert fn([box, 1.0]).tolist() == [2.0, 2.0]


@pytest.mark.parametrize(
    "fn",
    [lambda x: x * 2**70, lambda x: x + 2**63, lambda x: x.to("xla")],
    ids=["mul", "add", "xla"],
)
def test_what_torch_refuses_is_the_users(fn: Any) -> None:
    with pytest.raises(bt.CompileError) as caught:
        bt.jit("cpu")(fn)(torch.arange(3))
    assert caught.value.diagnostic.code in ("BT003", "BT018")


def test_a_kernel_that_llvm_vectorizes_wrongly_is_compiled_without() -> None:
    target = bt.Target("cpu", arch="znver3")  # where its verifier finds invalid code
    pool = bt.jit(target)(lambda x: F.adaptive_max_pool2d(x, (3, 3)))
    assert "main_kernel" in pool.lower(torch.ones(1, 4, 4, 3)).compile().source("llvm")


def test_first_call_leaves_torchs_compiler_alone() -> None:
    command = [sys.executable, "-m", "tests.unit.loading"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "done", done.stderr


def test_tensors_without_numbers_are_refused() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        fake = mode.from_tensor(torch.ones(3, 4))
    compiled = bt.jit("cpu")(lambda x: x * 2)
    for _ in range(2):
        with pytest.raises(ValueError, match="BT109"):
            compiled(fake)
        with pytest.raises(ValueError, match="BT109"):
            torch.func.functionalize(compiled)(torch.ones(3, 4))
        compiled(torch.ones(3, 4))


@pytest.mark.parametrize("is_enabled", [True, False])
def test_a_first_call_collects_no_garbage(is_enabled: bool) -> None:
    """Not while it compiles; afterwards the collector is as it was."""

    def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.exp(x * y).sum(-1)

    def seen(phase: str, info: dict[str, int]) -> None:
        if any(frame.name == "_compiled" for frame in traceback.extract_stack()):
            collections.append((phase, info))

    collections: list[Any] = []
    x, before = torch.ones(5, 7), gc.get_threshold()
    (gc.enable if is_enabled else gc.disable)()
    gc.set_threshold(50, 2, 2)
    gc.callbacks.append(seen)
    try:
        found = bt.jit("cpu")(product)(x, x)
        assert gc.isenabled() == is_enabled
    finally:
        gc.callbacks.remove(seen)
        gc.set_threshold(*before)
        gc.enable()
    assert not collections
    torch.testing.assert_close(found, product(x, x))


class Overriding(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        raise RuntimeError("not to be called")


def test_classes_with_functions_of_their_own_are_refused_at_each_call() -> None:
    jitted, x = bt.jit("cpu")(lambda x: x * 2 + 1), torch.ones(3)
    own = x.as_subclass(Overriding)
    for _ in range(3):
        with pytest.raises(TypeError, match="BT136"):
            jitted(own)
        assert torch.equal(jitted(x), x * 2 + 1)


def test_a_size_is_no_dtype() -> None:
    with pytest.raises(ValueError, match=r"is a dtype; .* Tensor\[\(7,\), 'float32'\]"):
        bt.Tensor[7, "float32"]
    with pytest.raises(ValueError, match="is a dtype"):
        bt.Tensor["n", "float16"]
    assert bt.Tensor["n", "k"].shape == ("n", "k")


class Scaled:
    by = torch.full((3,), 2.0)

    @torch.no_grad()
    def plain(self, x, more=0):
        return x * self.by + more

    @staticmethod
    def wrapped(fn):
        @functools.wraps(fn)
        def wrapper(*args, twice=False, **kwargs):
            return fn(*args, **kwargs) * (2 if twice else 1)

        return wrapper


class Wrapped(Scaled):
    @Scaled.wrapped
    def shifted(self, x, more=0):
        return x + self.by + more


def test_methods_that_take_any_arguments() -> None:
    one = torch.ones(3)
    plain = bt.jit("cpu")(Scaled().plain)
    assert plain(one).tolist() == [2.0] * 3
    assert plain(one, more=1).tolist() == [3.0] * 3
    shifted = bt.jit("cpu")(Wrapped().shifted)
    assert shifted(one, 1, twice=True).tolist() == [8.0] * 3
    assert shifted(x=one).tolist() == [3.0] * 3
