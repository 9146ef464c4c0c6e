"""`as_jax` against JAX's own functions."""

from __future__ import annotations

import collections
import threading
import traceback
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from jax.test_util import check_grads
from torch.utils._python_dispatch import TorchDispatchMode

import babytriton as bt
from babytriton.buffers import Program
from babytriton.integrations import xla
from babytriton.runtime import direct
from babytriton.runtime.executable import Executable


@bt.jit
def product(a, b):
    return a * b * (a + b)


def product_of_jax(a: Any, b: Any) -> Any:
    return a * b * (a + b)


@bt.jit
def rms_norm(x, weight, eps=1e-6):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def rms_norm_of_jax(x: Any, weight: Any, eps: float = 1e-6) -> Any:
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + eps) * weight


@bt.jit
def attention(q, k, v):
    return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) @ v


def attention_of_jax(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) @ v


@bt.jit
def fallback(x):
    return torch.cumsum(torch.special.i1e(x) * 2, 0).sin()


@bt.jit
def choose(x, y):
    if x.sum() > 0:
        z = x * y
        z = z + x
    else:
        z = x - y
    while z.sum() < 100:
        z = z * 2 + 1
    return z


@bt.jit
def trees(params, xs, *more, scale=2.0, deep=None):
    y = xs[0] @ params["w"] + params["b"]
    for x in more:
        y = y + x * scale
    if deep is not None:
        y = y * deep["inner"][0]
    return {"y": y, "pair": (y.sum(), [xs[1], None, 3, "text", scale])}


def normal(*shape: int, seed: int = 0, dtype: Any = jnp.float32) -> Any:
    return jax.random.normal(jax.random.key(seed), shape).astype(dtype)


def close(found: Any, expected: Any, tolerance: float = 1e-5) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected)):
        one, other = jnp.asarray(one), jnp.asarray(other)
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        one, other = np.asarray(one, np.float64), np.asarray(other, np.float64)
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


