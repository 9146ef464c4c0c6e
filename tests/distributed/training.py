"""Training on several processes, compared with training in one: DDP, FSDP2, tensor parallelism."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import babytriton as bt

STEPS, ROWS, WIDTH = 4, 8, 16


@bt.jit
def gated(x, bias):
    a, b = (x + bias).chunk(2, -1)
    return F.silu(a) * b


@bt.library_op("distributed_tests::rms_norm")
def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


class Block(nn.Module):
    """Calls a compiled function and an operator, on parameters of its own."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.norm = nn.Parameter(torch.ones(width))
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.bias = nn.Parameter(torch.zeros(4 * width))
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        y = rms_norm(x, self.norm)
        return x + self.down(gated(self.up(y), self.bias))


class CompiledBlock(nn.Module):
    """Its whole ``forward`` is compiled, as a method."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.norm = nn.Parameter(torch.ones(width))
        self.up = nn.Linear(width, width)
        self.scale = nn.Parameter(torch.ones(1))

    @bt.jit
    def forward(self, x):
        y = F.rms_norm(x, x.shape[-1:], self.norm, 1e-6)
        return x + torch.tanh(self.up(y)) * self.scale


class Held(nn.Module):
    """Holds a compiled module beside the module itself, whose parameters are so its own."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
        self.compiled = bt.jit(self.inner)

    def forward(self, x):
        return x + self.compiled(x)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), CompiledBlock(), Held()])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def batches(dtype: torch.dtype) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        tuple(
            torch.randn(ROWS, WIDTH, generator=generator, dtype=torch.float64).to(dtype)
            for _ in "xy"
        )
        for _ in range(STEPS)
    ]


def model(dtype: torch.dtype) -> Model:
    torch.manual_seed(2)
    return Model().to(dtype)


def train(
    module: nn.Module,
    own: Callable[[torch.Tensor], torch.Tensor],
    dtype: torch.dtype,
    mean: Callable[[torch.Tensor], torch.Tensor] = lambda loss: loss,
) -> list[float]:
    """Losses of some steps of SGD on some rows of each batch."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for x, y in batches(dtype):
        loss = (module(own(x)) - own(y)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(mean(loss.detach())))
    return losses


def alone(dtype: torch.dtype) -> tuple[list[float], dict[str, torch.Tensor]]:
    """The same in one process, without any compiled function."""
    module = without_compiling(model(dtype))
    losses = train(module, lambda x: x, dtype)
    return losses, dict(module.named_parameters())


def mean_of_all(loss: torch.Tensor) -> torch.Tensor:
    loss = loss.clone()
    torch.distributed.all_reduce(loss)
    return loss / torch.distributed.get_world_size()


def rows_of(rank: int) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: x.chunk(2)[rank]


def compare(module: nn.Module, losses: list[float], dtype: torch.dtype) -> None:
    expected, parameters = alone(dtype)
    tolerance = {"rtol": 1e-12, "atol": 1e-12} if dtype == torch.float64 else {}
    torch.testing.assert_close(losses, expected, **tolerance)
    for name, parameter in module.named_parameters():
        found = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        torch.testing.assert_close(found, parameters[name.removeprefix("module.")], **tolerance)


def programs(module: nn.Module) -> int:
    """How many programs the compiled functions in a model have made."""
    found = [item for block in module.modules() for item in vars(block).items()]
    of_blocks = [own for name, own in found if name.startswith("_babytriton_")]
    of_blocks += [vars(block).get("compiled") for block in module.modules()]
    own = [gated, rms_norm.function, *(x for x in of_blocks if x is not None)]
    return sum(len(function.specializations()) for function in own)


def ddp(rank: int) -> None:
    module = DistributedDataParallel(model(torch.float32))
    losses = train(module, rows_of(rank), torch.float32, mean_of_all)
    compare(module, losses, torch.float32)


def fsdp(rank: int) -> None:
    mesh = init_device_mesh("cpu", (2,))
    module = model(torch.float64)
    for block in module.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(module, mesh=mesh)
    losses = train(module, rows_of(rank), torch.float64, mean_of_all)
    compare(module, losses, torch.float64)


def fsdp_compiles_once(rank: int) -> None:
    """Parameters are whole and divided in turns: that makes no further programs."""
    mesh = init_device_mesh("cpu", (2,))
    module = model(torch.float32)
    for block in module.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=True)
    fully_shard(module, mesh=mesh)
    counts = []
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for x, _ in batches(torch.float32):
        module(rows_of(rank)(x)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        counts.append(programs(module))
    assert counts == counts[:1] * STEPS, counts
    with torch.no_grad():
        module(rows_of(rank)(batches(torch.float32)[0][0]))
    of_forward = programs(module)
    with torch.no_grad():
        module(rows_of(rank)(batches(torch.float32)[1][0]))
    assert programs(module) == of_forward


def fsdp_in_bfloat16(rank: int) -> None:
    mesh = init_device_mesh("cpu", (2,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    kinds = []
    for compiled in (True, False):
        module = model(torch.float32)
        if not compiled:
            module = without_compiling(module)
        for block in module.blocks:
            fully_shard(block, mesh=mesh, mp_policy=policy)
        fully_shard(module, mesh=mesh, mp_policy=policy)
        module.register_forward_hook(lambda m, given, out: kinds.append(out.dtype))
        losses = train(module, rows_of(rank), torch.float32, mean_of_all)
        parameters = {name: x.full_tensor() for name, x in module.named_parameters()}
        if compiled:
            found = losses, parameters
    assert set(kinds) == {torch.bfloat16}
    torch.testing.assert_close(found[0], losses, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(found[1], parameters, rtol=2e-2, atol=2e-2)


def without_compiling(module: Model) -> Model:
    """The same model of plain torch."""
    first, second, third = module.blocks
    first.forward = lambda x: (
        x + first.down(gated.fn(first.up(rms_norm.fn(x, first.norm)), first.bias))
    )
    second.forward = CompiledBlock.forward.fn.__get__(second)
    third.compiled = third.inner
    return module


def tensor_parallel(rank: int) -> None:
    """Compiled functions between divided layers, on DTensors."""
    mesh = init_device_mesh("cpu", (2,))
    whole, divided = Block().double(), None
    with torch.no_grad():
        whole.bias.normal_()
    divided = copy.deepcopy(whole)
    plan = {
        "up": ColwiseParallel(input_layouts=Replicate(), use_local_output=False),
        "down": RowwiseParallel(output_layouts=Replicate(), use_local_output=False),
    }
    parallelize_module(divided, mesh, plan)
    for name in ("norm", "bias"):
        placed = distribute_tensor(getattr(divided, name).detach(), mesh, [Replicate()])
        setattr(divided, name, nn.Parameter(placed))
    x = torch.randn(ROWS, WIDTH, dtype=torch.float64)
    for placement in (Replicate(), Shard(0)):
        divided.zero_grad()
        whole.zero_grad()
        expected = whole(x)
        expected.square().mean().backward()
        found = divided(distribute_tensor(x, mesh, [placement]))
        found.square().mean().backward()
        torch.testing.assert_close(found.full_tensor(), expected)
        for (_, a), (_, b) in zip(divided.named_parameters(), whole.named_parameters()):
            torch.testing.assert_close(a.grad.full_tensor(), b.grad)


CHECKS = {
    check.__name__: check
    for check in (ddp, fsdp, fsdp_compiles_once, fsdp_in_bfloat16, tensor_parallel)
}
