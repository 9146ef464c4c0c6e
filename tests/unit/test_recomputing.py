"""Kernels that compute again what others would write for them: which do, and with what values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tvm import relax, tirx

import babytriton as bt
from tests.conformance import gpu
from tests.emulator import emulator
from tests.unit.test_gpu_programs import check, compiled

needs_gpu = pytest.mark.skipif(
    emulator.available_gpu() is None, reason=emulator.missing() or "no GPU"
)

HEADS, WIDTH = 4, 64


def rotated(x, cos, sin):
    one, other = x.chunk(2, -1)
    return x * cos + torch.cat((-other, one), -1) * sin


def heads(x, cos, sin):
    """Parts that are turned: a copy of all of them would be read three times."""
    q, k, v = x.reshape(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
    return rotated(q, cos, sin), rotated(k, cos, sin), v * 2


def gated(x):
    one, other = x.chunk(2, -1)
    return F.silu(one) * other


def largest_elsewhere(x):
    """What an activation gives, read by windows that overlap, and along rows."""
    y = F.relu(x)
    return F.max_pool1d(y, 3, stride=1), y.amax(-1)


def of_three(x, y, z):
    """A sum of as many tensors is read once where it is in memory."""
    s = x + y + z
    return s.softmax(-1), s.sum((0, 2))


def turned(x):
    """A transpose, which a kernel of its own does along lines on both sides."""
    y = x.transpose(0, 1).contiguous()
    return y.softmax(-1), y.flatten().cumsum(0)


def outer(x, y):
    """A few numbers that are read again and again."""
    z = x * y
    return z[:, None] * z, z.sum()


def written_at_places(x, i):
    """Where some rows are written, the others are already."""
    y = x * 2
    sums = y.flatten().cumsum(0)
    y[i] = sums[:80].reshape(2, 40)
    return y, sums


def returned(x):
    y = x * 2
    return y, y.softmax(-1), y.sum(0)


def drawn(*numbers: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(numbers)


def of_heads(dtype: torch.dtype = torch.float32, tokens: int = 40) -> tuple[torch.Tensor, ...]:
    angles = torch.rand(tokens, WIDTH // HEADS) * 6
    x = drawn(3, tokens, 3 * WIDTH)
    return tuple(t.to(dtype) for t in (x, angles.cos(), angles.sin()))


def passed(program: bt.Compiled) -> list[tuple[int, ...]]:
    """The shapes of what passes from kernel to kernel, of 2 elements and more; 0 for symbols."""
    (function,) = (
        f for f in program.scheduled.mod.functions.values() if isinstance(f, relax.Function)
    )
    bindings = [x for block in function.body.blocks for x in block.bindings]
    calls = [x for x in bindings if isinstance(x.value, relax.Call)]
    kernels = [x for x in calls if "call_tir" in str(x.value.op)]
    made = {x.var for x in kernels}
    made |= {x.var for x in bindings if getattr(x.value, "tuple_value", None) in made}
    read = {var for x in kernels for var in relax.analysis.free_vars(x.value)}
    tensors = [x.var for x in bindings if x.var in made & read]
    shapes = [
        tuple(int(n) if isinstance(n, tirx.IntImm) else 0 for n in var.ty.shape)
        for var in tensors
        if isinstance(var.ty, relax.TensorType)
    ]
    return [shape for shape in shapes if math.prod(shape) != 1]


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_parts_are_turned_where_they_are_read(dtype: torch.dtype) -> None:
    args = of_heads(dtype)
    program = compiled(heads, *args)
    assert passed(program) == []
    assert len(program.kernels) == 1
    exact = heads(*[x.double() for x in args])
    for ours, theirs, own in zip(gpu.call(program, args), exact, heads(*args)):
        assert ours.dtype == own.dtype
        within = {torch.float32: 1e-6, torch.bfloat16: 2e-2}[dtype]
        torch.testing.assert_close(ours.double(), theirs, rtol=within, atol=within)


@pytest.mark.parametrize("tokens", [1, 7, 40])
def test_on_the_cpu_as_well(tokens: int) -> None:
    args = of_heads(tokens=tokens)
    fn = bt.jit("cpu")(heads)
    for ours, theirs in zip(fn(*args), heads(*[x.double() for x in args])):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-6, atol=1e-6)
    assert passed(fn.lower(*args).compile()) == []


def test_of_symbolic_sizes() -> None:
    fn = bt.jit("cpu", dynamic=True)(heads)
    for tokens in (40, 33, 50):
        args = of_heads(tokens=tokens)
        for ours, theirs in zip(fn(*args), heads(*[x.double() for x in args])):
            torch.testing.assert_close(ours.double(), theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("fn", [heads, gated], ids=lambda fn: fn.__name__)
def test_gradients(fn: Callable[..., Any]) -> None:
    args = of_heads()[: fn.__code__.co_argcount]
    ours, theirs = ([x.clone().requires_grad_() for x in args] for _ in range(2))
    wide = [x.detach().double().requires_grad_() for x in theirs]
    for leaves, function in ((ours, bt.jit("cpu")(fn)), (wide, fn)):
        found = function(*leaves)
        found = found if isinstance(found, tuple) else (found,)
        sum(x.square().sum() for x in found).backward()
    for x, y in zip(ours, wide):
        torch.testing.assert_close(x.grad.double(), y.grad, rtol=2e-5, atol=2e-4)


def of_product(x, w, o):
    return gated(x @ w) @ o


@needs_gpu
def test_halves_are_read_from_the_product_they_are_of() -> None:
    """On the way back, the one kernel writes what torch reads, and the other reads no halves."""
    shapes = (128, 256), (256, 1024), (512, 256)
    args = [(drawn(*shape) / 16).requires_grad_() for shape in shapes]
    program = compiled(of_product, *args)
    assert passed(program.backward) == []
    grads = {0: drawn(128, 256)}
    found = gpu.gradients(program, tuple(args), grads)
    wide = [x.detach().double().requires_grad_() for x in args]
    of_product(*wide).backward(grads[0].double())
    for ours, x in zip(found, wide):
        torch.testing.assert_close(ours.double(), x.grad, rtol=1e-5, atol=1e-4)


def normalized(x, weight, bias):
    return F.silu(F.group_norm(x, 4, weight, bias))


@needs_gpu
def test_what_sums_are_of_is_not_passed_on_the_way_back() -> None:
    args = [drawn(*shape).requires_grad_() for shape in ((3, 8, 16, 16), (8,), (8,))]
    program = compiled(normalized, *args)
    assert (3, 8, 16, 16) not in passed(program.backward)
    grads = {0: drawn(3, 8, 16, 16)}
    found = gpu.gradients(program, tuple(args), grads)
    wide = [x.detach().double().requires_grad_() for x in args]
    normalized(*wide).backward(grads[0].double())
    for ours, x in zip(found, wide):
        torch.testing.assert_close(ours.double(), x.grad, rtol=1e-4, atol=1e-4)


def squashed(x):
    y = x.tanh()
    return y.reshape(64, 16, 4).amax((0, 2)), y.reshape(8, 512).transpose(0, 1).contiguous() * 2


@needs_gpu
def test_functions_are_computed_twice_on_gpus_alone() -> None:
    x = drawn(64, 64)
    assert passed(compiled(squashed, x)) == []
    check(squashed, x)
    fn = bt.jit("cpu")(squashed)
    for ours, theirs in zip(fn(x), squashed(x.double())):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-6, atol=1e-6)
    assert passed(fn.lower(x).compile())


def doubled(x):
    y = x * 2
    return y.flatten().cumsum(0), y.reshape(8, 512).transpose(0, 1).contiguous() + 1


def test_arithmetic_is_computed_twice_on_the_cpu_as_well() -> None:
    x = drawn(64, 64)
    fn = bt.jit("cpu")(doubled)
    for ours, theirs in zip(fn(x), doubled(x)):
        assert torch.equal(ours, theirs)
    assert x.shape not in passed(fn.lower(x).compile())


def joined(x, y):
    z = torch.stack((x, y), 1)
    return z.softmax(-1), z.sum(0)


def test_conditions_are_asked_once_on_the_cpu() -> None:
    x, y = drawn(512, 1024), drawn(512, 1024)
    fn = bt.jit("cpu")(joined)
    for ours, theirs in zip(fn(x, y), joined(x.double(), y.double())):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-4)
    assert passed(fn.lower(x, y).compile()) == [(512, 2, 1024)]


@needs_gpu
@pytest.mark.parametrize(
    ("fn", "shapes"),
    [
        (largest_elsewhere, [(2, 40, 40)]),
        (of_three, [(4, 40, 40)] * 3),
        (turned, [(64, 48)]),
        (outer, [(40,)] * 2),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_what_stays_in_memory(fn: Callable[..., Any], shapes: list[tuple[int, ...]]) -> None:
    args = [drawn(*shape) for shape in shapes]
    assert passed(compiled(fn, *args))
    check(fn, *args)


@needs_gpu
def test_what_is_partly_written_is_in_memory_before() -> None:
    args = drawn(40, 40), torch.tensor([3, 7])
    assert (40, 40) in passed(compiled(written_at_places, *args))
    check(written_at_places, *args)


@needs_gpu
def test_what_is_returned_is_written() -> None:
    check(returned, drawn(8, 48))


@needs_gpu
def test_functions_of_users_run_once() -> None:
    squareplus = bt.cuda_function(
        "__device__ float squareplus(float x) { return 0.5f * (x + sqrtf(x * x + 4.0f)); }",
        name="squareplus",
        cpu=lambda x: 0.5 * (x + torch.sqrt(x * x + 4)),
    )

    def fn(x):
        y = squareplus(x)
        return y.reshape(64, 16, 4).amax((0, 2)), y.reshape(8, 512).transpose(0, 1).contiguous()

    program = compiled(fn, drawn(64, 64))
    # From the level of the file: a parameter of the kernel has the name.
    assert program.source("cuda").count("::squareplus(") == 1
    check(fn, drawn(64, 64), program=program)


@needs_gpu
def test_lines_are_those_of_all_that_is_computed() -> None:
    program = compiled(heads, *of_heads())
    first = heads.__code__.co_firstlineno + 2
    assert all(any(line.endswith(f":{first}") for line in k.lines) for k in program.kernels)


def scaled_twice(x, y, s: float):
    return x * (1 - s), torch.softmax(y * s, -1)


def scaled_in_place(x, y, s: float):
    x.mul_(s)
    y.add_(1 - s)


@pytest.mark.parametrize("fn", [scaled_twice, scaled_in_place])
@pytest.mark.parametrize("dynamic", [False, True])
def test_numbers_are_told_to_each_kernel(fn: Callable[..., Any], dynamic: bool) -> None:
    def given() -> tuple[torch.Tensor, torch.Tensor]:
        return torch.arange(33.0), torch.arange(35.0).view(5, 7) / 10

    compiled = bt.jit(gpu.TARGET, dynamic=dynamic)(fn).lower(*given(), 0.5).compile()
    assert len(compiled.launches) == 2
    assert "* __restrict__ number" not in compiled.source()
    for s in (0.5, -3.0):
        ours, theirs = given(), given()
        found = gpu.call(compiled, (*ours, s))
        torch.testing.assert_close(found, fn(*theirs, s))
        torch.testing.assert_close(ours, theirs)
