"""What the language refuses, and what only looks like it: decorators, contexts, star arguments."""

from __future__ import annotations

import contextlib
import datetime
import functools
import random
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F

import babytriton as bt
from babytriton.ops import meta

X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
N = torch.tensor(2)
STATE = {"count": 0}
SEEN = {1, 2}


def refused(code: str, fn: Callable[..., Any], *args: Any) -> str:
    """The message with which a function is refused; it points at a line of this file."""
    with pytest.raises(bt.CompileError) as caught:
        bt.jit("cpu")(fn)(*args)
    text = str(caught.value)
    assert f"error[{code}]" in text
    assert __file__ in text
    return text


# ------------------------------------------------------------ syntax


def try_statement(x):
    try:
        return x
    finally:
        pass


def yields(x):
    yield x


def yields_from(x):
    yield from [x]


async def coroutine(x):
    return x


def inner_coroutine(x):
    async def inner():
        return x

    return inner


def inner_class(x):
    class Inner:
        pass

    return x


def writes_global(x):
    global COUNT
    COUNT = 1
    return x


def writes_nonlocal(x):
    y = x

    def inner():
        nonlocal y
        y = x + 1

    inner()
    return y


def matches(x):
    match x.ndim:
        case 2:
            return x


@pytest.mark.parametrize(
    ("fn", "says"),
    [
        (try_statement, "`try`"),
        (yields, "`yield`"),
        (yields_from, "`yield`"),
        (coroutine, "`async def`"),
        (inner_coroutine, "`async def`"),
        (inner_class, "`class`"),
        (writes_global, "`global`"),
        (writes_nonlocal, "`nonlocal`"),
        (matches, "`match`"),
    ],
)
def test_syntax_with_another_way(fn: Callable[..., Any], says: str) -> None:
    text = refused("BT001", fn, X)
    assert says in text
    assert "help: " in text


def test_del_of_what_is_no_name() -> None:
    def item_of_a_tensor(x):
        y = x + 1
        del y[0]
        return y

    def attribute(x):
        y = x + 1
        del y.grad
        return y

    def item_of_a_list(x):
        items, named = [x, x + 1, x + 2], {"a": x, "b": x}
        del items[0], named["a"]
        return items[0] + len(named), named["b"] + len(items)

    assert "torch.cat" in refused("BT001", item_of_a_tensor, X)
    refused("BT001", attribute, X)
    torch.testing.assert_close(bt.jit("cpu")(item_of_a_list)(X), item_of_a_list(X))


# ------------------------------------------------------------ contexts


def test_contexts_that_mean_nothing_here() -> None:
    def f(x):
        with torch.no_grad():
            y = x + 1
        with torch.inference_mode(), torch.autocast("cpu", enabled=False):
            y = y * 2
        with contextlib.nullcontext(3) as three, torch.profiler.record_function("step"):
            return y + three

    torch.testing.assert_close(bt.jit("cpu")(f)(X), f(X))
    assert torch.is_grad_enabled()


@contextlib.contextmanager
def own():
    yield


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: torch.enable_grad(), "gradients are on, unless turned off"),
        (lambda: contextlib.suppress(ValueError), "around the call"),
        (own, "around the call"),
        (lambda: torch.device("cpu"), "bt.device"),
    ],
)
def test_other_contexts_are_refused(make: Callable[[], Any], says: str) -> None:
    def f(x):
        with make():
            return x + 1

    assert says in refused("BT061", f, X)


# ------------------------------------------------------------ star arguments


def many(*args, **kwargs):
    return sum(args) * kwargs.get("by", 1)


def test_star_arguments() -> None:
    def f(x):
        rows = [x[0], x[1]]
        named = {"by": 2}
        return many(*x) + many(*rows, x[2], **named) + many(*(1, 2))

    torch.testing.assert_close(bt.jit("cpu")(f)(X), f(X))


@pytest.mark.parametrize(
    ("fn", "code"),
    [
        (lambda x: many(*x.sum()), "BT009"),
        (lambda x: many(*3), "BT009"),
        (lambda x: many(x, **x), "BT009"),
        (lambda x: many(x, **{1: 2}), "BT009"),
        (lambda x: many(x, by=1, **{"by": x.ndim}), "BT008"),  # noqa: PIE804
        (lambda x: {**x}, "BT009"),
    ],
)
def test_star_arguments_that_are_none(fn: Callable[..., Any], code: str) -> None:
    refused(code, fn, X)


