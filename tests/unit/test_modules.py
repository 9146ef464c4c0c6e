"""Modules: what a compiled one sees of its tensors, its submodules, its hooks and its mode."""

from __future__ import annotations

import copy
import functools
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import babytriton as bt
from babytriton.ops.torch_graphs import TorchGradient


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def check(module: nn.Module, *args: Any, fallbacks: tuple[str, ...] = ()) -> bt.JitFunction:
    """The compiled module gives what the module gives; these calls run through torch."""
    compiled = bt.jit("cpu")(module)
    for _ in range(2):
        ours, theirs = compiled(*args), module(*args)
        if isinstance(theirs, tuple) and isinstance(theirs[-1], list):
            assert ours[-1] == theirs[-1]
            ours, theirs = ours[0], theirs[0]
        torch.testing.assert_close(ours, theirs)
    found = compiled.lower(*args).fallbacks
    assert tuple(fallback.name for fallback in found) == fallbacks
    return compiled


def count(compiled: bt.JitFunction) -> int:
    return len(compiled.specializations())


class MLP(nn.Module):
    def __init__(self, wide: int = 8):
        super().__init__()
        self.up = nn.Linear(5, wide)
        self.act = nn.GELU(approximate="tanh")
        self.down = nn.Linear(wide, 5, bias=False)

    def forward(self, x):
        return self.down(self.act(self.up(x)))


class Block(nn.Module):
    def __init__(self, size: int = 8, heads: int = 2):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(size)
        self.qkv = nn.Linear(size, 3 * size)
        self.out = nn.Linear(size, size)
        self.drop = nn.Dropout(0.5)
        self.register_buffer("mask", torch.ones(6, 6, dtype=torch.bool).tril())

    def split(self, x):
        batch, length, size = x.shape
        return x.view(batch, length, self.heads, size // self.heads).transpose(1, 2)

    def forward(self, x):
        batch, length, size = x.shape
        q, k, v = (self.qkv(self.norm(x))).chunk(3, dim=-1)
        q, k, v = self.split(q), self.split(k), self.split(v)
        scores = q @ k.transpose(-1, -2) / (size // self.heads) ** 0.5
        scores = scores.masked_fill(~self.mask[:length, :length], float("-inf"))
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, size)
        return x + self.drop(self.out(mixed))


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.bn = nn.BatchNorm2d(4)
        self.bn.running_mean.normal_()
        self.bn.running_var.uniform_(0.5, 2)

    def forward(self, x):
        return F.relu(self.bn(self.conv(x)))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 4)
        self.head = nn.Linear(4, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, i):
        return self.head(self.embed(i)) + self.embed.weight.sum()


class Cell(nn.Module):
    def __init__(self, inputs: int = 3, size: int = 5):
        super().__init__()
        self.gates = nn.Linear(inputs + size, 2 * size)
        self.new = nn.Linear(inputs + size, size)

    def forward(self, x, h):
        r, z = self.gates(torch.cat((x, h), -1)).sigmoid().chunk(2, -1)
        n = self.new(torch.cat((x, r * h), -1)).tanh()
        return (1 - z) * n + z * h, {"reset": r}


class Odd(nn.Module):
    """Attributes of all kinds."""

    scale = 3.0

    def __init__(self):
        super().__init__()
        self.layers = [MLP(4), MLP(6)]
        self.named = {"a": nn.Linear(5, 5), "gain": 2.0}
        self.inner = MLP(3)
        self.act = functools.partial(F.leaky_relu, negative_slope=0.2)
        self.moved = functools.partial(torch.add, torch.arange(5.0))
        self.fn = torch.tanh

    @property
    def doubled(self):
        return self.inner.up.bias.sum() * 2

    @classmethod
    def shift(cls, x):
        return x + cls.scale

    @staticmethod
    def squared(x):
        return x * x

    def other(self, x, *, by=1):
        return self.layers[1](x) * by

    def forward(self, x, *rest, flag=True):
        x = self.layers[0](x) + self.other(x, by=2) if flag else x
        x = self.named["a"](x) * self.named["gain"] + self.doubled
        return self.fn(self.moved(self.act(self.shift(self.squared(x))))) + sum(rest)