CASES = {
    "product": (product, product_of_jax, (normal(3, 4), normal(3, 4, seed=1))),
    "broadcast": (product, product_of_jax, (normal(3, 4), normal(4, seed=1))),
    "scalar": (product, product_of_jax, (normal(), normal(seed=1))),
    "empty": (product, product_of_jax, (normal(0, 4), normal(4))),
    "rms_norm": (rms_norm, rms_norm_of_jax, (normal(5, 64), normal(64, seed=1))),
    "attention": (attention, attention_of_jax, tuple(normal(2, 7, 8, seed=i) for i in range(3))),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
class TestTransforms:
    def test_call(self, case: Any) -> None:
        ours, theirs, args = case
        close(ours.as_jax()(*args), theirs(*args))

    def test_jit(self, case: Any) -> None:
        ours, theirs, args = case
        f = ours.as_jax()
        close(jax.jit(lambda *xs: f(*xs) * 2 + xs[0])(*args), theirs(*args) * 2 + args[0])

    @pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
    def test_grad(self, case: Any, wrap: Any) -> None:
        ours, theirs, args = case
        f = ours.as_jax()
        for numbers in (0, 1, (0, 1), 0, tuple(range(len(args)))):
            mine = wrap(jax.value_and_grad(lambda *xs: jnp.sin(f(*xs)).sum(), numbers))
            its = jax.value_and_grad(lambda *xs: jnp.sin(theirs(*xs)).sum(), numbers)
            close(mine(*args), its(*args))

    def test_second_order(self, case: Any) -> None:
        ours, theirs, args = case

        def second(f: Any) -> Any:
            def loss(*xs: Any) -> Any:
                grads = jax.grad(lambda *ys: jnp.sin(f(*ys)).sum(), (0, 1))(*xs)
                return sum((grad**2).sum() for grad in grads)

            return jax.grad(loss, (0, 1))

        f = ours.as_jax()
        close(second(f)(*args), second(theirs)(*args), 1e-4)
        close(jax.jit(second(f))(*args), second(theirs)(*args), 1e-4)

    def test_vmap(self, case: Any) -> None:
        ours, theirs, args = case
        f = ours.as_jax()
        first, *others = (jnp.stack([x, x * 2, x + 1]) for x in args)
        rest = jnp.moveaxis(others[0], 0, -1)
        axes = (0, -1, *(None for _ in args[2:]))
        batch = (first, rest, *args[2:])
        close(jax.vmap(f, axes)(*batch), jax.vmap(theirs, axes)(*batch))
        axes = (None, -1, *(None for _ in args[2:]))
        batch = (args[0], rest, *args[2:])
        close(jax.jit(jax.vmap(f, axes))(*batch), jax.vmap(theirs, axes)(*batch))

        def gradient(f: Any) -> Any:
            return jax.vmap(jax.grad(lambda *xs: jnp.sin(f(*xs)).sum(), (0, 1)), axes)

        close(gradient(f)(*batch), gradient(theirs)(*batch))


def test_gradients_are_those_of_differences() -> None:
    f, args = attention.as_jax(), CASES["attention"][2]
    check_grads(lambda *xs: f(*xs), args, 2, ["rev"], atol=0.05, rtol=0.05)


def test_third_order() -> None:
    f = product.as_jax()
    x, y = jnp.float32(1.3), jnp.float32(0.7)
    third, its = (jax.grad(jax.grad(jax.grad(g), 1), 0) for g in (f, product_of_jax))
    close(third(x, y), its(x, y))


def test_nested_vmap_and_jacobian() -> None:
    f = product.as_jax()
    a, b = normal(3, 4, 5), normal(5, seed=1)
    nested = partial(jax.vmap, in_axes=(0, None))
    close(nested(nested(f))(a, b), nested(nested(product_of_jax))(a, b))
    close(jax.jacrev(f, 1)(a[0], b), jax.jacrev(product_of_jax, 1)(a[0], b))
    close(jax.vmap(f)(jnp.zeros((0, 3)), jnp.zeros((0, 3))), jnp.zeros((0, 3)))


def test_checkpoint_scan_and_cond() -> None:
    def loss(f: Any, x: Any, w: Any) -> Any:
        def step(carry: Any, _: Any) -> Any:
            kept = jax.checkpoint(f)(carry, w)
            return jax.lax.cond(kept.sum() > 0, lambda y: f(y, w), lambda y: -y, kept), None

        return jax.lax.scan(step, x, None, length=3)[0].sum()

    x, w = normal(4, 16), normal(16, seed=1)
    f = rms_norm.as_jax()
    for numbers in (0, 1, (0, 1), 1):
        expected = jax.value_and_grad(partial(loss, rms_norm_of_jax), numbers)(x, w)
        close(jax.jit(jax.value_and_grad(partial(loss, f), numbers))(x, w), expected, 1e-4)
        close(jax.value_and_grad(partial(loss, f), numbers)(x, w), expected, 1e-4)


def test_eval_shape_and_lowered_text() -> None:
    f = rms_norm.as_jax()
    shaped = jax.eval_shape(f, jax.ShapeDtypeStruct((5, 64), jnp.bfloat16), jnp.ones(64))
    assert (shaped.shape, shaped.dtype) == ((5, 64), jnp.float32)
    text = jax.jit(f).lower(normal(5, 64), normal(64)).as_text()
    assert text.count("stablehlo.custom_call @babytriton(") == 1
    compiled = jax.jit(f).lower(normal(5, 64), normal(64)).compile()
    close(compiled(normal(5, 64), normal(64)), rms_norm_of_jax(normal(5, 64), normal(64)))


def test_a_new_shape_compiles_anew() -> None:
    f = jax.jit(product.as_jax())
    for n in (3, 4, 3, 5):
        close(f(normal(n), normal(n)), product_of_jax(normal(n), normal(n)))


def test_donated_arguments() -> None:
    a = normal(64)
    expected = product_of_jax(a, a + 1)
    close(jax.jit(product.as_jax(), donate_argnums=0)(a, normal(64) + 1), expected)


def test_forward_mode_is_refused_by_jax() -> None:
    a = normal(3)
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(product.as_jax(), (a, a), (a, a))


def test_without_jit() -> None:
    a = normal(3)
    with jax.disable_jit():
        close(product.as_jax()(a, a), product_of_jax(a, a))
        close(jax.grad(lambda x: product.as_jax()(x, x).sum())(a), 6 * a**2)


# ---------------------------------------------------------------- arguments and results


def test_trees_and_python_values() -> None:
    f = trees.as_jax()
    w, b, x, y = normal(4, 3), normal(3, seed=1), normal(2, 4, seed=2), normal(2, 3, seed=3)
    params = {"w": w, "b": b}
    for scale in (2.0, 0.5):
        found = f(params, [x, b], y, scale=scale, deep={"inner": (b, 1)})
        expected = (x @ w + b + y * scale) * b
        close(found["y"], expected)
        close(found["pair"][0], expected.sum())
        assert found["pair"][1][0] is b
        assert found["pair"][1][1:] == [None, 3, "text", scale]
    grads = jax.grad(lambda p: f(p, [x, b])["pair"][0])(params)
    close(grads, jax.grad(lambda p: (x @ p["w"] + p["b"]).sum())(params))


Point = collections.namedtuple("Point", "x y")


@bt.jit
def moved(point, by):
    return Point(point.x + by, point.y)


def test_named_tuples() -> None:
    a, b = normal(3), normal(3, seed=1)
    found = jax.jit(lambda p, by: moved.as_jax()(p, by))(Point(a, b), 1.5)
    close(found, Point(a + 1.5, b))
    close(
        jax.grad(lambda p: sum(moved.as_jax()(p, 2)).sum())(Point(a, b)),
        Point(a * 0 + 1, b * 0 + 1),
    )


@bt.jit
def powered(x, p, times=2):
    return x**p * times + 1.0


def test_python_numbers_are_constants() -> None:
    f, x = powered.as_jax(), jnp.abs(normal(5)) + 0.1
    for p in (2.0, 3.0, 0.5, 2):
        close(f(x, p), x**p * 2 + 1.0)
        close(f(x, p, times=3), x**p * 3 + 1.0)
    close(jax.jit(f, static_argnums=(1, 2))(x, 3.0, 5), x**3 * 5 + 1.0)
    close(jax.jit(f)(x, 3.0), x**3 * 2 + 1.0)
    close(jax.grad(f, 1)(jnp.float32(1.5), 3.0), jax.grad(lambda p: 1.5**p * 2)(3.0))


def test_floats_of_half_precision_arrays_promote_as_torch_has_it() -> None:
    x = normal(5, dtype=jnp.bfloat16)
    f = jax.jit(product.as_jax())
    assert f(x, 2.0).dtype == jnp.bfloat16
    assert product.as_jax()(x, np.float32(2.0)).dtype == jnp.bfloat16


@pytest.mark.parametrize(
    "dtype", ["float32", "float16", "bfloat16", "int32", "int16", "int8", "uint8"]
)
def test_dtypes(dtype: str) -> None:
    a, b = (jnp.arange(1, 7).reshape(2, 3).astype(dtype) for _ in range(2))
    close(product.as_jax()(a, b), product_of_jax(a, b))
    if jnp.issubdtype(a.dtype, jnp.floating):
        mine = jax.grad(lambda *xs: product.as_jax()(*xs).sum().astype("float32"), (0, 1))(a, b)
        its = jax.grad(lambda *xs: product_of_jax(*xs).sum().astype("float32"), (0, 1))(a, b)
        close(mine, its, 0.02)


@bt.jit
def logic(a, b):
    return (a & ~b) | (b & ~a), torch.where(a, 1.0, 2.0)


def test_bool() -> None:
    a, b = jnp.array([True, True, False]), jnp.array([True, False, False])
    close(logic.as_jax()(a, b), (a ^ b, jnp.where(a, 1.0, 2.0)))


def test_sixty_four_bits() -> None:
    with jax.enable_x64(True):
        for dtype in ("float64", "int64"):
            a = jnp.arange(1, 7).reshape(2, 3).astype(dtype)
            close(product.as_jax()(a, a), product_of_jax(a, a))
        a = normal(4, dtype=jnp.float64)
        f = product.as_jax()
        close(jax.grad(lambda x: f(x, x).sum())(a), 6 * a**2, 1e-12)


@bt.jit
def largest(x):
    value, place = torch.max(x, -1)
    return value, place, torch.argsort(x, -1)


def test_64_bits_become_32_where_jax_has_no_more() -> None:
    x = normal(4, 9)
    value, place, order = largest.as_jax()(x)
    close((value, place), (x.max(-1), x.argmax(-1)))
    close(order, jnp.argsort(x, -1))
    # The places are kept for the way back, all their bits.
    weights = jnp.arange(1.0, 5.0)
    mine = jax.grad(lambda x: largest.as_jax()(x)[0] @ weights)(x)
    close(mine, jax.grad(lambda x: x.max(-1) @ weights)(x))
    batch = jnp.stack([x, -x])
    mine = jax.vmap(jax.grad(lambda x: largest.as_jax()(x)[0] @ weights))(batch)
    close(mine, jax.vmap(jax.grad(lambda x: x.max(-1) @ weights))(batch))
    with jax.enable_x64(True):
        assert largest.as_jax()(x)[1].dtype == jnp.int64


@bt.jit
def in_double(x, y):
    return ((x.double() - 1e8) * y.double() + 1e8 * y).float()


def test_saved_numbers_keep_their_precision() -> None:
    x, y = normal(8) + 3, normal(8, seed=1)
    mine = jax.grad(lambda y: in_double.as_jax()(x, y).sum())(y)
    ours = torch.tensor(np.asarray(y), requires_grad=True)
    in_double.fn(torch.tensor(np.asarray(x)), ours).sum().backward()
    close(mine, jnp.asarray(ours.grad.numpy()))


def test_numpy_arrays() -> None:
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    found = product.as_jax()(a, a[::-1])
    assert isinstance(found, jax.Array)
    close(found, product_of_jax(a, a[::-1]))


@bt.jit
def given_back(x, y):
    return x, y, x, x + y, (y * 2).sum().item(), x.shape[0], None


def test_results_that_are_arguments_or_numbers() -> None:
    x, y = normal(3), normal(3, seed=1)
    f = given_back.as_jax()
    found = f(x, y)
    assert found[0] is x
    close(found[3:5], (x + y, (y * 2).sum()))
    assert found[5:] == (3, None)
    inside = jax.jit(f)(x, y)
    close(inside[:4], (x, y, x, x + y))
    grads = jax.grad(lambda x, y: (f(x, y)[0] * f(x, y)[3]).sum(), (0, 1))(x, y)
    close(grads, (2 * x + y, x))


WEIGHT = torch.arange(4.0, requires_grad=True)


@bt.jit
def captured(x):
    return x * WEIGHT, WEIGHT


def test_captured_tensors() -> None:
    x, w = normal(3, 4), jnp.arange(4.0)
    f = captured.as_jax()
    close(f(x), (x * w, w))
    close(jax.grad(lambda x: f(x)[0].sum())(x), jnp.broadcast_to(w, x.shape))
    hessian = jax.grad(lambda x: (jax.grad(lambda x: (f(x)[0] ** 2).sum())(x) ** 2).sum())
    close(hessian(x), 8 * x * w**4, 1e-4)


def test_modules() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16))
    f, x = bt.jit(module).as_jax(), normal(5, 8)
    ours = torch.tensor(np.asarray(x), requires_grad=True)
    expected = module(ours)
    expected.square().sum().backward()
    close(f(x), jnp.asarray(expected.detach().numpy()))
    close(jax.jit(jax.grad(lambda x: (f(x) ** 2).sum()))(x), jnp.asarray(ours.grad.numpy()), 1e-4)