# ------------------------------------------------------------ numbers of tensors


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, n: torch.zeros(n.item()),
        lambda x, n: x.tolist(),
        lambda x, n: torch.zeros(int(n)),
        lambda x, n: x[: n.item()],
        lambda x, n: x[n.item() :],
        lambda x, n: x[:n],
        lambda x, n: x.reshape(n, -1),
        lambda x, n: torch.arange(n),
        lambda x, n: x.expand(n, 4, 6),
        lambda x, n: list(range(n)),
        lambda x, n: [x] * n,
        lambda x, n: x.nonzero()[0],
        lambda x, n: x[x > 0][0],
        lambda x, n: torch.unique(x),
        lambda x, n: x.numpy(),
        lambda x, n: numpy.asarray(x),
        lambda x, n: x.repeat_interleave(n),
        lambda x, n: torch.masked_select(x, x > 0).topk(2),
        lambda x, n: torch.equal(x, x),
        lambda x, n: [x][n],
        lambda x, n: torch.full((n,), 1.0),
        lambda x, n: x.view(n * 2, -1),
        lambda x, n: math_sqrt(x.sum()),
    ],
)
def test_numbers_in_tensors_are_not_known(fn: Callable[..., Any]) -> None:
    with pytest.raises(bt.CompileError) as caught:
        bt.jit("cpu")(fn)(X, N)
    text = str(caught.value)
    assert any(f"error[BT0{code}]" in text for code in ("06", "05", "15", "03"))
    assert __file__ in text


def math_sqrt(x):
    import math

    return math.sqrt(x)


# ------------------------------------------------------------ what would happen once


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x * random.random(),
        lambda x: x * random.uniform(1, 2),
        lambda x: x * time.time(),
        lambda x: x * time.perf_counter(),
        lambda x: x * datetime.datetime.now().second,
        lambda x: x * numpy.random.rand(),
        lambda x: x * float(input()),
        lambda x: x * eval("2"),
        lambda x: x * len(locals()),
        lambda x: (x, open(__file__)),  # noqa: SIM115
        lambda x: (x, setattr(contextlib, "made_up", 1)),
        lambda x: (x, torch.set_default_dtype(torch.float64)),
        lambda x: (x, torch.set_grad_enabled(False)),
        lambda x: (x, torch.set_num_threads(1)),
        lambda x: (x, breakpoint()),
    ],
)
def test_calls_that_would_happen_once(fn: Callable[..., Any]) -> None:
    assert "help: " in refused("BT062", fn, X)
    assert torch.get_default_dtype() is torch.float32
    assert torch.is_grad_enabled()


def test_containers_from_outside_do_not_change() -> None:
    def f(x):
        SEEN.add(3)
        return x

    refused("BT017", f, X)
    assert {1, 2} == SEEN


def test_seeds_are_set_at_each_call() -> None:
    def f(x):
        torch.manual_seed(3)
        return x + torch.rand(6)

    compiled = bt.jit("cpu")(f)
    first = compiled(X)
    torch.rand(5)
    torch.testing.assert_close(compiled(X), first)
    torch.testing.assert_close(first, f(X))


# ------------------------------------------------------------ recursion


def power(x, n):
    return x if n == 1 else x * power(x, n - 1)


def ping(x):
    return pong(x)


def pong(x):
    return ping(x)


def test_recursion_that_constants_end() -> None:
    torch.testing.assert_close(bt.jit("cpu")(power)(X, 7), X**7)


def test_recursion_without_an_end() -> None:
    assert "`ping` and `pong` call each other" in refused("BT060", lambda x: ping(x), X)

    def local(x):
        def again(y):
            return again(y + x)

        return again(x)

    assert "`again` calls itself" in refused("BT060", local, X)

    @bt.jit("cpu")
    def itself(x):
        return itself(x)

    with pytest.raises(bt.CompileError, match="`itself` calls itself"):
        itself(X)


# ------------------------------------------------------------ decorators


def doubled(fn):
    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        return fn(*args, **kwargs) * 2

    return wrapper


def scaled(by):
    def decorate(fn):
        def wrapper(x):
            return fn(x) * by

        return wrapper

    return decorate


class Shifted:
    def __init__(self, fn):
        self.fn = fn
        self.by = 3

    def __call__(self, x):
        return self.fn(x) + self.by


@scaled(5)
@doubled
def decorated(x):
    return x + 1


@torch.no_grad()
@doubled
def without_gradients(x):
    return x + 1


@torch.inference_mode()
def inference(x):
    return x + 1


@torch.compile
def compiled_by_torch(x):
    return x + 1


