"""Arguments that are parts of other tensors, such as ``x[:, :8]``, are read where they lie."""

from __future__ import annotations

import ctypes
import mmap
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import babytriton as bt
from babytriton.passes.cpu.registers import Registers
from babytriton.runtime import interop
from tests.conformance import gpu
from tests.emulator import emulator
from tests.unit.kernels import CPU
from tests.unit.test_memory_formats import branching, check, numbers, product, softmax, summed
from tests.unit.test_shortcuts import shortly


def linear(x, w):
    return F.linear(x, w)


def heads() -> tuple[torch.Tensor, ...]:
    """Queries, keys and values as one projection gives them: 2 x 3 heads x 9 tokens x 8."""
    return numbers(2, 9, 3, 3, 8).permute(2, 0, 3, 1, 4).unbind(0)


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of arguments that were copied."""
    found = []
    copy = interop.MemoryFormat.copied

    def noted(format: Any, tensor: torch.Tensor) -> torch.Tensor:
        found.append(tuple(tensor.shape))
        return copy(format, tensor)

    monkeypatch.setattr(interop.MemoryFormat, "copied", noted)
    return found


@pytest.mark.parametrize("columns", [1, 2, 31, 32, 33, 256, 1000])
def test_rows_that_are_parts_of_longer_ones(columns: int, copied: list[Any]) -> None:
    x = numbers(7, 1001)[:, 1 : 1 + columns]
    check(lambda x: torch.relu(x) * 2 + 1, x)
    check(softmax, x, within=1e-6)
    check(lambda x: x.sum(0), x)
    check(lambda x: x.sum(), x, within=1e-4)
    check(lambda x: F.layer_norm(x, (x.shape[1],)), x, within=1e-4)
    assert not copied or columns == 1  # one column has gaps between all elements


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int32, torch.bool])
def test_vectors_of_rows_that_are_not_aligned(dtype: torch.dtype) -> None:
    x = (numbers(33, 70) * 3).to(dtype)[:, :64]
    y = (numbers(33, 72, seed=1) * 3).to(dtype)[:, :64]

    def fn(x, y):
        return torch.where(x > y, x, y)

    jitted = bt.jit("cpu")(fn)
    compiled = bt.jit(target=gpu.TARGET)(fn).lower(x, y).compile()
    for found in (jitted(x, y), jitted(x, y), gpu.call(compiled, (x, y))):
        assert torch.equal(found, fn(x, y))


def test_parts_along_several_axes(copied: list[Any]) -> None:
    x = numbers(4, 6, 10, seed=2)[1:, 1:5, 2:9]
    check(summed, x, numbers(3, 4, 7, seed=1))
    check(summed, x, numbers(4, 7, seed=1))
    check(lambda x: x.sum(-1), x, within=1e-4)
    check(lambda x: x.mean(1), x, within=1e-4)
    check(lambda x: x.transpose(0, 2) * 2, x)
    assert not copied


def test_queries_keys_and_values(copied: list[Any]) -> None:
    def scores(q, k):
        return (q @ k.mT * 0.3).softmax(-1)

    q, k, v = heads()
    check(scores, q, k, kernels=2)
    check(product, numbers(2, 3, 5, 9), v)
    check(lambda q, k, v: F.scaled_dot_product_attention(q, k, v), q, k, v, kernels=3)
    jitted = bt.jit("cpu")(lambda q: q * 2)
    assert jitted(q).stride() == (q * 2).stride()
    assert not copied


def test_products_with_parts_of_matrices(copied: list[Any]) -> None:
    x, w = numbers(40, 300), numbers(300, 200, seed=1)
    check(product, x[:33, :70], w[:70, 3:50], within=1e-4)
    check(product, x[:33, :70], w[:50, 3:73].t(), within=1e-4)
    check(product, x[:1, :70], w[:70, 3:50], within=1e-4)
    check(lambda x, w: F.gelu(x @ w), x[:33, :70], w[:70, 3:50], within=1e-4)
    assert not copied


def test_torch_gets_parts_as_they_lie() -> None:
    seen = []

    def noted(x: torch.Tensor) -> torch.Tensor:
        seen.append((x.stride(), x.data_ptr()))
        return x.sort(-1).values

    bt_call = torch.library.custom_op("babytriton_tests::noted_part", noted, mutates_args=())
    bt_call.register_fake(lambda x: torch.empty(x.shape))
    jitted = bt.jit("cpu")(lambda x: bt_call(x) + 1)
    for x in (numbers(4, 6)[:, 2:], numbers(4, 6)[:, 2:].t()):
        for _ in range(3):
            torch.testing.assert_close(jitted(x), x.sort(-1).values + 1)
            assert seen.pop() == (x.stride(), x.data_ptr())


@pytest.mark.parametrize("dynamic", [True, False])
def test_programs_that_need_a_virtual_machine(dynamic: bool) -> None:
    jitted = bt.jit("cpu", dynamic=dynamic)(branching)
    base = numbers(9, 12)
    for x in (base[:4, 7:], base[5:, 7:], base[5:, 7:].t(), base[:3, 2:7], base[:4, :5].clone()):
        for _ in range(3):
            for ours, theirs in zip(jitted(x), branching(x)):
                torch.testing.assert_close(ours, theirs)


def test_large_results(copied: list[Any]) -> None:
    jitted = bt.jit("cpu")(lambda x, y: torch.tanh(x) + y)
    base = numbers(2100, 2052)
    x, y = base[:, 4:], base[:, 1:2049]
    for _ in range(3):
        torch.testing.assert_close(jitted(x, y), torch.tanh(x) + y)
    assert not copied


def test_one_program_takes_tensors_that_lie_otherwise() -> None:
    base = numbers(9, 12)
    for x in (base[:4, :5], base[:5, :4].t()):
        compiled = bt.jit("cpu")(lambda x: x * 2).lower(x).compile()
        others = numbers(5, 4).t(), numbers(4, 9)[:, 2:7], numbers(4, 10)[:, ::2]
        for other in (x, x.clone(), *others):
            assert torch.equal(compiled(other), other * 2)
        expanded = numbers(4, 1).expand(4, 5)
        assert torch.equal(compiled(expanded), expanded * 2)


def test_expanded_parts() -> None:
    check(summed, numbers(3, 5, 8), numbers(5, 10)[:, 1:9].expand(3, 5, 8))
    check(summed, numbers(3, 5, 8), numbers(3, 10)[:, None, :8].expand(3, 5, 8))


def test_calls_that_alternate() -> None:
    jitted = bt.jit("cpu")(summed)
    base = numbers(9, 9)
    parts = (base[1:8, 2:9], base[1:8, :7].t(), numbers(7, 10)[:, :7], numbers(7, 7), base[:7, 2:])
    for _ in range(4):
        for x in parts:
            for y in parts[:2]:
                assert torch.equal(jitted(x, y), x + y)


@pytest.mark.parametrize("dynamic", [True, None])
def test_any_number_of_rows(dynamic: bool | None, copied: list[Any]) -> None:
    # The length of rows is a constant of the function where it is asked for.
    def fn(x):
        return F.layer_norm(x, (8,)) @ x.t()

    jitted = bt.jit("cpu", dynamic=dynamic)(fn)
    for rows in (3, 4, 7, 7):
        whole = numbers(rows, 24, seed=rows)
        for x in (whole[:, :8], whole[:, 16:], whole[:, 5:13]):
            for _ in range(3):
                exact = fn(x.double())
                torch.testing.assert_close(jitted(x).double(), exact, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(shortly(jitted, x).double(), exact, rtol=1e-4, atol=1e-4)
    assert not copied
    count = len(jitted.specializations())
    x = numbers(9, 8)
    for _ in range(3):
        torch.testing.assert_close(jitted(x), fn(x), rtol=1e-4, atol=1e-4)
    assert len(jitted.specializations()) == count + 1


@pytest.mark.parametrize("dynamic", [None, True, False])
def test_parts_of_tensors_that_grow(dynamic: bool | None) -> None:
    # The last token of a sequence, and the first columns of ever longer rows.
    jitted = bt.jit("cpu", dynamic=dynamic)(product)
    other = bt.jit("cpu", dynamic=dynamic)(lambda x: torch.relu(x) * 2)
    w = numbers(16, 32, seed=1)
    for length in range(4, 12):
        x, rows = numbers(3, length, 16)[:, -1], numbers(5, length + 5)[:, :8]
        for _ in range(3):
            torch.testing.assert_close(jitted(x, w), x @ w, rtol=1e-4, atol=1e-4)
            assert torch.equal(other(rows), torch.relu(rows) * 2)
    for each in (jitted, other):
        assert len(each.specializations()) <= 3
    assert torch.equal(other(rows.clone()), torch.relu(rows) * 2)
    assert torch.equal(other(numbers(5, 13)[:, :8]), torch.relu(numbers(5, 13)[:, :8]) * 2)


def test_expanded_parts_of_any_sizes_have_one_program() -> None:
    def fn(x, factors=[3.0]):  # noqa: B006, as such a default has no shortcuts
        return x * factors[0]

    jitted = bt.jit("cpu", dynamic=True)(fn)
    for rows in (3, 4, 5, 3, 4, 5):
        x = numbers(rows, 10)[:, None, :8].expand(rows, 5, 8)
        assert torch.equal(jitted(x), x * 3)
    assert len(jitted.specializations()) == 1


def test_parts_of_two_tensors_are_not_copied(copied: list[Any]) -> None:
    jitted = bt.jit("cpu")(product)
    for extent in (24, 32, 24, 32, 32):
        q, k = numbers(2, 5, extent)[..., :8], numbers(2, 5, extent)[..., 8:16].mT
        torch.testing.assert_close(jitted(q, k), q @ k, rtol=1e-5, atol=1e-5)
    thirds = bt.jit("cpu", dynamic=False)(lambda x: x * 2)
    for width in (8, 16, 32, 64):
        x = numbers(4, 3 * width)[:, :width]
        assert torch.equal(thirds(x), x * 2)
    assert not copied


def test_parts_of_growing_numbers_of_rows_that_grow() -> None:
    jitted = bt.jit("cpu")(lambda x: F.layer_norm(x, (8,)))
    for length in range(9, 18):
        x = numbers(length - 5, length)[:, :8]
        for _ in range(3):
            torch.testing.assert_close(jitted(x), F.layer_norm(x, (8,)), rtol=1e-4, atol=1e-4)
    assert len(jitted.specializations()) <= 4


def test_tokens_without_the_last() -> None:
    # As losses take them: how much of the memory is read is another number at each call.
    jitted = bt.jit("cpu")(lambda x, y: F.cross_entropy(x.flatten(0, 1), y.flatten()))
    for tokens in (5, 7, 9, 12):
        logits, labels = numbers(2, tokens, 11), torch.arange(2 * tokens).view(2, tokens) % 11
        for _ in range(3):
            found = jitted(logits[:, :-1], labels[:, 1:])
            exact = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
            torch.testing.assert_close(found, exact)
    assert len(jitted.specializations()) <= 2


def test_programs_of_any_sizes_that_copy_parts() -> None:
    jitted = bt.jit("cpu", dynamic=True)(summed)
    for columns in (4, 5, 6):
        for extent in (8, 9):
            x = numbers(3 + columns, extent)[:, :columns]
            for _ in range(3):
                assert torch.equal(jitted(x, x), x + x)
                assert torch.equal(jitted(x, x.clone()), x + x)
                assert torch.equal(jitted(x.clone(), x), x + x)
    assert len(jitted.specializations()) == 1


@pytest.mark.parametrize("order", [1, 2])
def test_gradients(order: int) -> None:
    check = torch.autograd.gradcheck if order == 1 else torch.autograd.gradgradcheck
    x, w = numbers(3, 9).double()[:, 2:7], numbers(7, 4, seed=1).double()[:5, 1:]
    jitted = bt.jit("cpu")(lambda x, w: torch.tanh(x @ w) * x.sum(1, keepdim=True))
    assert check(jitted, (x.requires_grad_(), w.requires_grad_()))


def test_gradients_reach_what_a_part_is_of() -> None:
    jitted = bt.jit("cpu")(lambda q, k: (q @ k.mT).softmax(-1))
    for _ in range(3):
        ours, theirs = (numbers(2, 9, 3, 2, 8).requires_grad_() for _ in range(2))
        for whole, fn in ((ours, jitted), (theirs, lambda q, k: (q @ k.mT).softmax(-1))):
            q, k = whole.permute(3, 0, 2, 1, 4).unbind(0)
            fn(q, k).square().sum().backward()
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)


def test_vmap_of_parts() -> None:
    jitted = bt.jit("cpu")(product)
    x, w = numbers(4, 6, 50)[..., :40], numbers(4, 50, 30, seed=1)[:, 10:]
    for _ in range(2):
        found = torch.vmap(jitted)(x, w)
        torch.testing.assert_close(found, x @ w, rtol=1e-5, atol=1e-5)


WEIGHT = numbers(40, 50)[:, :30]


def test_tensors_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    def fn(x):
        return x @ WEIGHT

    x = numbers(6, 40, seed=1)
    jitted = bt.jit("cpu")(fn)
    for weight in (WEIGHT, WEIGHT.clone(), numbers(40, 60, seed=2)[:, ::2], WEIGHT):
        monkeypatch.setitem(globals(), "WEIGHT", weight)
        for _ in range(4):
            torch.testing.assert_close(jitted(x), x @ weight, rtol=1e-5, atol=1e-5)


def test_parts_that_are_written_to() -> None:
    def fn(x, y):
        x.mul_(2).add_(y)
        return x.sum()

    jitted = bt.jit("cpu")(fn)
    for _ in range(4):
        ours, theirs = numbers(4, 6), numbers(4, 6)
        y = numbers(4, 6, seed=1)[:, 2:5]
        torch.testing.assert_close(jitted(ours[:, 1:4], y), fn(theirs[:, 1:4], y))
        assert torch.equal(ours, theirs)


ROWS = bt.Tensor[("n", 8), "float32"]


def test_what_is_written_between_the_rows_of_a_part() -> None:
    def fn(x, y):
        x.add_(F.relu(y) * torch.ones(8))

    def pair(rows: int, apart: bool) -> tuple[torch.Tensor, ...]:
        whole = torch.arange(24.0 * rows)
        x = torch.zeros(rows, 8) if apart else whole[8 * rows : 16 * rows].view(rows, 8)
        return whole, x, whole.view(rows, 24)[:, :8]

    @bt.jit("cpu")
    def jitted(x: ROWS, y: ROWS):
        x.add_(F.relu(y) * torch.ones(8))

    for rows in (4, 5, 6, 7):
        for _ in range(3):
            jitted(*pair(rows, apart=True)[1:])
    for rows in (8, 9):
        ours, theirs = pair(rows, apart=False), pair(rows, apart=False)
        fn(*theirs[1:])
        try:
            jitted(*ours[1:])
        except ValueError:  # they share memory
            continue
        assert torch.equal(ours[0], theirs[0])


@pytest.mark.parametrize("shape", [(64, 64), (3, 5, 40)])
def test_running_sums(shape: tuple[int, ...]) -> None:
    x = numbers(*shape[:-1], 100)[..., 7 : 7 + shape[-1]]
    for fn in (lambda x: x.cumsum(-1), lambda x: x.cumsum(0)):
        exact = fn(x.double())
        compiled = bt.jit(target=gpu.TARGET)(fn).lower(x).compile()
        for found in (bt.jit("cpu")(fn)(x), gpu.call(compiled, (x,))):
            torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=1e-4)


def test_kernels_read_nothing_beside_a_part() -> None:
    whole = numbers(33, 128)
    x = whole[:, 32:96]
    exact = x.double().softmax(-1)
    whole[:, :32] = whole[:, 96:] = float("nan")
    compiled = bt.jit(target=gpu.TARGET)(softmax).lower(x).compile()
    with emulator.thread_order(emulator.ORDERS[0], lockstep=False):
        found = gpu.call(compiled, (x,))
    for each in (found, bt.jit("cpu")(softmax)(x)):
        torch.testing.assert_close(each.double(), exact, rtol=1e-5, atol=1e-6)


def at_the_end_of_a_page(rows: int, columns: int, extent: int) -> torch.Tensor:
    """Numbers that lie in rows of an extent, with memory after the last that must not be read."""
    libc = ctypes.CDLL(None)
    libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t]
    libc.mmap.argtypes += [ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    span = ((rows - 1) * extent + columns) * 4
    size = -(-span // mmap.PAGESIZE) * mmap.PAGESIZE
    protection, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    start = libc.mmap(None, size + mmap.PAGESIZE, protection, flags, -1, 0)
    assert libc.mprotect(start + size, mmap.PAGESIZE, 0) == 0
    memory = (ctypes.c_char * span).from_address(start + size - span)
    found = torch.frombuffer(memory, dtype=torch.float32).as_strided((rows, columns), (extent, 1))
    return found.copy_(numbers(rows, columns, seed=rows))


@pytest.mark.parametrize("extent", [9, 15, 70])
def test_kernels_for_the_cpu_read_nothing_behind_a_part(extent: int) -> None:
    for columns in (1, 3, 7, 8):
        x, w = at_the_end_of_a_page(100, columns, extent), at_the_end_of_a_page(64, columns, extent)
        for fn, args in (
            (softmax, (x,)),
            (lambda x: torch.relu(x) + 1, (x,)),
            (lambda x: x.sum(), (x,)),
            (lambda x: x.t() * 2, (x,)),
            (product, (numbers(100, 64), w)),
            (product, (x, numbers(columns, 40))),
            (product, (x, w.t())),
            (product, (numbers(3, 64), w)),
        ):
            found, exact = bt.jit("cpu")(fn)(*args), fn(*(arg.double() for arg in args))
            torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=1e-4)


def test_products_read_nothing_behind_parts_along_any_axis() -> None:
    rows = at_the_end_of_a_page(65, 65, 70)
    batches = at_the_end_of_a_page(3, 139 * 99 + 130, 139 * 101)
    batches = batches.as_strided((3, 100, 130), (139 * 101, 139, 1))
    for fn, args in (
        (linear, (numbers(2, 3, 65), rows)),
        (linear, (numbers(40, 65), rows)),
        (product, (numbers(40, 65), rows)),
        (product, (numbers(3, 3, 130), batches.mT)),
        (product, (numbers(3, 40, 130), batches.mT)),
        (product, (numbers(3, 3, 100), batches)),
        (product, (batches, numbers(3, 130, 33))),
    ):
        found, exact = bt.jit("cpu")(fn)(*args), fn(*(arg.double() for arg in args))
        torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=1e-4)


def test_products_of_parts_copy_no_more_than_these() -> None:
    w, lanes = numbers(64, 4000), Registers.of(CPU, "float32").lanes
    for given, fn in ((w[:, :7], product), (w, lambda x, w: x @ w[:, :7])):
        scheduled = bt.jit("cpu")(fn).lower(numbers(100, 64), given).schedule()
        panels = f"_pad_global = T.alloc_buffer((T.int64(1), T.int64(64), T.int64({lanes}))"
        assert panels in scheduled.as_text()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_products_on_tensor_cores(dtype: torch.dtype) -> None:
    target = replace(gpu.TARGET, products="fused")
    x, w = numbers(70, 100).to(dtype), numbers(100, 90, seed=1).to(dtype)
    some = (x[:, 3:67], w[:64, :80]), (x[:65, 8:72], w[1:65, :33]), (x[:, :50], w[:50, 8:72])
    for a, b in some:
        compiled = bt.jit(target=target)(product).lower(a, b).compile()
        exact = a.double() @ b.double()
        found = gpu.call(compiled, (a, b)).double()
        torch.testing.assert_close(found, exact, rtol=1e-2, atol=5e-2)


def test_specializations_tell_of_it() -> None:
    jitted = bt.jit("cpu")(softmax)
    jitted(numbers(4, 9)[:, :5])
    (found,) = jitted.specializations()
    assert "x: f32[4, 5] (in memory by axes 0, 1, part of 9 along 1)" in repr(found)