SCALE = 2.0


@bt.jit
def scaled(x):
    return x * SCALE


def test_captured_numbers_that_change(monkeypatch: pytest.MonkeyPatch) -> None:
    f, x = scaled.as_jax(), normal(3)
    inside = jax.jit(f)
    close((f(x), inside(x)), (x * 2, x * 2))
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    close(f(x), x * 3)
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="SCALE"):
        inside(x).block_until_ready()


class Layer:
    def __init__(self, by: float) -> None:
        self.by = by

    @bt.jit
    def shifted(self, x):
        return x + self.by


def test_methods() -> None:
    x = normal(3)
    close([Layer(by).shifted.as_jax()(x) for by in (1.0, 2.0)], [x + 1, x + 2])


# ---------------------------------------------------------------- programs of all kinds


def test_calls_of_torch() -> None:
    x = normal(6, 4)
    assert fallback.lower(torch.ones(6, 4)).fallbacks
    its = lambda x: jnp.sin(jnp.cumsum(jax.scipy.special.i1e(x) * 2, 0))  # noqa: E731
    f = fallback.as_jax()
    close(jax.jit(f)(x), its(x))
    close(jax.grad(lambda x: f(x).sum())(x), jax.grad(lambda x: its(x).sum())(x))
    close(jax.vmap(f)(jnp.stack([x, -x])), jax.vmap(its)(jnp.stack([x, -x])))


