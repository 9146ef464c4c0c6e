"""Rows that user code adds to the operator table."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tvm import relax
from tvm.script import tirx as T

import babytriton as bt
from babytriton.jit import REGISTRY
from babytriton.ops.registry import Registry
from tests.conformance import gpu

X = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
Y = torch.randn(3, 5, generator=torch.Generator().manual_seed(1))


@pytest.fixture(autouse=True)
def _own_rows(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Rows registered for the process are forgotten after the test."""
    registry = REGISTRY
    monkeypatch.setattr(registry, "_rows", {})
    yield
    registry.version += 1


@torch.library.custom_op("babytriton_tests::halved", mutates_args=())
def halved(x: torch.Tensor) -> torch.Tensor:
    return x * 0.5


@halved.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@T.prim_func(s_tir=True)
def tripled(a: T.handle, b: T.handle):
    n, m = T.int64(), T.int64()
    A = T.match_buffer(a, (n, m), "float32")
    B = T.match_buffer(b, (n, m), "float32")
    for i, j in T.grid(n, m):
        with T.sblock("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] * 3.0


def shifted(x, by=1.0):
    """Runs on numbers alone: neither inlined nor tried on meta tensors."""
    return torch.from_numpy(x.numpy() + by)


def build_shifted(site, x, by=1.0):
    return relax.op.add(x.expr, site.expr(by, x.meta.dtype))


def test_a_python_function_that_relax_types() -> None:
    bt.register(shifted, build=build_shifted)

    def fn(x):
        return shifted(x * 2, by=3.0) * x

    compiled = bt.jit(gpu.TARGET)(fn).lower(X).compile()
    for found in (bt.jit("cpu")(fn)(X), gpu.call(compiled, (X,))):
        torch.testing.assert_close(found, (X * 2 + 3) * X)
    assert len(compiled.kernels) == 1
    assert not compiled.fallbacks


def test_a_torch_function_that_is_a_row_already() -> None:
    def fn(x):
        return torch.erf(x), x.erf()

    own = bt.jit("cpu")(fn)
    torch.testing.assert_close(own(X), (X.erf(), X.erf()))
    bt.register(torch.erf, build=lambda site, x: relax.op.tanh(x.expr))
    torch.testing.assert_close(own(X), (X.tanh(), X.erf()))
    bt.register(torch.Tensor.erf, decompose=lambda x: x.sin() + 1)
    torch.testing.assert_close(own(X), (X.tanh(), X.sin() + 1))


def test_custom_operators_by_each_of_their_names() -> None:
    def fn(x):
        default = torch.ops.babytriton_tests.halved.default(x)
        return halved(x) + torch.ops.babytriton_tests.halved(x) + default

    before = bt.jit("cpu")(fn).lower(X)
    assert len(before.fallbacks) == 3
    bt.register(halved, decompose=lambda x: x / 2)
    after = bt.jit("cpu")(fn).lower(X)
    assert not after.fallbacks
    assert len(after.schedule().kernels) == 1
    torch.testing.assert_close(after.compile()(X), X * 1.5)


def test_as_decorators() -> None:
    @bt.register(torch.special.erfcx)
    def erfcx(site, x):
        return relax.op.exp(x.expr)

    @bt.register(decompose=lambda x: x - 1)
    def previous(x):
        raise AssertionError

    fn = bt.jit("cpu")(lambda x: torch.special.erfcx(x) + previous(x))
    torch.testing.assert_close(fn(X), X.exp() + X - 1)
    assert erfcx.__name__ == "erfcx"
    assert previous.__name__ == "previous"


def test_a_tensorir_function_as_build() -> None:
    bt.register(shifted, build=tripled)
    torch.testing.assert_close(bt.jit("cpu")(lambda x: shifted(x) + 1)(X), X * 3 + 1)


def test_of_one_function_alone() -> None:
    def fn(x):
        return torch.erf(x)

    own, other = bt.jit("cpu")(fn), bt.jit("cpu")(fn)
    own.register(torch.erf, decompose=lambda x: x * 2)
    torch.testing.assert_close(own(X), X * 2)
    torch.testing.assert_close(other(X), X.erf())
    torch.testing.assert_close(copy.deepcopy(own)(X), X * 2)
    outer = bt.jit("cpu")(lambda x: own(x) + torch.erf(x))
    torch.testing.assert_close(outer(X), X * 2 + X.erf())
    own.register(torch.erf, decompose=lambda x: x * 3)
    torch.testing.assert_close(outer(X), X * 3 + X.erf())


def test_of_a_method() -> None:
    class Model:
        @bt.jit("cpu")
        def forward(self, x):
            return torch.erf(x)

    Model.forward.register(torch.erf, decompose=lambda x: x * 2)
    torch.testing.assert_close(Model().forward(X), X * 2)


def test_what_a_row_does_not_cover_runs_through_torch() -> None:
    def build(site, x):
        return relax.op.exp(x.expr) if x.meta.ndim == 1 else NotImplemented

    bt.register(torch.special.erfcx, build=build)
    fn = bt.jit("cpu")(lambda x: torch.special.erfcx(x))
    torch.testing.assert_close(fn(X[0]), X[0].exp())
    torch.testing.assert_close(fn(X), torch.special.erfcx(X))
    [fallback] = fn.lower(X).fallbacks
    assert "does not cover this call" in str(fallback)


def test_types_by_a_meta_function_and_several_results() -> None:
    def build(site, x):
        assert [tuple(part.shape) for part in site.out] == [(3,), (5,)]
        return relax.op.sum(x.expr, [1]), relax.op.sum(x.expr, [0])

    bt.register(shifted, build=build, meta=lambda x: (x[:, 0], x[0]))

    def fn(x):
        rows, columns = shifted(x)
        return rows * 2, columns

    torch.testing.assert_close(bt.jit("cpu")(fn)(X), (X.sum(1) * 2, X.sum(0)))


def test_a_gradient_is_kept_on_the_row() -> None:
    def gradient(site, out, x):
        return x

    bt.register(shifted, build=build_shifted, gradient=gradient)
    assert REGISTRY.table[shifted].gradient.__wrapped__ is gradient


def test_programs_keep_the_table_they_began_with() -> None:
    registry = Registry({})
    before = registry.table
    registry.register(torch.erf, decompose=torch.tanh)
    assert torch.erf in registry.table
    assert torch.erf not in before
    assert registry.version == 1


def _broken(site, x):
    return relax.op.matmul(x.expr, x.expr)


def _raises(site, x):
    raise KeyError("nothing")


@pytest.mark.parametrize(
    ("target", "row", "why"),
    [
        (torch.erf, {"build": _broken}, "requires the reduction length"),
        (torch.erf, {"build": _raises}, "KeyError: 'nothing' ("),
        (torch.erf, {"build": lambda site, x: None}, "it gives None, which is no Relax expr"),
        (torch.erf, {"build": lambda site, x: relax.op.sum(x.expr)}, "it gives f32[], where f32[3"),
        (torch.erf, {"decompose": lambda x: 1.0}, "it gives 1.0, which is no Relax"),
        (torch.erf, {"decompose": lambda x: x.no_such()}, "AttributeError"),
        (shifted, {"build": _raises}, "on meta tensors it fails by itself"),
        (shifted, {"build": lambda site, x: NotImplemented}, "does not cover this call; on meta"),
        (shifted, {"build": tripled, "meta": lambda x: 3}, "gives 3 and no tensor"),
        (shifted, {"build": tripled, "meta": lambda x: x[0]}, "it gives f32[3, 5], where f32[5]"),
    ],
)
def test_a_row_that_fails_shows_the_call(
    target: Callable[..., Any], row: dict[str, Any], why: str
) -> None:
    bt.register(target, **row)
    with pytest.raises(bt.CompileError) as caught:
        bt.jit("cpu")(lambda x: target(x))(X)
    assert why in str(caught.value)
    assert "target(x)" in str(caught.value)


@pytest.mark.parametrize(
    ("call", "name", "why"),
    [
        (lambda: bt.register(3, build=_broken), "target", "expected a function, got 3"),
        (lambda: bt.register(torch.nn.GELU, build=_broken), "target", "got the class GELU"),
        (lambda: bt.register(torch.nn.GELU(), build=_broken), "target", "a module's own code"),
        (lambda: bt.register(torch.erf, build=1), "build", "expected a function, got 1"),
        (lambda: bt.register(torch.erf, build=_broken, gradient="no"), "gradient", "got 'no'"),
        (lambda: bt.register(torch.erf, build=_broken, meta=()), "meta", "expected a function"),
        (lambda: bt.register(torch.erf, build=_broken, decompose=_broken), "decompose", "either"),
        (lambda: bt.register(), "target", "register(target, build=...)"),
    ],
)
def test_misuse_names_the_argument(call: Callable[[], Any], name: str, why: str) -> None:
    with pytest.raises(TypeError) as caught:
        call()
    assert f"error[BT125]: register: argument `{name}`" in str(caught.value)
    assert why in str(caught.value)


# ---------------------------------------------------------------- gradients


@torch.library.custom_op("babytriton_tests::cubed", mutates_args=())
def cubed(x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    return x**3 * scale


@cubed.register_fake
def _(x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    return torch.empty_like(x)


def _build_cubed(site, x, scale=1.0):
    return relax.op.multiply(
        relax.op.multiply(relax.op.multiply(x.expr, x.expr), x.expr), site.number(scale, x.dtype)
    )


def test_a_row_with_a_gradient() -> None:
    compiled = bt.jit("cpu")(lambda x: cubed(x * 2, 0.5) + 1)

    def gradient(grad, result, x, scale=1.0):
        return grad * (3 * scale) * x * x

    compiled.register(cubed, build=_build_cubed, gradient=gradient)
    x = torch.rand(5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(compiled, (x,))
    assert torch.autograd.gradgradcheck(compiled, (x,))


def test_a_row_without_a_gradient() -> None:
    compiled = bt.jit("cpu")(lambda x: cubed(x * 2) + 1)
    compiled.register(cubed, build=_build_cubed)
    x = torch.rand(5, requires_grad=True)
    assert not compiled(x.detach()).requires_grad
    with pytest.raises(bt.CompileError, match=r"BT065[^$]*cubed\(x \* 2\)"):
        compiled(x)


@pytest.mark.parametrize(
    ("gradient", "words"),
    [
        (lambda grad, result, x, scale=1.0: 3.0, "it gives 3.0, and no tensor"),
        (lambda grad, result, x, scale=1.0: undefined, "NameError"),  # noqa: F821
        (lambda grad, result, x, scale=1.0: grad @ x, "the gradient"),
        (lambda grad, result, x, scale=1.0: grad[0], r"f32\[3, 5\][^$]*f32\[2, 3, 5\]"),
    ],
)
def test_a_gradient_that_fails(gradient, words: str) -> None:
    compiled = bt.jit("cpu")(lambda x: cubed(x))
    compiled.register(cubed, build=_build_cubed, gradient=gradient)
    with pytest.raises(bt.CompileError, match=words) as raised:
        compiled(torch.rand(2, 3, 5, requires_grad=True))
    assert "BT900" not in str(raised.value)


def test_what_is_new_outdates_no_program() -> None:
    twice = bt.jit("cpu")(lambda x: x * 2)
    x = torch.ones(3)
    twice(x)
    source = "__device__ float cube(float x) { return x * x * x; }"
    cube = bt.cuda_function(source, name="cube", cpu=lambda x: x * x * x)
    twice(x)
    assert len(twice.specializations()) == 1
    cubed = bt.jit("cpu")(lambda x: cube(x) + 1)
    assert cubed(x * 2).tolist() == [9.0] * 3
    bt.register(torch.special.i0e, decompose=torch.ones_like)
    twice(x)
    assert len(twice.specializations()) == 2
