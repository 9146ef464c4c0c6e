"""Kernels that are the same are one, which is called several times."""

from __future__ import annotations

from itertools import chain

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import babytriton as bt
from babytriton.passes.kernel_names import common_name
from tests.conformance import gpu
from tests.emulator import emulator


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.Parameter(torch.rand(width))
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * self.norm
        return x + self.down(F.gelu(self.up(y)))


class Layers(nn.Module):
    def __init__(self, count: int, width: int = 24) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Layer(width) for _ in range(count))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def kernels(fn, *args) -> tuple[str, ...]:
    return bt.jit("cpu")(fn).lower(*args).compile().kernels


def test_layers_are_computed_by_the_kernels_of_one() -> None:
    x = torch.randn(5, 24)
    few = kernels(Layers(1).requires_grad_(False), x)
    network = Layers(4).requires_grad_(False)
    jitted = bt.jit("cpu")(network)
    compiled = jitted.lower(x).compile()
    assert len(compiled.kernels) == len(few)
    torch.testing.assert_close(jitted(x).double(), network.double()(x.double()), rtol=0, atol=1e-5)


def test_layers_have_gradients_by_the_kernels_of_one() -> None:
    x = torch.randn(5, 24, requires_grad=True)
    few = bt.jit("cpu")(Layers(2)).lower(x).compile().backward.kernels
    network = Layers(5)
    jitted = bt.jit("cpu")(network)
    assert len(jitted.lower(x).compile().backward.kernels) <= len(few)
    jitted(x).square().sum().backward()
    found = [x.grad, *(p.grad for p in network.parameters())]
    wide = x.detach().double().requires_grad_()
    exact = network.double()(wide).square().sum()
    expected = torch.autograd.grad(exact, [wide, *network.parameters()])
    for one, other in zip(found, expected):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4 * other.abs().max())


def test_a_kernel_is_called_what_its_calls_have_in_common() -> None:
    x = torch.randn(5, 24)
    compiled = bt.jit(target=gpu.TARGET)(Layers(3).requires_grad_(False)).lower(x).compile()
    source = compiled.source("cuda")
    for name in ("norm", "up_weight", "up_bias", "down_weight", "down_bias"):
        assert f"self_layers_{name}: float32[" in source
    assert "layers_0" not in source


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("x", "x", "x"),
        ("x", "y", None),
        ("x", None, None),
        ("x", "x_2", "x"),
        ("x_1", "x_2", "x"),
        ("self_0_w", "self_1_w", "self_w"),
        ("a_w", "b_w", "w"),
        ("a_0_w", "a_0_0_w", "a_0_w"),
        ("w_w", "w", "w"),
        ("a_1", "b_1", None),
    ],
)
def test_what_names_have_in_common(first, second, expected) -> None:
    assert common_name(first, second) == expected


def two_lines(x, y):
    u = torch.cumsum(x, 0).sin()
    v = torch.cumsum(y, 0).sin()
    return u, v


def two_numbers(xs):
    return [torch.cumsum(x, 0) * n for n, x in enumerate(xs, 2)]


def one_number(xs):
    return [torch.cumsum(x, 0) * 2 for x in xs]


def sums(xs):
    return [torch.cumsum(x, 0) for x in xs]


def test_only_the_same_of_the_same_lines_is_one_kernel() -> None:
    x, y = torch.rand(7), torch.rand(7)
    one = len(kernels(one_number, [x]))
    assert len(kernels(one_number, [x, y])) == one
    assert len(kernels(one_number, [x, y.double()])) == 2 * one
    assert len(kernels(one_number, [x, torch.rand(8)])) == 2 * one
    assert len(kernels(two_numbers, [x, y])) > one  # another factor
    assert len(kernels(two_lines, x, y)) > one
    for fn, args in ((one_number, ([x, y],)), (two_numbers, ([x, y],)), (two_lines, (x, y))):
        for found, expected in zip(bt.jit("cpu")(fn)(*args), fn(*args)):
            torch.testing.assert_close(found, expected)


def momentum(parameters, gradients, velocities):
    for p, g, v in zip(parameters, gradients, velocities):
        v.mul_(0.9).add_(g)
        p.sub_(v, alpha=0.1)


def momentum_of_old(parameters, gradients, velocities):
    before = parameters[0] * 1
    old = velocities[1]
    for p, g, v in zip(parameters, gradients, velocities):
        v.mul_(0.9).add_(g)
        p.sub_(v, alpha=0.1)
    return before, old.sum()


@pytest.mark.parametrize("fn", [momentum, momentum_of_old])
def test_tensors_of_one_shape_are_written_to_by_one_kernel(fn) -> None:
    shapes = [(3, 5), (5,), (3, 5), (5,), (3, 5)]
    ours = [[torch.rand(shape) for shape in shapes] for _ in range(3)]
    theirs = [[x.clone() for x in tensors] for tensors in ours]
    jitted = bt.jit("cpu")(fn)
    compiled = jitted.lower(*ours).compile()
    # One of each shape; of old, one of them gives the old numbers, and one their sum.
    assert len(compiled.kernels) == (2 if fn is momentum else 4)
    program = str(compiled.scheduled.mod)
    assert program.count("call_tir_inplace") == (5 if fn is momentum else 4)
    for _ in range(2):
        found, expected = jitted(*ours), fn(*theirs)
        for one, other in zip(found or (), expected or ()):
            torch.testing.assert_close(one, other)
        for one, other in zip(chain(*ours), chain(*theirs)):
            torch.testing.assert_close(one, other)