@torch.autocast("cpu", enabled=False)
def without_autocast(x):
    return x + 1


@functools.lru_cache
def cached(x):
    return x + 1


@own()
def in_own_context(x):
    return x + 1


@Shifted
def shifted(x):
    return x * 2


PLAIN = [decorated, without_gradients, inference, without_autocast, shifted]


@pytest.mark.parametrize("fn", PLAIN, ids=lambda fn: getattr(fn, "__name__", "shifted"))
def test_decorators_below_ours(fn: Callable[..., Any]) -> None:
    torch.testing.assert_close(bt.jit("cpu")(fn)(X), fn(X))
    torch.testing.assert_close(bt.jit("cpu")(lambda x: fn(x) - 1)(X), fn(X) - 1)


def test_torch_compile_is_seen_through() -> None:
    torch.testing.assert_close(bt.jit("cpu")(compiled_by_torch)(X), X + 1)
    torch.testing.assert_close(bt.jit("cpu")(lambda x: compiled_by_torch(x) * 2)(X), X * 2 + 2)


def test_decorators_that_cannot_be_kept() -> None:
    assert "with " in refused_anywhere(in_own_context)
    assert "lru_cache" in refused("BT015", lambda x: cached(x), X)
    with pytest.raises(TypeError, match="lru_cache"):
        bt.jit("cpu")(cached)


def refused_anywhere(fn: Callable[..., Any]) -> str:
    with pytest.raises(bt.CompileError, match="BT061") as caught:
        bt.jit("cpu")(lambda x: fn(x))(X)
    return str(caught.value)


def test_decorators_on_inner_functions() -> None:
    def f(x):
        @doubled
        def first(y):
            return y + 1

        @scaled(3)
        @torch.no_grad()
        @doubled
        def second(y, by=2):
            return y * by

        return first(x) + second(x), first.__name__

    (found, name), (expected, expected_name) = bt.jit("cpu")(f)(X), f(X)
    torch.testing.assert_close(found, expected)
    assert name == expected_name


def test_a_decorated_function_keeps_its_name() -> None:
    assert bt.jit("cpu")(without_gradients).__name__ == "without_gradients"


def test_counters_are_refused_not_counted_once() -> None:
    def counting(fn):
        def wrapper(x):
            STATE["count"] += 1
            return fn(x)

        return wrapper

    refused("BT017", counting(lambda x: x + 1), X)
    assert STATE == {"count": 0}


@pytest.mark.parametrize("fn", [torch.softmax, torch.log_softmax, torch.sum, torch.argmax])
@pytest.mark.parametrize("dim", [3, -3])
def test_dimension_that_is_not_there(fn: Any, dim: int) -> None:
    def f(x):
        return fn(x, dim)

    with pytest.raises(bt.CompileError, match=r"BT003[^$]*Dimension out of range"):
        bt.jit("cpu")(f)(torch.ones(3, 5))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.bool], ids=str)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "fn",
    [
        F.silu,
        F.gelu,
        F.softplus,
        F.glu,
        lambda x: x.softmax(-1),
        lambda x: x.var(),
        lambda x: F.cross_entropy(x, torch.zeros(3, dtype=torch.int64)),
        lambda x: F.scaled_dot_product_attention(x, x, x),
    ],
)
def test_functions_of_floats_refuse_integers_as_torch_does(
    fn: Any, dynamic: bool, dtype: torch.dtype
) -> None:
    x = torch.arange(12).view(3, 4).to(dtype)
    with pytest.raises(Exception, match=r"not implemented|only support|dtype"):
        fn(x)
    compiled = bt.jit("cpu", dynamic=dynamic)(lambda x: fn(x))
    before = torch.get_rng_state()
    with pytest.raises(bt.CompileError, match="BT003"):
        compiled(x)
    assert torch.equal(torch.get_rng_state(), before)


def test_functions_of_sizes_are_not_run_to_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    made = [0]

    def noted(fn: Any, args: Any, kwargs: Any) -> Any:
        found = apply(fn, args, kwargs)
        made.extend(x.numel() for x in meta.tensors_of(found) if not x.is_meta)
        return found

    apply = meta.apply
    monkeypatch.setattr(meta, "apply", noted)
    fn = bt.jit("cpu")(lambda x: x.new_zeros((2000, 2000)).sum() + x.repeat(3000).sum() + x)
    fn.lower(torch.arange(3))
    assert 0 < max(made) < 1 << 20


