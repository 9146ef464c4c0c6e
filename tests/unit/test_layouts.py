"""What depends on how arguments lie in memory: views, copies and strides."""

from __future__ import annotations

import pytest
import torch

import babytriton as bt


def zeroed(x):
    y = x + 1
    z = y.flatten()
    z.mul_(0)
    return y


def cloned(x):
    y = x.clone()
    z = y.contiguous()
    z.mul_(0)
    return y


def pinned(x, i):
    y = x.clone()
    flat = y.reshape(-1)
    flat[i] = 0.0
    return y * 2


def turned(x):
    y = x.t() * 2
    z = y.reshape(-1)
    z += 100
    return y


def turned_argument(x):
    z = x.t().reshape(-1)
    z += 100
    return z


def strides(x):
    return x * x.stride(0)


@pytest.mark.parametrize("fn", [zeroed, cloned, turned, turned_argument, strides])
def test_other_layouts_are_refused(fn) -> None:
    jitted, x = bt.jit("cpu")(fn), torch.arange(6.0).reshape(2, 3)
    for _ in range(5):
        assert torch.equal(jitted(x.clone()), fn(x.clone()))
        with pytest.raises(ValueError, match=r"BT111.*`x`"):
            jitted(x.t())


def test_images_with_channels_last() -> None:
    x, i = torch.randn(2, 3, 4, 5), torch.tensor([1, 7])
    jitted = bt.jit("cpu")(pinned)
    assert torch.equal(jitted(x, i), pinned(x, i))
    with pytest.raises(ValueError, match=r"BT111.*`x`"):
        jitted(x.contiguous(memory_format=torch.channels_last), i)


def reshaped_first(x):
    y = torch.relu(x).flatten(1)
    y += 1
    return y * 2


def of_nothing(x):
    total = torch.zeros(6)
    flat = total.reshape(2, 3)
    flat += x
    return total


def reshaped_later(x):
    y = x * 2
    y += 1
    return y.reshape(-1)


def split(x):
    a, b = (x * 2).reshape(2, 3).unbind(0)
    a += b
    return a


def flat_alone(x):
    x = x * 2
    x = x.reshape(-1)
    x[0] = 5.0
    return x


def contiguous_alone(x):
    x = (x * 2).contiguous().view(-1)
    x[0] = 5.0
    return x


def read_before(x):
    x = x.clone()
    m = x.reshape(x.shape[0], -1).mean(1)
    x[0] = m.sum()
    return x


def product(x):
    y = (x @ x.transpose(-1, -2)).flatten(1)
    y[:, 0] = 1
    return y


def stacked(x):
    h = torch.stack([x, x], 0).reshape(-1)
    h[:2] = 0
    return h


def summed(x):
    y = x.sum(1).flatten()
    y[0] = 1
    return y


def in_place(x):
    y = torch.relu_((x * 2).flatten(1))
    y.masked_fill_(y > 3, 0.5)
    return y


EVERY = [reshaped_first, of_nothing, reshaped_later, split, flat_alone, contiguous_alone]
EVERY += [read_before, product, stacked, summed, in_place]


@pytest.mark.parametrize("fn", EVERY)
def test_what_depends_on_no_layout_takes_all(fn) -> None:
    jitted, x = bt.jit("cpu")(fn), torch.arange(6.0).reshape(2, 3)
    for given in (x, torch.arange(6.0).reshape(3, 2).t(), x):
        for _ in range(3):
            assert torch.equal(jitted(given), fn(given))


def test_arguments_that_what_is_written_to_does_not_follow() -> None:
    def shifted(x, w):
        y = x + 1
        z = y.reshape(-1)
        z[0] = 1
        return y * w.sum()

    def layer(w, x):
        h = torch.nn.functional.linear(x, w).reshape(-1)
        h[0] = 1
        return h

    x, turned = torch.randn(4, 6), torch.randn(6, 4).t()
    jitted = bt.jit("cpu")(shifted)
    torch.testing.assert_close(jitted(x, turned), shifted(x, turned))
    with pytest.raises(ValueError, match=r"BT111.*`x`"):
        jitted(turned, x)
    w = torch.randn(6, 5).t()
    torch.testing.assert_close(bt.jit("cpu")(layer)(w, x), layer(w, x))


@pytest.mark.parametrize("dynamic", [None, True])
def test_memory_of_transposed_copies(dynamic: bool | None) -> None:
    def copied(x):
        return torch.as_strided(torch.permute_copy(x, (1, 0)), (5,), (1,))

    def strided(x):
        return torch.t_copy(x).as_strided((3,), (2,), 1)

    def bits(x):
        return torch.transpose_copy(x, 0, 1).view(torch.int64)

    x = torch.randn(4, 6)
    for fn in (copied, strided, bits):
        assert torch.equal(bt.jit("cpu", dynamic=dynamic)(fn)(x), fn(x))


def test_strided_views_of_views() -> None:
    def part(x):
        return x[:, 1:].as_strided((2, 2), (4, 1)) + 1

    def transposed(x):
        return x.t().as_strided((4,), (1,)) + 1

    def every_other(x):
        return x[:, ::2].as_strided((3, 2), (4, 1), 1)

    def own(x):
        return (x.t() * 2).as_strided((2, 2), (1, 3))

    x = torch.arange(12.0).view(3, 4)
    for fn in (part, transposed, every_other, own):
        assert torch.equal(bt.jit("cpu")(fn)(x), fn(x))


def test_addresses_are_refused() -> None:
    with pytest.raises(bt.CompileError, match="BT040"):
        bt.jit("cpu")(lambda x, y: x + y if x.data_ptr() == y.data_ptr() else x - y)(
            torch.ones(3), torch.ones(3)
        )


def test_with_gradients() -> None:
    x, i = torch.randn(2, 3, 4, 5, requires_grad=True), torch.tensor([1, 7])
    jitted = bt.jit("cpu")(pinned)
    for _ in range(3):
        (found,) = torch.autograd.grad(jitted(x, i).square().sum(), x)
        assert torch.equal(found, torch.autograd.grad(pinned(x, i).square().sum(), x)[0])
        with pytest.raises(ValueError, match=r"BT111.*`x`"):
            jitted(x.contiguous(memory_format=torch.channels_last), i)
