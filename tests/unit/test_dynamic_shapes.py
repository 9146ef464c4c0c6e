"""Sizes that are known only at the call: one program for all of them, guards, relations, names."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import babytriton as bt
from babytriton.frontend.signature import FloatSpec
from tests.conformance import gpu
from tests.emulator import emulator
from tests.unit import wrapping

needs_gpu = pytest.mark.skipif(
    emulator.available_gpu() is None, reason=emulator.missing() or "no GPU"
)


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def elementwise(x: torch.Tensor) -> Any:
    return torch.sigmoid(1.7 * x) * x + x.exp().clamp(max=3)


def broadcast(x: torch.Tensor) -> Any:
    return x + x[0] * x[:, :1] - x.mean(1, keepdim=True)


def reductions(x: torch.Tensor) -> Any:
    return x.sum(0), x.mean(), x.amax(1), x.var(0), x.std(1, keepdim=True), x.argmax(1), x.norm()


def rows(x: torch.Tensor) -> Any:
    return torch.softmax(x, -1), F.layer_norm(x, x.shape[-1:]), F.log_softmax(x, 0)


def products(x: torch.Tensor) -> Any:
    return torch.relu(x @ x.T), F.linear(x, x), torch.einsum("ij,kj->ik", x, x)


def views(x: torch.Tensor) -> Any:
    return x.reshape(-1) * 2, x.T + 1, x.flatten()[None], x.unsqueeze(1).expand(-1, 3, -1) * 2


def slices(x: torch.Tensor) -> Any:
    return x[1:] * 2, x[:, :-1] + 1, x[::2] * 3, x[-1], x[0, 1], x[..., None] - 1


def joined(x: torch.Tensor) -> Any:
    return torch.cat([x, x * 2, x], 1) * 2, torch.stack([x, -x], 1) + 1, x.repeat(2, 3) + 1


def created(x: torch.Tensor) -> Any:
    n, m = x.shape
    return torch.arange(n) * 2, torch.zeros(n, m) + x, torch.full((m,), 2.5), torch.eye(m) @ x.T


def chosen(x: torch.Tensor) -> Any:
    picks = x.argmax(0)
    return (
        torch.where(x > 0, x, 0.5),
        x[picks] * 2,
        x.gather(0, picks[None]),
        x.double().to(x.dtype),
    )


def arithmetic(x: torch.Tensor) -> Any:
    n, m = x.shape
    scaled = x * n + m // 2 - n % 3 + x.numel() * 0.5 + len(x) + x.size(1) / n
    return scaled * math.sqrt(m) * m**-0.5, torch.full((n,), m), max(n, m) * x, min(x.shape) + x


def walked(x: torch.Tensor) -> Any:
    return torch.cumsum(x, 1), x.cummax(0).values, torch.flip(x, (0,)), torch.tril(x)


FUNCTIONS = (
    *(elementwise, broadcast, reductions, rows, products, views, slices, joined, created, chosen),
    *(arithmetic, walked),
)


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_one_program_serves_all_sizes(fn: Callable[..., Any]) -> None:
    compiled = bt.jit("cpu", dynamic=True)(fn)
    # The first sizes are no special ones, so that what is guarded holds for the others too.
    for size in ((6, 10), (5, 7), (33, 129), (1000, 17)):
        x = drawn(*size)
        torch.testing.assert_close(compiled(x), fn(x), rtol=1e-4, atol=1e-4)
    [program] = compiled.specializations()
    assert "x_0" in program.signature
    [only] = compiled._specializations
    assert not [fallback for fallback in only.fallbacks if "symbolic" in fallback.reason]


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_small_sizes_are_right_too(fn: Callable[..., Any]) -> None:
    compiled = bt.jit("cpu", dynamic=True)(fn)
    for size in ((2, 3), (1, 2)):
        x = drawn(*size)
        found, expected = compiled(x), fn(x)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int64])
def test_dtypes(dtype: torch.dtype) -> None:
    def fn(x: torch.Tensor) -> Any:
        return (x + x.shape[0]) * 2, x.sum(0), torch.cat([x, x]) - 1

    compiled = bt.jit("cpu", dynamic=True)(fn)
    for size in ((3, 4), (2, 2), (5, 7), (64, 64)):
        x = (drawn(*size) * 3).to(dtype)
        torch.testing.assert_close(compiled(x), fn(x))
    assert len(compiled.specializations()) == 1


@needs_gpu
@pytest.mark.parametrize(
    "fn",
    [elementwise, reductions, rows, products, joined, arithmetic, walked],
    ids=lambda fn: fn.__name__,
)
def test_kernels_for_the_gpu(fn: Callable[..., Any]) -> None:
    compiled = bt.jit(gpu.TARGET, dynamic=True)(fn).lower(drawn(6, 10)).compile()
    for size in ((5, 7), (33, 65)):
        x = drawn(*size)
        torch.testing.assert_close(gpu.call(compiled, (x,)), fn(x), rtol=1e-4, atol=1e-4)


# ---------------------------------------------------------------- what becomes symbolic


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_the_second_size_makes_a_dimension_symbolic() -> None:
    f = bt.jit("cpu")(double)
    for n in (3, 3, 8, 100, 5):
        torch.testing.assert_close(f(drawn(n, 4)), double(drawn(n, 4)))
    assert [s.signature for s in f.specializations()] == ["x: f32[3, 4]", "x: f32[x_0, 4]"]
    f(drawn(3, 9))
    assert f.specializations()[-1].signature == "x: f32[x_0, x_1]"
    f(drawn(70, 71))
    assert len(f.specializations()) == 3


def test_sizes_0_and_1_stay_constants() -> None:
    f = bt.jit("cpu", dynamic=True)(double)
    for n in (3, 1, 0, 7):
        torch.testing.assert_close(f(drawn(n, 4)), double(drawn(n, 4)))
    signatures = [s.signature for s in f.specializations()]
    assert signatures == ["x: f32[x_0, x_1]", "x: f32[1, x_1]", "x: f32[0, x_1]"]


def test_dynamic_false_compiles_for_each_size() -> None:
    f = bt.jit("cpu", dynamic=False)(double)
    for n in (3, 8, 5):
        f(drawn(n, 4))
    assert [s.signature for s in f.specializations()] == [f"x: f32[{n}, 4]" for n in (3, 8, 5)]


def test_names_in_annotations_are_symbolic_at_once() -> None:
    @bt.jit("cpu")
    def f(x: bt.Tensor["n", 4], w: bt.Tensor["n"]) -> Any:
        return x * w[:, None]

    for n in (3, 8, 2, 1):
        x, w = drawn(n, 4), drawn(n)
        torch.testing.assert_close(f(x, w), x * w[:, None])
    signatures = [s.signature for s in f.specializations()]
    assert signatures == ["x: f32[n, 4], w: f32[n]", "x: f32[1, 4], w: f32[1]"]
    with pytest.raises(ValueError, match=r"`n` is 6 in dimension 0 of `w`, and 5 in .* `x`"):
        f(drawn(5, 4), drawn(6))


def test_lower_takes_names() -> None:
    lowered = bt.jit("cpu")(double).lower(bt.Tensor["batch", 4])
    assert str(lowered.signature) == "x: f32[batch, 4]"
    assert "R.Tensor((batch, 4)" in lowered.as_text()
    compiled = lowered.compile()
    for n in (2, 77):
        torch.testing.assert_close(compiled(drawn(n, 4)), double(drawn(n, 4)))
    with pytest.raises(ValueError, match="batch >= 2"):
        compiled(drawn(1, 4))
    with pytest.raises(ValueError, match=r"expected f32\[batch, 4\], got f32\[3, 5\]"):
        compiled(drawn(3, 5))


def test_captured_tensors_may_change_their_size() -> None:
    scope = {"W": drawn(4)}

    @bt.jit("cpu")
    def f(x: torch.Tensor) -> Any:
        return x * scope["W"] + scope["W"].shape[0]

    for n in (4, 6, 9, 2):
        scope["W"] = drawn(n)
        x = drawn(3, n)
        torch.testing.assert_close(f(x), x * scope["W"] + n)
    assert len(f.specializations()) == 2


def test_nested_arguments() -> None:
    @bt.jit("cpu", dynamic=True)
    def f(weights: dict[str, list[torch.Tensor]], s: float) -> Any:
        return weights["a"][0] * s + weights["a"][1]

    for n, s in ((3, 0.5), (7, 2.0)):
        a, b = drawn(n), drawn(n, n)
        torch.testing.assert_close(f({"a": [a, b]}, s), a * s + b)
    [program] = f.specializations()
    assert program.signature.endswith("s: float")
    assert isinstance(f._specializations.newest.signature.specs[1], FloatSpec)


# ---------------------------------------------------------------- guards


def test_a_condition_on_sizes_is_a_guard() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[0] > 4 else x + 1

    f = bt.jit("cpu", dynamic=True)(fn)
    for n in (3, 9, 4, 5, 100, 2):
        torch.testing.assert_close(f(drawn(n, 3)), fn(drawn(n, 3)))
    assert [s.guards for s in f.specializations()] == [("x_0 <= 4",), ("x_0 > 4",)]


def test_sizes_that_must_be_equal_are_one() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y

    f = bt.jit("cpu", dynamic=True)(fn)
    for n in (3, 9, 4):
        torch.testing.assert_close(f(drawn(n), drawn(n)), drawn(n) * 2)
    [program] = f.specializations()
    x, y = program.signature.split(", ")
    assert x.removeprefix("x: ") == y.removeprefix("y: ")
    torch.testing.assert_close(f(drawn(4), drawn(1)), drawn(4) + drawn(1))
    with pytest.raises(bt.CompileError, match="broadcast a dimension of length 3"):
        f(drawn(4), drawn(3))


def test_a_size_that_must_be_a_number_is_a_constant() -> None:
    def fn(x: torch.Tensor) -> Any:
        return x * {3: 10, 5: 20}.get(x.shape[0], 30), f"{x.shape[0]} rows"

    f = bt.jit("cpu", dynamic=True)(fn)
    for n in (3, 5, 7, 3):
        found, text = f(drawn(n, 4))
        torch.testing.assert_close(found, fn(drawn(n, 4))[0])
        assert text == f"{n} rows"
    assert [s.signature for s in f.specializations()] == [f"x: f32[{n}, x_1]" for n in (3, 5, 7)]


def test_reshapes_guard_divisibility() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x.reshape(-1, 4).sum(1)

    f = bt.jit("cpu", dynamic=True)(fn)
    for n in (8, 12, 400):
        torch.testing.assert_close(f(drawn(n)), fn(drawn(n)))
    [program] = f.specializations()
    assert "(x_0 % 4) == 0" in program.guards
    with pytest.raises(bt.CompileError, match="is invalid for input"):
        f(drawn(9))


# ---------------------------------------------------------------- sizes as Python numbers


def test_sizes_are_returned_as_numbers() -> None:
    def fn(x: torch.Tensor) -> Any:
        n, m = x.shape
        named = {"n": n, "half": m // 2, "ratio": n / m, "all": x.numel()}
        return x * 2, named, (len(x), n > 100), isinstance(n, int), type(n) is int

    f = bt.jit("cpu", dynamic=True)(fn)
    for size in ((3, 4), (5, 7), (33, 2)):
        found, expected = f(drawn(*size)), fn(drawn(*size))
        torch.testing.assert_close(found[0], expected[0])
        assert found[1:] == expected[1:]
        assert [type(x) for x in found[1].values()] == [int, int, float, int]
    assert len(f.specializations()) == 1


def test_branches_loops_and_writes() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y[0] += 1
        y[:, 1:] = x.shape[0]
        if y.sum() > 0:
            y = y - 1
        for _ in range(3):
            y = y * 0.5 + x.shape[1]
        while y.abs().sum() > 1:
            y = y * 0.5
        return y

    f = bt.jit("cpu", dynamic=True)(fn)
    for size in ((13, 5), (15, 7), (33, 65)):
        torch.testing.assert_close(f(drawn(*size)), fn(drawn(*size)))
    assert len(f.specializations()) == 1


def test_torch_runs_what_does_not_build() -> None:
    def fn(x: torch.Tensor) -> Any:
        values, places = torch.sort(x, dim=-1)
        picked = torch.topk(x, x.shape[1] - 1, dim=1).values
        return values * 2 + places, torch.cat([picked, x], 1) + 1

    f = bt.jit("cpu", dynamic=True)(fn)
    for size in ((3, 4), (5, 7), (33, 65)):
        torch.testing.assert_close(f(drawn(*size)), fn(drawn(*size)))
    assert len(f.specializations()) == 1


def test_the_user_may_call_a_size_what_they_like() -> None:
    @bt.jit("cpu")
    def f(x: bt.Tensor[("max", "lambda"), "float32"]) -> Any:  # noqa: F722, F821
        return x[1:] * x.shape[1], x.shape[0] * 2

    for size in ((3, 4), (6, 9)):
        found, twice = f(drawn(*size))
        torch.testing.assert_close(found, drawn(*size)[1:] * size[1])
        assert twice == 2 * size[0]


# ---------------------------------------------------------------- what was compiled, and why


def test_specializations_are_readable() -> None:
    f = bt.jit("cpu", dynamic=True)(double)
    assert f.specializations() == ()
    f(drawn(3, 4))
    [program] = f.specializations()
    assert program.kernels == 1
    assert program.guards == ()
    assert repr(program).startswith("<double(x: f32[x_0, x_1]) for cpu")


LOGGED = """
import torch
import babytriton as bt
SCALE = 2.0
@bt.jit("cpu")
def f(x, k):
    return x * k * SCALE
