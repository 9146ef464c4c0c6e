"""``bt.testing``: checks find what is wrong, and nothing else; timings are what they say."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

import babytriton as bt
from babytriton.testing import Sample
from babytriton.testing.samples import layouts, sizes


@bt.jit
def scaled(x, w):
    return torch.tanh(x * w) * 2


def samples() -> list[Any]:
    torch.manual_seed(0)
    return [(torch.randn(4, 6), torch.randn(6))]


# ---------------------------------------------------------------- samples


def test_layouts_hold_the_same_numbers() -> None:
    x = torch.randn(4, 6)
    for _, sample in layouts(Sample((x, {"n": [torch.tensor(3)]}))):
        torch.testing.assert_close(sample.args[0], x)
        for copy in (sample.args[0], sample.copied().args[0]):
            assert (not copy.is_contiguous()) or copy.storage_offset() == 1
        assert sample.copied().args[0].stride() == sample.args[0].stride()
        assert sample.copied().args[0].data_ptr() != sample.args[0].data_ptr()


def test_sizes_change_together() -> None:
    table, places = torch.randn(10, 6), torch.tensor([9, 0, 3, 9])
    found = dict(sizes(Sample((table, places))))
    assert [tuple(x.shape) for x in found["odd sizes"].args] == [(9, 5), (3,)]
    assert int(found["odd sizes"].args[1].max()) <= 8
    assert [tuple(x.shape) for x in found["1 instead of 10"].args] == [(1, 6), (4,)]
    assert found["1 instead of 10"].args[1].tolist() == [0, 0, 0, 0]
    assert set(found["odd sizes"].args[0].ravel().tolist()) <= set(table.ravel().tolist())


def test_names() -> None:
    assert Sample.of((torch.ones(2, 3), torch.ones(3).half())).name == "2x3 3 float32 float16"
    assert Sample.of(torch.tensor(1)).name == "scalar int64"


# ---------------------------------------------------------------- check


def test_what_is_right_passes() -> None:
    checked = bt.testing.check(scaled, samples())
    assert len(checked.passed) == 2 * (3 + 3 + 3)
    assert not checked.skipped
    assert str(checked).startswith("passed   4x6 6 float32\npassed   4x6 6 float32, gradients\n")


def test_what_does_not_apply_is_skipped() -> None:
    @bt.jit
    def loss(x, targets):
        return F.cross_entropy(x, targets)

    places = torch.tensor([5, 0, 1, 2])
    checked = bt.testing.check(loss, [(torch.randn(4, 6), places)], dtypes=())
    assert len(checked.passed) == 2 * (1 + 3 + 3)
    checked = bt.testing.check(bt.jit(lambda x: x > 0), [torch.randn(4, 6)], dtypes=())
    assert ("4x6 float32, gradients", "no result has a gradient") in checked.skipped
    checked = bt.testing.check(bt.jit(lambda x: x.view(4, 6) * 2), [torch.randn(4, 6)], dtypes=())
    assert any(
        "odd sizes" in name and "shape '[4, 6]' is invalid" in why for name, why in checked.skipped
    )


def test_wrong_results_are_found() -> None:
    with pytest.raises(AssertionError, match=r"(?s)16 of 18 checks.*result 0 is wrong in 24"):
        bt.testing.check(scaled, samples(), reference=lambda x, w: torch.tanh(x * w) * 2.01)
    with pytest.raises(AssertionError, match=r"result 0 is .*float32, not .*float64"):
        bt.testing.check(scaled, samples(), reference=lambda x, w: scaled.fn(x, w).double())
    with pytest.raises(AssertionError, match="1 tensors, and the plain function gives 2"):
        bt.testing.check(scaled, samples(), reference=lambda x, w: (x * w, x))


def test_wrong_gradients_are_found() -> None:
    @bt.jit
    def doubled(x):
        return x * 2

    doubled.backward(lambda grad, result, x: grad * 2.001)
    with pytest.raises(AssertionError) as failed:
        bt.testing.check(doubled, [torch.randn(4, 6)], dtypes=())
    texts = str(failed.value).split("\n\n")
    assert texts[0] == "7 of 14 checks of doubled failed"
    assert all(", gradients: AssertionError: gradient 0 is wrong" in text for text in texts[1:])


def test_special_numbers_and_half_precision_are_judged_fairly() -> None:
    @bt.jit
    def mixed(x):
        return torch.exp(x.log()) + x / x

    special = torch.tensor([0.0, -1.0, float("inf"), float("nan"), 1e30, 3.0])
    bt.testing.check(mixed, [special])
    # torch rounds after each operation, and is further from float64 than one kernel is.
    chain = bt.jit(lambda x: (x * 3.3 + 1.7).sin().mul(0.3).add(5) - 5)
    bt.testing.check(chain, [torch.randn(64)])


@bt.library_op("babytriton_testing::moves", mutates_args=["total"])
def moves(total: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    total.add_(x)
    return total * 2


@bt.library_op("babytriton_testing::half", inplace=["x"])
def half(x):
    return x / 2


def test_operators() -> None:
    checked = bt.testing.check(half, [torch.randn(4)], dtypes=())
    assert checked.passed[-3:] == tuple(
        f"4 float32, {what}" for what in ("opcheck", "in place", "in place, opcheck")
    )
    checked = bt.testing.check(moves, [(torch.randn(4), torch.randn(4))], dtypes=())
    assert "4 4 float32, opcheck" in checked.passed
    assert ("4 4 float32, gradients", "it writes to an argument") in checked.skipped


def test_what_is_written_is_compared() -> None:
    def keeps(total: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return (total + x) * 2

    with pytest.raises(AssertionError, match="argument 0 is wrong"):
        bt.testing.check(moves, [(torch.randn(4), torch.randn(4))], dtypes=(), reference=keeps)


def test_bad_arguments() -> None:
    with pytest.raises(TypeError, match="op must be a compiled function or operator, not function"):
        bt.testing.check(scaled.fn, samples())
    with pytest.raises(TypeError, match="samples must be a list of arguments, not Tensor"):
        bt.testing.check(scaled, torch.randn(3))
    with pytest.raises(ValueError, match="samples must not be empty"):
        bt.testing.bench(scaled, [])
    with pytest.raises(ValueError, match="return_mode must be one of min, max, mean, median, all"):
        bt.testing.do_bench(lambda: None, return_mode="fastest")


# ---------------------------------------------------------------- timings


def test_do_bench() -> None:
    x = torch.ones(4, requires_grad=True)
    seen = []

    def step() -> None:
        seen.append(x.grad)
        (x * 2).sum().backward()

    times = bt.testing.do_bench(step, warmup=1, rep=2, grad_to_none=[x], return_mode="all")
    assert all(time > 0 for time in times)
    assert len(seen) > len(times) >= 1
    assert not any(grad is not None for grad in seen)
    low, high = bt.testing.do_bench(step, warmup=1, rep=2, quantiles=[0.0, 1.0])
    assert 0 < low <= high
    assert bt.testing.do_bench(step, warmup=1, rep=2) > 0


def test_bench_is_a_table() -> None:
    sample = (torch.randn(8, 8), torch.randn(8))
    timings = bt.testing.bench(scaled, [sample], warmup=1, rep=2, against={"eager": scaled.fn})
    head, row = str(timings).splitlines()
    assert head.split("  ")[0] == "scaled"
    assert [x in head for x in ("babytriton ms", "eager ms", "eager / babytriton")] == [True] * 3
    ours, eager, rate, ratio = map(float, row.removeprefix("8x8 8 float32").split())
    assert timings.gigabytes == {"8x8 8 float32": (64 + 8 + 64) * 4 / 1e9}
    assert ratio == pytest.approx(eager / ours, rel=0.05, abs=0.01)
    assert rate == pytest.approx((64 + 8 + 64) * 4 / 1e6 / ours, rel=0.1, abs=0.1)


def test_a_large_number_excuses_no_other() -> None:
    x = torch.tensor([3e5 + 0.1, 1.0, 1.5, 2.0])
    wrong = bt.jit(lambda t: torch.where(t < 100, t * t * 1.5, t * t))
    with pytest.raises(AssertionError, match="result 0 is wrong in 3 of 4"):
        bt.testing.check(wrong, [x], dtypes=(), reference=lambda t: t * t)


def test_random_functions_draw_the_same() -> None:
    bt.testing.check(bt.jit(lambda x: F.dropout(x, 0.5) * 2), [torch.ones(40)], dtypes=())
    wrong = bt.jit(lambda x: F.dropout(x, 0.4) * 2)
    with pytest.raises(AssertionError, match="result 0 is wrong"):
        bt.testing.check(wrong, [torch.ones(40)], reference=lambda x: F.dropout(x, 0.5) * 2)


def test_bench_leaves_samples_as_they_are() -> None:
    x = torch.ones(3)
    timings = bt.testing.bench(bt.jit(lambda x: x.mul_(2)), [x, x], warmup=1, rep=1)
    assert torch.equal(x, torch.ones(3))
    assert list(timings.milliseconds) == ["3 float32", "3 float32 #2"]