def partly(xs, y):
    for x in xs:
        x[1:3].copy_(y)
    return xs[0] + 1


def test_parts_are_written_by_one_kernel() -> None:
    xs, y = [torch.rand(6, 4) for _ in range(3)], torch.rand(2, 4)
    copies = [x.clone() for x in xs]
    jitted = bt.jit("cpu")(partly)
    program = str(jitted.lower(xs, y).schedule().mod)
    assert program.count("call_tir_inplace(cls.partly_xs_new_kernel") == len(xs)
    torch.testing.assert_close(jitted(xs, y), partly(copies, y))
    for one, other in zip(xs, copies):
        torch.testing.assert_close(one, other)


def kept(xs):
    results = []
    for x in xs:
        y = x.exp()
        x.mul_(2)
        results.append(y + x)
    return results


@pytest.mark.parametrize("is_transposed", [False, True])
def test_tensors_that_lie_otherwise(is_transposed) -> None:
    def made():
        torch.manual_seed(1)
        return [torch.rand(4, 6), torch.rand(6, 4).T if is_transposed else torch.rand(4, 6)]

    ours, theirs = made(), made()
    for one, other in zip(bt.jit("cpu")(kept)(ours), kept(theirs)):
        torch.testing.assert_close(one, other)
    for one, other in zip(ours, theirs):
        torch.testing.assert_close(one, other)


def until(xs, limit):
    ys = [torch.cumsum(x, 0) for x in xs]
    while ys[0].sum() < limit:
        ys = [torch.cumsum(y, 0) for y in ys]
    return ys


def test_programs_with_loops() -> None:
    xs, limit = [torch.rand(5), torch.rand(5)], torch.tensor(100.0)
    assert len(kernels(until, xs, limit)) == len(kernels(until, xs[:1], limit))
    for one, other in zip(bt.jit("cpu")(until)(xs, limit), until(xs, limit)):
        torch.testing.assert_close(one, other)


@pytest.mark.skipif(emulator.available_gpu() is None, reason=emulator.missing() or "no GPU")
def test_an_edited_kernel_is_edited_for_all_of_its_calls() -> None:
    xs = [torch.rand(9), torch.rand(9)]
    compiled = bt.jit(target=gpu.TARGET)(sums).lower(xs).compile()
    source = compiled.source("cuda")
    assert source.count("+= (double)xs[") == 1
    edited = compiled.with_source(source.replace("+= (double)xs[", "+= 3 * (double)xs["))
    for found, x in zip(gpu.call(edited, (xs,)), xs):
        torch.testing.assert_close(found, torch.cumsum(x, 0) * 3)


def masked(xs):
    masks = [torch.arange(6) % 3 > 0 for _ in xs]
    return [torch.where(m, x, 0.0).cumsum(0) for m, x in zip(masks, xs)]


def masked_and_masks(xs):
    masks = [torch.arange(6) % 3 > 0 for _ in xs]
    return [torch.where(m, x, 0.0).cumsum(0) for m, x in zip(masks, xs)] + masks


def test_what_is_known_is_computed_once() -> None:
    xs = [torch.rand(6) for _ in range(3)]
    jitted = bt.jit("cpu")(masked)
    program = str(jitted.lower(xs).schedule().mod)
    assert program.count('"ir.GenericConst"][0]') == len(xs)
    assert '"ir.GenericConst"][1]' not in program
    for found, expected in zip(jitted(xs), masked(xs)):
        torch.testing.assert_close(found, expected)


def test_what_is_known_is_of_its_own_memory() -> None:
    xs = [torch.rand(6) for _ in range(3)]
    jitted = bt.jit("cpu")(masked_and_masks)
    for _ in range(2):
        found, expected = jitted(xs), masked_and_masks(xs)
        for one, other in zip(found, expected):
            torch.testing.assert_close(one, other)
        found[3].fill_(False)
        assert torch.equal(found[4], expected[4])


def causal(xs):
    results = []
    for x in xs:
        n = x.shape[0]
        later = torch.arange(n)[:, None] < torch.arange(n)
        results.append(torch.where(later, float("-inf"), x).softmax(-1))
    return results


def test_large_masks_are_no_tables_also_in_several_layers() -> None:
    xs = [torch.rand(150, 150) for _ in range(2)]
    jitted = bt.jit("cpu")(causal)
    program = str(jitted.lower(xs).schedule().mod)
    assert "GenericConst" not in program
    for found, expected in zip(jitted(xs), causal(xs)):
        torch.testing.assert_close(found, expected)