# ------------------------------------------------------------ inlining


def test_mlp() -> None:
    compiled = check(MLP(), torch.randn(7, 5))
    kernels = compiled.lower(torch.randn(7, 5)).schedule().kernels
    assert len(kernels) <= 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_attention_block(dtype: torch.dtype) -> None:
    check(Block().to(dtype).eval(), torch.randn(2, 5, 8, dtype=dtype))


def test_tied_weights_share_an_input() -> None:
    compiled = check(Tied(), torch.tensor([[1, 4, 10]]))
    assert len(compiled.lower(torch.tensor([[1, 4, 10]])).lowering.inputs) == 2


def test_cell_with_a_structured_result() -> None:
    check(Cell(), torch.randn(2, 3), torch.randn(2, 5))


def test_attributes_of_all_kinds() -> None:
    module = Odd()
    compiled = check(module, torch.randn(3, 5))
    x = torch.randn(3, 5)
    torch.testing.assert_close(compiled(x, 1, 2.5, flag=False), module(x, 1, 2.5, flag=False))
    module.named["gain"] = 5.0
    module.layers[0] = MLP(2)
    torch.testing.assert_close(compiled(x), module(x))
    module.scale = 7.0
    module.act = torch.relu
    torch.testing.assert_close(compiled(x), module(x))


def test_forward_is_compiled_without_the_hooks() -> None:
    module = MLP()
    module.register_forward_hook(lambda module, args, out: out * 0)
    x = torch.randn(2, 5)
    torch.testing.assert_close(bt.jit("cpu")(module.forward)(x), module.forward(x))
    torch.testing.assert_close(bt.jit("cpu")(module)(x), x * 0)


def test_a_compiled_module_is_a_callable_of_its_own() -> None:
    module = MLP()
    compiled = bt.jit("cpu")(module)
    assert compiled.fn is module
    assert compiled.__name__ == "MLP"
    assert repr(compiled) == "<jit MLP for cpu>"
    x = torch.randn(2, 5)
    for other in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):
        other.fn.up.weight.zero_()
        torch.testing.assert_close(other(x), other.fn(x))
    torch.testing.assert_close(compiled(x), module(x))
    with pytest.raises(TypeError, match="`MLP` cannot be called so"):
        compiled(x, x)


def test_inside_another_function() -> None:
    module = MLP()
    jitted = bt.jit("cpu")(module)
    compiled = bt.jit("cpu")(lambda x: jitted(x) + module.forward(x))
    x = torch.randn(2, 5)
    torch.testing.assert_close(compiled(x), module(x) * 2)


def test_an_error_points_at_the_users_line() -> None:
    class Wrong(nn.Module):
        def forward(self, x):
            return x @ x

    with pytest.raises(bt.CompileError, match="return x @ x") as caught:
        bt.jit("cpu")(Wrong())(torch.randn(2, 3))
    assert "called from" not in str(caught.value)


def test_torch_compiled_modules_are_seen_through() -> None:
    module = MLP()
    x = torch.randn(2, 5)
    torch.testing.assert_close(bt.jit("cpu")(torch.compile(module))(x), module(x))


# ------------------------------------------------------------ tensors are read at each call


def test_an_optimizer_step_is_seen() -> None:
    module, x = MLP(), torch.randn(4, 5)
    compiled = check(module, x)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    with torch.enable_grad():
        module(x).square().sum().backward()
    before = compiled(x)
    optimizer.step()
    torch.testing.assert_close(compiled(x), module(x))
    assert not torch.allclose(compiled(x), before)
    assert count(compiled) == 1


