"""Kernels as they are called: memory, specializations, captured values, checks, other functions."""

from __future__ import annotations

import copy
import pickle
import sys
from typing import Any

import pytest
import torch

import babytriton as bt
from babytriton.config import Config
from tests.conformance.gpu import TARGET, call_kernel
from tests.emulator import emulator


@bt.kernel
def double(x, out):
    for i, j in bt.grid(x.shape[0], x.shape[1]):
        out[i, j] = x[i, j] * 2


@bt.kernel
def increment(x):
    for i in range(len(x)):
        x[i] += 1


FACTOR = 2


@bt.kernel
def scale(x):
    for i in range(len(x)):
        x[i] *= FACTOR


WEIGHTS = torch.tensor([1.0, 2.0, 3.0])


@bt.kernel
def weigh(x):
    for i in range(len(x)):
        x[i] *= WEIGHTS[i]


@bt.kernel(bounds_check=True)
def lookup(table, places, out):
    for i in range(len(places)):
        out[i] = table[places[i], 0]


@bt.kernel(bounds_check=True)
def until_zero(x, out):
    i = 0
    while x[i] != 0:
        i += 1
    out[0] = i


@bt.kernel
def smooth(x, out):
    for i in range(1, len(x) - 1):
        out[i] = (x[i - 1] + x[i] + x[i + 1]) / 3


@bt.kernel
def divide(x, y, out):
    for i in range(len(x)):
        out[i] = x[i] // y[i]


@bt.kernel
def scaled(x, factor, out):
    for i in range(len(x)):
        out[i] = x[i] * factor


def test_returns_nothing_and_writes_in_place() -> None:
    x, out = torch.rand(5, 7), torch.zeros(5, 7)
    assert double(x, out) is None
    torch.testing.assert_close(out, x * 2)


def test_specializes_by_shape_and_dtype() -> None:
    for shape, dtype in (((3, 4), torch.float32), ((4, 3), torch.float32), ((3, 4), torch.int16)):
        x = torch.arange(12).reshape(shape).to(dtype)
        out = torch.zeros_like(x)
        double(x, out)
        torch.testing.assert_close(out, x * 2)


def test_strided_and_unaligned_tensors() -> None:
    memory = torch.zeros(20, 9)
    x = torch.rand(7, 10)[::2, 1::3].t()
    out = memory[1:4, 3:7]
    double(x, out)
    torch.testing.assert_close(out, x * 2)
    assert memory.count_nonzero() == x.count_nonzero()
    column = torch.zeros(6, 3)
    increment(column[:, 1])
    torch.testing.assert_close(column[:, 1], torch.ones(6))
    assert column.sum() == 6


def test_elements_in_one_place_are_not_written() -> None:
    @bt.kernel("cpu")
    def add(x, y):
        for i, j in bt.grid(3, 3):
            y[i, j] += x[i, j]

    y, ones = torch.zeros(5), torch.ones(3, 3)
    with pytest.raises(ValueError, match=r"(?s)BT123.*`y`"):
        add(ones, y.as_strided((3, 3), (1, 1)))
    with pytest.raises(ValueError, match=r"(?s)BT113.*`y`.*`x`"):
        add(ones, ones)
    assert not y.any()


def test_columns_of_one_tensor_do_not_overlap() -> None:
    x = torch.arange(12.0).reshape(4, 3)
    expected = x[:, 0] * 2
    scaled(x[:, 0], 2.0, x[:, 2])
    torch.testing.assert_close(x[:, 2], expected)


@pytest.mark.parametrize(
    "arguments",
    [lambda x: (x, x), lambda x: (x[:, :-1], x[:, 1:]), lambda x: (x, x[:1].expand(4, 5))],
)
def test_shared_memory_is_refused(arguments: Any) -> None:
    with pytest.raises(ValueError, match=r"error\[BT1[12]3\]"):
        double(*arguments(torch.rand(4, 5)))


