"""Compiled functions and operators on DTensors, compared with plain torch on whole tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
)

import babytriton as bt

R, S0, S1, S2 = Replicate(), Shard(0), Shard(1), Shard(2)
T = torch.randn


@bt.jit
def scaled_softmax(x, w):
    return torch.softmax(x, -1) * w


@bt.jit
def dense(x, w, b):
    return torch.relu(x @ w + b)


@bt.jit
def centered(x):
    return x - x.mean(0)


@bt.jit
def flat(x, w):
    return x.reshape(-1, x.shape[-1]) @ w


@bt.jit
def cubed(x, w):
    return (x * w) ** 3


def rotated(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


@bt.jit
def rotary(q, k, cos, sin):
    return rotated(q, cos, sin), rotated(k, cos, sin)


@bt.jit
def descend(parameters, grads, rate):
    for parameter, grad in zip(parameters, grads):
        parameter.sub_(rate * grad)


@bt.jit
def by_size(x):
    return x * 2 if x.shape[0] > 5 else x


@bt.jit
def squeezed(x):
    return x.squeeze(0) + 1


@bt.jit
def of_dict(d, k=2.0):
    return {"a": d["x"] * k, "b": (d["y"][0].t(), d["x"])}


@bt.jit
def mean_and_shape(x):
    return x.mean().item(), x.shape


@bt.library_op("distributed_tests::norm")
def norm(x: torch.Tensor, w: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * w


@bt.library_op("distributed_tests::gated")
def gated(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = x.chunk(2, -1)
    return F.silu(a) * b, a.sum(-1)


@bt.library_op("distributed_tests::softmax")
def softmax(x: torch.Tensor, dim: int = 0) -> torch.Tensor:
    return x.softmax(dim)


@bt.library_op("distributed_tests::halved")
def halved(x: torch.Tensor) -> torch.Tensor:
    return x.squeeze(0) / 2 if x.shape[0] > 3 else x


def placed(tensor: torch.Tensor, *placements: Placement) -> DTensor:
    mesh = init_device_mesh("cpu", (2,))
    return distribute_tensor(tensor.detach().clone(), mesh, placements)


def check(
    function: Any, tensors: Sequence[torch.Tensor], places: Sequence[Placement], to: Placement
) -> None:
    """A function of DTensors gives the values and gradients of the plain one, placed as said."""
    plain = [x.clone().requires_grad_() for x in tensors]
    expected = getattr(function, "fn", function)(*plain)
    grad = torch.randn_like(expected)
    expected_grads = torch.autograd.grad(expected, plain, grad)
    given = [placed(x, place).requires_grad_() for x, place in zip(tensors, places)]
    found = function(*given)
    assert found.placements == (to,), found.placements
    torch.testing.assert_close(found.full_tensor(), expected)
    grads = torch.autograd.grad(found, given, placed(grad, R))
    for one, other, x in zip(grads, expected_grads, given):
        assert one.placements == x.placements
        torch.testing.assert_close(one.full_tensor(), other)
    with torch.no_grad():
        torch.testing.assert_close(function(*given).full_tensor(), expected)


def rows(rank: int) -> None:
    for n in (5, 2):
        check(scaled_softmax, [T(n, 6), T(6)], [S0, R], S0)
    check(scaled_softmax, [T(5, 6), T(6)], [S1, S0], S0)
    check(scaled_softmax, [T(1, 6), T(6)], [S0, R], R)
    check(scaled_softmax, [T(4, 6), T(6)], [R, R], R)
    check(centered, [T(8, 6)], [S0], S1)


def products(rank: int) -> None:
    tensors = [T(8, 6), T(6, 4), T(4)]
    check(dense, tensors, [R, S1, S0], S1)
    check(dense, tensors, [S1, S0, R], S0)
    check(flat, [T(4, 3, 6), T(6, 2)], [S0, R], S0)
    check(flat, [T(3, 3, 6), T(6, 2)], [S0, R], R)


def several_results(rank: int) -> None:
    tensors = T(4, 8, 5, 4), T(4, 2, 5, 4), T(5, 4), T(5, 4)
    expected = rotary.fn(*tensors)
    for place in (S1, S2):
        q, k, *tables = tensors
        rest = [placed(x, S0 if place == S2 else R) for x in tables]
        found = rotary(placed(q, place), placed(k, place), *rest)
        for one, other in zip(found, expected):
            assert one.placements == (place,)
            torch.testing.assert_close(one.full_tensor(), other)


def nested(rank: int) -> None:
    x, y = T(4, 3), T(6, 5)
    given = {"x": placed(x, S0), "y": [placed(y, S1)]}
    found = of_dict(given, k=3.0)
    assert found["b"][1] is given["x"]
    assert (found["a"].placements, found["b"][0].placements) == ((S0,), (S0,))
    torch.testing.assert_close(found["a"].full_tensor(), 3 * x)
    torch.testing.assert_close(found["b"][0].full_tensor(), y.t())
    mean, shape = mean_and_shape(placed(x, S0))
    assert shape == (4, 3)
    assert abs(mean - x.mean().item()) < 1e-6


def of_the_whole(rank: int) -> None:
    """What a function asks of sizes is asked of the whole tensor's."""
    x = T(8, 2)
    torch.testing.assert_close(by_size(placed(x, S0)).full_tensor(), x * 2)
    found = squeezed(placed(T(2, 3), S0))
    assert (found.shape, found.to_local().shape) == ((2, 3), (1, 3))
    found = halved(placed(x, S0))
    torch.testing.assert_close(found.full_tensor(), x / 2)


