"""Fusion along rows: how many kernels there are, and that they compute what torch does."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F

import babytriton as bt

EPS = 1e-6


def handwritten_softmax(x):
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def handwritten_rms_norm(x, w):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + EPS) * w


def handwritten_layer_norm(x):
    d = x - x.mean(-1, keepdim=True)
    return d * torch.rsqrt((d * d).mean(-1, keepdim=True) + EPS)


def softmax_of_product(x, y):
    return torch.softmax(x * y, -1) * 2


def relu_of_norm(x, y):
    return F.relu(F.layer_norm(x + y, (x.shape[-1],)))


def activation_and_norm(x):
    y = F.gelu(x)
    return y, F.layer_norm(y, (y.shape[-1],))


def norm_of_halves(x, w):
    y = x.float()
    return (y * torch.rsqrt((y * y).mean(-1, keepdim=True) + EPS) * w).to(x.dtype)


def pools(x):
    return x.mean(-1), x.amax(-1), x.sum(-1)


def range_and_scale(x):
    low, high = x.amin(-1), x.amax(-1)
    return low, high, (high - low) / 255


def deviation(x):
    return x.mean(-1), x.var(-1)


def two_norms(x):
    return handwritten_layer_norm(x), handwritten_rms_norm(x, 2)


def losses_of_rows(x, y):
    return (x - y).abs().mean(-1), ((x - y) ** 2).mean(-1)


def of_the_whole(x):
    return x.sum(), x.amax(), x.abs().mean()


def cross_entropy(x, t):
    return F.cross_entropy(x, t)


def smoothed_loss_sum(x, t):
    return F.cross_entropy(x, t, reduction="sum", label_smoothing=0.1)


def outer_of_sums(x):
    s = x.sum(-1)
    return s[:, None] * s[None, :]


def around_a_call_of_torch(x):
    s = x.sum(-1, keepdim=True)
    return x * s + torch.sort(s, 0).values


def columns_then_rows(x):
    return (x - x.mean(0)).sum(-1)


def exact(fn, *args):
    wide = [
        x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in args
    ]
    return fn(*wide)


def drawn(*shapes, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def kernels(fn, *args):
    return len(fn.lower(*args).compile().kernels)


ONE = [
    (handwritten_softmax, [(37, 103)]),
    (handwritten_softmax, [(2, 3, 5, 64)]),
    (handwritten_softmax, [(103,)]),
    (handwritten_rms_norm, [(37, 103), (103,)]),
    (handwritten_layer_norm, [(64, 128)]),
    (softmax_of_product, [(37, 103), (37, 103)]),
    (relu_of_norm, [(37, 103), (37, 103)]),
    (activation_and_norm, [(37, 103)]),
    (pools, [(37, 103)]),
    (pools, [(2, 3, 5, 64)]),
    (pools, [(999, 1003)]),
    (range_and_scale, [(37, 103)]),
    (deviation, [(37, 1003)]),
    (two_norms, [(37, 103)]),
    (losses_of_rows, [(37, 103), (37, 103)]),
    (of_the_whole, [(37, 103)]),
    (of_the_whole, [(999, 1003)]),
]


@pytest.mark.parametrize(("fn", "shapes"), ONE, ids=lambda x: getattr(x, "__name__", str(x)))
def test_one_kernel(fn, shapes):
    args = drawn(*shapes)
    jitted = bt.jit("cpu")(fn)
    found, wanted = jitted(*args), exact(fn, *args)
    assert kernels(jitted, *args) == 1
    pairs = zip(found, wanted) if isinstance(found, tuple) else [(found, wanted)]
    for one, other in pairs:
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("fn", "shapes"), ONE, ids=lambda x: getattr(x, "__name__", str(x)))
def test_one_kernel_on_the_gpu(fn, shapes):
    assert kernels(bt.jit(target=bt.Target("cuda", arch="sm_80"))(fn), *drawn(*shapes)) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fn", [pools, range_and_scale, deviation, two_norms, losses_of_rows])
def test_statistics_of_the_same_rows_share_their_loop(fn, dtype):
    args = drawn(*[(64, 256)] * fn.__code__.co_argcount, dtype=dtype)
    scheduled = bt.jit("cpu")(fn).lower(*args).schedule()
    (kernel,) = (
        f for f in scheduled.mod.functions.values() if "babytriton.rule" in (f.attrs or {})
    )
    assert kernel.attrs["babytriton.rule"] == "Rowwise"
    large = drawn(*[(999, 1003)] * len(args), dtype=dtype)
    assert bt.jit("cpu")(fn).lower(*large).compile().source("tir").count("T.parallel") == 1
    within = 1e-5 if dtype == torch.float32 else 2e-2
    for one, other in zip(scheduled.compile()(*args), exact(fn, *args)):
        torch.testing.assert_close(one.double(), other, rtol=within, atol=within)


def sums_of_other_rows(x):
    return x.sum(), x.sum(-1)


def sums_of_other_lengths(x):
    return x.sum(-1), x[:, :8].sum(-1)


def beside_elements(x):
    return x.sum(-1), F.relu(x)


@pytest.mark.parametrize("target", ["cpu", bt.Target("cuda", arch="sm_80")])
@pytest.mark.parametrize("fn", [sums_of_other_rows, sums_of_other_lengths, beside_elements])
def test_what_reduces_no_such_rows_stays_apart(fn, target):
    (x,) = drawn((300, 1003))
    jitted = bt.jit(target)(fn)
    assert kernels(jitted, x) == 2
    if target == "cpu":
        for one, other in zip(jitted(x), exact(fn, x)):
            torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-3)


def of_two_tensors(x, y):
    return x.softmax(-1), (y * y).sum(-1)


def columns_of_two_tensors(x, y):
    return (x * x).sum(0), y.mean(0)


def points_of_two_tensors(x, y):
    return x.exp(), F.silu(y) * 2


@pytest.mark.parametrize("fn", [of_two_tensors, columns_of_two_tensors, points_of_two_tensors])
def test_what_is_little_is_one_launch_on_gpus(fn):
    little, much = drawn((16, 33), (16, 33)), drawn((300, 1003), (300, 1003))
    cuda = bt.jit(bt.Target("cuda", arch="sm_80"))(fn)
    assert (kernels(cuda, *little), kernels(cuda, *much)) == (1, 2)
    assert kernels(bt.jit("cpu")(fn), *little) == 2


def test_half_precision_with_a_weight_is_one_kernel():
    args = drawn((37, 103), (103,), dtype=torch.bfloat16)
    jitted = bt.jit("cpu")(norm_of_halves)
    assert torch.equal(jitted(*args), norm_of_halves(*args))
    assert kernels(jitted, *args) == 1


def scaled(x):
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    return (x - low) / (high - low)


@pytest.mark.parametrize("target", ["cpu", bt.Target("cuda", arch="sm_80")])
@pytest.mark.parametrize("fn", [handwritten_softmax, handwritten_layer_norm, scaled])
def test_sizes_that_a_call_tells_are_one_size_in_all_kernels(fn, target):
    jitted = bt.jit(target)(fn)
    compiled = jitted.lower(bt.Tensor["n", "m"]).compile()
    assert len(compiled.kernels) == 1
    for shape in ((37, 103), (2, 5), (8, 64)) if target == "cpu" else ():
        (x,) = drawn(shape)
        torch.testing.assert_close(compiled(x).double(), exact(fn, x), rtol=1e-4, atol=1e-5)


def residual_norm(x, r, w):
    h = x.float() + r.float()
    out = h.to(x.dtype)
    y = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
    return y.to(x.dtype) * w, out


def written_residual_norm(x, r, w):
    h = x + r
    r.copy_(h)
    h = h.float()
    return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w


@pytest.mark.parametrize("target", ["cpu", bt.Target("cuda", arch="sm_80")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("fn", [residual_norm, written_residual_norm])
def test_what_joins_late_is_one_kernel(fn, dtype, target):
    args = drawn((37, 104), (37, 104), (104,), dtype=dtype)
    jitted = bt.jit(target)(fn)
    assert kernels(jitted, *args) == 1
    if target == "cpu":
        ours, theirs = [[x.clone() for x in args] for _ in range(2)]
        tolerance = 1e-5 if dtype == torch.float32 else 1e-2
        close = {"rtol": tolerance, "atol": tolerance}
        torch.testing.assert_close(jitted(*ours), fn(*theirs), **close)
        torch.testing.assert_close(ours, theirs, **close)


@pytest.mark.parametrize("fn", [cross_entropy, smoothed_loss_sum], ids=lambda fn: fn.__name__)
def test_loss_and_its_mean_are_one_kernel(fn):
    (x,) = drawn((37, 103))
    t = torch.arange(37) * 2
    t[5] = -100
    jitted = bt.jit("cpu")(fn)
    torch.testing.assert_close(jitted(x, t).double(), exact(fn, x, t), rtol=1e-5, atol=0)
    assert kernels(jitted, x, t) == 1


@pytest.mark.parametrize(
    "fn", [outer_of_sums, around_a_call_of_torch, columns_then_rows], ids=lambda fn: fn.__name__
)
def test_what_needs_other_rows_stays_apart(fn):
    (x,) = drawn((37, 103))
    jitted = bt.jit("cpu")(fn)
    torch.testing.assert_close(jitted(x).double(), exact(fn, x), rtol=1e-4, atol=1e-3)
    assert kernels(jitted, x) > 1


def test_long_single_row_is_shared_out():
    (x,) = drawn((100_003,))
    jitted = bt.jit("cpu")(handwritten_softmax)
    torch.testing.assert_close(jitted(x).double(), exact(handwritten_softmax, x))
    # A maximum and a sum of pieces, and what is done with the elements, in one kernel.
    assert kernels(jitted, x) == 1
    assert jitted.lower(x).compile().source("tir").count("T.parallel") >= 3


def padded_beside(x):
    s = x.sum(-1, keepdim=True)
    return x * s, F.pad(s, (1, 1))


def padded_deviation(x):
    y = x - x.mean(-1, keepdim=True)
    return y, F.pad(y, (3, 2))


def joined_beside(x):
    y = torch.softmax(x, -1)
    return y, torch.cat([y, x], -1)


def quotient_of_reductions(x):
    return x.sum(-1) / x.amax(-1)


def shifted_by_an_extreme(x, z):
    return (x - z.amax(-1, keepdim=True)) / (x * x).sum(-1, keepdim=True)


@pytest.mark.parametrize(
    "fn", [padded_beside, padded_deviation, joined_beside], ids=lambda fn: fn.__name__
)
@pytest.mark.parametrize("shape", [(37, 103), (1, 64)])
def test_results_of_other_extents_are_whole(fn, shape):
    (x,) = drawn(shape)
    for one, other in zip(bt.jit("cpu")(fn)(x), exact(fn, x)):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)


def test_reductions_of_integers_and_floats_in_one_loop():
    (x,) = drawn((5, 77))
    found = bt.jit("cpu")(quotient_of_reductions)(x)
    torch.testing.assert_close(found.double(), exact(quotient_of_reductions, x), rtol=1e-4, atol=0)
    z = torch.arange(5 * 77).reshape(5, 77) % 11
    found = bt.jit("cpu")(shifted_by_an_extreme)(x, z)
    wanted = exact(shifted_by_an_extreme, x, z)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-6)


def test_random_calls_keep_their_order():
    def f(x, w):
        s = x.sum(-1)
        r1 = torch.rand_like(s)
        r2 = torch.rand(5)
        c = torch.sort(w).values
        return x * s[:, None] + c, r1, r2

    x, w = drawn((37, 103), (103,))
    torch.manual_seed(3)
    found = bt.jit("cpu")(f)(x, w)
    torch.manual_seed(3)
    wanted = f(x, w)
    assert torch.equal(found[1], wanted[1])
    assert torch.equal(found[2], wanted[2])


def test_a_chain_of_norms_is_not_one_endless_kernel():
    def f(x):
        for _ in range(20):
            x = F.layer_norm(x, (64,)) + x
        return x

    (x,) = drawn((8, 64))
    jitted = bt.jit("cpu")(f)
    torch.testing.assert_close(jitted(x).double(), exact(f, x), rtol=1e-4, atol=1e-3)
    assert 1 < kernels(jitted, x) < 20


def test_products_are_not_fused_with_others() -> None:
    def mlp(x, w, v):
        return torch.relu(x @ w) @ v

    def gated(x, w, v):
        return F.silu(F.linear(x, w)) * F.linear(x, v)

    args = torch.randn(64, 64), torch.randn(64, 64), torch.randn(64, 64)
    for fn in (mlp, gated):
        scheduled = bt.jit("cpu")(fn).lower(*args).schedule()
        rules = [
            f.attrs["babytriton.rule"]
            for f in scheduled.mod.functions.values()
            if "babytriton.rule" in (f.attrs or {})
        ]
        assert rules == ["Matmul", "Matmul"]
        exact = fn(*(x.double() for x in args)).float()
        torch.testing.assert_close(scheduled.compile()(*args), exact, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("shape", [(17, 30), (1, 17, 30), (5, 1, 30), (2, 3, 30)])
def test_what_follows_a_product_is_of_its_kernel(shape: tuple[int, ...]) -> None:
    def layer(x, w, b, residual):
        return F.gelu(x @ w + b) + residual

    args = torch.randn(shape), torch.randn(30, 40), torch.randn(40), torch.randn(*shape[:-1], 40)
    compiled = bt.jit("cpu")(layer).lower(*args).compile()
    assert compiled.kernels == ("layer_kernel",)
    exact = layer(*(x.double() for x in args)).float()
    torch.testing.assert_close(compiled(*args), exact, rtol=1e-4, atol=1e-4)


def test_a_loss_keeps_nothing_in_between() -> None:
    def huber(x, y):
        d = torch.abs(x - y)
        return torch.where(d < 1, 0.5 * d * d, d - 0.5).mean()

    x, y = torch.randn(999, 1003), torch.randn(999, 1003)
    compiled = bt.jit("cpu")(huber).lower(x, y).compile()
    assert compiled.kernels == ("huber_kernel",)
    assert compiled.source("tir").count("T.parallel") == 1
    torch.testing.assert_close(compiled(x, y), huber(x.double(), y.double()).float())


@pytest.mark.parametrize("size", [5, 64, 300])
def test_masks_that_are_known_while_compiling_fuse(size: int) -> None:
    def causal(x):
        i = torch.arange(x.shape[-1])
        hidden = i[:, None] < i[None]
        return torch.softmax(x.masked_fill(hidden, float("-inf")), -1) * (i % 2 + 1)

    x = torch.randn(3, size, size)
    jitted = bt.jit("cpu", dynamic=False)(causal)
    for given in (x, x * 3):
        torch.testing.assert_close(jitted(given), causal(given))
    assert len(jitted.lower(x).compile().kernels) == 1


def causal(x):
    i = torch.arange(x.shape[-1], device=x.device)
    return torch.where(i[:, None] >= i, x, -1e9).softmax(-1) * (i % 2)


def causal_and_table(x):
    i = torch.arange(x.shape[-1], device=x.device)
    return torch.where(i[:, None] >= i, x, -1e9) + torch.sin(i.float())[:, None], i[:, None] > i


def causal_in_a_branch(x):
    i = torch.arange(x.shape[-1], device=x.device)
    later = i[:, None] < i
    if x[0, 0, 0] > 0:
        return x.masked_fill(later, 0.0)
    return x.masked_fill(later, 1.0) * 2


def causal_in_a_loop(x):
    i = torch.arange(x.shape[-1], device=x.device)
    step = x[0, 0, 0]
    while step < 10:
        x = torch.where(i[:, None] >= i, x, x + 1)
        step = step + 4
    return x


@pytest.mark.parametrize("fn", [causal, causal_and_table, causal_in_a_branch, causal_in_a_loop])
def test_large_masks_are_no_tables(fn) -> None:
    """What compares indices is a part of its kernel, and nothing as large as what it masks."""
    x = torch.randn(2, 300, 300)
    jitted = bt.jit("cpu", dynamic=False)(fn)
    for given in (x, -x):
        torch.testing.assert_close(jitted(given), fn(given))
    scheduled = jitted.lower(x).schedule()
    tables = re.findall(r"constant\w*: T.Buffer\(\((.*?)\), ", scheduled.as_text())
    assert not any(table.count("300") > 1 for table in tables)
    gradient = x.clone().requires_grad_()
    result = jitted(gradient)
    (result[0] if isinstance(result, tuple) else result).sum().backward()
