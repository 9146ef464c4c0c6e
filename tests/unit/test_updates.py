"""Writes to arguments: what the kernels write where it lies, and that nothing else shows it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

import babytriton as bt
from babytriton.passes.steps import steps_of
from tests.conformance import gpu
from tests.emulator import emulator

on_gpu = pytest.mark.skipif(emulator.available_gpu() is None, reason=emulator.missing() or "no GPU")


# ------------------------------------------------------------ all of an argument


def added(x, y):
    x.add_(y).mul_(2)


def adam(p, g, m, v):
    m.mul_(0.9).add_(g, alpha=0.1)
    v.mul_(0.999).addcmul_(g, g, value=0.001)
    p.addcdiv_(m, v.sqrt().add_(1e-8), value=-1e-3)


def overwritten(x, y):
    x.copy_(y * 2)


def column_sums(x, y):
    x[0].copy_(y.sum(0))
    x.add_(1)


def sums(x, y):
    x.copy_(y.sum(-1, keepdim=True).expand(x.shape))


def transposed(x, y):
    x.t().copy_(y.t() + x.t())


def read_later(x, y):
    x.sub_(y)
    return x.sum(0), x * y


def normalized(x, y):
    x.copy_(x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * y)


WHOLE = (added, overwritten, transposed, sums)
"""What is written where it lies."""


# ------------------------------------------------------------ what must not be


def old_read_later(x, y):
    old = x * 2
    x.add_(y)
    return old + x


def swapped(x, y):
    old = x.clone()
    x.copy_(y + 0)
    y.copy_(old)


def result_of_its_own(x, y):
    new = x + y
    x.copy_(new)
    return new


def one_result_for_two(x, y):
    new = x - y
    x.copy_(new)
    y.copy_(new)


def shifted(x, y):
    x[1:] = x[:-1] + y[1:]


def flipped(x, y):
    x.add_(x.flip(0)).sub_(y)


def turned(x, y):
    x[:3, :3] = x[:3, :3].t() + y[:3, :3]


def cumulated(x, y):
    x.copy_(x.cumsum(0) + y)


def old_returned(x, y):
    old = x.clone()
    x.mul_(y)
    return old


def view_returned(x, y):
    x.add_(y)
    return x.reshape(-1), x[0]


APART = (old_read_later, swapped, result_of_its_own, one_result_for_two, shifted, flipped, turned)
OTHERS = (read_later, cumulated, old_returned, view_returned, column_sums, normalized)


# ------------------------------------------------------------ parts


def row(x, y):
    x[2] = y[0]


def column(x, y):
    x[:, 3] = y[:, 0] * 2


def steps(x, y):
    x[1::2, ::3] = y[1::2, ::3] + 1


def box(x, y):
    x[1:3, 2:5] = y[1:3, 2:5]


def box_of_transpose(x, y):
    x.t()[2:5, 1:3] = y.t()[2:5, 1:3]


def updated_box(x, y):
    x[1:3] += y[1:3]


def updated_in_steps(x, y):
    x[:, ::2] *= y[:, ::2]


def updated_again_and_again(x, y):
    row = x.view(-1)[6:12]
    row.mul_(y[1]).add_(1)
    row += y[2]


def updated_by_itself(x, y):
    x[1:, 2] = (x[1:, 2] * y[1:, 2]).abs() + x[1:, 2] * 2


def updated_by_another_row(x, y):
    x[0] += x[1] * y[0]


def updated_by_what_is_written(x, y):
    x[1:] = x[1:] + x[:-1] + y[1:]


def updated_and_read(x, y):
    x[0] *= y[0]
    x[2] -= y[2]
    return x[0] + x.sum(0)


def turned_part(x, y):
    x[:3, :3] = x[:3, :3].t() * 2 + x[:3, :3] + y[:3, :3]


def result_read_by_a_part(x, y):
    v = x + y
    x[:, 0] = 0
    v[:] *= v - 1
    return v


def results_before_parts(x, y):
    v, w = x + y, x * 2
    x[1] = x[1] * w[1]
    v *= v - 1
    x[0] += w[0]
    return v, w


def several(x, y):
    x[0] = y[1]
    x[2] = y[0]
    x[1:, 0] = y[1:, 5]
    return x.sum()


def part_and_all(x, y):
    x[0] = y[1]
    x.mul_(2)
    x[1] = y[2]


def read_before(x, y):
    old = x[0] + 1
    x[0] = y[0]
    return old + x[1]


def read_between(x, y):
    x[0] = y[0]
    middle = x.sum(0)
    x[1] = middle
    return middle


def diagonal_and_row(x, y):
    x.diagonal().sub_(y.unsqueeze(1).sum())
    x[torch.arange(2)[1], ...] += 1


def diagonal(x, y):
    x[:4, :4].diagonal().copy_(y[:4, 0])


PARTS = (
    *(row, column, steps, box, box_of_transpose),
    *(updated_box, updated_in_steps, updated_again_and_again, updated_by_itself),
)
"""One kernel, which writes the part alone."""
PARTS_TOO = (
    updated_by_another_row,
    updated_by_what_is_written,
    updated_and_read,
    turned_part,
    result_read_by_a_part,
    results_before_parts,
    several,
    part_and_all,
    read_before,
    read_between,
    diagonal,
    diagonal_and_row,
)

FUNCTIONS = (*WHOLE, *APART, *OTHERS, *PARTS, *PARTS_TOO)


def tensors(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    drawn = torch.randn(2, 5, 6, dtype=torch.float64) * 3
    return drawn[0].to(dtype), drawn[1].to(dtype)


def same(
    run: Callable[..., Any], fn: Callable[..., Any], args: Sequence[Any], tolerance: float = 1e-5
) -> None:
    """What is given and written is what torch gives and writes."""
    ours, theirs = [[x.clone() for x in args] for _ in range(2)]
    found, expected = run(*ours), fn(*theirs)
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


def updated(compiled: bt.Compiled) -> int:
    """How many arguments kernels write to where they lie."""
    plan = steps_of(compiled.scheduled.mod, compiled.executable.entry)
    assert plan is not None
    return len(plan.updated)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64])
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_values(fn: Any, dtype: torch.dtype) -> None:
    if dtype == torch.int64 and fn is normalized:
        with pytest.raises(Exception, match=r"BT101|BT102|float"):
            bt.jit("cpu")(fn)(*tensors(dtype))
        return
    jitted = bt.jit("cpu")(fn)
    for _ in range(5):  # some of them by a shortcut
        same(jitted, fn, tensors(dtype), 2e-3 if dtype == torch.float16 else 1e-5)


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_symbolic_sizes(fn: Any) -> None:
    jitted = bt.jit("cpu", dynamic=True)(fn)
    for size in (5, 9, 17, 5):
        drawn = torch.randn(2, size, 6)
        same(jitted, fn, (drawn[0], drawn[1]))


@on_gpu
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_values_on_a_gpu(fn: Any) -> None:
    args = tensors()
    compiled = bt.jit(gpu.TARGET)(fn).lower(*args).compile()
    same(lambda *args: gpu.call(compiled, args), fn, args)


@pytest.mark.parametrize("layout", ["transposed", "columns", "offset"])
@pytest.mark.parametrize("fn", [added, read_later, row, steps, swapped])
def test_arguments_of_any_layout(fn: Any, layout: str) -> None:
    def laid(x: torch.Tensor) -> torch.Tensor:
        if layout == "transposed":
            return x.t().contiguous().t()
        if layout == "columns":
            return torch.cat([x, x], 1)[:, :6]
        return torch.cat([x.new_zeros(1), x.reshape(-1)])[1:].view(x.shape)

    jitted = bt.jit("cpu")(fn)
    for _ in range(4):
        x, y = tensors()
        ours, theirs = [laid(x), laid(y)], [laid(x), laid(y)]
        torch.testing.assert_close(jitted(*ours), fn(*theirs))
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("target", ["cpu", gpu.TARGET])
@pytest.mark.parametrize("fn", [*WHOLE, *PARTS])
def test_where_it_lies(fn: Any, target: Any) -> None:
    compiled = bt.jit(target)(fn).lower(*tensors()).compile()
    assert updated(compiled) == 1
    if fn in PARTS:
        assert len(compiled.kernels) == 1


@pytest.mark.parametrize("target", ["cpu", gpu.TARGET])
def test_an_optimizer_is_one_kernel_without_results(target: Any) -> None:
    args = [torch.rand(1000) for _ in range(4)]
    compiled = bt.jit(target)(adam).lower(*args).compile()
    assert updated(compiled) == 3
    assert len(compiled.kernels) == 1
    assert "in_place" in compiled.source("tir")
    if target == "cpu":
        same(compiled, adam, args)


def adamw(p, g, m, v, step, lr):
    m.lerp_(g, 0.1)
    v.mul_(0.999).addcmul_(g, g, value=0.001)
    first, second = 1 - 0.9**step, 1 - 0.999**step
    p.mul_(1 - lr * 0.01)
    p.sub_(lr / first * m / ((v / second).sqrt() + 1e-8))


@on_gpu
def test_numbers_that_an_optimizer_computes_are_part_of_its_kernel() -> None:
    args = [torch.rand(1003) for _ in range(4)] + [torch.tensor(3.0), torch.tensor(1e-3)]
    compiled = bt.jit(gpu.TARGET)(adamw).lower(*args).compile()
    assert len(compiled.launches) == 1
    same(lambda *args: gpu.call(compiled, args), adamw, args)
    jitted = bt.jit("cpu")(adamw)
    same(jitted, adamw, args)
    assert len(jitted.lower(*args).compile().kernels) == 1


def test_a_part_alone_is_written() -> None:
    cache, new = torch.randn(2, 4, 16, 8), torch.randn(2, 4, 8)

    def f(cache, new):
        cache[:, :, 7] = new.relu()

    def g(cache, new):
        cache[:, :, 7] = new.view(4, 2, 8).transpose(0, 1)

    for fn in (f, g):
        given = new if fn is f else new.view(8, 8)
        compiled = bt.jit("cpu")(fn).lower(cache, given).compile()
        assert len(compiled.kernels) == 1
        assert updated(compiled) == 1
        assert "if_then_else" not in compiled.source("tir")
        same(compiled, fn, (cache, given))


@on_gpu
def test_the_header_says_what_is_written() -> None:
    def f(x, y):
        x[1] = y

    compiled = bt.jit(gpu.TARGET)(f).lower(torch.ones(3, 4), torch.ones(4)).compile()
    assert "// y: float32[4], x: float32[3, 4] in place" in compiled.source("cuda")


# ------------------------------------------------------------ places from tensors

INDEX = torch.tensor([3, 0, -1])


def at_one(x, i, new):
    x[:, i] = new


def at_each(x, i, new):
    x[i] = new


def at_pairs(x, i, j, new):
    x[i, :, j] = new


def at_two(x, i, j, new):
    x[:, i, j] = new


def at_rows_of(x, i, new):
    x[1:, i] = new


def in_one_of(x, i, new):
    x[2, :, i] = new


def increased(x, i, new):
    x[i] += new


def copied(x, i, new):
    x.index_copy_(1, i, new)


def counted(x, i, new):
    x.index_add_(0, i, new, alpha=2)


def filled(x, i):
    x.index_fill_(1, i, 7)


def scattered(x, i, new):
    x.scatter_(0, i, new)


def put(x, i, j, new):
    x.index_put_((i, j), new, accumulate=True)


def at_number_and_places(x, p, i, new):
    x[p, :, i] = new


def at_places_and_number(x, p, i, new):
    x[i, :, p] += new


def at_numbers(x, p, q, new):
    x[p, :, q] = new


def at_merged(x, i, new):
    x.view(-1, x.shape[-1])[i] = new


def copied_to_flat(x, i, new):
    x.flatten(0, 1).index_copy_(0, i, new)


def copied_to_part(x, i, new):
    x[1].index_copy_(1, i, new)


def copied_to_steps(x, i, new):
    x[::2, 1:].index_copy_(1, i, new)


def at_transposed(x, i, new):
    x.permute(2, 0, 1)[i] = new


def at_divided(x, i, new):
    x.view(4, 5, 2, 3)[:, 1:4, :, i] = new


def at_flat(x, i, new):
    x.view(-1)[i] = new


def added_to_part(x, i, new):
    x[2].index_add_(0, i, new)


def at_merged_and_read(x, i, new):
    flat = x.view(-1, x.shape[-1])
    flat[i] = new
    x[0] *= 2
    return flat[:6], flat.sum()


def at_both_halves(x, i, new):
    one, other = x.view(2, 2, 5, 6).unbind(0)
    one.flatten(0, 1)[i] = new
    other.flatten(0, 1)[i] = new * 2
    return one + other


CUBE = torch.randn(4, 5, 6)
PLACES: tuple[tuple[Any, tuple[torch.Tensor, ...]], ...] = (
    (at_one, (torch.randn(3, 6), INDEX, torch.randn(3, 3))),
    (at_one, (CUBE, torch.tensor(2), torch.randn(4, 6))),
    (at_one, (CUBE, torch.tensor(-1), torch.randn(6))),
    (at_one, (CUBE, torch.tensor([[1], [0]]), torch.randn(2, 1, 6))),
    (at_each, (CUBE, INDEX, torch.randn(1, 5, 6))),
    (at_each, (CUBE, torch.tensor([1, 2]), torch.tensor(3.0))),
    (at_each, (CUBE[:, 0, 0].clone(), INDEX, torch.randn(3))),
    (at_pairs, (CUBE, INDEX, torch.tensor([5, 1, 2]), torch.randn(3, 5))),
    (at_pairs, (CUBE, INDEX[:, None], torch.tensor([5, 1]), torch.randn(3, 2, 5))),
    (at_two, (CUBE, INDEX, torch.tensor([5, 1, 2]), torch.randn(4, 3))),
    (at_two, (CUBE, INDEX, torch.tensor([5, 1, 2]), torch.randn(3))),
    (at_number_and_places, (CUBE, torch.tensor(1), INDEX, torch.randn(5, 3))),
    (at_number_and_places, (CUBE, torch.tensor(1), INDEX[:, None], torch.randn(3, 1))),
    (at_places_and_number, (CUBE, torch.tensor(-1), torch.tensor([0, 3]), torch.randn(2, 5))),
    (at_numbers, (CUBE, torch.tensor(1), torch.tensor(-2), torch.randn(5))),
    (at_rows_of, (CUBE, INDEX, torch.randn(3, 3, 6))),
    (in_one_of, (CUBE, INDEX, torch.randn(5, 3))),
    (increased, (CUBE, torch.tensor([1, 2]), torch.randn(5, 6))),
    (copied, (CUBE, torch.tensor([1, 4]), torch.randn(4, 2, 6))),
    (counted, (CUBE, torch.tensor([1, 1, 3]), torch.randn(3, 5, 6))),
    (filled, (CUBE, torch.tensor([0, 3]))),
    (scattered, (CUBE, torch.randint(4, (2, 3, 6)), torch.randn(4, 5, 6))),
    (put, (CUBE, torch.tensor([1, 1, 0]), torch.tensor([2, 2, 4]), torch.randn(6))),
    (at_merged, (CUBE, torch.tensor([7, 19, -1, 7]), torch.randn(4, 6))),
    (at_merged, (CUBE, torch.tensor(11), torch.randn(6))),
    (copied_to_flat, (CUBE, torch.tensor([7, 19]), torch.randn(2, 6))),
    (copied_to_part, (CUBE, torch.tensor([5, 0]), torch.randn(5, 2))),
    (copied_to_steps, (CUBE, torch.tensor([3, 0]), torch.randn(2, 2, 6))),
    (at_transposed, (CUBE, torch.tensor([5, 0, 0]), torch.randn(3, 4, 5))),
    (at_divided, (CUBE, torch.tensor([2, 0]), torch.randn(4, 3, 2, 2))),
    (at_flat, (CUBE, torch.tensor([119, 3, -7, 3]), torch.randn(4))),
    (added_to_part, (CUBE, torch.tensor([4, 1, 1]), torch.randn(3, 6))),
    (at_merged_and_read, (CUBE, torch.tensor([7, 3]), torch.randn(2, 6))),
    (at_both_halves, (CUBE, torch.tensor([9, 3]), torch.randn(2, 6))),
)


NOT_ONE = (
    *(increased, counted, at_number_and_places, at_places_and_number),
    *(at_merged_and_read, at_both_halves),
)


@pytest.mark.parametrize(("fn", "args"), PLACES)
def test_places_from_tensors(fn: Any, args: tuple[torch.Tensor, ...]) -> None:
    jitted = bt.jit("cpu")(fn)
    for _ in range(4):
        same(jitted, fn, args)


@on_gpu
@pytest.mark.parametrize(("fn", "args"), PLACES)
def test_places_from_tensors_on_a_gpu(fn: Any, args: tuple[torch.Tensor, ...]) -> None:
    compiled = bt.jit(gpu.TARGET)(fn).lower(*args).compile()
    same(lambda *args: gpu.call(compiled, args), fn, args)


def at_places_that_broadcast(cache, k, i, j):
    cache[i, j] = k


def test_places_that_broadcast_in_symbolic_sizes() -> None:
    """How many writes these are is a product of sizes, that each call is to tell."""
    jitted = bt.jit("cpu", dynamic=True)(at_places_that_broadcast)
    lowered = []
    for count in (6, 9):
        args = torch.randn(3, 64, 8), torch.randn(3, count, 8)
        places = torch.arange(3)[:, None], torch.randperm(64)[:count].repeat(3, 1)
        same(jitted, at_places_that_broadcast, (*args, *places))
        lowered.append(jitted.lower(*args, *places).as_text())
    assert lowered[0] == lowered[1]


@pytest.mark.parametrize(("fn", "args"), [x for x in PLACES if x[0] not in NOT_ONE])
def test_writes_at_places_are_one_kernel(fn: Any, args: tuple[torch.Tensor, ...]) -> None:
    compiled = bt.jit("cpu")(fn).lower(*args).compile()
    assert len(compiled.kernels) == 1
    assert updated(compiled) == 1


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        x
        for x in PLACES
        if x[0] in (at_one, at_each, at_pairs, at_two, put, at_number_and_places, at_numbers)
        or x[0] in (at_merged, copied_to_part, at_transposed, at_divided, added_to_part)
    ],
)
def test_gradients_of_writes_at_places(fn: Any, args: tuple[torch.Tensor, ...]) -> None:
    def local(x, *rest):
        y = x * 2
        fn(y, *rest)
        return y * y

    def gradients(run: Callable[..., Any]) -> list[torch.Tensor | None]:
        x, *places, new = [x.clone().requires_grad_(x.is_floating_point()) for x in args]
        run(x, *places, new).sum().backward()
        return [x.grad, new.grad]

    torch.testing.assert_close(gradients(bt.jit("cpu")(local)), gradients(local))


@pytest.mark.parametrize("shape", [(2, 4), (3, 5), (1, 2, 5)])
def test_values_that_do_not_fit_are_refused(shape: tuple[int, ...]) -> None:
    def outside(x, i, new):
        return x.index_put((i,), new)

    def inside(x, i, new):
        x.index_put_((i,), new, accumulate=True)

    for fn in (outside, inside):
        args = torch.zeros(4, 5), torch.tensor([0, 1]), torch.ones(shape)
        with pytest.raises(bt.CompileError, match=r"BT003.*\n(.*\n)*.*shapes do not fit"):
            bt.jit("cpu")(fn)(*args)


def test_a_mask_behind_another_dimension() -> None:
    def f(x):
        return torch.ops.aten.index_put(x, [None, x[0] > 0], torch.tensor(99.0))

    same(bt.jit("cpu")(f), f, (torch.randn(4, 5),))


def test_places_beyond_the_tensor_write_nothing() -> None:
    x = torch.zeros(4, 3)
    bt.jit("cpu")(at_one)(x, torch.tensor([5, 1]), torch.ones(4, 2))
    assert torch.equal(x, torch.tensor([0.0, 1, 0]).expand(4, 3))


# ------------------------------------------------------------ what torch is to know


def test_versions() -> None:
    jitted = bt.jit("cpu")(read_later)
    for calls in range(1, 6):
        x, y = tensors()
        before = x._version, y._version
        jitted(x, y)
        assert (x._version, y._version) == (before[0] + 1, before[1]), calls


def test_what_was_saved_is_known_to_be_written_to() -> None:
    jitted = bt.jit("cpu")(added)
    for _ in range(4):
        w, (x, y) = torch.ones(5, 6, requires_grad=True), tensors()
        product = (w * x).sum()
        jitted(x, y)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.backward()


def fails(x, y):
    x.add_(1)
    found = torch.linalg.cholesky(y)
    x.mul_(2)
    return found


def test_what_fails_leaves_arguments_that_torch_knows_of() -> None:
    x, y = torch.ones(4), -torch.eye(3)
    w = torch.ones(4, requires_grad=True)
    loss = (w * x).sum()
    with pytest.raises(RuntimeError, match="cholesky"):
        bt.jit("cpu")(fails)(x, y)
    assert torch.equal(x, torch.ones(4))
    (gradient,) = torch.autograd.grad(loss, w)
    assert torch.equal(gradient, x)
    same(bt.jit("cpu")(fails), fails, (x, torch.eye(3)))


def test_results_share_no_memory_with_arguments() -> None:
    for fn in (result_of_its_own, old_returned, one_result_for_two):
        jitted = bt.jit("cpu")(fn)
        for _ in range(4):
            x, y = tensors()
            found = jitted(x, y)
            addresses = {t.untyped_storage().data_ptr() for t in (x, y)}
            assert len(addresses) == 2
            assert found is None or found.untyped_storage().data_ptr() not in addresses


def test_large_tensors() -> None:
    x, y = torch.randn(2, 5 << 20)
    ours, theirs = x.clone(), x.clone()
    jitted = bt.jit("cpu")(added)
    for _ in range(3):
        jitted(ours, y)
        added(theirs, y)
    torch.testing.assert_close(ours, theirs)


def branched(x, y):
    if x.sum() > 0:
        x.add_(y)
    else:
        x[0] = y[0]
    x[:, 1] = 5
    return x.sum(0)


def looped(x, y):
    for i in range(3):
        x[i] = y[i] + x[i + 1]
    return x * 2


@pytest.mark.parametrize("fn", [branched, looped])
def test_branches_and_loops(fn: Any) -> None:
    x, y = tensors()
    for args in ((x.abs(), y), (-x.abs(), y)):
        same(bt.jit("cpu")(fn), fn, args)


def test_torch_calls_read_what_was_written() -> None:
    def f(cache, new, q):
        cache[:, :, 3] = new
        return torch.nn.functional.scaled_dot_product_attention(q, cache, cache)

    def g(x, y):
        x.add_(y)
        return torch.linalg.inv(x + 9 * torch.eye(5))

    cache = torch.randn(1, 2, 8, 4)
    same(bt.jit("cpu")(f), f, (cache, torch.randn(1, 2, 4), torch.randn(1, 2, 3, 4)))
    same(bt.jit("cpu")(g), g, (torch.randn(5, 5), torch.randn(5, 5)))


def flipped_by_a_view(x):
    y = torch.einsum("ij->ij", x)
    x.copy_(y.flip(0))


def flipped_through_a_view(x):
    y = torch.einsum("ij->ij", x)
    y.copy_(y.flip(0))
    return x.logical_not()


def turned_views(x):
    y = torch.einsum("ij->ji", x)
    z = y.flip(1)
    x.logical_not_()
    y[0] = z[-1]
    return z, y.clone()


def diagonals(x):
    y = torch.einsum("ii->i", x[:, : x.shape[0]])
    x[0] = y.flip(0)
    y.logical_not_()
    return y.clone()


@pytest.mark.parametrize("fn", [flipped_by_a_view, flipped_through_a_view, turned_views, diagonals])
def test_sums_of_nothing_are_views_of_arguments(fn: Any) -> None:
    """Torch has no products of bools: it runs the call, and gives a view."""
    compiled, x = bt.jit("cpu")(fn), torch.rand(300, 300) > 0.5
    for _ in range(2):
        ours, theirs = x.clone(), x.clone()
        torch.testing.assert_close(compiled(ours), fn(theirs))
        assert torch.equal(ours, theirs)


def test_buffers_of_modules() -> None:
    class Running(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(6))
            self.register_buffer("count", torch.tensor(0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.mean.lerp_(x.mean(0), 0.1)
            self.count += 1
            return x - self.mean

    ours, theirs = Running(), Running()
    jitted = bt.jit("cpu")(ours)
    for _ in range(5):
        x, _ = tensors()
        torch.testing.assert_close(jitted(x), theirs(x))
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())


def test_inference_tensors() -> None:
    jitted = bt.jit("cpu")(added)
    with torch.inference_mode():
        x, y = tensors()
        for _ in range(4):
            same(jitted, added, (x, y))
        kept = x.clone()
    before = kept.tolist()
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
        jitted(kept, y.clone())
    assert kept.tolist() == before


def test_transforms_of_written_arguments() -> None:
    def running(w, s, x):
        s.mul_(0.5).add_(x)
        return (w * s).sum()

    jitted = bt.jit("cpu")(running)
    w, s, x = torch.randn(3, 4, 5)
    for transformed in (torch.func.grad, torch.func.vmap):
        ours, theirs = s.clone(), s.clone()
        found = transformed(jitted)(w, ours, x)
        torch.testing.assert_close(found, transformed(running)(w, theirs, x))
        torch.testing.assert_close(ours, theirs)


def test_transforms() -> None:
    jitted = bt.jit("cpu")(added)

    def f(x):
        y = x.detach().clone()
        jitted(y, torch.ones(6))
        return (y * x).sum()

    def g(x):
        y = x.detach().clone()
        added(y, torch.ones(6))
        return (y * x).sum()

    x, _ = tensors()
    torch.testing.assert_close(torch.func.grad(f)(x[0]), torch.func.grad(g)(x[0]))
    torch.testing.assert_close(torch.func.vmap(f)(x), torch.func.vmap(g)(x))


def test_sizes_of_nothing_and_one() -> None:
    jitted = bt.jit("cpu")(added)
    for shape in ((0, 3), (1, 1), ()):
        same(jitted, added, (torch.ones(shape), torch.ones(shape)))


def test_only_one_of_two_arguments_that_share_memory() -> None:
    x, _ = tensors()
    with pytest.raises(ValueError, match="BT113"):
        bt.jit("cpu")(added)(x, x)