def test_reading_expanded_and_negated_tensors() -> None:
    out = torch.zeros(3, 4)
    double(torch.rand(1, 4).expand(3, 4), out)
    z = torch.complex(torch.rand(3, 4), torch.rand(3, 4))
    x = z.conj().imag
    assert x.is_neg()
    double(x, out)
    torch.testing.assert_close(out, x * 2)


def test_autograd_sees_the_write() -> None:
    x = torch.rand(5, requires_grad=True)
    y = x * 1
    saved = y.sigmoid()
    loss = saved.sum()
    with torch.no_grad():
        increment(saved)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    with pytest.raises(ValueError, match=r"error\[BT106\]"):
        increment(y)


def test_captured_numbers_are_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(3)
    scale(x)
    monkeypatch.setitem(globals(), "FACTOR", 5)
    scale(x)
    torch.testing.assert_close(x, torch.full((3,), 10.0))


def test_captured_tensors_are_read_at_each_call() -> None:
    x = torch.ones(3)
    weigh(x)
    WEIGHTS.mul_(2)
    try:
        weigh(x)
    finally:
        WEIGHTS.div_(2)
    torch.testing.assert_close(x, 2 * WEIGHTS**2)


def test_a_float_is_no_constant() -> None:
    x, out = torch.rand(5), torch.zeros(5)
    compiled = scaled.lower(x, 0.5, out).compile()
    for factor in (0.5, 3.0):
        compiled(x, factor, out)
        torch.testing.assert_close(out, x * factor)


def test_nothing_to_do() -> None:
    double(torch.zeros(0, 3), torch.zeros(0, 3))
    increment(torch.zeros(0))

    @bt.kernel
    def nothing(x):
        pass

    nothing(torch.zeros(3))


def test_checked_index_names_the_place() -> None:
    table, out = torch.rand(4, 1), torch.zeros(3)
    lookup(table, torch.tensor([0, -1, 3]), out)
    torch.testing.assert_close(out, table[[0, -1, 3], 0])
    with pytest.raises(IndexError, match="index -5 in dimension 0 of `table`, which has size 4"):
        lookup(table, torch.tensor([0, -5, 3]), out)
    with pytest.raises(IndexError, match=r"= table\[places\[i\], 0\]"):
        lookup(table, torch.tensor([0, 2**40, 3]), out)


def test_a_checked_loop_ends_where_it_fails() -> None:
    out = torch.zeros(1)
    until_zero(torch.tensor([3.0, 2.0, 0.0]), out)
    assert out.item() == 2
    with pytest.raises(IndexError, match="index 3 in dimension 0 of `x`, which has size 3"):
        until_zero(torch.tensor([3.0, 2.0, 1.0]), out)


def test_integer_division_by_zero_raises() -> None:
    x, out = torch.tensor([7, -7, -(2**63)]), torch.zeros(3, dtype=torch.int64)
    divide(x, torch.tensor([2, 2, -1]), out)
    assert out.tolist() == [3, -4, -(2**63)]
    with pytest.raises(ZeroDivisionError, match=r"x\[i\] // y\[i\]"):
        divide(x, torch.tensor([2, 0, 2]), out)


def test_the_function_may_come_first() -> None:
    table, places, out = torch.rand(4, 1), torch.tensor([0, -1, 9]), torch.zeros(3)
    with pytest.raises(IndexError, match="index 9 in dimension 0 of `table`, which has size 4"):
        bt.kernel(lookup.fn, bounds_check=True)(table, places, out)


@pytest.mark.skipif(emulator.available_gpu() is None, reason="no GPU, and no emulator")
def test_checks_work_on_the_gpu() -> None:
    table, places, out = torch.rand(4, 1), torch.tensor([0, -1, 9]), torch.zeros(3)
    checked = bt.kernel(TARGET, bounds_check=True)(lookup.fn)
    compiled = checked.lower(table, places, out).compile()
    with pytest.raises(IndexError, match="index 9 in dimension 0 of `table`, which has size 4"):
        call_kernel(compiled, (table, places, out))
    found = call_kernel(compiled, (table, places.clamp(max=3), out))
    torch.testing.assert_close(found[2], table[[0, -1, 3], 0])