f(torch.ones(3, 4), 2)
f(torch.ones(8, 4), 2)
f(torch.ones(9, 4), 2)
f(torch.ones(9, 4), 3)
f(torch.ones(9, 4).double(), 3)
SCALE = 4.0
f(torch.ones(9, 4), 3)
f(torch.ones(9, 4).requires_grad_(), 3)
with torch.autocast("cpu"):
    f(torch.ones(9, 4), 3)
"""


def test_the_log_says_why_a_function_was_compiled(tmp_path: Path) -> None:
    path = tmp_path / "logged.py"
    path.write_text(LOGGED)
    env = os.environ | {"BABYTRITON_LOG": "recompiles"}
    done = subprocess.run(
        [sys.executable, str(path)], env=env, capture_output=True, text=True, check=True
    )
    lines = [line for line in done.stderr.splitlines() if line.startswith("babytriton")]
    expected = (
        ("f(x: f32[3, 4], k: 2)", "the first call"),
        ("f(x: f32[x_0, 4], k: 2)", "argument x: f32[8, 4], before f32[3, 4]"),
        ("f(x: f32[x_0, 4], k: 3)", "argument k: 3, before 2"),
        ("f(x: f64[x_0, 4], k: 3)", "argument x: f64[9, 4], before f32[9, 4]"),
        ("f(x: f32[x_0, 4], k: 3)", "captured SCALE: 4.0, before 2.0"),
        (
            "f(x: f32[x_0, 4], k: 3)",
            "argument x: with its gradient recorded, before without",
        ),
        ("f(x: f32[x_0, 4], k: 3)", "torch.autocast: bfloat16 on cpu, before off"),
    )
    assert len(lines) == len(expected)
    for line, (what, why) in zip(lines, expected):
        assert line.startswith(f"babytriton.recompiles: {what} for cpu")
        assert line.endswith(f": {why}")


def test_an_unknown_topic_is_refused() -> None:
    env = os.environ | {"BABYTRITON_LOG": "everything"}
    done = subprocess.run(
        [sys.executable, "-c", "import babytriton"], env=env, capture_output=True, text=True
    )
    assert "'everything' is none of recompiles" in done.stderr


def steps(x):
    y = torch.zeros(x.shape[1:])
    for i in range(x.shape[0]):
        y = y * 0.9 + x[i] * i
    return y


def rows(x):
    total = 0
    for row in x:
        total = total + row.sum()
    return total


def found_early(x):
    for i, row in enumerate(x):
        if row.sum() > 3:
            return i, row
    return -1, x[0]


def every_other(x):
    out = x * 0
    for i in range(1, x.shape[0], 2):
        out[i] = x[i] * 2 + i * x.shape[0]
    return out


@pytest.mark.parametrize("fn", [steps, rows, found_early, every_other])
def test_loops_over_a_symbolic_size(fn) -> None:
    compiled = bt.jit("cpu", dynamic=True)(fn)
    for n in (5, 9, 2, 40, 3):
        x = torch.randn(n, 4)
        torch.testing.assert_close(compiled(x), fn(x), rtol=1e-5, atol=1e-5)
    assert len(compiled.specializations()) == 1


def grown(x):
    parts = []
    for i in range(x.shape[0]):
        parts.append(x[i] * 2)
    return torch.stack(parts)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.shape,
        lambda x: (x[:3], x[1:] - x[:-1]),
        lambda x: [row.sum() for row in x],
        grown,
    ],
)
def test_what_cannot_serve_all_sizes_is_compiled_for_each(fn) -> None:
    compiled = bt.jit("cpu")(fn)
    for n in (5, 6, 7, 5):
        x = torch.randn(n, 2)
        found, expected = compiled(x), fn(x)
        assert type(found) is type(expected)
        torch.testing.assert_close(found, expected)


def test_printed_sizes_are_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    def f(x):
        print(x.shape, x.shape[0] + 1, [len(x), x.numel()])
        return x

    compiled = bt.jit("cpu")(f)
    for n in (5, 6):
        x = torch.randn(n, 2)
        compiled(x)
        found = capsys.readouterr().out
        f(x)
        assert found == capsys.readouterr().out


def neighbours(x):
    return x[:, 1:] + x[:, :-1]


def softmax_of_neighbours(x):
    return torch.softmax(x[:, 1:] + x[:, :-1], -1)


def ends(x):
    return torch.softmax(x[:, 1:], -1), x[1:] * x[:-1], x[:, :-2].sum(0), x[:3].mean(-1)


@pytest.mark.parametrize("target", ["cpu", gpu.TARGET], ids=["cpu", "cuda"])
@pytest.mark.parametrize("fn", [neighbours, softmax_of_neighbours, ends])
def test_slices_of_symbolic_sizes_fit_each_other(fn, target) -> None:
    if target != "cpu" and emulator.available_gpu() is None:
        pytest.skip(emulator.missing() or "no GPU")
    compiled = bt.jit(target=target, dynamic=True)(fn).lower(torch.randn(6, 5)).compile()
    assert compiled.fallbacks == ()
    for shape in ((6, 5), (4, 9), (33, 40)):
        x = torch.randn(shape)
        found = compiled(x) if target == "cpu" else gpu.call(compiled, (x,))
        torch.testing.assert_close(found, fn(x))


def losses_of_each(x, y):
    smoothed = F.cross_entropy(x, y, None, None, -100, None, "none", 0.1)
    return F.cross_entropy(x, y, reduction="none"), F.nll_loss(x, y, reduction="none"), smoothed


COLUMNS = bt.Tensor((8, "n"), "float32")


def cut(x: COLUMNS):
    return x[:, 1:3]


def test_losses_of_each_row() -> None:
    compiled = bt.jit("cpu", dynamic=True)(losses_of_each)
    for rows, classes in ((8, 10), (5, 7)):
        x, y = torch.randn(rows, classes), torch.randint(classes, (rows,))
        torch.testing.assert_close(compiled(x, y), losses_of_each(x, y))


def test_slices_whose_sizes_torch_knows() -> None:
    compiled = bt.jit("cpu")(cut)
    for n in (4, 9, 3, 2):
        x = torch.randn(8, n)
        torch.testing.assert_close(compiled(x), cut(x))


def from_the_ends(x):
    y = x.clone()
    y[:, 1:, -2, 3] = 0
    y[1, :, -2:, 1:] *= y[-1, 0, -3, -2]
    return y, x[1, 2, -2, 3], x[:, -1, -3, 1:]


def test_places_from_the_ends_of_symbolic_sizes() -> None:
    compiled = bt.jit("cpu")(from_the_ends).lower(bt.Tensor["a", 5, "b", 4]).compile()
    for a, b in ((7, 4), (2, 9), (9, 6)):
        x = drawn(a, 5, b, 4)
        torch.testing.assert_close(compiled(x), from_the_ends(x))


def broadcast_steps(x, y):
    z = y.clone()
    z[:] = x[:, ::3]
    return z, x[0, ::3] + y, x[:, ::3].expand(y.shape) * 2


def test_sizes_that_are_computed_to_be_one_broadcast() -> None:
    jitted = bt.jit("cpu", dynamic=True)(broadcast_steps)
    for rows, columns, steps in ((6, 2, 4), (4, 3, 7), (6, 11, 4), (5, 4, 2), (9, 2, 8)):
        x, y = drawn(rows, columns, 5), drawn(rows, steps, 5)
        torch.testing.assert_close(jitted(x, y), broadcast_steps(x, y))


def test_another_shape_is_read_in_one_piece() -> None:
    def flattened(x):
        return x.flatten(1) * 2

    lowered = bt.jit("cpu", dynamic=True)(flattened).lower(torch.rand(3, 9, 4))
    stores = [line for line in lowered.schedule().as_text().splitlines() if " = x[" in line]
    assert any("x[ax0_fused, T.int64(0), ax1_fused]" in line for line in stores)
    # Those past the caches are of lines, and of what is left behind them.
    assert all("x[ax0_fused, T.int64(0), " in line for line in stores)
    x = torch.rand(5, 7, 3)
    torch.testing.assert_close(bt.jit("cpu", dynamic=True)(flattened)(x), flattened(x))


@pytest.mark.parametrize("fn", wrapping.FUNCTIONS)
def test_integers_that_wrap(fn: Callable[[torch.Tensor], torch.Tensor]) -> None:
    jitted = bt.jit("cpu", dynamic=True)(fn)
    for n in (300, 70, 7):
        x = torch.zeros(n)
        assert torch.equal(jitted(x), fn(x))


# Sizes that nothing but a part of a loop or a branch has.


def shifted_in_a_loop(x: torch.Tensor) -> torch.Tensor:
    a = torch.zeros_like(x[0])
    for t in range(x.shape[0]):
        a = torch.logaddexp(a, F.pad(a[:-1], (1, 0))) + torch.cat((a[:1], a[:-1])) * 0.1 + x[t]
    return a


def counted_in_a_loop(x: torch.Tensor) -> torch.Tensor:
    s = x.sum()
    for t in range(x.shape[0]):
        s = s + (torch.arange(x.shape[1] - 2) * x[t, 0]).sum() + torch.ones(x.shape[1]).sum() * t
    return s


def shifted_while(x: torch.Tensor) -> torch.Tensor:
    s = x[0]
    while s.sum() < 100:
        s = s + torch.cat((s[:1], s[:-1])).abs() + 1
    return s


def shifted_in_a_branch(x: torch.Tensor) -> torch.Tensor:
    y = x[0]
    if x.sum() > 0:
        return y[1:-1].cumsum(0)[1:].sum() + y
    return (y[1:] * 2)[:-1].sum() * y


@pytest.mark.parametrize(
    "fn", [shifted_in_a_loop, counted_in_a_loop, shifted_while, shifted_in_a_branch]
)
def test_sizes_within_parts_of_programs(fn: Callable[..., torch.Tensor]) -> None:
    jitted = bt.jit("cpu", dynamic=True)(fn)
    for rows, columns in ((45, 9), (33, 5), (40, 12)):
        x = drawn(rows, columns, dtype=torch.float64)
        torch.testing.assert_close(jitted(x), fn(x))
        found = []
        for each in (jitted, fn):
            y = x.clone().requires_grad_()
            found.append(torch.autograd.grad(each(y).sum(), y)[0])
        torch.testing.assert_close(*found)
    assert len(jitted.specializations()) == 2  # one of them with gradients


def test_sizes_within_loops_of_a_gpu() -> None:
    x = drawn(45, 9)
    compiled = bt.jit(gpu.TARGET, dynamic=True)(shifted_in_a_loop).lower(x).compile()
    for given in (x, drawn(34, 70)):
        torch.testing.assert_close(gpu.call(compiled, (given,)), shifted_in_a_loop(given))


def dequantized(
    x: torch.Tensor, packed: torch.Tensor, scale: torch.Tensor, group: torch.Tensor
) -> torch.Tensor:
    w = packed.unsqueeze(1).expand(-1, 8, -1)
    w = w.reshape(w.shape[0] * w.shape[1], w.shape[2]).to(x.dtype)
    return x @ (scale[group] * w)


def smoothed(x: torch.Tensor, target: torch.Tensor, epsilon: float) -> torch.Tensor:
    logs = F.log_softmax(x, dim=-1)
    each = epsilon / (logs.size(-1) - 1)
    likelihood = logs.gather(dim=-1, index=target).sum()
    return (epsilon + each - 1.0) * likelihood - each * logs.sum()


def _matches_with_gradients(
    fn: Callable[..., Any], jitted: Callable[..., Any], *given: Any
) -> None:
    found = []
    for each in (jitted, fn):
        args = [
            x.clone().requires_grad_()
            if isinstance(x, torch.Tensor) and x.is_floating_point()
            else x
            for x in given
        ]
        result = each(*args)
        wanted = [x for x in args if isinstance(x, torch.Tensor) and x.requires_grad]
        found.append([result, *torch.autograd.grad(result.sin().sum(), wanted)])
    torch.testing.assert_close(*found)


def test_gradients_of_sizes_that_only_the_call_tells_are_equal() -> None:
    """The columns of one operand of a product, and eight times the rows of what the other is of."""
    jitted = bt.jit("cpu", dynamic=True)(dequantized)
    for rows, packed, columns in ((3, 4, 24), (5, 2, 7), (2, 6, 3)):
        group = torch.arange(8 * packed) // (4 * packed)
        x = drawn(rows, 8 * packed, dtype=torch.float64)
        levels = torch.arange(packed * columns).reshape(packed, columns) % 9
        scale = drawn(2, columns, dtype=torch.float64)
        _matches_with_gradients(dequantized, jitted, x, levels, scale, group)
    assert len(jitted.specializations()) == 1


def test_numbers_beside_sizes_that_only_shapes_tell() -> None:
    """The way back computes with a size as a number, and fills a shape with what it finds."""
    jitted = bt.jit("cpu", dynamic=True)(smoothed)
    for rows, classes in ((3, 40), (5, 7), (2, 3)):
        x, target = drawn(rows, classes, dtype=torch.float64), torch.arange(rows)[:, None] % classes
        _matches_with_gradients(smoothed, jitted, x, target, 0.1)
    assert len(jitted.specializations()) == 1


def patches(x: torch.Tensor) -> torch.Tensor:
    size = x.shape[-1] // 2 * 2
    x = x[..., :size, :size]
    x = x.unflatten(2, (-1, 2)).unflatten(4, (-1, 2)).permute(0, 2, 4, 3, 5, 1)
    return x.flatten(3).flatten(1, 2)


def test_a_slice_of_as_many_as_there_were_is_one_where_there_are_more() -> None:
    """What torch compares of the sizes may make one of them a number, and the other stays any."""
    jitted = bt.jit("cpu", dynamic=True)(patches)
    jitted.lower(torch.ones(2, 3, 6, 6))  # which, as a call does not, fails if this fails
    for rows, columns in ((6, 6), (7, 6), (8, 6), (6, 7), (9, 9), (16, 10)):
        _matches_with_gradients(patches, jitted, drawn(2, 3, rows, columns, dtype=torch.float64))
