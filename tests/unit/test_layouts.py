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


def in_one_piece(x):
    y = x + 1
    return y * 2 if y.is_contiguous() else y * 3


@pytest.mark.parametrize("fn", [zeroed, cloned, turned, turned_argument, strides, in_one_piece])
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


def laid_anew(x):
    y = x.clone(memory_format=torch.contiguous_format)
    z = y.flatten()
    z[1:] += 1
    return y, z


def like_it_but_contiguous(x):
    y = torch.zeros_like(x, memory_format=torch.contiguous_format)
    y.view(-1)[:3] = x[0, 0]
    y.reshape(-1)[3:] -= x.sum()
    return y


EVERY = [reshaped_first, of_nothing, reshaped_later, split, flat_alone, contiguous_alone]
EVERY += [read_before, product, stacked, summed, in_place, laid_anew, like_it_but_contiguous]


@pytest.mark.parametrize("fn", EVERY)
def test_what_depends_on_no_layout_takes_all(fn) -> None:
    jitted, x = bt.jit("cpu")(fn), torch.arange(6.0).reshape(2, 3)
    for given in (x, torch.arange(6.0).reshape(3, 2).t(), x):
        for _ in range(3):
            torch.testing.assert_close(jitted(given), fn(given), rtol=0, atol=0)


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


# ---------------------------------------------------------------- what the run decides on


def chosen(x, c):
    y = x * 2 if c > 0 else x.clone()
    z = (y * 2).reshape(-1)
    y = y * 1
    w = y.reshape(-1)
    w += 1
    return y, z


def in_a_list(x, c):
    found = [x * 1]
    if c > 0:
        found[0] = x * 2
    found[0].flatten().mul_(0)
    return found[0]


def repeated(x, c):
    y = x * 1
    for _ in range(40):
        y = y + c
    y.contiguous().add_(1)
    return y


def until(x, c):
    y = x * 1
    while y.sum() < 100:
        y = y + c.abs()
    y.reshape(-1)[0] = 0
    return y


def from_zeros(x, c):
    y = torch.zeros(2, 3)
    for _ in range(40):
        y = y + x
    y.reshape(-1).add_(c)
    return y


def exchanged(x, c):
    y, z = x * 1, x.T * 2
    for _ in range(40):
        y, z = z.T, y.T
    y.reshape(-1).add_(c)
    return y


def left_early(x, c):
    for i in range(40):
        y = x * i
        if y.sum() > 30:
            break
    y.reshape(-1).add_(c)
    return y


def copies(x, c):
    flat = x.T.reshape(-1)
    y = flat if c > 0 else flat * 2
    x += 1
    return y


def both(x, c):
    if c > 0:
        y = x.T * 2
        z = y.reshape(-1)
    else:
        y = x.T * 3
        z = y.reshape(-1)
    z += 1
    return y, z


def carried_copies(x, c):
    y = x.T * 1
    z = y.reshape(-1)
    for _ in range(40):
        y = y * 1.5
        z = y.reshape(-1)
    z += c
    return y, z


def steps_of_turned(x, c):
    y = x.T * 1
    for _ in range(40):
        y = y + c
    y.reshape(-1).add_(1)
    return y


def strides_of_both(x, c):
    y = x * 2 if c > 0 else x * 3
    return y * y.stride(0)


FOLLOWING = [chosen, in_a_list, repeated, until, from_zeros, exchanged, left_early, copies]
FOLLOWING += [both, carried_copies, steps_of_turned, strides_of_both]


@pytest.mark.parametrize("fn", FOLLOWING)
@pytest.mark.parametrize("dynamic", [None, True])
def test_what_the_run_decides_on_lies_as_the_arguments_do(fn, dynamic: bool | None) -> None:
    jitted, x = bt.jit("cpu", dynamic=dynamic)(fn), torch.arange(6.0).reshape(2, 3)
    for c in torch.tensor([1.0, -1.0]):
        torch.testing.assert_close(jitted(x.clone(), c), fn(x.clone(), c))
        with pytest.raises(ValueError, match=r"BT111.*`x`"):
            jitted(torch.arange(6.0).reshape(3, 2).t(), c)


def path_of_zeros(x, c):
    y = torch.ones(2, 3)
    y = y * 2 if c > 0 else y * 3
    y.reshape(-1).add_(1)
    return y + x


def steps_of_sums(x, c):
    y = torch.zeros(2, 3)
    for _ in range(40):
        y = y + x.sum() * c
    y.reshape(-1).add_(1)
    return y


def flat_of_either(x, c):
    y = x.T * 2 if c > 0 else x.T.contiguous() * 3
    z = y.reshape(-1)
    z += 1
    return z


@pytest.mark.parametrize("fn", [path_of_zeros, steps_of_sums, flat_of_either])
def test_what_the_run_decides_on_and_no_layout_takes_all(fn) -> None:
    jitted = bt.jit("cpu")(fn)
    for x in (torch.arange(6.0).reshape(2, 3), torch.arange(6.0).reshape(3, 2).t()):
        for c in torch.tensor([1.0, -1.0]):
            torch.testing.assert_close(jitted(x, c), fn(x, c))


def turned_or_not(x, c):
    y = x.T * 2 if c > 0 else x.T.contiguous() * 3
    z = y.reshape(-1)
    z += 1
    return y


def made_of_either(x, c):
    y = x.T * 2 if c > 0 else x.T.contiguous() * 3
    z = y * 2
    z.reshape(-1).add_(1)
    return z


def turned_each_step(x, c):
    y = x @ x.T
    for _ in range(40):
        y = y.T + c
    y.reshape(-1)[0] = 0
    return y


def part_or_not(x, c):
    y = (x * 2)[:, 1:] if c > 0 else x[:, :2] * 3
    y.reshape(-1).add_(1)
    return y


@pytest.mark.parametrize("fn", [turned_or_not, made_of_either, turned_each_step, part_or_not])
def test_layouts_that_the_run_decides_on_are_refused(fn) -> None:
    with pytest.raises(bt.CompileError, match="depends on which path the run takes"):
        bt.jit("cpu")(fn)(torch.arange(6.0).reshape(2, 3), torch.tensor(1.0))


def test_strides_that_the_run_decides_on_are_refused() -> None:
    def f(x, c):
        y = x.T * 2 if c > 0 else x.T.contiguous() * 3
        return y * y.stride(0)

    with pytest.raises(bt.CompileError, match="BT040"):
        bt.jit("cpu")(f)(torch.arange(6.0).reshape(2, 3), torch.tensor(1.0))
