"""Compiled functions inside what traces torch: the plain function is what is traced."""

from __future__ import annotations

import copy

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import babytriton as bt


@bt.jit("cpu")
def scored(x, w):
    return torch.tanh(x * w).sum(-1)


def around(x, w):
    return scored(x, w) * 2


def inputs(rows: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, 8), torch.randn(8)


class Around(torch.nn.Module):
    def forward(self, x, w):
        return around(x, w)


@pytest.fixture(autouse=True)
def _warm() -> None:
    """Calls before have left a shorter way to run the next ones."""
    x, w = inputs()
    for _ in range(3):
        torch.testing.assert_close(scored(x, w), scored.fn(x, w))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_torch_compile(backend: str) -> None:
    x, w = inputs()
    x.requires_grad_()
    compiled = torch.compile(around, fullgraph=True, backend=backend)
    torch.testing.assert_close(compiled(x, w), scored.fn(x, w) * 2)
    (grad,) = torch.autograd.grad(compiled(x, w).sum(), x)
    torch.testing.assert_close(grad, torch.autograd.grad(scored.fn(x, w).sum() * 2, x)[0])


def test_torch_export() -> None:
    rows = torch.export.Dim("rows")
    program = torch.export.export(Around(), inputs(), dynamic_shapes=({0: rows}, None))
    x, w = inputs(7)
    torch.testing.assert_close(program.module()(x, w), scored.fn(x, w) * 2)


class Compiled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    @bt.jit("cpu")
    def forward(self, x):
        return self.linear(x).relu()


def test_a_module_whose_forward_is_compiled() -> None:
    module, (x, _) = Compiled(), inputs()
    expected = module.linear(x).relu()
    torch.testing.assert_close(torch.export.export(module, (x,)).module()(x), expected)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), expected)


def test_traces_are_of_the_function_and_not_of_its_results() -> None:
    traced = make_fx(around)(*inputs())
    x, w = inputs()
    torch.testing.assert_close(traced(x, w), scored.fn(x, w) * 2)


def test_fake_tensors() -> None:
    with FakeTensorMode():
        found = around(torch.empty(5, 8), torch.empty(8))
    assert found.shape == (5,)


@bt.jit("cpu")
def straight(x, factor=1.0, *, pair=None):
    return torch.round(x) * factor if pair is None else x * factor + pair[0] * pair[1]


@straight.backward
def straight_back(grad, result, x, factor, pair):
    of_pair = None if pair is None else [grad * result, grad * pair[0]]
    return grad * factor * 10, None, of_pair


@bt.jit("cpu")
def halves(x, w):
    return x * 0.5, w * 0.5


@halves.backward
def halves_back(grads, results, x, w):
    return grads[0] * w + results[1]


COPY, AGAIN = copy.deepcopy(straight), bt.jit("cpu")(straight.fn)


@bt.jit("cpu")
def product(x, *ws):
    for w in ws:
        x = x * w
    return x


@product.backward
def product_back(grad, result, x, *ws):
    return grad * 100, [grad * x, grad * 3]


class Scaled:
    factor = 3.0

    @bt.jit("cpu")
    def scaled(self, x):
        return torch.round(x) * self.factor


@Scaled.scaled.backward
def scaled_back(grad, result, self, x):
    return None, grad * self.factor * 10


@bt.jit("cpu")
def both(pair, y):
    return pair[0] * pair[1] + y


@both.backward
def both_back(grad, result, pair, y):
    return [grad * 2, grad * 3], grad * 5


@bt.jit("cpu")
def named(x, *, w):
    return x * w


@named.backward
def named_back(grad, result, x, *, w):
    return grad * 7, grad * w


CALLS = {
    "any number": lambda x, w: product(x, w, w),
    "method": lambda x, w: Scaled().scaled(x),
    "copy": lambda x, w: COPY(x, 2.0),
    "again": lambda x, w: AGAIN(x, 2.0),
    "list": lambda x, w: both([x, w], w),
    "named": lambda x, w: named(x, w=w),
    "default": lambda x, w: straight(x),
    "number": lambda x, w: straight(x, 3.0),
    "keyword": lambda x, w: straight(x=x, factor=3.0),
    "tensors in a tuple": lambda x, w: straight(x, pair=(w, x)),
    "several results": lambda x, w: sum(halves(x, w)),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_gradients_of_ones_own_are_traced(call) -> None:
    def gradients(fn):
        args = [x.detach().requires_grad_() for x in (x, w)]
        return torch.autograd.grad(fn(*args).sum(), args, materialize_grads=True)

    x, w = torch.randn(8), torch.randn(8)
    wanted = gradients(call)
    torch.compiler.reset()
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, w), call(x, w))
    torch.testing.assert_close(gradients(compiled), wanted)
    graph = make_fx(lambda x, w: torch.func.grad(lambda *xs: call(*xs).sum())(x, w))(x, w)
    torch.testing.assert_close(graph(x, w), wanted[0])


def test_calls_that_do_not_fit_are_refused() -> None:
    x = torch.ones(2, requires_grad=True)
    for call in (lambda x: halves(x), lambda x: halves(x, x, x), lambda x: halves(x, x, typo=1)):
        with pytest.raises(TypeError):
            make_fx(call)(x)


def test_gradients_of_ones_own_in_a_graph_that_is_compiled() -> None:
    x = torch.randn(5, 8, requires_grad=True)
    compiled = torch.compile(lambda x: straight(torch.sin(x)).sum())
    (grad,) = torch.autograd.grad(compiled(x), x)
    torch.testing.assert_close(grad, 10 * torch.cos(x))


def test_torch_fx() -> None:
    traced = torch.fx.symbolic_trace(Around())
    x, w = inputs()
    torch.testing.assert_close(traced(x, w), scored.fn(x, w) * 2)
    assert any(node.target is torch.tanh for node in traced.graph.nodes)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torch_jit_trace() -> None:
    traced = torch.jit.trace(around, inputs())
    x, w = inputs()
    torch.testing.assert_close(traced(x, w), scored.fn(x, w) * 2)