def test_branches_and_loops() -> None:
    f = choose.as_jax()
    for seed in range(4):
        x, y = normal(5, seed=seed), normal(5, seed=seed + 10)
        ours = [torch.tensor(np.asarray(z), requires_grad=True) for z in (x, y)]
        expected = choose.fn(*ours)
        expected.sum().backward()
        close(jax.jit(f)(x, y), jnp.asarray(expected.detach().numpy()), 1e-4)
        grads = jax.grad(lambda *xs: f(*xs).sum(), (0, 1))(x, y)
        close(grads, tuple(jnp.asarray(z.grad.numpy()) for z in ours), 1e-4)


@bt.jit
def several(x, w):
    y = F.gelu(x @ w)
    return y / y.norm(), (y @ w.mT).softmax(-1)


def test_several_kernels_and_results() -> None:
    x, w = normal(33, 16), normal(16, 24, seed=1)
    assert len(several.lower(torch.ones(33, 16), torch.ones(16, 24)).compile().kernels) > 1

    def its(x: Any, w: Any) -> Any:
        y = jax.nn.gelu(x @ w, approximate=False)
        return y / jnp.linalg.norm(y), jax.nn.softmax(y @ w.mT, -1)

    def loss(f: Any) -> Any:
        return lambda *xs: sum(jnp.sin(y).sum() for y in f(*xs))

    f = several.as_jax()
    close(f(x, w), its(x, w), 1e-4)
    close(jax.grad(loss(f), (0, 1))(x, w), jax.grad(loss(its), (0, 1))(x, w), 1e-4)
    close(jax.grad(lambda x: f(x, w)[1].max())(x), jax.grad(lambda x: its(x, w)[1].max())(x), 1e-4)