def test_loaded_and_replaced_tensors_are_seen() -> None:
    module, x = MLP(), torch.randn(4, 5)
    compiled = check(module, x)
    module.load_state_dict(MLP().state_dict())
    torch.testing.assert_close(compiled(x), module(x))
    module.load_state_dict(MLP().state_dict(), assign=True)
    torch.testing.assert_close(compiled(x), module(x))
    module.up.weight = nn.Parameter(torch.randn(8, 5))
    torch.testing.assert_close(compiled(x), module(x))
    assert count(compiled) == 1
    module.up = nn.Linear(5, 8, bias=False)
    torch.testing.assert_close(compiled(x), module(x))
    module.down = nn.Linear(8, 3)
    torch.testing.assert_close(compiled(x), module(x))
    assert count(compiled) == 3


def test_another_dtype_compiles_again() -> None:
    module, x = MLP(), torch.randn(4, 5)
    compiled = check(module, x)
    module.double()
    torch.testing.assert_close(compiled(x.double()), module(x.double()))
    module.half()
    torch.testing.assert_close(compiled(x.half()), module(x.half()), rtol=2e-3, atol=2e-3)


def test_a_buffer_that_becomes_a_plain_tensor() -> None:
    module, x = Block().eval(), torch.randn(1, 4, 8)
    compiled = check(module, x)
    del module.mask
    module.mask = torch.ones(6, 6, dtype=torch.bool)
    torch.testing.assert_close(compiled(x), module(x))


def test_gradients_of_parameters() -> None:
    module, x = MLP(), torch.randn(4, 5)
    compiled = check(module, x)
    with torch.enable_grad():
        ours = torch.autograd.grad(compiled(x).sum(), list(module.parameters()))
        torchs = torch.autograd.grad(module(x).sum(), list(module.parameters()))
        torch.testing.assert_close(ours, torchs)
        module.requires_grad_(False)
        assert not compiled(x).requires_grad
        module.down.weight.requires_grad_()
        compiled(x).sum().backward()
        assert module.up.weight.grad is None
        assert module.down.weight.grad is not None
    torch.testing.assert_close(compiled(x), module(x))


