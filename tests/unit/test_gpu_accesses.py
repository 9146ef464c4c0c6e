"""What a vector's elements read that does not lie one behind the other, in vectors as well."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F

import babytriton as bt
from tests.conformance import gpu
from tests.emulator import emulator
from tests.unit.test_gpu_programs import check, compiled, rules

pytestmark = pytest.mark.skipif(
    emulator.available_gpu() is None, reason=emulator.missing() or "no GPU"
)


def rotary(x, cos, sin):
    a, b = x[..., ::2], x[..., 1::2]
    return (torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2),)


def gated(x):
    return (F.silu(x[..., ::2]) * x[..., 1::2],)


def of_groups(x, scale):
    return x / scale.repeat_interleave(32, -1), (x.unflatten(-1, (-1, 32)) * scale[..., None])


def enlarged(x):
    return (F.interpolate(x[None], scale_factor=2.0)[0] + 1,)


def far_apart(x):
    return x[..., ::3] * 2, x[..., ::4] + 1, x[..., 2::2] - x[..., 1:-1:2]


def norm_of_pairs(x):
    y = x[..., ::2] * x[..., 1::2]
    return y * torch.rsqrt((y * y).mean(-1, keepdim=True) + 1e-5), y.softmax(-1)


def causal(x, w):
    length = x.shape[1]
    padded = F.pad(x, (0, 0, 3, 0))
    y = x
    for k in range(4):
        y = y + padded[:, k : k + length] * w[k]
    return (F.silu(y),)


def of_both(x, y):
    return (F.gelu(torch.cat([x, y], -1)) * 2,)


def by_lengths(x, lengths):
    """Rows of different lengths, and one that is not there at all."""
    is_there = torch.arange(x.shape[0])[:, None] < lengths[: x.shape[0], None]
    return torch.where(is_there, x, 0.0) * 2 + torch.where(is_there, x.roll(1, 0), 1.0)


def nested(x):
    """Parts of parts, each of which another part decides about."""
    y = F.pad(x[2:], (0, 0, 2, 0)) + 1
    return (x * F.pad(y[:-1], (0, 0, 1, 0)) + F.pad(y, (0, 0, 0, 4))[4:],)


def of_chosen(x, y):
    """What is put together, beside that moved down: there it is read from the third row on."""
    whole = torch.cat([x[1:], y])
    moved = F.pad(whole, (0, 0, 2, 0))[:-2]
    return moved * whole + torch.cat([x[1:], y]) * 3, moved.exp()


def of_rows(x, i):
    """At places that are read, which are themselves read where there are any."""
    return x[i] * 2, F.pad(x[i], (0, 0, 1, 0))[:-1] + x[i], F.embedding(i, x) + x[(i + 1) % 9]


def padded_after(x, y):
    return F.pad(F.relu(torch.cat([x, y])), (0, 0, 2, 2)), F.pad(x[:2], (0, 0, 0, 7)) * y


def loads(code: str, name: str) -> list[str]:
    """How a tensor is read, as the types of what is loaded at once."""
    code = re.sub("//.*", "", code)
    vectors = re.findall(rf"\*\(const (\w+)\*\)\({name} ", code)
    return vectors + ["one"] * len(re.findall(rf"\b{name}\[", code))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("length", [256, 100, 66, 30])
def test_values(length: int, dtype: torch.dtype) -> None:
    half = length // 2
    within = {torch.float32: 1e-5, torch.float16: 4e-3, torch.float64: 1e-12}[dtype]
    x, cos, sin = torch.randn(9, length), torch.randn(9, half), torch.randn(9, half)
    check(rotary, x.to(dtype), cos.to(dtype), sin.to(dtype), within=within)
    for fn in (gated, far_apart):
        check(fn, x.to(dtype), within=within)
    check(enlarged, torch.randn(3, 8, length).to(dtype), within=within)
    if dtype != torch.float16:
        check(norm_of_pairs, x.to(dtype), within=max(within, 1e-12))


@pytest.mark.parametrize("length", [256, 96])
def test_values_of_groups(length: int) -> None:
    check(of_groups, torch.randn(7, length), torch.rand(7, length // 32) + 0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [64, 36, 7])
def test_values_under_tests(width: int, dtype: torch.dtype) -> None:
    within = 1e-5 if dtype == torch.float32 else 4e-2
    x, w = torch.randn(2, 9, width).to(dtype), torch.randn(4, width).to(dtype)
    check(causal, x, w, within=within)
    check(of_both, x[0].clone(), torch.randn(9, 2 * width).to(dtype), within=within)
    check(nested, x[1].clone(), within=within)
    check(of_chosen, x[0].clone(), x[1].clone(), within=within)
    check(of_rows, x[0].clone(), torch.tensor([3, 0, 8, -9, 4, -1, 1, 7, 2]) % 9, within=within)
    check(padded_after, x[0].clone(), x[1].clone(), within=within)
    lengths = torch.tensor([0, 9, 1, 4, 2, 7, 9, 3, 0])
    check(lambda *args: (by_lengths(*args),), x[1].clone(), lengths, within=within)


def test_places_under_tests_are_read_once() -> None:
    x, i = torch.empty(64, 64, device="meta"), torch.empty(64, dtype=torch.int64, device="meta")
    code = compiled(lambda x, i: x[i] * 2 + x.roll(1, 0), x, i).source("cuda")
    assert loads(code, "i") == ["one"]
    assert len(re.findall(r"\(const float4\*\)\(x\b", code)) == 2


def test_gradients_under_tests() -> None:
    x, w = torch.randn(2, 9, 64, requires_grad=True), torch.randn(4, 64, requires_grad=True)
    grad = torch.randn(2, 9, 64)
    program = bt.jit(gpu.TARGET)(lambda x, w: causal(x, w)[0]).lower(x, w).compile()
    found = gpu.gradients(program, (x, w), {0: grad})
    expected = torch.autograd.grad(causal(x, w)[0], (x, w), grad)
    for ours, theirs in zip(found, expected):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_what_is_computed_with_chosen_vectors_is_written_once() -> None:
    x, w = torch.empty(8, 64, 256, device="meta"), torch.empty(4, 256, device="meta")
    code = compiled(causal, x, w).source("cuda")
    assert loads(code, "x") == ["float4"] * 4
    assert re.findall(r"bool (has_x\w*) = (\d) <=", code) == [
        ("has_x", "3"),
        ("has_x_1", "2"),
        ("has_x_2", "1"),
    ]
    assert code.count("expf(") == 1
    code = compiled(of_both, x[0], x[1]).source("cuda")
    assert code.count("erff(") == 1
    assert set(re.findall(r"\*\(float4\*\)(chosen_vector) =", code)) == {"chosen_vector"}


def test_each_vector_is_loaded_at_once() -> None:
    x, half = (torch.empty(4096, n, device="meta") for n in (1024, 512))
    code = compiled(rotary, x, half, half).source("cuda")
    assert loads(code, "x") == ["float4"]
    assert loads(code, "cos_ptr") == loads(code, "sin_ptr") == ["float2"]
    assert loads(compiled(gated, x).source("cuda"), "x") == ["float4"]
    image = torch.empty(16, 64, 64, device="meta")
    assert loads(compiled(enlarged, image).source("cuda"), "x") == ["float2"]


def test_what_all_elements_of_a_vector_read_is_loaded_once() -> None:
    x, scale = (torch.empty(4096, n, device="meta") for n in (1024, 32))
    code = compiled(of_groups, x, scale).source("cuda")
    within_lanes = [line for line in code.splitlines() if "scale[" in line and "lane" in line]
    assert not within_lanes


def test_what_lies_far_apart_is_read_one_by_one() -> None:
    x = torch.empty(64, 900, device="meta")
    assert loads(compiled(lambda x: x[..., ::3] * 2, x).source("cuda"), "x") == ["one"]


def test_elements_between_are_kept_as_they_are() -> None:
    def add_to_even(x):
        x[..., ::2] += 1.0
        return x[..., 1::2] * 2

    x = torch.randn(8, 64)
    ours, theirs = x.clone(), x.clone()
    program = bt.jit(target=gpu.TARGET)(add_to_even).lower(ours).compile()
    found = gpu.call(program, (ours,))
    torch.testing.assert_close(found, add_to_even(theirs))
    torch.testing.assert_close(ours, theirs)


def response_norm(x, w, b):
    """Of ConvNeXt V2 (S. Woo et al., 2023): a small reduction between two large works."""
    size = x.norm(dim=(1, 2), keepdim=True)
    share = size / (size.mean(-1, keepdim=True) + 1e-6)
    return (w * (x * share) + b + x,)


def test_small_reductions_are_none_of_the_large_kernels() -> None:
    x, w, b = torch.randn(3, 6, 5, 48), torch.rand(48), torch.randn(48)
    assert "Fallback" not in rules(response_norm, x, w, b)
    check(response_norm, x, w, b)


def halves_of_a_gate(x):
    a, b = x.chunk(2, -1)
    return F.silu(a) * b


def test_gradient_of_a_gate_is_one_kernel() -> None:
    x = torch.empty(512, 256, device="meta", requires_grad=True)
    program = bt.jit(target=gpu.TARGET)(halves_of_a_gate).lower(x).compile()
    assert len(program.backward.launches) == 1


def chosen_probabilities(x, t):
    return torch.log_softmax(x, -1).gather(-1, t[..., None]).squeeze(-1)


def test_gradient_of_what_is_chosen_is_one_kernel() -> None:
    x = torch.empty(64, 1000, device="meta", requires_grad=True)
    t = torch.empty(64, dtype=torch.int64, device="meta")
    program = bt.jit(target=gpu.TARGET)(chosen_probabilities).lower(x, t).compile()
    assert len(program.backward.launches) == 1


def test_many_writes_to_few_slices_are_torchs() -> None:
    def rows(x, i):
        return x[i] * 2

    x = torch.empty(512, 64, device="meta", requires_grad=True)
    i = torch.empty(400, dtype=torch.int64, device="meta")
    program = bt.jit(target=gpu.TARGET)(rows).lower(x, i).compile()
    assert "index_add" in "".join(str(fallback) for fallback in program.backward.fallbacks)


def backwards(x):
    y = x[..., ::2].flip(-1)
    return y - y.mean(-1, keepdim=True), y.softmax(-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_numbers_are_there_before_elements_choose_from_them(dtype: torch.dtype) -> None:
    check(
        backwards, torch.randn(5, 256).to(dtype), within=1e-5 if dtype == torch.float32 else 1e-12
    )


def of_a_computed_row(xs, k):
    i = k + 1
    x = xs[i]
    return x, x.sum() > 0, i


@pytest.mark.parametrize("length", [12, 1000])
def test_a_number_of_the_row_is_not_read_from_where_one_thread_stores_it(length: int) -> None:
    given = torch.randn(40, length), torch.tensor(3)
    program = bt.jit(gpu.TARGET)(of_a_computed_row).lower(*given).compile()
    assert len(program.launches) == 1
    for order in ("fixed", "shuffled"):
        with emulator.thread_order(order, seed=1):
            found = gpu.call(program, given)
        torch.testing.assert_close(found, of_a_computed_row(*given))