@bt.jit
def checked(x):
    assert x.sum() < 10, "too large"
    print("sum", x.sum())
    return x * 2


def test_effects(capsys: pytest.CaptureFixture[str]) -> None:
    f, x = jax.jit(checked.as_jax()), jnp.arange(4.0)
    close(f(x).block_until_ready(), x * 2)
    assert "sum tensor(6.)" in capsys.readouterr().out
    with pytest.raises(Exception, match="too large"):
        f(x * 2).block_until_ready()
    close(jax.grad(lambda x: f(x).sum())(x), x * 0 + 2)


def test_large_arrays() -> None:
    a, b = normal(5_000_000), normal(5_000_000, seed=1)
    close(product.as_jax()(a, b), product_of_jax(a, b))


@bt.jit
def dropped(x):
    return F.dropout(x, 0.5) * 2


def test_random_numbers() -> None:
    x = jnp.ones(1000)
    f = dropped.as_jax()
    one, other = jax.jit(lambda x: (f(x), f(x)))(x)
    assert not (one == other).all()
    value, vjp = jax.vjp(f, x)
    close(vjp(jnp.ones(1000))[0], value)
    with pytest.raises(ValueError, match=r"error\[BT134\]"):
        jax.grad(lambda x: jax.grad(lambda x: f(x).sum())(x).sum())(x)


# ---------------------------------------------------------------- memory, threads, names


class Watched(TorchDispatchMode):
    """Notes what torch computes."""

    def __init__(self, seen: list[str]) -> None:
        super().__init__()
        self.seen = seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def test_memory_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel reads JAX's memory, and writes the result's: torch computes nothing beside it."""
    pointers: list[list[int]] = []
    computed: list[str] = []
    kernel, run = Executable.kernel, Program.run

    def watched_kernel(self: Executable, name: str) -> Any:
        function = kernel(self, name)

        def call(*tensors: Any) -> Any:
            pointers.append([torch.from_dlpack(x).data_ptr() for x in tensors])
            return function(*tensors)

        return call

    def watched_run(self: Program, *tensors: Any) -> None:
        with Watched(computed):
            run(self, *tensors)

    monkeypatch.setattr(Executable, "kernel", watched_kernel)
    monkeypatch.setattr(direct, "builtin", lambda kernel, _: kernel)  # of torch's tensors alone
    monkeypatch.setattr(Program, "run", watched_run)
    f = bt.jit(product.fn).as_jax()
    a, b = normal(1000), normal(1000, seed=1)
    out = f(a, b).block_until_ready()
    assert pointers == [[x.unsafe_buffer_pointer() for x in (a, b, out)]]
    assert computed == []
    close(out, product_of_jax(a, b))


def test_threads() -> None:
    """XLA calls from threads of its own, while others trace and compile."""
    f, failures = several.as_jax(), []
    choose_f = choose.as_jax()

    def work(seed: int) -> None:
        try:
            for n in range(4):
                x, w = normal(8 + n, 16, seed=seed), normal(16, 8 + seed, seed=1)
                found = jax.jit(jax.grad(lambda x, w: f(x, w)[0].sum()))(x, w)
                y = choose_f(normal(3 + seed), normal(3 + seed))
                assert np.isfinite(np.asarray(found)).all()
                assert np.isfinite(np.asarray(y)).all()
        except Exception:
            failures.append(traceback.format_exc())

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert failures == []
    assert not any(thread.is_alive() for thread in threads)


def test_gradients_that_nothing_reads_are_not_computed() -> None:
    f = rms_norm.as_jax()
    x, w = normal(5, 64), normal(64, seed=1)

    def text(numbers: Any) -> str:
        step = jax.jit(jax.grad(lambda x, w: f(x, w).sum(), numbers))
        return step.lower(x, w).as_text()

    back = [line for line in text(0).splitlines() if "custom_call @babytriton" in line][-1]
    assert back.endswith("-> tensor<5x64xf32>")
    back = [line for line in text(1).splitlines() if "custom_call @babytriton" in line][-1]
    assert back.endswith("-> tensor<64xf32>")


def test_numbers_of_programs_are_those_of_their_text() -> None:
    """So that JAX's cache of compiled code serves another process."""
    x = normal(3)
    texts = [jax.jit(bt.jit(product.fn).as_jax()).lower(x, x).as_text() for _ in range(2)]
    assert texts[0] != texts[1], "two functions are two programs, whatever they capture"
    call = xla.CALLS._programs
    assert all(0 < number < 2**63 for number in call)