def test_tensors_that_kernels_cannot_hold() -> None:
    class Rotary(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("freqs", torch.ones(3, dtype=torch.complex64))

        def forward(self, x):
            return x * self.freqs.real

    with pytest.raises(bt.CompileError, match="BT010"):
        bt.jit("cpu")(Rotary())(torch.randn(3))


# ------------------------------------------------------------ modes


def test_train_and_eval() -> None:
    module, x = nn.Sequential(), torch.randn(3, 5)

    class Mode(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop = nn.Dropout(0.5)

        def forward(self, x):
            return self.drop(x) * (2 if self.training else 3)

    module = Mode()
    compiled = bt.jit("cpu")(module)
    assert set((compiled(x) / x).flatten().round().int().tolist()) == {0, 4}
    module.eval()
    torch.testing.assert_close(compiled(x), x * 3)
    module.drop.train()
    assert (compiled(x) == 0).any()
    module.train()
    assert set((compiled(x) / x).flatten().round().int().tolist()) == {0, 4}
    assert count(compiled) == 3


# ------------------------------------------------------------ hooks


class Recorder(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 5)

    def forward(self, x, scale=1.0):
        return self.linear(x) * scale


def halve(module, args):
    return args[0] / 2


def pair(module, args):
    return (*args, 3.0)


def named(module, args, kwargs):
    return args, {**kwargs, "scale": 4.0}


def negate(module, args, output):
    return -output


def add_input(module, args, kwargs, output):
    return output + args[0] * kwargs.get("scale", 1.0)


def look(module, args, output):
    print(type(module).__name__, output.shape)


HOOKS: list[Callable[[nn.Module], Any]] = [
    lambda m: m.register_forward_pre_hook(halve),
    lambda m: m.register_forward_pre_hook(pair),
    lambda m: m.register_forward_pre_hook(named, with_kwargs=True),
    lambda m: m.register_forward_hook(negate),
    lambda m: m.register_forward_hook(add_input, with_kwargs=True),
    lambda m: (m.register_forward_hook(negate), m.register_forward_hook(look, prepend=True)),
    lambda m: m.linear.register_forward_hook(negate, always_call=True),
    lambda m: m.linear.register_forward_pre_hook(halve),
    lambda m: m.register_forward_hook(nn.ReLU().forward and (lambda m, a, o: o.relu())),
    lambda m: nn.modules.module.register_module_forward_hook(lambda m, a, o: o * 3),
    lambda m: nn.modules.module.register_module_forward_pre_hook(halve),
    lambda m: nn.modules.module.register_module_forward_hook(add_input, with_kwargs=True),
]


@pytest.mark.parametrize("hook", HOOKS)
def test_hooks(hook: Callable[[nn.Module], Any], capsys: pytest.CaptureFixture[str]) -> None:
    module, x = Recorder(), torch.randn(3, 5)
    plain = module(x)
    compiled = bt.jit("cpu")(module)
    torch.testing.assert_close(compiled(x), plain)
    handles = hook(module)
    handles = handles if isinstance(handles, tuple) else (handles,)
    try:
        expected = module(x)
        shown = capsys.readouterr().out
        torch.testing.assert_close(compiled(x), expected)
        assert capsys.readouterr().out == shown
        torch.testing.assert_close(bt.jit("cpu")(module)(x), expected)
        assert not torch.allclose(expected, plain)
    finally:
        for handle in handles:
            handle.remove()
    torch.testing.assert_close(compiled(x), plain)


def test_a_hook_that_keeps_tensors_is_refused() -> None:
    module, kept = Recorder(), {}
    module.linear.register_forward_hook(lambda m, args, out: kept.update(out=out))
    with pytest.raises(bt.CompileError, match="BT017"):
        bt.jit("cpu")(module)(torch.randn(3, 5))
    assert not kept


def on_gradients(module: nn.Module) -> Any:
    return module.register_full_backward_hook(lambda m, ins, outs: (ins[0] * 2,))


def before_gradients(module: nn.Module) -> Any:
    return module.register_full_backward_pre_hook(lambda m, outs: (outs[0] * 2,))


@pytest.mark.parametrize("hook", [on_gradients, before_gradients])
@pytest.mark.parametrize("inner", [False, True])
@torch.enable_grad()
def test_a_hook_on_gradients_is_refused_where_there_are_any(hook: Any, inner: bool) -> None:
    module = Recorder()
    compiled = bt.jit("cpu")(module)
    x = torch.randn(3, 5, requires_grad=True)
    expected = torch.autograd.grad(module(x).sum(), x)
    torch.testing.assert_close(torch.autograd.grad(compiled(x).sum(), x), expected)
    handle = hook(module.linear if inner else module)
    with pytest.raises(bt.CompileError, match=r"(?s)BT015.*backward hook"):
        compiled(x)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), module(x))
    handle.remove()
    torch.testing.assert_close(torch.autograd.grad(compiled(x).sum(), x), expected)


@torch.enable_grad()
def test_a_hook_on_the_gradients_of_all_modules_is_refused() -> None:
    module, x = Recorder(), torch.randn(3, 5, requires_grad=True)
    handle = nn.modules.module.register_module_full_backward_hook(lambda m, ins, outs: None)
    try:
        with pytest.raises(bt.CompileError, match=r"(?s)BT015.*backward hook"):
            bt.jit("cpu")(module)(x)
    finally:
        handle.remove()
    torch.testing.assert_close(bt.jit("cpu")(module)(x), module(x))


def test_a_replaced_forward_is_seen() -> None:
    module, x = Recorder(), torch.randn(3, 5)
    compiled = bt.jit("cpu")(module)
    torch.testing.assert_close(compiled(x), module(x))
    module.linear.forward = lambda x: x * 2
    torch.testing.assert_close(compiled(x), x * 2)
    del module.linear.forward
    torch.testing.assert_close(compiled(x), module(x))


def test_a_call_of_ones_own() -> None:
    class Own(MLP):
        def __call__(self, x):
            return self.forward(x) + 1

    check(Own(), torch.randn(2, 5))


