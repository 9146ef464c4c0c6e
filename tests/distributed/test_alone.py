"""What one process shows of many: parts without elements, programs, and the same decisions."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

import babytriton as bt
from tests.distributed.alone import one_of_many, one_process


@bt.jit
def scaled_softmax(x, w):
    return torch.softmax(x, -1) * w, x.argmax(-1)


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_a_process_may_have_no_elements(rank):
    x, w = torch.randn(3, 5), torch.randn(5)
    own = x.chunk(4)[rank] if rank < 3 else x[:0]
    with one_of_many(4, rank) as mesh:
        local = own.clone().requires_grad_()
        given = DTensor.from_local(local, mesh, [Shard(0)], shape=x.shape, stride=x.stride())
        weight = DTensor.from_local(w, mesh, [Replicate()]).requires_grad_()
        found, index = scaled_softmax(given, weight)
        assert found.placements == index.placements == (Shard(0),)
        assert (found.shape, index.shape) == ((3, 5), (3,))
        expected = torch.softmax(own, -1) * w
        torch.testing.assert_close(found.to_local(), expected)
        torch.testing.assert_close(index.to_local(), own.argmax(-1))
        found.to_local().sum().backward()
        of_w = torch.softmax(own, -1).sum(0)
        torch.testing.assert_close(weight.grad.to_local(), of_w)
        assert local.grad.shape == own.shape


def test_calls_alike_share_a_program():
    doubled = bt.jit(lambda x: x * 2)
    with one_process() as mesh:
        x = distribute_tensor(torch.randn(4, 3), mesh, [Shard(0)])
        first = doubled(x)
        plans = {key: list(each) for key, each in doubled.kept["dtensor"].items()}
        second = doubled(x + 1)
        assert doubled.kept["dtensor"] == plans
    torch.testing.assert_close(second.to_local() - first.to_local(), torch.full((4, 3), 2.0))


def test_plain_calls_stay_plain():
    doubled = bt.jit(lambda x: x * 2)
    with one_process() as mesh:
        x = torch.randn(4, 3)
        for _ in range(3):
            assert type(doubled(x)) is torch.Tensor
        given = distribute_tensor(x, mesh, [Replicate()])
        for _ in range(3):
            assert type(doubled(given)) is DTensor
            assert type(doubled(x)) is torch.Tensor


def test_what_is_not_used_is_not_imported():
    program = "import sys, babytriton; assert 'torch.distributed.tensor' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_plain_tensors_are_refused_by_name():
    mask, rate = torch.ones(4, 3), torch.tensor(2.0)
    with one_process() as mesh:
        x = distribute_tensor(torch.randn(4, 3), mesh, [Shard(0)])
        with pytest.raises(TypeError, match="`mask` is a plain tensor"):
            bt.jit(lambda x: x * mask)(x)
        with pytest.raises(TypeError, match=r"`d\['w'\]` is a plain tensor"):
            bt.jit(lambda x, d: x * d["w"])(x, {"w": mask})
        scaled = bt.jit(lambda x, rate: x * rate)
        torch.testing.assert_close(scaled(x, rate).to_local(), x.to_local() * 2)
        with pytest.raises(TypeError, match="`rate` is a plain tensor"):
            scaled(x, rate.requires_grad_())


def test_modules_of_torch_distributed_are_not_compiled_with_what_they_send():
    with one_process() as mesh:
        net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.GELU())
        wrapped = torch.nn.parallel.DistributedDataParallel(net)
        parallel = parallelize_module(torch.nn.Linear(3, 4), mesh, ColwiseParallel())
        for module in (wrapped, parallel, fully_shard(torch.nn.Linear(3, 4), mesh=mesh)):
            with pytest.raises(bt.CompileError, match="BT166"):
                bt.jit(module)(torch.ones(2, 3))