def test_platform_of_the_lowering() -> None:
    """What JAX lowers for CUDA is compiled for that, wherever it was traced."""
    f = bt.jit(product.fn).as_jax()
    before = set(xla.CALLS._programs)
    text = jax.jit(f).trace(normal(64), normal(64)).lower(lowering_platforms=("cuda",)).as_text()
    assert "custom_call @babytriton" in text
    (number,) = set(xla.CALLS._programs) - before
    assert xla.CALLS._programs[number].compiled.target.kind == "cuda"
    assert "__global__" in xla.CALLS._programs[number].compiled.source("cuda")


def test_both_platforms_in_one_module() -> None:
    f = bt.jit(rms_norm.fn).as_jax()
    step = jax.jit(jax.grad(lambda x, w: f(x, w).sum(), (0, 1)))
    lowered = step.trace(normal(5, 64), normal(64)).lower(lowering_platforms=("cpu", "cuda"))
    assert lowered.as_text().count("custom_call @babytriton") >= 4


# ---------------------------------------------------------------- mistakes


@bt.jit
def in_place(x, y):
    y += x
    return y * 2


def test_writes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"error\[BT132\]: `y` is written to in place"):
        in_place.as_jax()(normal(3), normal(3))
    with pytest.raises(ValueError, match=r"error\[BT132\]: `y` is written to in place"):
        jax.jit(jax.grad(lambda x: in_place.as_jax()(x, x).sum()))(normal(3))


def test_torch_tensors_are_refused() -> None:
    with pytest.raises(TypeError, match=r"argument `params\['w'\]`.*\n.*torch.Tensor"):
        trees.as_jax()({"w": torch.ones(3)}, [normal(3)])


def test_dtypes_without_kernels_are_refused() -> None:
    for dtype in ("complex64", "uint32"):
        with pytest.raises(TypeError, match=f"error.BT102.: argument `b`(.*\n)*.*got {dtype}"):
            product.as_jax()(normal(3), jnp.ones(3, dtype))
    with pytest.raises(TypeError, match=r"error\[BT102\]: argument `a`"):
        product.as_jax()(jax.random.key(0), normal(3))


def test_errors_of_the_function_name_its_line() -> None:
    with pytest.raises(bt.CompileError, match=r"error\[BT003\](.*\n)*.*return a \* b"):
        jax.jit(product.as_jax())(normal(3), normal(4))
    with pytest.raises(TypeError, match=r"error\[BT108\]"):
        product.as_jax()(normal(3))
    with pytest.raises(TypeError, match=r"error\[BT101\]: argument `b`"):
        product.as_jax()(normal(3), object())


def test_other_targets_are_refused() -> None:
    with pytest.raises(RuntimeError, match=r"error\[BT133\](.*\n)*.*compiled for cuda"):
        bt.jit("gpu")(product.fn).as_jax()(normal(3), normal(3))
    with pytest.raises(RuntimeError, match="metal"):
        bt.jit("metal")(product.fn).as_jax()