def test_torchscript_is_refused() -> None:
    module = torch.jit.trace(nn.Linear(5, 4), torch.randn(2, 5))
    with pytest.raises(bt.CompileError, match="TorchScript"):
        bt.jit("cpu")(lambda x: module(x))(torch.randn(2, 5))


def test_old_weight_norm_is_refused() -> None:
    module = nn.utils.weight_norm(nn.Linear(5, 4))
    with pytest.raises(bt.CompileError, match="BT062"):
        bt.jit("cpu")(module)(torch.randn(2, 5))


class Doubling(nn.Module):
    def forward(self, w):
        return w * 2


def test_parametrizations_are_honoured() -> None:
    module, x = Recorder(), torch.randn(3, 5)
    compiled = check(module, x)
    parametrize.register_parametrization(module.linear, "weight", Doubling())
    torch.testing.assert_close(compiled(x), module(x))
    module.linear.parametrizations.weight.original.normal_()
    torch.testing.assert_close(compiled(x), module(x))
    parametrizations.weight_norm(module.linear, "bias", dim=None)
    torch.testing.assert_close(compiled(x), module(x))
    parametrize.remove_parametrizations(module.linear, "weight")
    torch.testing.assert_close(compiled(x), module(x))


# ------------------------------------------------------------ torch's own


def test_conv_with_batch_norm() -> None:
    module, x = ConvNet().eval(), torch.randn(2, 3, 5, 7)
    torch.testing.assert_close(bt.jit("cpu")(module)(x), module(x))


class Scaling(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(2) * 2)

    @bt.jit
    def forward(self, x):
        return x * self.w


class Overriding(Scaling):
    @bt.jit
    def forward(self, x):
        return x * self.w * 50

    def both(self, x):
        return super().forward(x), self.forward(x)


class Extending(Scaling):
    @bt.jit
    def forward(self, x):
        return super().forward(x) + 1


def test_methods_that_override_compiled_ones() -> None:
    one = torch.ones(2)
    module = Overriding()
    for _ in range(2):
        assert [y.tolist() for y in module.both(one)] == [[2, 2], [100, 100]]
        module = Overriding()
        assert module(one).tolist() == [100, 100]
        module = copy.deepcopy(module)
    module = pickle.loads(pickle.dumps(module))
    assert [y.tolist() for y in module.both(one)] == [[2, 2], [100, 100]]
    assert Extending()(one).tolist() == [3, 3]


class Shifted:
    def __init__(self, by: float) -> None:
        self.by = by

    @bt.jit
    def shift(self, x, twice=False):
        return x + self.by * (2 if twice else 1)


def test_methods_called_on_their_class() -> None:
    one = torch.ones(2)
    for by in (1.0, 2.0, 3.0):
        shifted = Shifted(by)
        for _ in range(2):
            assert Shifted.shift(shifted, one).tolist() == [1 + by] * 2
            assert Shifted.shift(shifted, one, twice=True).tolist() == [1 + 2 * by] * 2
    with pytest.raises(TypeError, match=r"(?s)BT10.*`self`"):
        Shifted.shift(object(), one)


def extended(base: type, number: int) -> type:
    class Own(base):
        @bt.jit
        def forward(self, x):
            return super().forward(x) + number

        def __doubled(self, x):
            return x * 2

        doubled = bt.jit(__doubled)

    return Own


def test_classes_of_one_name_keep_their_methods() -> None:
    one = torch.ones(2)
    module = extended(extended(Scaling, 1), 10)()
    assert module.forward(one).tolist() == [13, 13]
    first = module.forward
    assert super(type(module), module).forward(one).tolist() == [3, 3]
    assert module.forward is first
    assert module.doubled(one).tolist() == [2, 2]


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([MLP(4), MLP(6)])
        self.named = nn.ModuleDict({"a": nn.Linear(5, 5), "b": nn.Tanh()})

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        for name, layer in self.named.items():
            x = layer(x) if name != "c" else x
        return x + len(self.layers)


def test_containers_are_inlined() -> None:
    check(Stack(), torch.randn(3, 5))
    check(nn.Sequential(MLP(4), nn.ReLU(), nn.Sequential(MLP(3))), torch.randn(3, 5))


