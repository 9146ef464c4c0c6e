"""The names of kernels and of what they write: the user's."""

from __future__ import annotations

import itertools
import re

import pytest
import torch
import torch.nn.functional as F
from tvm.script import tirx as T

import babytriton as bt


def named(fn, *args) -> tuple[str, ...]:
    return tuple(bt.jit("cpu")(fn).lower(*args).schedule().kernels)


def gelu_bias(x, b):
    y = x + b
    return torch.sigmoid(1.702 * y) * y


def two_steps(x):
    low = x.cumsum(0)
    order = torch.sort(low).values
    return order * 2, low


def no_names(x):
    return torch.sort(x + 1).values - 1, torch.sort(x[:5] * 2).values * 2


@T.prim_func(s_tir=True)
def doubled(a: T.Buffer((8,), "float32"), b: T.Buffer((8,), "float32")):
    for i in range(8):
        with T.sblock("doubled"):
            place = T.axis.spatial(8, i)
            b[place] = a[place] * T.float32(2)


def test_a_kernel_has_the_functions_name() -> None:
    assert named(gelu_bias, torch.ones(4, 8), torch.ones(8)) == ("gelu_bias_kernel",)
    assert named(lambda x: x + 1, torch.ones(3)) == ("main_kernel",)


def test_what_ascii_lacks_is_left_out() -> None:
    def λ(x):
        return x + 1

    def é(x):
        return x + 1

    assert named(λ, torch.ones(3)) == ("main_kernel",)
    assert named(é, torch.ones(3)) == ("e_kernel",)


def test_several_have_the_names_of_their_results() -> None:
    assert named(two_steps, torch.ones(8)) == ("two_steps_low_kernel", "two_steps_kernel")


def test_without_names_they_are_numbered() -> None:
    kernels = named(no_names, torch.ones(8))
    assert kernels == tuple(f"no_names{n}_kernel" for n in ("", "_2", "_3", "_4"))


@pytest.mark.parametrize("count", range(8))
def test_copies_of_kernels_have_names_that_none_has(count) -> None:
    def shifted(x):
        near = x[1:]
        for n in range(count):  # TVM numbers these, too, which nothing reads
            x[n + 2 :]
        far = x[20:]
        return torch.sort(near * 2).values, far

    assert named(shifted, torch.ones(32)) == ("shifted_kernel", "shifted_far_kernel")


def test_ones_own_tensorir_keeps_its_name() -> None:
    def scaled(x):
        return torch.sort(doubled(x)).values

    def fused(x):
        return doubled(x) + 1

    assert named(scaled, torch.ones(8)) == ("doubled",)
    assert named(fused, torch.ones(8)) == ("fused_kernel",)


def test_the_tensor_has_the_name_of_its_variable() -> None:
    target = bt.Target("cuda", arch="sm_80")
    source = bt.jit(target)(two_steps).lower(torch.ones(64)).compile().source()
    assert "low: float32[64]" in source
    assert "float* __restrict__ low" in source


def test_what_has_no_name_has_that_of_its_operator() -> None:
    """In a kernel, from one kernel to the next, and in what is saved for the way back."""

    def shares(x):
        return (x.float().softmax(-1) * 2).to(x.dtype), torch.sort(x.exp().sum(-1)).values

    x = torch.randn(16, 300, dtype=torch.float16, requires_grad=True)
    compiled = bt.jit(bt.Target("cuda", arch="sm_80"))(shares).lower(x).compile()
    source = compiled.source()
    assert "exp_part" in source
    assert "sum_of_row" in source
    assert "top: float32[16, 1]" in source
    assert "top: float32[16, 1]" in compiled.backward.source()
    both = source + compiled.backward.source()
    assert not re.search(r"\b[gl]v\d*\b|T_\w+|_red\b|compute", both)


def test_operators_by_themselves_call_what_they_read_as_the_user_does() -> None:
    def put(x, out, indices):
        return out.scatter(-1, indices, x)

    def running(values):
        return values.cumsum(-1)

    x, indices = torch.randn(8, 30), torch.zeros(8, 30, dtype=torch.int64)
    target = bt.Target("cuda", arch="sm_80")
    source = bt.jit(target)(put).lower(x, x.clone(), indices).compile().source()
    for name in ("x", "out"):
        assert f"const float* __restrict__ {name}," in source
    assert "const int64_t* __restrict__ indices" in source
    source = bt.jit(target)(running).lower(x).compile().source()
    assert "const float* __restrict__ values, float* __restrict__ running" in source