@pytest.mark.parametrize("fn", [lambda x: F.relu(x), lambda x: x.argmax(), lambda x: 1 - x])
def test_functions_that_refuse_bools(fn: Any) -> None:
    with pytest.raises(bt.CompileError, match="BT003"):
        bt.jit("cpu")(fn)(torch.ones(3, dtype=torch.bool))


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("call", [torch.softmax, torch.log_softmax], ids=lambda f: f.__name__)
def test_softmax_gives_floats_alone(call: Callable[..., Any], grad: bool) -> None:
    def fn(x):
        return call(x, -1, torch.int32)

    assert "not implemented for int32" in refused("BT003", fn, X.clone().requires_grad_(grad))


@pytest.mark.parametrize("loss", [F.cross_entropy, F.nll_loss], ids=lambda f: f.__name__)
def test_classes_are_integers(loss: Callable[..., Any]) -> None:
    def fn(x, t):
        return loss(x, t)

    text = refused("BT003", fn, X, torch.zeros(4))
    assert "the target must be classes of dtype int64" in text
    assert ("probabilities in the shape of the input" in text) == (loss is F.cross_entropy)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="errors have no notes before Python 3.11")
def test_what_torch_raises_at_run_time_tells_the_line() -> None:
    def inverse(x):
        return torch.linalg.inv(x * 0) + 1

    with pytest.raises(torch.linalg.LinAlgError) as raised:
        bt.jit("cpu")(inverse)(torch.eye(3))
    (note,) = raised.value.__notes__
    assert note.startswith("raised by `linalg_inv`, called at ")
    assert note.endswith(": return torch.linalg.inv(x * 0) + 1")


@pytest.mark.parametrize("other", [torch.float16, torch.float64, torch.int64], ids=str)
def test_products_of_several_dtypes(other: torch.dtype) -> None:
    def product(x, w):
        return (x * 2) @ w

    def linear(x, w):
        return F.linear(x, w)

    def added(x, w):
        return torch.addmm(x, x, w)

    x, w = torch.ones(4, 4), torch.ones(4, 4, dtype=other)
    for fn in (product, linear, added):
        with pytest.raises((bt.CompileError, RuntimeError)):
            fn(x, w)
        with pytest.raises(bt.CompileError, match=r"(?s)BT003.*return .*dtype"):
            bt.jit("cpu")(fn)(x, w)


def test_products_without_sums_take_several_dtypes() -> None:
    x, v = torch.ones(3, 3), torch.arange(3.0, dtype=torch.float64)
    fn = torch.addr
    torch.testing.assert_close(bt.jit("cpu")(lambda x, v: fn(x, v, v))(x, v), fn(x, v, v))

    def scaled(x, v):
        return torch.einsum("ij,j->ij", x, v)

    torch.testing.assert_close(bt.jit("cpu")(scaled)(x, v), scaled(x, v))


def test_devices_that_there_are_not() -> None:
    for fn in (lambda x: x.to("float16"), lambda x: x + torch.zeros(3, device="gpu")):
        with pytest.raises(bt.CompileError, match=r"BT003"):
            bt.jit("cpu")(fn)(torch.ones(3))


def test_compiling_draws_no_random_numbers() -> None:
    def noise(x):
        drawn = torch.normal(0.0, 1.0, (3,)) + torch.normal(x) + torch.normal(x, 2.0)
        return drawn + x.clone().normal_(), torch.rand(3)

    jitted = bt.jit("cpu")(noise)
    for _ in range(2):
        torch.manual_seed(0)
        found = jitted(torch.zeros(3))
        torch.manual_seed(0)
        assert all(map(torch.equal, found, noise(torch.zeros(3))))


def column_before_the_first(x):
    return x[:, [0, -7]]


def write_to_a_row_beyond(x):
    x[[0, 4]] = 1.0
    return x


@pytest.mark.parametrize(
    ("fn", "why"),
    [
        (column_before_the_first, "index -7 is out of bounds for dimension 1 with size 6"),
        (write_to_a_row_beyond, "index 4 is out of bounds for dimension 0 with size 4"),
    ],
)
def test_lists_of_indices_that_are_surely_out_of_range(fn, why):
    with pytest.raises(IndexError):
        fn(X.clone())
    assert why in refused("BT003", fn, X)


def test_lists_of_indices_within_sizes_that_are_symbolic():
    def fn(x):
        y = x * 1
        y[None, [1, -1]] = 7.0
        return y, x[[-4, 3], None]

    for ours, theirs in zip(bt.jit("cpu", dynamic=True)(fn)(X), fn(X)):
        assert torch.equal(ours, theirs)