def test_containers_that_change() -> None:
    module, x = Stack(), torch.randn(3, 5)
    compiled = check(module, x)
    module.layers.append(MLP(2))
    torch.testing.assert_close(compiled(x), module(x))
    module.layers[0] = MLP(3)
    torch.testing.assert_close(compiled(x), module(x))
    module.named["c"] = nn.ReLU()
    torch.testing.assert_close(compiled(x), module(x))
    sequence = nn.Sequential(nn.Linear(5, 5), nn.ReLU())
    compiled = check(sequence, x)
    sequence[1] = nn.Tanh()
    torch.testing.assert_close(compiled(x), sequence(x))


def test_what_a_module_holds_is_listed() -> None:
    class Penalty(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(5, 5), nn.BatchNorm1d(5)])
            self.scales = nn.ParameterList([torch.ones(5), torch.full((5,), 2.0)])

        def forward(self, x):
            for layer in self.children():
                x = x + len(layer)
            for scale in self.scales:
                x = x * scale
            named = [name for name, _ in self.named_parameters()]
            linears = sum(isinstance(m, nn.Linear) for m in self.modules())
            squares = sum(p.pow(2).sum() for p in self.parameters())
            means = sum(b.sum() for b in self.layers.buffers())
            return x + squares + means + linears, named

    module, x = Penalty(), torch.randn(3, 5)
    compiled = check(module, x)
    module.layers[0].weight.mul_(3)
    torch.testing.assert_close(compiled(x)[0], module(x)[0])
    module.layers.append(nn.Linear(2, 2))
    module.scales.append(torch.full((5,), 0.5))
    torch.testing.assert_close(compiled(x)[0], module(x)[0])
    assert compiled(x)[1] == module(x)[1]


def test_torchs_own_are_inlined() -> None:
    check(ConvNet().eval(), torch.randn(2, 3, 5, 7))
    check(nn.GRUCell(3, 5), torch.randn(2, 3), torch.randn(2, 5))


LIBRARY: list[tuple[Callable[[], nn.Module], tuple[torch.Tensor, ...]]] = [
    (lambda: nn.Sequential(nn.Linear(5, 4), nn.ReLU(), MLPLike()), (torch.randn(3, 5),)),
    (lambda: nn.RMSNorm(5), (torch.randn(3, 5),)),
    (lambda: nn.GroupNorm(2, 4), (torch.randn(2, 4, 3),)),
    (lambda: nn.GRUCell(3, 5), (torch.randn(2, 3), torch.randn(2, 5))),
    (lambda: nn.LSTM(3, 5, num_layers=2), (torch.randn(7, 2, 3),)),
    (lambda: UsersLSTM(3, 5), (torch.randn(7, 2, 3),)),
    (lambda: nn.MultiheadAttention(8, 2, batch_first=True), (torch.randn(2, 5, 8),) * 3),
    (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (torch.randn(2, 5, 8),)),
    (lambda: nn.EmbeddingBag(7, 3), (torch.tensor([[1, 2], [6, 0]]),)),
    (lambda: nn.ConvTranspose2d(3, 4, 3), (torch.randn(1, 3, 5, 5),)),
    (lambda: nn.PReLU(), (torch.randn(3, 5),)),
    (lambda: nn.Bilinear(3, 4, 5), (torch.randn(2, 3), torch.randn(2, 4))),
]


class UsersLSTM(nn.LSTM):
    """Its forward is torch's."""


class MLPLike(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x):
        return self.linear(x).sin()


def first(found: Any) -> torch.Tensor:
    """A result, or the first of several."""
    return found[0] if isinstance(found, tuple) else found