def test_what_torch_gives_has_the_name_of_its_function() -> None:
    def parts(x, w):
        a, b = (x @ w).chunk(2, -1)
        values, indices = torch.sort(x, -1)
        return a * b.sigmoid(), values + indices

    x, w = torch.randn(128, 256), torch.randn(256, 384)
    source = bt.jit(bt.Target("cuda", arch="sm_80"))(parts).lower(x, w).compile().source()
    for parameter in ("float* __restrict__ matmul", "float* __restrict__ values"):
        assert parameter in source
    assert not re.search(r"\b[gl]v\d*\b", source)


def parameters(fn, *args: torch.Tensor) -> list[list[str]]:
    """What each kernel calls its parameters."""
    source = bt.jit(bt.Target("cuda", arch="sm_80"))(fn).lower(*args).compile().source()
    heads = re.findall(r"__global__ [^{]*?\w+_kernel\w*\(([^{]*)\) \{", source)
    return [re.findall(r"(\w+)(?:,|$)", " ".join(head.split())) for head in heads]


def test_no_parameter_has_the_name_of_another_tensor() -> None:
    def sums(x, w):
        y = (x @ w).cumsum(-1)
        return y @ x

    def logarithms(a, x):
        return (a @ x).logcumsumexp(-1) + x

    def again(x, w):
        for _ in range(3):
            x = torch.relu(x @ w)
        return x

    def accents(é, e):
        return é + 2 * e

    x, w = torch.randn(40, 40), torch.randn(40, 40)
    assert parameters(sums, x, w)[:2] == [["x", "w", "matmul"], ["matmul", "y"]]
    assert parameters(logarithms, x, w) == [
        ["a", "x", "matmul"],
        ["matmul", "x", "logarithms"],
    ]
    assert parameters(again, x, w)[0] == ["x", "w", "x_out"]
    assert sorted(parameters(accents, x, w)[0]) == ["accents", "e", "e_2"]


def test_results_that_the_way_back_reads_have_the_name_of_the_function() -> None:
    def activation(x):
        return torch.exp(x)

    def activations(x, y):
        return torch.exp(x), torch.exp(y)

    target = bt.Target("cuda", arch="sm_80")
    x, y = torch.randn(64, requires_grad=True), torch.randn(64, requires_grad=True)
    source = bt.jit(target)(activation).lower(x).compile().backward.source()
    assert "const float* __restrict__ activation," in source
    source = bt.jit(target)(activations).lower(x, y).compile().backward.source()
    assert "const float* __restrict__ activations_0," in source
    assert "const float* __restrict__ activations_1," in source


def test_kernels_stand_in_the_order_of_their_calls() -> None:
    def loss(x, t):
        return F.cross_entropy(x, t)

    x, t = torch.randn(16, 300), torch.arange(16)
    compiled = bt.jit(bt.Target("cuda", arch="sm_80"))(loss).lower(x, t).compile()
    names = [launch.name for launch in compiled.launches]
    assert names == list(compiled.kernels) == ["loss_kernel", "loss_2_kernel"]
    source = compiled.source()
    assert source.index("loss_kernel(") < source.index("loss_2_kernel(")


def test_what_is_only_in_a_kernel_has_names_that_compilers_take() -> None:
    def shares(x, v):
        ß = x * v
        变 = x.softmax(-1)
        return ß.sum(-1), 变.cumsum(-1) * v

    x = torch.randn(8, 300, requires_grad=True)
    compiled = bt.jit(bt.Target("cuda", arch="sm_80"))(shares).lower(x, x.detach()).compile()
    for text in (compiled.source(), compiled.backward.source()):
        assert re.sub(r"//.*", "", text).isascii()


def test_values_that_each_other_one_is_made_of_twice() -> None:
    def chain(x, n: int):
        y = x
        for t in range(n):
            y = torch.where(y > t, y - 1, y * y)
        return y, y + x

    x = torch.randn(5, 6)
    compiled = bt.jit("gpu")(chain).lower(x, 40).compile()  # ends, whatever its names are
    assert "__global__" in compiled.source("cuda")


def test_what_passes_between_kernels_has_names_of_its_own():
    def spread(x):
        for d in (1, 2, 4):
            x = x + F.pad(torch.sin(x[:, :-d]), (d, 0))
        return x

    x = torch.empty(64, 64, device="meta")
    compiled = bt.jit(bt.Target("cuda", arch="sm_90"))(spread).lower(x).compile()
    heads = re.findall(r"^// (x\w*: float32.*)$", compiled.source("cuda"), re.M)
    assert len(heads) == len(compiled.launches) > 1
    for head in heads:
        names = re.findall(r"(\w+): float32", head)
        assert len(set(names)) == len(names)
    # What one kernel writes is what the next one reads.
    for before, after in itertools.pairwise(heads):
        assert before.split(", ")[-1] == after.split(", ")[0]