def test_integers_wrap_as_those_of_torch() -> None:
    @bt.kernel
    def f(x, out):
        for i in range(len(x)):
            out[i, 0] = -x[i]
            out[i, 1] = x[i] + x[i]
            out[i, 2] = x[i] * x[i]
            out[i, 3] = 0 - x[i]

    for dtype in (torch.int64, torch.int32, torch.int16, torch.int8):
        low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
        x = torch.tensor([low, -1, 0, 5, high], dtype=dtype)
        given, expected = torch.zeros(5, 4, dtype=dtype), torch.zeros(5, 4, dtype=dtype)
        f(x, given)
        f.fn(x, expected)
        assert given.tolist() == expected.tolist()


def test_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["babytriton.kernel"], "CONFIG", Config(interpret=True))
    seen: list[int] = []

    @bt.kernel
    def f(x):
        for i in bt.grid(len(x)):
            seen.append(i)
            x[i] = i

    x = torch.zeros(3)
    f(x)
    assert seen == x.tolist() == [0, 1, 2]


def test_sources_of_examples() -> None:
    @bt.kernel("cpu")
    def fill(x, *, value):
        for i in range(len(x)):
            x[i] = value

    assert "value" in fill.source(bt.Tensor[(7,), "float32"], value=2.0, kind="tir")
    with pytest.raises(RuntimeError, match="BT205"):
        fill.source()
    box = bt.Tensor((7,), "float32")
    box.data = torch.zeros(7)
    fill.source(box, value=2.0)
    fill(box, value=2.0)
    assert box.data.tolist() == [2.0] * 7
    assert len(fill._specializations) == 1


def test_grid_is_an_iterator() -> None:
    assert list(bt.grid(2, 3)) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert list(bt.grid(3)) == [0, 1, 2]
    with pytest.raises(TypeError, match="at least one size"):
        bt.grid()


def test_stages_and_sources() -> None:
    spec = bt.Tensor(shape=(4, 4))
    lowered = bt.kernel("gpu")(double).lower(spec, spec)
    compiled = lowered.compile()
    assert "T.sblock" in lowered.as_text()
    assert 'thread="threadIdx.x"' in lowered.schedule().as_text()
    assert compiled.kernels == ("double",)
    assert "__global__" in compiled.source()
    assert "def double(x, out)" in compiled.source("python")
    fresh = bt.kernel("cpu")(double.fn)
    with pytest.raises(RuntimeError, match="BT205"):
        fresh.source()
    assert "define" in fresh.source(torch.zeros(2, 2), torch.zeros(2, 2))
    assert "T.prim_func" in fresh.source("tir")
    with pytest.raises(ValueError, match="BT202"):
        fresh.source("cuda")


def test_annotations_and_boxes() -> None:
    @bt.kernel
    def f(x: bt.Tensor(shape=("n",)), out: bt.Tensor(shape=("n",))):
        for i in range(len(x)):
            out[i] = x[i] + 1

    box = bt.Tensor(shape=(3,))
    box.data = torch.zeros(3)
    f(torch.ones(3), box)
    assert box.data.tolist() == [2, 2, 2]
    with pytest.raises(ValueError, match="`n` is 4"):
        f(torch.ones(3), torch.ones(4))


def test_compiled_refuses_other_arguments() -> None:
    compiled = double.lower(torch.zeros(2, 3), torch.zeros(2, 3)).compile()
    with pytest.raises(ValueError, match="BT103"):
        compiled(torch.zeros(3, 3), torch.zeros(2, 3))
    with pytest.raises(TypeError, match="BT102"):
        compiled(torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.float64))
    out = torch.zeros(2, 3)
    compiled(torch.ones(2, 3), out)
    assert out.sum() == 12