@pytest.mark.parametrize(("make", "args"), LIBRARY)
def test_modules_of_torch(make: Callable[[], nn.Module], args: tuple[torch.Tensor, ...]) -> None:
    module = make().eval()
    compiled = bt.jit("cpu")(module)
    torch.testing.assert_close(compiled(*args), module(*args))
    for parameter in module.parameters():
        parameter.mul_(1.5)
    torch.testing.assert_close(compiled(*args), module(*args))
    with torch.enable_grad():
        parameters = list(module.parameters())
        ours, torchs = (
            torch.autograd.grad((first(fn(*args)) ** 2).sum(), parameters)
            for fn in (compiled, module)
        )
        torch.testing.assert_close(ours, torchs, rtol=1e-4, atol=1e-4)
    module.double()
    doubled = [x.double() if x.is_floating_point() else x for x in args]
    torch.testing.assert_close(compiled(*doubled), module(*doubled))


def test_batch_norm_in_training_moves_its_buffers() -> None:
    module, x = ConvNet(), torch.randn(2, 3, 5, 7)
    other = copy.deepcopy(module)
    compiled = bt.jit("cpu")(module)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), other(x))
    for ours, theirs in zip(module.buffers(), other.buffers()):
        torch.testing.assert_close(ours, theirs)


@torch.enable_grad()
def test_a_layer_is_compiled_where_it_stands() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 4))
    x = torch.randn(3, 4)
    expected = model(x)
    names = list(model.state_dict())
    for layer in model:
        layer.forward = bt.jit("cpu")(layer.forward)
    found = model(x)
    torch.testing.assert_close(found, expected)
    assert list(model.state_dict()) == names
    grads = [torch.autograd.grad(y.sum(), list(model.parameters())) for y in (found, expected)]
    for one, other in zip(*grads):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_modules_are_compiled_once(cell: Callable[..., nn.Module]) -> None:
    module, x = cell(3, 5), torch.randn(7, 2, 3)
    compiled = bt.jit("cpu")(module)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), module(x))
    assert len(compiled.specializations()) == 1
    module.weight_hh_l0.mul_(2)
    torch.testing.assert_close(compiled(x), module(x))
    module.weight_ih_l0 = nn.Parameter(torch.randn(module.weight_ih_l0.shape))
    torch.testing.assert_close(compiled(x), module(x))


def test_a_module_can_be_called_while_another_thread_compiles_it() -> None:
    module, x = nn.LSTM(3, 4), torch.randn(5, 2, 3)
    expected, done, failures = module(x)[0], threading.Event(), []

    def calls() -> None:
        while not done.is_set():
            try:
                torch.testing.assert_close(module(x)[0], expected)
            except Exception as failure:
                failures.append(failure)
                return

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=calls)
    thread.start()
    try:
        for steps in range(1, 6):
            bt.jit("cpu", dynamic=False)(module)(torch.randn(steps, 2, 3))
    finally:
        sys.setswitchinterval(before)
        done.set()
        thread.join()
    assert not failures, failures


def trained(module: Callable[..., Any], parameters: list[nn.Parameter], x: torch.Tensor) -> Any:
    """What a module gives, and the gradients of its parameters."""
    torch.manual_seed(1)
    with torch.enable_grad():
        result = module(x)[0]
        return result, torch.autograd.grad(result.square().sum(), parameters)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_recurrent_modules_are_trained(dropout: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way back takes what torch has recorded, at each call, and runs nothing again."""
    module, x = nn.LSTM(3, 3, num_layers=2, dropout=dropout), torch.randn(7, 2, 3)
    parameters, compiled = list(module.parameters()), bt.jit("cpu")(module)
    monkeypatch.setattr(TorchGradient, "_run", None)
    for _ in range(4):
        expected = trained(module, parameters, x)
        torch.testing.assert_close(trained(compiled, parameters, x), expected)


def test_recurrent_modules_with_one_weight_in_two_places() -> None:
    module, x = nn.LSTM(3, 3, num_layers=2), torch.randn(7, 2, 3)
    module.weight_ih_l1 = module.weight_ih_l0
    parameters, compiled = list(module.parameters()), bt.jit("cpu")(module)
    for _ in range(3):
        expected = trained(module, parameters, x)
        torch.testing.assert_close(trained(compiled, parameters, x), expected)
