"""What torch runs inside a program: memory that it shares, and what its autograd records."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Collection
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import babytriton as bt
from babytriton.ops import torch_graphs
from babytriton.runtime.direct import LARGE
from tests.conformance import gpu
from tests.emulator import emulator

SIDE = 2048
"""Of tensors whose programs a virtual machine runs, which uses their memory again."""


def read_elsewhere(b: torch.Tensor) -> torch.Tensor:
    c = b.flip(0) + b.flip(1)
    return c.sum(0, keepdim=True) + c


def of_an_alias(x):
    return read_elsewhere(torch.ops.aten.alias(x * 2 + 1))


def of_a_part(x):
    return read_elsewhere(torch.ops.aten.slice(x * 2 + 1, 0, 1, 2048))


def of_a_sum_of_nothing(x):
    return read_elsewhere(torch.einsum("ij->ij", x * 2 + 1))


@pytest.mark.parametrize("fn", [of_an_alias, of_a_part, of_a_sum_of_nothing])
@pytest.mark.parametrize("dynamic", [False, True])
def test_views_of_memory_that_is_used_again(fn: Callable, dynamic: bool) -> None:
    x = torch.randint(-8, 8, (SIDE, SIDE)).float()
    assert x.nbytes >= LARGE
    found = bt.jit(fn, dynamic=dynamic)(x)
    torch.testing.assert_close(found, fn(x), rtol=0, atol=0)


def at_places(x):
    return x.as_strided((SIDE, SIDE), (SIDE, 1), 5) * 2


def test_places_that_count_from_the_start_of_the_memory() -> None:
    """Of the caller's tensor, which begins behind it."""
    x = torch.randn(SIDE + 2, SIDE)[1:-1].requires_grad_()
    found = bt.jit("cpu")(at_places)(x)
    torch.testing.assert_close(found, at_places(x), rtol=0, atol=0)
    grad = torch.randn(SIDE, SIDE)
    ours, theirs = (torch.autograd.grad(y, x, grad) for y in (found, at_places(x)))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


RUNS: list[str] = []
"""What has run of the operator below: it, and its gradient."""