def gradients_of_gradients(rank: int) -> None:
    def both(x: torch.Tensor, w: torch.Tensor, fn: Any) -> list[torch.Tensor]:
        first = torch.autograd.grad(fn(x, w).sum(), (x, w), create_graph=True)
        second = torch.autograd.grad(first[0].sum() + first[1].square().sum(), (x, w))
        return [*first, *second]

    x, w = T(4, 3), T(3)
    expected = both(x.requires_grad_(), w.requires_grad_(), cubed.fn)
    found = both(placed(x, S0).requires_grad_(), placed(w, R).requires_grad_(), cubed)
    for one, other in zip(found, expected):
        torch.testing.assert_close(one.full_tensor(), other)


def writes(rank: int) -> None:
    tensors, grads = [T(5, 3), T(4)], [T(5, 3), T(4)]
    for places in ([S0, R], [R, R]):
        for of_grads in (places, [S0, S0]):
            own = [placed(x, place) for x, place in zip(tensors, places)]
            given = [placed(x, place) for x, place in zip(grads, of_grads)]
            descend(own, given, 0.1)
            for one, x, grad, place in zip(own, tensors, grads, places):
                assert one.placements == (place,)
                torch.testing.assert_close(one.full_tensor(), x - 0.1 * grad)


def partial_sums(rank: int) -> None:
    mesh = init_device_mesh("cpu", (2,))
    x = DTensor.from_local(torch.full((4, 3), 1.0 + rank), mesh, [Partial()])
    found = cubed(x, placed(torch.ones(3), R))
    torch.testing.assert_close(found.full_tensor(), torch.full((4, 3), 27.0))


def two_dimensions(rank: int) -> None:
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("data", "model"))
    x, w = T(4, 3), T(3, 6)
    given = distribute_tensor(x, mesh, [S0, R]), distribute_tensor(w, mesh, [R, S1])
    found = dense(*given, distribute_tensor(torch.zeros(6), mesh, [R, S0]))
    assert found.placements == (S0, S1)
    torch.testing.assert_close(found.full_tensor(), torch.relu(x @ w))


def captured(rank: int) -> None:
    weight = placed(torch.arange(18.0).reshape(6, 3), S0)

    def project(x):
        return x @ weight.t()

    x = T(4, 3)
    found = bt.jit(project)(placed(x, R))
    assert found.placements == (S1,)
    torch.testing.assert_close(found.full_tensor(), x @ weight.full_tensor().t())
    net = nn.Sequential(nn.Linear(3, 8), nn.GELU(), nn.Linear(8, 3))
    expected = net(x)
    expected.sum().backward()
    grads = [p.grad for p in net.parameters()]
    distribute_module(net, init_device_mesh("cpu", (2,)))
    found = bt.jit(net)(placed(x, S0))
    found.sum().backward()
    assert found.placements == (S0,)
    torch.testing.assert_close(found.full_tensor(), expected)
    for parameter, grad in zip(net.parameters(), grads):
        torch.testing.assert_close(parameter.grad.full_tensor(), grad)


def autocast(rank: int) -> None:
    tensors = T(4, 3), T(3, 6), T(6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = dense(*(placed(x, place) for x, place in zip(tensors, (S0, R, R))))
        of_op = torch.ops.distributed_tests.norm(placed(tensors[0], S0), placed(torch.ones(3), R))
        expected = dense.fn(*tensors)
    assert found.dtype == expected.dtype
    assert found.placements == of_op.placements == (S0,)
    torch.testing.assert_close(found.full_tensor(), expected, rtol=2e-2, atol=2e-2)


def operators(rank: int) -> None:
    for op in (norm, torch.ops.distributed_tests.norm):
        plain = norm.fn

        def call(x: torch.Tensor, w: torch.Tensor, op: Any = op, plain: Any = plain) -> Any:
            return (op if isinstance(x, DTensor) else plain)(x, w)

        check(call, [T(5, 6), T(6)], [S0, R], S0)


def operators_in_inference_mode(rank: int) -> None:
    x, w = T(4, 6), T(6)
    with torch.inference_mode():
        found = torch.ops.distributed_tests.norm(placed(x, S0), placed(w, R))
        assert found.placements == (S0,)
        torch.testing.assert_close(found.full_tensor(), norm.fn(x, w))
        for one, other in zip(torch.ops.distributed_tests.gated(placed(x, S0)), gated.fn(x)):
            assert one.placements == (S0,)
            torch.testing.assert_close(one.full_tensor(), other)
        for dim, place in ((0, R), (1, S0)):
            found = torch.ops.distributed_tests.softmax(placed(x, S0), dim)
            assert found.placements == (place,)
            torch.testing.assert_close(found.full_tensor(), x.softmax(dim))
        # It computes something else for 2 rows than for 4.
        found = torch.ops.distributed_tests.halved(placed(x, S0))
        torch.testing.assert_close(found.full_tensor(), x / 2)


def operators_in_graphs(rank: int) -> None:
    graphs = []

    def keep(graph: Any, inputs: Any) -> Any:
        graphs.append(graph.code)
        return graph

    def model(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        if not isinstance(x, DTensor):
            return norm.fn(x, w) * 2
        return torch.ops.distributed_tests.norm(x, w) * 2

    compiled = torch.compile(model, fullgraph=True, backend=aot_autograd(fw_compiler=keep))

    def call(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (compiled if isinstance(x, DTensor) else model)(x, w)

    check(call, [T(4, 6), T(6)], [S0, R], S0)
    assert "distributed_tests.norm.default" in graphs[0]
    assert "distributed_tests.norm_backward.default" in graphs[1]


CHECKS = {
    check.__name__: check
    for check in (
        rows,
        products,
        several_results,
        nested,
        of_the_whole,
        gradients_of_gradients,
        writes,
        partial_sums,
        two_dimensions,
        captured,
        autocast,
        operators,
        operators_in_inference_mode,
        operators_in_graphs,
    )
}
