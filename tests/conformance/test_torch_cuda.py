"""What only a real GPU shows: torch's streams, graphs, memory, autograd, and mistakes of a caller.

Values are those of the plain functions in float64.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import babytriton as bt

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")

# Cycles that a stream is kept busy: tens of milliseconds.
BUSY = 50_000_000


def gelu_bias(x, b):
    y = x + b
    return torch.sigmoid(1.702 * y) * y


def norm_and_product(x, w):
    y = F.layer_norm(x, x.shape[-1:])
    return torch.relu(y @ w / 8).softmax(-1), y.abs().mean()


def long_rows(x):
    return torch.softmax(x, -1), x.abs().sum(), x.var(0)


def scanned(x):
    return x.cumsum(-1) * 2


def until_small(x):
    while x.abs().max() > 1:
        x = x / 2
    return x


FUNCTIONS: tuple[tuple[Callable[..., Any], tuple[tuple[int, ...], ...]], ...] = (
    (gelu_bias, ((1000, 1024), (1024,))),
    (gelu_bias, ((33, 17), (17,))),
    (norm_and_product, ((256, 128), (128, 512))),
    (long_rows, ((3, 70001),)),
    (scanned, ((5, 10000),)),
)
every_function = pytest.mark.parametrize(
    ("fn", "shapes"), FUNCTIONS, ids=lambda x: getattr(x, "__name__", "-")
)


def drawn(*shapes: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(torch.randn(shape, device="cuda") for shape in shapes)


def check(found: Any, fn: Callable[..., Any], *args: torch.Tensor) -> None:
    exact = fn(*(x.double() for x in args))
    pairs = [(found, exact)] if isinstance(exact, torch.Tensor) else list(zip(found, exact))
    for ours, theirs in pairs:
        assert ours.is_cuda
        bound = 2e-5 * max(1.0, theirs.abs().max().item())
        torch.testing.assert_close(ours.double(), theirs, rtol=2e-5, atol=bound)


@every_function
def test_call(fn: Callable[..., Any], shapes: Any) -> None:
    for jitted in (bt.jit(fn), bt.jit("gpu")(fn), bt.jit("gpu", dynamic=True)(fn)):
        for _ in range(3):
            args = drawn(*shapes)
            check(jitted(*args), fn, *args)
    args = drawn(*((shape[0] + 1, *shape[1:]) for shape in shapes[:1]), *shapes[1:])
    check(jitted(*args), fn, *args)


def test_branches_at_run_time() -> None:
    x = torch.randn(1000, device="cuda") * 100
    check(bt.jit(until_small)(x), until_small, x)


@every_function
def test_kernels_run_on_the_current_stream(fn: Callable[..., Any], shapes: Any) -> None:
    """What the stream does before is seen, and the default stream does not wait."""
    jitted = bt.jit("gpu")(fn)
    args = drawn(*shapes)
    jitted(*args)
    after = tuple(x * 0.5 + 1 for x in args)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(BUSY)
        for x, new in zip(args, after):
            x.copy_(new)
        found = jitted(*args)
        assert not stream.query()  # the call has not waited for it
    stream.synchronize()
    check(found, fn, *after)


def test_streams_share_no_memory_of_programs_with_branches() -> None:
    """One that is busy holds up those that come later, and their memory is not its own."""
    jitted = bt.jit("gpu")(until_small)
    args = [torch.full((1 << 20,), 3.0 * 2**n, device="cuda") for n in range(4)]
    jitted(args[0])
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in args]
    found: list[torch.Tensor] = []
    for _ in range(5):
        for stream, x in zip(streams, args):
            with torch.cuda.stream(stream):
                torch.cuda._sleep(BUSY // 50)
                found.append(jitted(x) + 1)
    torch.cuda.synchronize()
    for result in found:
        assert torch.equal(result, torch.full_like(result, 1.75))


@every_function
def test_graphs_hold_kernels(fn: Callable[..., Any], shapes: Any) -> None:
    jitted = bt.jit("gpu")(fn)
    args = drawn(*shapes)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            jitted(*args)
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = jitted(*args)
    for _ in range(2):
        for x in args:
            x.copy_(torch.randn_like(x))
        graph.replay()
        torch.cuda.synchronize()
        check(found, fn, *args)


def test_graphs_hold_the_way_back() -> None:
    x, b = (x.requires_grad_() for x in drawn((64, 100), (100,)))
    jitted = bt.jit(gelu_bias)
    grad = torch.randn(64, 100, device="cuda")
    graphed = torch.cuda.make_graphed_callables(lambda x, b: jitted(x, b), (x, b))
    found = torch.autograd.grad(graphed(x, b), (x, b), grad)
    exact = torch.autograd.grad(gelu_bias(x.double(), b.double()), (x, b), grad.double())
    for ours, theirs in zip(found, exact):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def attention(x, w, p):
    q, k, v = (x @ w).view(2, 128, 3, 4, 64).permute(2, 0, 3, 1, 4).unbind(0)
    q, k = q * 1.5, k.tanh()
    found = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
    return found.transpose(1, 2).reshape(2, 128, 256)


def for_attention(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    x, w = drawn((2, 128, 256), (256, 768))
    return tuple(x.to(dtype).requires_grad_() for x in (x, w / 16))


@pytest.mark.parametrize("p", [0.0, 0.25])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_attention(dtype: torch.dtype, p: float) -> None:
    """Runs once, and drops what torch would."""
    args, grad = for_attention(dtype), torch.randn(2, 128, 256, device="cuda", dtype=dtype)
    found = []
    for fn in (bt.jit(attention), attention):
        torch.manual_seed(0)
        y = fn(*args, p)
        found.append((y, *torch.autograd.grad(y, args, grad)))
    bound = 16 * torch.finfo(dtype).eps
    for ours, theirs in zip(*found):
        scale = theirs.abs().max().item()
        torch.testing.assert_close(ours, theirs, rtol=bound, atol=bound * scale)


def test_graphs_hold_attention() -> None:
    args, jitted = for_attention(torch.float16), bt.jit(attention)
    graphed = torch.cuda.make_graphed_callables(lambda x, w: jitted(x, w, 0.0), args)
    grad = torch.randn(2, 128, 256, device="cuda", dtype=torch.float16)
    for _ in range(2):
        found = torch.autograd.grad(graphed(*args), args, grad)
        expected = torch.autograd.grad(attention(*args, 0.0), args, grad)
        for ours, theirs in zip(found, expected):
            torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2)


def test_results_are_of_torchs_memory() -> None:
    jitted, (x, b) = bt.jit("gpu")(gelu_bias), drawn((4096, 1024), (1024,))
    jitted(x, b)
    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    found = jitted(x, b)
    assert torch.cuda.memory_allocated() - before == found.nbytes
    del found
    assert torch.cuda.memory_allocated() == before


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradients(dtype: torch.dtype) -> None:
    def loss(x, w, b, target):
        return F.cross_entropy(F.layer_norm(x, (512,), w, b), target)

    target = torch.randint(512, (300,), device="cuda")
    args = [x.to(dtype).requires_grad_() for x in drawn((300, 512), (512,), (512,))]
    wide = [x.detach().double().requires_grad_() for x in args]
    jitted = bt.jit(loss)
    for _ in range(2):
        found = torch.autograd.grad(jitted(*args, target), args)
        exact = torch.autograd.grad(loss(*wide, target), wide)
        for ours, theirs in zip(found, exact):
            bound = 1e-4 if dtype == torch.float32 else 0.02
            scale = theirs.abs().max().item()
            torch.testing.assert_close(ours.double(), theirs, rtol=bound, atol=bound * scale)


def test_modules_train() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.LayerNorm(128), torch.nn.Linear(128, 10)
    ).cuda()
    x, target = torch.randn(256, 64, device="cuda"), torch.randint(10, (256,), device="cuda")

    @bt.jit
    def loss(x, target):
        return F.cross_entropy(model(x), target)

    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        value = loss(x, target)
        torch.testing.assert_close(value, F.cross_entropy(model(x), target), rtol=1e-4, atol=1e-4)
        value.backward()
        optimizer.step()
        losses.append(value.item())
    assert losses[-1] < losses[0] - 0.3


def test_tensors_that_are_parts_of_others() -> None:
    jitted = bt.jit("gpu")(gelu_bias)
    x, b = drawn((100, 300), (301,))
    for first, second in ((x, b[1:]), (x[:, 1:], b[2:]), (x.T[:100, :], b[:100])):
        check(jitted(first, second), gelu_bias, first, second)


def test_arguments_are_written_to() -> None:
    def scaled(x, y):
        x.mul_(2).add_(y)
        return x.sum(-1)

    x, y = drawn((300, 200), (200,))
    expected = x * 2 + y
    found = bt.jit(scaled)(x, y)
    torch.testing.assert_close(x, expected)
    torch.testing.assert_close(found, expected.sum(-1), rtol=1e-4, atol=1e-4)


def test_sizes_without_elements() -> None:
    for shape in ((0, 5), (5, 0)):
        x = torch.empty(shape, device="cuda")
        assert bt.jit(gelu_bias)(x, torch.empty(shape[1:], device="cuda")).shape == shape
    assert bt.jit(lambda x: x.sum(-1))(torch.empty(5, 0, device="cuda")).tolist() == [0.0] * 5


def test_threads_with_streams_of_their_own() -> None:
    jitted = bt.jit("gpu")(gelu_bias)
    args = [drawn((1000, 1024), (1024,)) for _ in range(4)]
    jitted(*args[0])
    torch.cuda.synchronize()
    found: list[torch.Tensor | None] = [None] * len(args)

    def run(n: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(50):
                found[n] = jitted(*args[n])
            torch.cuda.current_stream().synchronize()

    threads = [threading.Thread(target=run, args=(n,)) for n in range(len(args))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result, given in zip(found, args):
        check(result, gelu_bias, *given)


def test_edited_kernels_run() -> None:
    x, b = drawn((64, 64), (64,))
    compiled = bt.jit("gpu")(gelu_bias).lower(x, b).compile()
    edited = compiled.with_source(compiled.source().replace("1.702", "3.404"))
    torch.testing.assert_close(
        edited(x, b), torch.sigmoid(3.404 * (x + b)) * (x + b), rtol=1e-5, atol=1e-5
    )
    check(compiled(x, b), gelu_bias, x, b)


def test_loops_over_elements() -> None:
    @bt.kernel
    def rows(x, out):
        n, m = x.shape
        for i in range(n):
            total = 0.0
            for j in range(m):
                total += x[i, j] * x[i, j]
            out[i] = total

    x, out = torch.randn(300, 512, device="cuda"), torch.empty(300, device="cuda")
    rows(x, out)
    torch.testing.assert_close(out, (x * x).sum(-1), rtol=1e-5, atol=1e-5)


def test_several_devices_in_a_function() -> None:
    def both(x, y):
        with bt.device("cpu"):
            a = x.cpu() + y.cpu()
        with bt.device("gpu"):
            b = (x * y).softmax(-1)
        return b + a.to("cuda")

    x, y = drawn((30, 40), (40,))
    found = bt.jit(both)(x, y)
    torch.testing.assert_close(found, (x * y).softmax(-1) + x + y, rtol=1e-5, atol=1e-5)


def test_machine_code_is_that_of_the_gpu() -> None:
    x, b = drawn((1000, 1024), (1024,))
    compiled = bt.jit("gpu")(gelu_bias).lower(x, b).compile()
    major, minor = torch.cuda.get_device_capability()
    assert compiled.target.arch == f"sm_{major}{minor}"
    (launch,) = compiled.launches
    assert 0 < launch.registers <= 128
    assert launch.spilled == 0


def test_tensors_of_another_device_are_refused() -> None:
    x, b = drawn((4, 5), (5,))
    jitted = bt.jit("gpu")(gelu_bias)
    jitted(x, b)
    with pytest.raises(Exception, match="cpu") as raised:
        jitted(x, b.cpu())
    assert "tvm" not in str(raised.value).lower()
    other = "sm_80" if torch.cuda.get_device_capability() != (8, 0) else "sm_90"
    with pytest.raises(RuntimeError, match=f"it was compiled for {other}"):
        bt.jit(bt.Target("cuda", arch=other))(gelu_bias)(x, b)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one CUDA GPU")
def test_each_gpu_has_its_own() -> None:
    jitted = bt.jit(gelu_bias)
    for index in range(torch.cuda.device_count()):
        args = tuple(x.to(f"cuda:{index}") for x in drawn((64, 100), (100,)))
        found = jitted(*args)
        assert found.device == args[0].device
        check(found, gelu_bias, *args)
    assert torch.cuda.current_device() == 0
