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


@pytest.mark.parametrize("fn", [reshaped_first, of_nothing, reshaped_later, split])
def test_what_depends_on_no_layout_takes_all(fn) -> None:
    jitted, x = bt.jit("cpu")(fn), torch.arange(6.0).reshape(2, 3)
    for given in (x, torch.arange(6.0).reshape(3, 2).t(), x):
        for _ in range(3):
            assert torch.equal(jitted(given), fn(given))


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