@torch.library.custom_op("calls::scaled", mutates_args=())
def scaled(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    RUNS.append("forward")
    return x.exp() * y


@scaled.register_fake
def _(x, y):
    return torch.empty_like(x)


def _setup(ctx: Any, inputs: Any, output: torch.Tensor) -> None:
    ctx.save_for_backward(output, inputs[0])


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    RUNS.append("backward")
    result, x = ctx.saved_tensors
    return grad * result, grad * x.exp()


scaled.register_autograd(_backward, setup_context=_setup)


def recorded(x, y):
    return (scaled(x.sin(), y.cos()) * 2).tanh()


def drawn(*shape: int) -> list[torch.Tensor]:
    return [torch.randn(shape, dtype=torch.float64).requires_grad_() for _ in range(2)]


@pytest.fixture(name="graphs")
def _graphs() -> Collection[Any]:
    """The graphs that are kept, none of them by others."""
    gc.collect()
    assert not torch_graphs._GRAPHS
    return torch_graphs._GRAPHS


def gradients(fn: Callable, *args: torch.Tensor, **options: Any) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(fn(*args).square().sum(), args, **options)


def test_torch_runs_once() -> None:
    args = drawn(4, 5)
    compiled = bt.jit("cpu")(recorded)
    RUNS.clear()
    found = gradients(compiled, *args)
    assert RUNS == ["forward", "backward"]
    torch.testing.assert_close(found, gradients(recorded, *args))
    (fallback,) = compiled.lower(*args).backward.fallbacks
    assert fallback.name == "gradient_of_scaled"


def test_a_graph_lives_as_long_as_what_is_saved(graphs: Collection[Any]) -> None:
    """And no longer: also where the loss is kept, as loops of training do."""
    args = drawn(4, 5)
    total = bt.jit("cpu")(recorded)(*args).square().sum()
    first = torch.autograd.grad(total, args, retain_graph=True)
    assert len(graphs) == 1
    second = torch.autograd.grad(total, args)
    assert not graphs
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    torch.testing.assert_close(first, gradients(recorded, *args))
    with pytest.raises(RuntimeError, match="second time"):
        total.backward()


def test_a_graph_that_nobody_goes_back_through(graphs: Collection[Any]) -> None:
    args = drawn(4, 5)
    compiled = bt.jit("cpu")(recorded)
    result = compiled(*args)
    assert len(graphs) == 1
    del result
    assert not graphs
    with torch.no_grad():
        compiled(*args)
    assert not graphs


def test_graphs_of_what_a_virtual_machine_runs(graphs: Collection[Any]) -> None:
    """It uses the memory of what torch was given again; and keeps nothing that it gave."""
    args = drawn(SIDE, SIDE)
    compiled = bt.jit("cpu")(recorded)
    RUNS.clear()
    for _ in range(2):
        found = gradients(compiled, *args)
        assert not graphs
    assert RUNS == ["forward", "backward"] * 2
    torch.testing.assert_close(found, gradients(recorded, *args))


class Stepped(torch.autograd.Function):
    """Rounds; the gradient is passed on, for which nothing is saved."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


def stepped(x):
    return Stepped.apply(x * 2)


def test_a_graph_keeps_no_results(graphs: Collection[Any]) -> None:
    x, _ = drawn(4, 5)
    compiled = bt.jit("cpu")(stepped)
    result = compiled(x)
    [graph] = graphs.values()
    alive = weakref.ref(result.untyped_storage())
    kept = result.grad_fn
    assert alive() is not None
    del result
    assert alive() is None
    assert kept is not None
    assert graph.results[0] is not None


@pytest.mark.parametrize("side", [5, SIDE])
def test_what_torch_raises(side: int) -> None:
    """Keeps its type and its line, also within a virtual machine."""
    compiled = bt.jit("cpu")(inverses)
    with pytest.raises(torch.linalg.LinAlgError, match="singular") as info:
        compiled(torch.zeros(side, side))
    if sys.version_info >= (3, 11):
        assert any("torch.linalg.inv(x) * 2" in note for note in info.value.__notes__)


def inverses(x):
    return torch.linalg.inv(x) * 2


def aliased(x):
    return torch.ops.aten.alias(x)


def test_views_of_leaves() -> None:
    """Which torch lets nobody write to, who may need what was there."""
    x, _ = drawn(4, 5)
    for fn in (aliased, bt.jit("cpu")(aliased)):
        result = fn(x)
        with pytest.raises(RuntimeError, match=r"leaf Variable|is a view"):
            result.mul_(2)
        (found,) = torch.autograd.grad(result.sum(), x)
        torch.testing.assert_close(found, torch.ones_like(x))


def inverted(x, y):
    return torch.linalg.inv(x.sin() + 3 * torch.eye(3, dtype=x.dtype)) * y


def test_gradients_of_gradients_run_it_again() -> None:
    assert torch.autograd.gradcheck(bt.jit("cpu")(inverted), tuple(drawn(3, 3)))
    assert torch.autograd.gradgradcheck(bt.jit("cpu")(inverted), tuple(drawn(3, 3)))


def scaled_alone(x, y):
    return scaled(x, y), x + y


@pytest.mark.parametrize("side", [5, SIDE])
def test_writes_to_what_torch_has_saved(side: int) -> None:
    args = drawn(side, side)
    compiled, grad = bt.jit("cpu")(scaled_alone), torch.rand(side, side, dtype=torch.float64)
    expected = torch.autograd.grad(scaled_alone(*args)[0], args, grad)
    result, _ = compiled(*args)
    result.detach().zero_()
    if side == SIDE:  # what a virtual machine gives is not what torch has saved
        found = torch.autograd.grad(result, args, grad)
        torch.testing.assert_close(found, expected)
    else:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(result, args, grad)
    result, _ = compiled(*args)
    args[0].detach().zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(result, args, grad)


def test_copies_of_what_is_saved(graphs: Collection[Any]) -> None:
    """Of which none keeps the graph: torch runs again."""
    args = drawn(4, 5)
    compiled = bt.jit("cpu")(recorded)
    with saved_tensors_hooks(lambda x: x.clone(), lambda x: x):
        result = compiled(*args)
    assert not graphs
    found = torch.autograd.grad(result.square().sum(), args)
    torch.testing.assert_close(found, gradients(recorded, *args))


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_is_computed_again(reentrant: bool, graphs: Collection[Any]) -> None:
    args = drawn(4, 5)
    compiled = bt.jit("cpu")(recorded)
    checkpoint(compiled, *args, use_reentrant=reentrant).square().sum().backward()
    torch.testing.assert_close([x.grad for x in args], [*gradients(recorded, *args)])
    assert not graphs


def test_transforms() -> None:
    args = drawn(3, 3)

    def total(fn: Callable) -> Callable:
        return lambda x, y: fn(x, y).square().sum()

    ours, theirs = (total(x) for x in (bt.jit("cpu")(inverted), inverted))
    plain = [torch.stack([x.detach(), 2 * x.detach()]) for x in args]
    for fn in (lambda f: torch.func.grad(f, (0, 1)), lambda f: torch.func.jacrev(f, 1)):
        torch.testing.assert_close(fn(ours)(*plain), fn(theirs)(*plain))
        each = torch.func.vmap(fn(ours))(*plain)
        torch.testing.assert_close(each, torch.func.vmap(fn(theirs))(*plain))


def in_a_branch(x, y):
    if x.sum() > -100:
        x = inverted(x, y)
    return x * y


def in_a_loop(x, y):
    for _ in range(200):
        x = inverted(x, y) * 0.5
    return x


@pytest.mark.parametrize("fn", [in_a_branch, in_a_loop])
def test_parts_that_the_run_decides_on(fn: Callable) -> None:
    args = drawn(3, 3)
    torch.testing.assert_close(gradients(bt.jit("cpu")(fn), *args), gradients(fn, *args))


def pooled(x):
    return F.fractional_max_pool2d(x * 2, 2, output_size=3).square()


def test_what_torch_draws_unseen() -> None:
    x = torch.rand(1, 5, 5, dtype=torch.float64, requires_grad=True)
    found = []
    for fn in (bt.jit("cpu")(pooled), pooled):
        torch.manual_seed(0)
        y = fn(x)
        found.append((y, *torch.autograd.grad(y.sum(), x), torch.rand(1)))
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_what_torch_draws_is_not_drawn_again() -> None:
    x = torch.rand(1, 5, 5, dtype=torch.float64, requires_grad=True)
    compiled = bt.jit("cpu")(pooled)
    with saved_tensors_hooks(lambda x: x.clone(), lambda x: x):
        y = compiled(x)
    with pytest.raises(RuntimeError, match="draws random numbers"):
        y.sum().backward()
    y = compiled(x)
    with pytest.raises(RuntimeError, match="draws random numbers"):
        torch.autograd.grad(y.sum(), x, create_graph=True)


@pytest.mark.skipif(emulator.available_gpu() is None, reason=emulator.missing() or "no GPU")
def test_attention_on_a_gpu() -> None:
    """With rotary positions, say: the way back computes nothing again that torch has kept."""

    def attention(x, w, c, p):
        q, k, v = (x @ w).view(2, 128, 3, 4, 64).permute(2, 0, 3, 1, 4).unbind(0)
        q, k = q * c, k * c
        found = F.scaled_dot_product_attention(q, k, v, dropout_p=p)
        return found.transpose(1, 2).reshape(2, 128, 256)

    x, w = torch.randn(2, 128, 256), torch.randn(256, 768) / 16
    args = (x.requires_grad_(), w.requires_grad_(), torch.rand(128, 64))
    for p in (0.0, 0.25):
        lowered = bt.jit(gpu.TARGET)(attention).lower(*args, p)
        names = [x.name for x in lowered.backward.fallbacks]
        assert names.count("gradient_of_scaled_dot_product_attention") == 1
        assert "scaled_dot_product_attention" not in names
        assert len(lowered.forward.schedule().kernels) == 1
        assert len(lowered.backward.schedule().kernels) == 1
    compiled = bt.jit(gpu.TARGET)(attention).lower(*args, 0.0).compile()
    grad = torch.randn(2, 128, 256)
    found = gpu.gradients(compiled, (*args, 0.0), {0: grad})
    expected = torch.autograd.grad(attention(*args, 0.0), args[:2], grad)
    torch.testing.assert_close(found[:2], [*expected], rtol=1e-4, atol=1e-4)