def test_copies_and_pickles() -> None:
    assert pickle.loads(pickle.dumps(double)) is double
    other = copy.deepcopy(double)
    out = torch.zeros(1, 1)
    other(torch.ones(1, 1), out)
    assert out.item() == 2


# ---------------------------------------------------------------- from compiled functions


@bt.jit("cpu")
def pipeline(x, factor):
    y = torch.exp(x)
    out = torch.empty_like(x)
    scaled(y, factor, out)
    z = out + 1
    smooth(z, out)
    return out * 3


@bt.jit("cpu")
def counts(x):
    found = torch.zeros(4, dtype=torch.int64)
    histogram(x, found)
    return found * 2


@bt.kernel(bounds_check=True)
def histogram(x, found):
    for i in range(len(x)):
        found[x[i]] += 1


def test_a_kernel_in_a_function() -> None:
    x = torch.rand(50)
    for factor in (1.5, 0.25):
        torch.testing.assert_close(pipeline(x, factor), pipeline.fn(x, factor))
    assert not pipeline.lower(x, 1.5).fallbacks


def test_a_kernel_writes_into_the_callers_tensor() -> None:
    @bt.jit("cpu")
    def f(x, out):
        scaled(x + 1, 2.0, out[1])
        return out.sum()

    x, out, expected = torch.rand(5), torch.zeros(3, 5), torch.zeros(3, 5)
    torch.testing.assert_close(f(x, out), f.fn(x, expected))
    torch.testing.assert_close(out, expected)


def test_a_kernel_in_a_loop_of_the_function() -> None:
    @bt.jit("cpu")
    def f(x, steps):
        out = torch.zeros_like(x)
        for i in range(steps):
            if x.sum() > 0:
                scaled(x, 0.5, out)
            else:
                smooth(x, out)
            x = out + 1 + i
        return x

    for x in (torch.rand(5), -torch.rand(5)):
        torch.testing.assert_close(f(x, 3), f.fn(x, 3))


def test_a_kernel_fuses_with_its_neighbours() -> None:
    @bt.jit("cpu")
    def f(x):
        out = torch.empty_like(x)
        scaled(x + 1, 2.0, out)
        return torch.relu(out)

    x = torch.randn(33)
    torch.testing.assert_close(f(x), f.fn(x))
    [kernel] = f.lower(x).schedule().kernels
    assert kernel == "f_kernel"
    assert len(kernel.lines) == 2


def test_what_a_kernel_does_not_write_stays() -> None:
    @bt.kernel
    def inside(x, out):
        for i in range(1, x.shape[0] - 1):
            for j in range(2, x.shape[1]):
                out[i, j] += x[i - 1, j - 2]
        for j in range(1, x.shape[1]):
            out[0, j] = -1

    @bt.jit("cpu")
    def f(x):
        out = x * 2
        inside(x + 1, out)
        return out * 3

    x = torch.randn(6, 7)
    torch.testing.assert_close(f(x), f.fn(x))
    kernels = f.lower(x).schedule()
    functions = dict(kernels.mod.functions_items())
    found = {var.name_hint: function for var, function in functions.items()}
    rules = [str(found[name].attrs["babytriton.rule"]) for name in kernels.kernels]
    assert set(rules) == {"Elementwise"}


def test_a_checked_kernel_in_a_function_raises() -> None:
    x = torch.randint(0, 4, (30,))
    torch.testing.assert_close(counts(x), counts.fn(x))
    assert [fallback.name for fallback in counts.lower(x).fallbacks] == ["histogram"]
    with pytest.raises(IndexError, match="of `found`, which has size 4"):
        counts(x + 1)


def test_a_kernel_calls_a_kernel() -> None:
    @bt.kernel
    def both(x, out):
        double(x, out)
        for i in range(len(x)):
            increment(out[i])

    x, out = torch.rand(3, 4), torch.zeros(3, 4)
    both(x, out)
    torch.testing.assert_close(out, x * 2 + 1)
