"""Compiled functions as operators of torch: by torch's own ``opcheck``, and against torch."""

from __future__ import annotations

import copy
import inspect
import pickle
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import grad, vmap
from torch.library import opcheck
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import babytriton as bt

W = torch.arange(4.0)
ROWS = bt.Tensor(("n", 4), "float32")


@bt.library_op("babytriton_tests::swiglu", inplace=["gate"])
def swiglu(gate: torch.Tensor, up: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    return F.silu(gate) * up * scale


@bt.library_op("babytriton_tests::add_norm", inplace=["x", "residual"])
@bt.jit(dynamic=True)
def add_norm(
    x: torch.Tensor, residual: torch.Tensor, w: torch.Tensor, *, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    total = x + residual
    return total * torch.rsqrt(total.square().mean(-1, keepdim=True) + eps) * w, total


@bt.library_op("babytriton_tests::means")
def means(
    xs: list[torch.Tensor], w: torch.Tensor | None = None, *, mode: str = "mean"
) -> list[torch.Tensor]:
    scaled = [x if w is None else x * w for x in xs]
    return [x.mean() if mode == "mean" else x.sum() for x in scaled]


@bt.library_op("babytriton_tests::largest")
def largest(x) -> tuple[torch.Tensor, torch.Tensor]:
    values, places = x.max(-1)
    return values * 2, places


@bt.library_op("babytriton_tests::views")
def views(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    y = x * 2
    return x, y.t(), y[0]


@bt.library_op("babytriton_tests::captures")
def captures(x):
    return x * W


@bt.library_op("babytriton_tests::branches")
def branches(x):
    assert not x.isnan().any()
    if x.sum() > 0:
        x = x * 2
    return x + x.max().item()


@bt.library_op("babytriton_tests::moves", mutates_args=["average"])
def moves(average: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    average.mul_(0.9).add_(x.mean(0) * 0.1)
    return x - average


@bt.library_op("babytriton_tests::shaped")
def shaped(x: ROWS, y: ROWS):
    return x * y


def given(*shapes: tuple[int, ...], **options: Any) -> list[torch.Tensor]:
    return [torch.randn(shape, requires_grad=True, **options) for shape in shapes]


def block(x: torch.Tensor, residual: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y, residual = add_norm(x * 2, residual, w)
    return swiglu(y, residual, scale=0.5).sum()


def plain_block(x: torch.Tensor, residual: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y, residual = add_norm.fn(x * 2, residual, w)
    return swiglu.fn(y, residual, scale=0.5).sum()


# ---------------------------------------------------------------- what torch checks


CALLS: dict[str, Callable[[], tuple[bt.LibraryOp, tuple[Any, ...], dict[str, Any]]]] = {
    "a float": lambda: (swiglu, (*given((5, 7), (5, 7)), 2.0), {}),
    "without gradients": lambda: (swiglu, (torch.randn(5, 7), torch.randn(5, 7)), {}),
    "one gradient": lambda: (swiglu, (torch.randn(5, 7), *given((5, 7))), {}),
    "transposed": lambda: (swiglu, tuple(x.t() for x in given((5, 7), (5, 7))), {}),
    "two results": lambda: (add_norm, tuple(given((5, 8), (5, 8), (8,))), {"eps": 1e-3}),
    "lists": lambda: (means, (given((3, 4), (2, 4)), *given((4,))), {}),
    "without an optional": lambda: (means, (given((3, 4), (2, 4)), None), {"mode": "sum"}),
    "integers": lambda: (largest, tuple(given((3, 4))), {}),
    "views": lambda: (views, tuple(given((3, 4))), {}),
    "captured tensors": lambda: (captures, tuple(given((3, 4))), {}),
    "a branch": lambda: (branches, (torch.rand(3, 4),), {}),
    "writes": lambda: (moves, (torch.randn(4), torch.randn(3, 4)), {}),
    "in place": lambda: (swiglu.inplace, (torch.randn(5, 7), torch.randn(5, 7)), {}),
    "two in place": lambda: (
        add_norm.inplace,
        (torch.randn(5, 8), torch.randn(5, 8), torch.ones(8)),
        {},
    ),
    "annotated": lambda: (shaped, tuple(given((3, 4), (3, 4))), {}),
    "no elements": lambda: (swiglu, tuple(given((0, 7), (0, 7))), {}),
}


@pytest.mark.parametrize("call", CALLS)
def test_opcheck(call: str) -> None:
    torch.manual_seed(0)
    op, args, kwargs = CALLS[call]()
    results = opcheck(op.overload, args, kwargs)
    assert set(results.values()) == {"SUCCESS"}
    if not op.overload._schema.is_mutable:
        torch.testing.assert_close(op(*args, **kwargs), op.fn(*args, **kwargs))
        torch.testing.assert_close(op.overload(*args, **kwargs), op.fn(*args, **kwargs))


def test_gradients_of_gradients() -> None:
    torch.manual_seed(0)
    args = given((3, 4), (3, 4), dtype=torch.float64)
    assert torch.autograd.gradcheck(torch.ops.babytriton_tests.swiglu, args)
    assert torch.autograd.gradgradcheck(torch.ops.babytriton_tests.swiglu, args)
    args += given((4,), dtype=torch.float64)
    assert torch.autograd.gradgradcheck(torch.ops.babytriton_tests.add_norm, args)


# ---------------------------------------------------------------- who traces it


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_torch_compile(backend: str) -> None:
    torch.manual_seed(0)
    args = given((5, 8), (5, 8), (8,))
    compiled = torch.compile(block, fullgraph=True, backend=backend)
    ours, expected = compiled(*args), plain_block(*args)
    torch.testing.assert_close(ours, expected)
    torch.testing.assert_close(torch.autograd.grad(ours, args), torch.autograd.grad(expected, args))


def test_torch_compile_keeps_the_operator() -> None:
    seen = []

    def look(graph: torch.fx.GraphModule, _: Any) -> Any:
        seen.extend(node.target for node in graph.graph.nodes if node.op == "call_function")
        return graph

    torch.compile(block, fullgraph=True, backend=look)(*given((5, 8), (5, 8), (8,)))
    assert {add_norm.overload, swiglu.overload} <= set(seen)


def test_writes_under_torch_compile() -> None:
    def step(average: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return moves(average, x) + swiglu.inplace(x * 2, x)

    x, averages = torch.randn(3, 4), [torch.ones(4), torch.ones(4)]
    found = torch.compile(step, fullgraph=True, backend="aot_eager")(averages[0], x)
    expected = moves.fn(averages[1], x) + swiglu.fn(x * 2, x)
    torch.testing.assert_close((found, averages[0]), (expected, averages[1]))


def test_torch_export() -> None:
    class Block(nn.Module):
        def forward(self, x: torch.Tensor, residual: torch.Tensor, w: torch.Tensor) -> Any:
            return block(x, residual, w)

    rows = torch.export.Dim("rows")
    shapes = ({0: rows}, {0: rows}, None)
    example = (torch.randn(4, 8), torch.randn(4, 8), torch.ones(8))
    program = torch.export.export(Block(), example, dynamic_shapes=shapes)
    assert "babytriton_tests.add_norm" in str(program.graph)
    for n in (4, 9):
        args = torch.randn(n, 8), torch.randn(n, 8), torch.ones(8)
        torch.testing.assert_close(program.module()(*args), plain_block(*args))


@pytest.mark.parametrize("op", [swiglu, torch.ops.babytriton_tests.swiglu], ids=["ours", "torch's"])
def test_torch_func(op: Any) -> None:
    def ours(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return op(x, y, 0.5).sum()

    def plain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return swiglu.fn(x, y, 0.5).sum()

    x, y, xs = torch.randn(3, 4), torch.randn(3, 4), torch.randn(2, 3, 4)
    over_first = partial(vmap, in_dims=(0, None))
    for transform, first in (
        (lambda fn: grad(fn, argnums=1), x),
        (lambda fn: grad(lambda x, y: grad(fn)(x, y).square().sum()), x),
        (over_first, xs),
        (lambda fn: over_first(grad(fn)), xs),
        (lambda fn: grad(lambda x, y: over_first(fn)(x, y).sum()), xs),
        (lambda fn: vmap(over_first(fn), in_dims=(1, 0)), xs),
    ):
        torch.testing.assert_close(transform(ours)(first, y), transform(plain)(first, y))
    none = torch.empty(0, 3, 4)
    assert vmap(op, in_dims=(0, None))(none, y).shape == (0, 3, 4)


def test_torch_func_under_torch_compile() -> None:
    def gradient(x: torch.Tensor) -> torch.Tensor:
        return vmap(grad(lambda x: largest(x)[0].sum()))(x)

    x = torch.randn(2, 3, 4)
    compiled = torch.compile(gradient, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), F.one_hot(x.argmax(-1), 4) * 2.0)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(reentrant: bool) -> None:
    args = given((5, 8), (5, 8), (8,))
    checkpoint(block, *args, use_reentrant=reentrant).backward()
    expected = torch.autograd.grad(plain_block(*args), args)
    torch.testing.assert_close([x.grad for x in args], list(expected))


# ---------------------------------------------------------------- writes, and own gradients


def test_in_place_variants_return_what_they_wrote_to() -> None:
    x, y, w = torch.randn(5, 8), torch.randn(5, 8), torch.rand(8)
    expected = add_norm.fn(x, y, w, eps=0.1)
    found = add_norm.inplace(x, residual=y, w=w, eps=0.1)
    assert found[0] is x
    assert found[1] is y
    torch.testing.assert_close(found, expected)
    assert torch.ops.babytriton_tests.swiglu_(x, y) is None
    torch.testing.assert_close(x, swiglu.fn(expected[0], y))


def test_writes_and_gradients_do_not_mix() -> None:
    x, y = given((5, 7), (5, 7))
    for op in (swiglu.inplace, torch.ops.babytriton_tests.swiglu_):
        with pytest.raises(RuntimeError, match="BT116"):
            op(x, y)
        with torch.no_grad():
            before = x.clone()
            op(x, y)
            torch.testing.assert_close(x, swiglu.fn(before, y))


def doubled_gradient(grad, result, x, scale):
    assert scale == 3
    return grad * 2 * result / result


@bt.library_op("babytriton_tests::own")
def own(x: torch.Tensor, scale: int = 3) -> torch.Tensor:
    y = x.exp()
    if y.sum() > 0:
        y = y * scale
    return y


own.backward(doubled_gradient)


def test_gradient_of_ones_own() -> None:
    (x,) = given((3, 4), dtype=torch.float64)

    def calls(x):
        return own(x * 2).sin()

    ones = torch.ones_like(x)
    for fn in (own, torch.ops.babytriton_tests.own, bt.jit(own.fn)):
        (found,) = torch.autograd.grad(fn(x).sum(), x, create_graph=True)
        torch.testing.assert_close(found, ones * 2)
        torch.testing.assert_close(torch.autograd.grad(found.sum(), x)[0], ones * 0)
    (found,) = torch.autograd.grad(bt.jit(calls)(x).sum(), x)
    torch.testing.assert_close(found, own.fn(x * 2).cos() * 4)
    (found,) = torch.autograd.grad(
        torch.compile(calls, fullgraph=True, backend="aot_eager")(x).sum(), x
    )
    torch.testing.assert_close(found, own.fn(x * 2).cos() * 4)


@bt.jit
def two(x, y):
    return x * y, x + y


def test_gradient_of_ones_own_for_several_results() -> None:
    x, y = given((3, 4), (4,))
    before = torch.autograd.grad(sum(v.sum() for v in two(x, y)), (x, y))
    torch.testing.assert_close(before, torch.autograd.grad((x * y + x + y).sum(), (x, y)))

    @two.backward
    def _(grads, results, x, y):
        return grads[0] * results[1], None

    product, total = two(x, y)
    found = torch.autograd.grad(product.sum() + total.sum(), (x, y), allow_unused=True)
    torch.testing.assert_close(found[0], (x + y).detach())
    assert found[1] is None


def test_own_gradients_need_results_of_their_own() -> None:
    @bt.jit
    def same(x):
        return x

    same.backward(lambda grad, result, x: grad)
    with pytest.raises(bt.CompileError, match=r"`same` failed[^$]*returns an argument"):
        same(*given((3,)))


def test_what_has_no_function_has_no_gradient_of_its_own() -> None:
    with pytest.raises(TypeError, match="BT125"):
        bt.jit(nn.Linear(2, 2)).backward(lambda grad, result, x: grad)


def test_gradients_that_rules_cannot_give_are_refused() -> None:
    scale = torch.rand(3, requires_grad=True)
    (x,) = given((3,))

    @bt.jit
    def captured(x):
        return x * scale

    captured.backward(lambda grad, result, x: grad)
    with pytest.raises(bt.CompileError, match="reads a tensor that requires grad"):
        captured(x)

    @bt.jit
    def halved(x):
        return x / 2

    halved.backward(lambda grad, result, x: (grad, grad))
    with pytest.raises(bt.CompileError, match="gives 2 gradients of 1 arguments"):
        halved(x)

    @bt.jit
    def tripled(x):
        return x * 3

    tripled.backward(lambda grad, x: grad)
    with pytest.raises(bt.CompileError, match="too many positional arguments"):
        tripled(x)

    @bt.jit
    def listed(x):
        return x * 3

    listed.backward(lambda grad, result, x: [grad * 3])
    torch.testing.assert_close(torch.autograd.grad(listed(x).sum(), x)[0], torch.full((3,), 3.0))


@bt.library_op("babytriton_tests::exchanged", inplace=["x", "y"])
def exchanged(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return y, x


@bt.library_op("babytriton_tests::named")
def named(
    x: torch.Tensor, *, keys: float = 1.0, kind: float = 2.0, device: int = 3, wanted: int = 4
) -> torch.Tensor:
    return x * keys + kind * device - wanted


PARAMETER = nn.Parameter(torch.rand(3))


@bt.library_op("babytriton_tests::reads_parameter")
def reads_parameter(x):
    return x * PARAMETER


@bt.library_op("babytriton_tests::drops")
def drops(x):
    return F.dropout(x, 0.5) + 1


def test_results_that_are_arguments() -> None:
    x, y = torch.rand(3), torch.rand(3)
    before = x.clone(), y.clone()
    exchanged.inplace(x, y)
    torch.testing.assert_close((y, x), before)


def test_names_of_parameters() -> None:
    (x,) = given((3,))
    for fn in (named, named.overload):
        with torch.autocast("cpu"):
            found = fn(x, keys=2.0, kind=0.5)
        torch.testing.assert_close(found, x * 2 - 2.5)
        torch.testing.assert_close(torch.autograd.grad(found.sum(), x)[0], torch.full((3,), 2.0))
    torch.testing.assert_close(vmap(named.overload)(x), x - 4 + 6)


def test_captured_tensors_that_require_grad_are_refused_where_torch_traces() -> None:
    (x,) = given((3,))
    torch.testing.assert_close(reads_parameter(x), x * PARAMETER)
    with pytest.raises(RuntimeError, match="BT157"):
        torch.compile(lambda x: reads_parameter(x), backend="aot_eager", fullgraph=True)(x)


def test_random_numbers_under_vmap() -> None:
    x = torch.ones(4, 50)
    for fn in (drops, drops.overload):
        with pytest.raises(RuntimeError, match="randomness"):
            vmap(fn)(x)
        same = vmap(fn, randomness="same")(x)
        assert all(torch.equal(row, same[0]) for row in same)
        different = vmap(fn, randomness="different")(x)
        assert not torch.equal(different[0], different[1])


def test_writes_under_vmap() -> None:
    average, x = torch.ones(2, 4), torch.rand(2, 3, 4)
    expected = average * 0.9 + x.mean(1) * 0.1
    vmap(moves.overload)(average, x)
    torch.testing.assert_close(average, expected)
    with pytest.raises(RuntimeError, match="writes to `average`"):
        vmap(moves.overload, in_dims=(None, 0))(average[0], x)


def test_forward_mode_is_refused() -> None:
    x = torch.rand(3)
    with pytest.raises(RuntimeError, match="BT158"):
        torch.func.jvp(torch.ops.babytriton_tests.largest, (x,), (x,))


def test_copies_and_pickles() -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.op = swiglu

    assert copy.deepcopy(Layer()).op is swiglu
    assert pickle.loads(pickle.dumps(swiglu)) is swiglu
    assert list(inspect.signature(swiglu).parameters) == ["gate", "up", "scale"]


def test_operators_that_traced_programs_call_are_there() -> None:
    for name in ("swiglu_backward", "swiglu_autocast", "swiglu_autocast_backward"):
        assert hasattr(torch.ops.babytriton_tests, name)


def test_other_threads_may_draw_random_numbers() -> None:
    over, drawn = threading.Event(), []

    def draw() -> None:
        while not over.is_set():
            drawn.append(torch.rand(()).item())

    thread = threading.Thread(target=draw)
    thread.start()
    try:
        for _ in range(50):
            args = given((5, 7), (5, 7))
            torch.autograd.grad(swiglu.overload(*args).sum(), args)
    finally:
        over.set()
        thread.join()
    assert len(set(drawn)) > 0.99 * len(drawn)
