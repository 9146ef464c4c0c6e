"""Gradients of compiled functions, as torch's autograd sees them."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import babytriton as bt
from babytriton.diagnostics import CompileError

jit = bt.jit("cpu")
double = functools.partial(torch.rand, dtype=torch.float64, requires_grad=True)


def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x * w) * 2


def gradients(fn: Callable[..., Any], *args: Any) -> tuple[Any, ...]:
    """Of the sum of the squares of a result."""
    inputs = [x for x in args if isinstance(x, torch.Tensor) and x.requires_grad]
    return torch.autograd.grad((fn(*args) ** 2).sum(), inputs, allow_unused=True)


def check(fn: Callable[..., Any], *args: Any, **options: Any) -> bt.jit:
    """The function compiled, whose gradients are torch's; also those of its gradients."""
    compiled = bt.jit("cpu", **options)(fn)
    torch.testing.assert_close(gradients(compiled, *args), gradients(fn, *args))
    inputs = tuple(x for x in args if isinstance(x, torch.Tensor) and x.requires_grad)
    if all(x.dtype == torch.float64 for x in inputs):
        assert torch.autograd.gradcheck(compiled, args)
    return compiled


def newest(compiled: Any) -> Any:
    """The program that was compiled last."""
    return compiled._specializations.newest


# ---------------------------------------------------------------- what autograd asks


def test_gradcheck_and_gradgradcheck() -> None:
    compiled, args = jit(product), (double(3, 4), double(4))
    assert torch.autograd.gradcheck(compiled, args)
    assert torch.autograd.gradgradcheck(compiled, args)


def test_third_order() -> None:
    def third(fn: Any, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            (x_,) = torch.autograd.grad(fn(x).sum(), x, create_graph=True)
            fn = lambda _, x_=x_: x_  # noqa: E731
        return x_

    def cube(x: torch.Tensor) -> torch.Tensor:
        return x.exp() * x

    x = double(5)
    torch.testing.assert_close(third(jit(cube), x), third(cube, x))


def test_only_what_needs_a_gradient_has_one() -> None:
    x, w = torch.rand(4, 8), torch.rand(8, requires_grad=True)
    compiled = check(product, x, w)
    assert len(newest(compiled).backward.scheduled.lowered.lowering.result) == 1
    both = check(product, x.requires_grad_(), w)
    assert len(newest(both).backward.scheduled.lowered.lowering.result) == 2


def test_without_gradients_nothing_is_saved() -> None:
    compiled, x, w = jit(product), torch.rand(4, 8), torch.rand(8, requires_grad=True)
    with torch.no_grad():
        assert not compiled(x, w).requires_grad
    assert compiled(x, w).requires_grad
    assert not compiled(x, w.detach()).requires_grad
    with torch.inference_mode():
        assert not compiled(x, w).requires_grad
    # Without gradients, the same program whether the argument could have one or not.
    assert len(compiled.specializations()) == 2


def test_a_graph_may_be_kept() -> None:
    x, w = torch.rand(4, 8, requires_grad=True), torch.rand(8)
    y = jit(product)(x, w).sum()
    y.backward(retain_graph=True)
    once = x.grad.clone()
    y.backward()
    torch.testing.assert_close(x.grad, 2 * once)
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()


def test_what_was_saved_must_not_change() -> None:
    x, w = torch.rand(4, 8, requires_grad=True), torch.rand(8, requires_grad=True)
    y = jit(product)(x, w)
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_saved_tensors_are_let_go() -> None:
    x = torch.rand(4, requires_grad=True)
    given = x * 1
    alive = weakref.ref(given)
    y = jit(product)(given, torch.rand(4))
    del given
    y.sum().backward()
    del y
    gc.collect()
    assert alive() is None


def test_results_of_several_kinds() -> None:
    def several(x: torch.Tensor) -> Any:
        return x * 2, {"a": x.exp()}, x > 0, x

    x = torch.rand(4, requires_grad=True)
    twice, named, positive, same = jit(several)(x)
    assert [v.requires_grad for v in (twice, named["a"], positive)] == [True, True, False]
    assert same is x
    (grad,) = torch.autograd.grad(twice.sum() + named["a"].sum(), x)
    torch.testing.assert_close(grad, 2 + x.detach().exp())
    (grad,) = torch.autograd.grad(jit(several)(x)[1]["a"].sum(), x)
    torch.testing.assert_close(grad, x.detach().exp())


def test_an_argument_twice() -> None:
    x = double(4)
    torch.testing.assert_close(
        gradients(lambda x: jit(product)(x, x), x), gradients(lambda x: product(x, x), x)
    )


def test_hooks_and_chains() -> None:
    x, w = double(4, 8), double(8)
    compiled = jit(product)
    seen = []
    y = compiled(compiled(x * 2, w), w)
    y.register_hook(seen.append)
    y.sum().backward()
    expected = torch.autograd.grad(product(product(x * 2, w), w).sum(), (x, w))
    torch.testing.assert_close((x.grad, w.grad), expected)
    assert len(seen) == 1


def test_expanded_and_transposed_gradients() -> None:
    x, w = torch.rand(4, 8, requires_grad=True), torch.rand(8, requires_grad=True)
    grad = torch.rand(8, 4).t()
    ours = torch.autograd.grad(jit(product)(x, w), (x, w), grad)
    torch.testing.assert_close(ours, torch.autograd.grad(product(x, w), (x, w), grad))
    mean = torch.autograd.grad(jit(product)(x, w).mean(), (x, w))
    torch.testing.assert_close(mean, torch.autograd.grad(product(x, w).mean(), (x, w)))


# ---------------------------------------------------------------- what functions do


def test_detach_and_no_grad_inside() -> None:
    def stops(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            scale = (x.abs() * 2).reshape(x.shape)
        return x * scale * w.detach() + w * x.view(x.shape).detach()

    check(stops, torch.rand(3, 4, requires_grad=True), torch.rand(4, requires_grad=True))


def first_without(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x * 2
    with torch.no_grad():
        z = y.squeeze()
    return z, y, y.t().t()


def second_without(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = torch.linalg.inv(x)
    with torch.no_grad():
        z = y[:]
    return y, z


@pytest.mark.parametrize("fn", [first_without, second_without])
@pytest.mark.parametrize("dynamic", [None, True])
def test_one_tensor_twice_with_gradients_and_without(
    fn: Callable[..., Any], dynamic: bool | None
) -> None:
    x = double(4, 4)
    compiled = bt.jit("cpu", dynamic=dynamic)(fn)
    for _ in range(3):
        found, expected = compiled(x), fn(x)
        assert len(set(map(id, found))) == len(expected)
        for one, other in zip(found, expected):
            assert torch.equal(one, other)
            assert one.data_ptr() == found[0].data_ptr()
            assert one.requires_grad == (other.grad_fn is not None)
    assert torch.autograd.gradgradcheck(lambda x: compiled(x)[fn is first_without], x)
    sums = [sum((y * y).sum() for y in f(x) if y.grad_fn is not None) for f in (compiled, fn)]
    found, expected = (torch.autograd.grad(total, x) for total in sums)
    torch.testing.assert_close(found, expected)


def test_numbers_of_tensors_pass_no_gradient() -> None:
    def scaled(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * y.sum().item()

    x, y = torch.rand(4, requires_grad=True), torch.rand(4, requires_grad=True)
    assert gradients(jit(scaled), x, y)[1] is None
    check(scaled, x, y)


def test_float_arguments_stay_variable() -> None:
    def scaled(x: torch.Tensor, a: float) -> torch.Tensor:
        return torch.tanh(x * a) * a

    compiled, x = jit(scaled), torch.rand(4, requires_grad=True)
    for a in (1.5, 2.5):
        torch.testing.assert_close(gradients(compiled, x, a), gradients(scaled, x, a))
    assert len(compiled.specializations()) == 1


def test_writes_that_are_not_recorded() -> None:
    def writes(x: torch.Tensor) -> torch.Tensor:
        y, z, v = x * x, x.sin(), x * 3
        with torch.no_grad():
            y.mul_(2)
            z[0] = 0
        v.detach().mul_(3)
        return y + z * 3 + v * 2 + x

    x = double(3, 4)
    torch.testing.assert_close(gradients(jit(writes), x), gradients(writes, x))


def view_after_writes(x: torch.Tensor, w: torch.Tensor) -> Any:
    y = x * w
    v = y.view(-1)
    z = y[1:]
    v[:] *= v[:] * 2 - 1
    y += 1
    with torch.no_grad():
        v.clamp_(-2, 2)
        other = z * 2
        z.mul_(3)
    return v * 2, z * w[1:], y, other


def row_in_loop(x: torch.Tensor, w: torch.Tensor) -> Any:
    y = x * w
    v = y[0]
    for i in range(2):
        y[i + 1] += y[i]
        with torch.no_grad():
            v.clamp_(-1, 1)
    return v * 2, y


def detached_before_writes(x: torch.Tensor, w: torch.Tensor) -> Any:
    y = x * 2
    whole = y.detach()
    part, flat = whole[1:], whole.view(-1)
    y.mul_(w)
    return whole, part * w[1:], flat, y


def detached_is_written(x: torch.Tensor, w: torch.Tensor) -> Any:
    y, z = x * 2, x * w
    whole, part = y.detach(), z.detach()[1:]
    whole.mul_(3)
    part.add_(1)
    with torch.no_grad():
        whole[0].copy_(w[0])
    return whole, y * w, part, z * z


def detached_in_branch(x: torch.Tensor, w: torch.Tensor) -> Any:
    y = x * w
    whole = y.detach()
    if x.sum() > 0:
        whole.mul_(2)
    else:
        y.mul_(w)
    for _ in range(3):
        y.mul_(w)
        whole.add_(1)
    return whole, y


def copied_without_gradients(x: torch.Tensor, w: torch.Tensor) -> Any:
    y = torch.zeros_like(x)
    with torch.no_grad():
        y.copy_(x)
    return y, y * w


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    "fn",
    [
        view_after_writes,
        row_in_loop,
        detached_before_writes,
        detached_is_written,
        detached_in_branch,
        copied_without_gradients,
    ],
)
def test_which_tensors_of_a_memory_have_gradients(fn: Callable[..., Any], sign: int) -> None:
    x, w = (double(3, 4).detach().abs().mul(sign).requires_grad_() for _ in range(2))
    for ours, theirs in zip(jit(fn)(x, w), fn(x, w), strict=True):
        torch.testing.assert_close(ours, theirs)
        assert ours.requires_grad == theirs.requires_grad
        if theirs.requires_grad:
            grad = torch.rand_like(theirs)
            found, expected = (
                torch.autograd.grad(
                    y, (x, w), grad, retain_graph=True, allow_unused=True, materialize_grads=True
                )
                for y in (ours, theirs)
            )
            torch.testing.assert_close(found, expected)


def test_writes_to_views_that_are_not_recorded() -> None:
    def writes(a: torch.Tensor) -> torch.Tensor:
        x, y = a.clone(), a * 2
        v, w = x[0], y[:, 1]
        with torch.no_grad():
            v.add_(1)
            w.mul_(2)
        v *= 3
        y[:, 0] = w + 1
        return x * y

    x = double(3, 4)
    torch.testing.assert_close(gradients(jit(writes), x), gradients(writes, x))


def test_whether_gradients_are_recorded_is_known() -> None:
    def asks(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if x.requires_grad and torch.is_grad_enabled():
            x = x * 2
        with torch.no_grad():
            if torch.is_grad_enabled() or (x * 1).requires_grad:
                x = x * 100
        return x * 3 if y.requires_grad else x * 5

    compiled = jit(asks)
    for first, second in ((False, False), (True, False), (True, True), (False, True)):
        x, y = torch.ones(3, requires_grad=first), torch.ones(3, requires_grad=second)
        torch.testing.assert_close(compiled(x, y), asks(x, y))


def test_buffers_that_are_read_and_then_written() -> None:
    def moves(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        y = (x - b).square() * b
        b.mul_(0.9).add_(x.detach().mean(0) * 0.1)
        return y * b

    x = double(3, 4)
    ours = torch.rand(4, dtype=torch.float64)
    before = ours.clone()
    (found,) = torch.autograd.grad((jit(moves)(x, ours) ** 2).sum(), x)

    # Of torch itself, the write would make the gradient impossible.
    def copied(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        after = b * 0.9 + x.detach().mean(0) * 0.1
        return (x - b).square() * b * after

    (expected,) = torch.autograd.grad((copied(x, before) ** 2).sum(), x)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(ours, before * 0.9 + x.detach().mean(0) * 0.1)


def test_data_passes_no_gradient() -> None:
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * x.data

    x = torch.rand(3, requires_grad=True)
    torch.testing.assert_close(gradients(jit(scaled), x), gradients(scaled, x))


def test_views_that_are_written_to() -> None:
    def writes(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x * w
        y[1:3] = w * 2
        y[:, 2].mul_(x[:, 0])
        z = y.t()
        z[0] += 1
        return y.exp()

    check(writes, double(4, 5), double(5))


def test_branches() -> None:
    def branches(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x * w
        if y.mean() > 0.25:
            y = y * x
        elif x.sum() > 0:
            y = torch.exp(y) - w
        return y * 2

    for scale in (0.1, 1.0, -1.0):
        x = (torch.rand(4, 8, dtype=torch.float64) * scale).requires_grad_()
        compiled = check(branches, x, double(8))
        assert torch.autograd.gradgradcheck(compiled, (x, double(8)))


def prints(x: torch.Tensor) -> torch.Tensor:
    print("begins")
    if x.sum() > 0:
        print("positive")
        x = x * x
    if x.sum() > -1:
        print("large")
    for i in range(40):
        if i > 37:
            print("step", i)
        x = x * 1.01
    while x.sum() < 20:
        x = x * x + 1
        print("grows")
        for j in range(33):
            if j > 31:
                print("inside")
    return x


def test_what_is_printed_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    def outputs(fn: Callable[..., torch.Tensor]) -> tuple[str, str]:
        x = torch.full((3,), 0.5, requires_grad=True)
        (grad,) = torch.autograd.grad(fn(x).sum(), x, create_graph=True)
        forward = capsys.readouterr().out
        grad.sum().backward()
        return forward, capsys.readouterr().out

    wanted = outputs(prints)
    assert "inside" in wanted[0]
    assert outputs(jit(prints)) == wanted


def test_counted_loops() -> None:
    def steps(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for i in range(50):
            x = torch.sin(x) * w + x * 0.5 + i / 100
        return x

    check(steps, double(2, 3), double(3))


@pytest.mark.parametrize("limit", [0.1, 3.0, 100.0])
def test_while_loops(limit: float) -> None:
    def grows(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        while x.abs().sum() < limit:
            x = x * w * 1.5 + x
        return x * w

    check(grows, double(2, 3), double(3))


def test_nested_loops_and_branches() -> None:
    def nested(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(40):
            if x.sum() > 3:
                x = x * 0.5
            for _ in range(3):
                x = x + torch.sin(x * w)
        return x

    check(nested, double(3), double(3))


def count_to(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for i in range(40):
        x = torch.sin(x) * w + x * 0.5 + i / 100
    return x


def grow(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    while x.abs().sum() < 3:
        x = x * w * 1.5 + x
    return x * w


def go_around(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for _ in range(33):
        if x.sum() > 3:
            x = x * 0.5
        for _ in range(5):
            x = x + torch.sin(x * w) / 7
    return x


@pytest.mark.parametrize("loops", [count_to, grow, go_around])
def test_gradients_of_loops_gradients(loops: Callable[..., torch.Tensor]) -> None:
    args = (torch.tensor([0.3, -0.2], dtype=torch.float64, requires_grad=True), double(2))

    def third(fn: Callable[..., torch.Tensor]) -> Any:
        grads = torch.autograd.grad(fn(*args).sin().sum(), args, create_graph=True)
        grads = torch.autograd.grad(sum(x.sin().sum() for x in grads), args, create_graph=True)
        return torch.autograd.grad(sum(x.sin().sum() for x in grads), args)

    assert torch.autograd.gradgradcheck(jit(loops), args)
    torch.testing.assert_close(third(jit(loops)), third(loops), rtol=1e-7, atol=1e-7)


def test_loops_write_to_what_no_gradients_flow_through() -> None:
    def counting(x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(2, dtype=torch.float64)
        for _ in range(34):
            count += 1
            x = x * x.cos()
            total = total + x
        return total

    x, count = double(2), torch.ones(2)
    (found,) = torch.autograd.grad(jit(counting)(x, count).sum(), x)
    assert count.tolist() == [35, 35]
    torch.testing.assert_close(found, torch.autograd.grad(counting(x, count).sum(), x)[0])


def test_gradients_of_gradients_of_what_torch_runs_in_a_branch() -> None:
    def inverse(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > -100:
            x = torch.linalg.inv(x + 6 * torch.eye(2, dtype=x.dtype))
        return x * x

    assert torch.autograd.gradgradcheck(jit(inverse), (double(2, 2),))


def test_what_torch_runs() -> None:
    def inverse(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.inv(x * 2) * 3

    x = (torch.rand(3, 3, dtype=torch.float64) + 4 * torch.eye(3)).requires_grad_()
    compiled = check(inverse, x)
    assert torch.autograd.gradgradcheck(compiled, (x,))
    (fallback,) = newest(compiled).backward.fallbacks
    assert "gradient_of_linalg_inv" in str(fallback)


def test_random_numbers_are_drawn_once() -> None:
    def noisy(x: torch.Tensor) -> torch.Tensor:
        return x * torch.rand_like(x)

    x = torch.rand(100, requires_grad=True)
    y = jit(noisy)(x)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0] * x, y)


@pytest.mark.parametrize("hard", [False, True])
def test_gumbel_softmax_draws_what_torch_draws(hard: bool) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return F.gumbel_softmax(x, 0.7, hard=hard) ** 2

    found = []
    for each in (jit(fn), fn):
        torch.manual_seed(0)
        x = torch.linspace(-1, 2, 30, dtype=torch.float64).reshape(5, 6).requires_grad_()
        y = each(x)
        found.append((y, *torch.autograd.grad((y * torch.arange(6)).sum(), x)))
    torch.testing.assert_close(*found)


def test_random_numbers_in_a_branch_are_refused() -> None:
    def noisy(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            x = F.dropout(x)
        return x * 2

    x = torch.rand(100, requires_grad=True)
    with torch.no_grad():
        jit(noisy)(x)
    with pytest.raises(CompileError, match=r"`random numbers` has no gradient[^$]*run again"):
        jit(noisy)(x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype: torch.dtype) -> None:
    x, w = (torch.rand(*shape).to(dtype).requires_grad_() for shape in ((4, 8), (8,)))
    ours = torch.autograd.grad(jit(product)(x, w).sum(), (x, w))
    wide = [v.detach().double().requires_grad_() for v in (x, w)]
    exact = torch.autograd.grad(product(*wide).sum(), wide)
    assert [grad.dtype for grad in ours] == [dtype, dtype]
    for grad, expected in zip(ours, exact):
        bound = 4 * torch.finfo(dtype).eps
        torch.testing.assert_close(grad.double(), expected, rtol=bound, atol=bound)


def test_dtypes_that_mix() -> None:
    def mixed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x.double() * w.float() + x.long()

    check(mixed, torch.rand(3, 4, requires_grad=True), torch.rand(4, requires_grad=True))


@pytest.mark.parametrize("rows", [2, 5, 9])
def test_symbolic_sizes(rows: int) -> None:
    def scored(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (torch.tanh(x * w).sum(1, keepdim=True) * x).mean(0) / x.shape[0]

    compiled = bt.jit("cpu", dynamic=True)(scored)
    for n in (rows, rows + 3):
        x, w = torch.rand(n, 8, requires_grad=True), torch.rand(8, requires_grad=True)
        torch.testing.assert_close(gradients(compiled, x, w), gradients(scored, x, w))
    assert len(compiled.specializations()) == 1
    assert newest(compiled).backward.signature.is_symbolic


def test_without_elements() -> None:
    check(product, torch.rand(0, 8, requires_grad=True), torch.rand(8, requires_grad=True))


@pytest.mark.parametrize("dynamic", [None, True])
def test_means_of_no_elements(dynamic: bool | None) -> None:
    check(lambda x: x.mean(-1), torch.zeros(0, 3, requires_grad=True), dynamic=dynamic)
    check(lambda x: x.mean((1, 2)), torch.zeros(0, 3, 2, requires_grad=True), dynamic=dynamic)
    check(lambda x: x.mean(0), torch.zeros(3, 0, requires_grad=True), dynamic=dynamic)


def test_convolutions_of_no_images() -> None:
    x, w = (torch.zeros(s, requires_grad=True) for s in ((0, 3, 8, 8), (4, 3, 3, 3)))
    b = torch.zeros(4, requires_grad=True)
    check(lambda x, w, b: F.conv2d(x, w, b, padding=1), x, w, b)
    check(lambda x, w: F.conv1d(x, w), x[..., 0], w[..., 0])


def test_a_loop_over_rows_without_elements() -> None:
    def f(x):
        state = torch.zeros_like(x[0])
        for row in x:
            state = torch.tanh(state * 0.5 + row)
        return state

    jitted = bt.jit("cpu")(f)
    for shape in [(3, 4), (5, 6), (4, 0)]:  # symbolic from the second one on
        ours, theirs = (torch.ones(shape, requires_grad=True) for _ in range(2))
        jitted(ours).sum().backward()
        f(theirs).sum().backward()
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_angles_of_points_without_one() -> None:
    y = torch.tensor([0.0, 0.0, 1e-30, 2.0], requires_grad=True)
    x = torch.tensor([0.0, 1e-30, 0.0, -3.0], requires_grad=True)
    check(lambda y, x: torch.atan2(y, x), y, x)


def test_a_result_that_depends_on_nothing() -> None:
    def apart(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x > 0) * w

    x, w = torch.rand(3, requires_grad=True), torch.rand(3, requires_grad=True)
    assert gradients(jit(apart), x, w)[0] is None
    assert not jit(lambda x: torch.ones_like(x))(x).requires_grad


# ---------------------------------------------------------------- modules


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.rand(8))
        self.b = nn.Parameter(torch.rand(8))
        self.register_buffer("c", torch.rand(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x * self.a) * self.b + self.c


def test_parameters_of_modules() -> None:
    module, x = Scaled(), torch.rand(4, 8)
    compiled = bt.jit(module)
    ours = torch.autograd.grad(compiled(x).sum(), list(module.parameters()))
    torchs = torch.autograd.grad(module(x).sum(), list(module.parameters()))
    torch.testing.assert_close(ours, torchs)


def test_a_frozen_parameter_is_another_program() -> None:
    module, x = Scaled(), torch.rand(4, 8)
    compiled = bt.jit(module)
    compiled(x).sum().backward()
    module.a.requires_grad_(False)
    module.zero_grad()
    compiled(x).sum().backward()
    assert module.a.grad is None
    assert module.b.grad is not None
    module.requires_grad_(False)
    assert not compiled(x).requires_grad


def test_training_goes_as_in_eager() -> None:
    torch.manual_seed(0)
    module, other = Scaled(), Scaled()
    other.load_state_dict(module.state_dict())
    compiled, x, y = bt.jit(module), torch.rand(16, 8), torch.rand(16, 8)
    for fn, parameters in ((compiled, module.parameters()), (other, other.parameters())):
        optimizer = torch.optim.Adam(parameters, lr=0.05)
        for _ in range(20):
            optimizer.zero_grad()
            nn.functional.mse_loss(fn(x), y).backward()
            optimizer.step()
    torch.testing.assert_close(dict(module.named_parameters()), dict(other.named_parameters()))


# ---------------------------------------------------------------- torch.func and others


def test_functional_transforms() -> None:
    compiled, x, w = jit(product), torch.rand(4, 8), torch.rand(8)

    def of(fn: Any) -> list[torch.Tensor]:
        return [
            torch.func.grad(lambda x: fn(x, w).sum())(x),
            torch.vmap(fn, (0, None))(x, w),
            torch.vmap(fn, (1, 0), out_dims=1)(x, w),
            torch.vmap(torch.func.grad(lambda x: fn(x, w).sum()))(x),
            torch.func.jacrev(lambda x: fn(x, w))(x),
            torch.func.vjp(lambda x: fn(x, w), x)[1](torch.ones(4, 8))[0],
            torch.func.grad(lambda x: torch.vmap(fn, (0, None))(x, w).sum())(x),
        ]

    torch.testing.assert_close(of(compiled), of(product))


def test_gradients_flow_through_batches() -> None:
    x, w = double(4, 8), double(8)
    batched = torch.vmap(jit(product), (0, None))
    torch.testing.assert_close(gradients(batched, x, w), gradients(product, x, w))


def test_an_empty_batch() -> None:
    assert torch.vmap(jit(lambda x: x * 2))(torch.zeros(0, 3)).shape == (0, 3)


def test_forward_mode_says_that_there_is_none() -> None:
    x, w = torch.rand(4, 8), torch.rand(8)
    compiled = jit(product)
    compiled(x, w), compiled(x, w)  # also where calls take a shortcut
    with pytest.raises(RuntimeError, match="BT158"):
        torch.func.jvp(lambda x: compiled(x, w), (x,), (x,))
    with pytest.raises(RuntimeError, match="BT158"):
        torch.func.hessian(lambda x: compiled(x, w).sum())(x)
    with forward_ad.dual_level():
        for each in (x, x.clone().requires_grad_()):
            with pytest.raises(RuntimeError, match="BT158"):
                compiled(forward_ad.make_dual(each, torch.ones_like(x)), w)
        torch.testing.assert_close(compiled(x, w), product(x, w))
    torch.testing.assert_close(compiled(x, w), product(x, w))


def test_hessian() -> None:
    x, w = torch.rand(5), torch.rand(5)
    ours = torch.autograd.functional.hessian(lambda x: jit(product)(x, w).sum(), x)
    torch.testing.assert_close(
        ours, torch.autograd.functional.hessian(lambda x: product(x, w).sum(), x)
    )


def test_checkpoint() -> None:
    x, w = torch.rand(4, 8, requires_grad=True), torch.rand(8, requires_grad=True)
    ours = gradients(lambda x, w: checkpoint(jit(product), x, w, use_reentrant=False), x, w)
    torch.testing.assert_close(ours, gradients(product, x, w))


# ---------------------------------------------------------------- messages


def test_writing_to_an_argument_that_requires_grad_is_refused() -> None:
    def writes(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2

    x = torch.rand(4, requires_grad=True)
    with pytest.raises(RuntimeError, match="`x` is written to in place"):
        jit(writes)(x)
    with torch.no_grad():
        jit(writes)(x)


def test_writing_a_gradient_into_a_buffer_is_refused() -> None:
    def writes(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        out.copy_(x * 2)
        return x

    with pytest.raises(RuntimeError, match="`out` is written to in place"):
        jit(writes)(torch.rand(4, requires_grad=True), torch.rand(4))


def test_writing_statistics_is_not() -> None:
    def counts(x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        seen.add_(x.detach().sum())
        return x * 2

    x, seen = torch.ones(4, requires_grad=True), torch.zeros(())
    jit(counts)(x, seen).sum().backward()
    assert (seen.item(), x.grad.sum().item()) == (4, 8)


def test_without_a_gradient_there_is_no_backward() -> None:
    lowered = jit(product).lower(torch.rand(3), torch.rand(3))
    with pytest.raises(ValueError, match="compiled without gradients"):
        lowered.gradient()
    with pytest.raises(ValueError, match="compiled without gradients"):
        lowered.compile().backward  # noqa: B018


# ---------------------------------------------------------------- what is compiled


def gelu_bias(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    y = x + b
    return torch.sigmoid(1.702 * y) * y


def swiglu(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.silu(a) * b


N = 256
WELL_KNOWN: dict[str, tuple[Callable[..., Any], tuple[Any, ...], int]] = {
    "gelu": (lambda x: F.gelu(x), ((64, N),), 1),
    "gelu_bias": (gelu_bias, ((64, N), (N,)), 1),
    "swiglu": (swiglu, ((64, N), (64, N)), 1),
    "softmax": (lambda x: torch.softmax(x, -1), ((64, N),), 1),
    "rms_norm": (lambda x, w: F.rms_norm(x, (N,), w), ((64, N), (N,)), 1),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (N,), w, b), ((64, N), (N,), (N,)), 1),
    "cross_entropy": (F.cross_entropy, ((64, N), torch.arange(64)), 1),
}
"""Functions, the shapes of their arguments, and how many kernels their way back has."""


def exactly(arguments: list[torch.Tensor]) -> list[torch.Tensor]:
    """The same numbers in float64, as leaves of their own."""
    return [x.detach().double().requires_grad_() if x.requires_grad else x for x in arguments]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("target", ["cpu", "gpu"])
@pytest.mark.parametrize("name", WELL_KNOWN)
def test_few_kernels(name: str, target: str, dtype: torch.dtype) -> None:
    fn, parts, kernels = WELL_KNOWN[name]
    arguments = [
        x if isinstance(x, torch.Tensor) else torch.randn(x).to(dtype).requires_grad_()
        for x in parts
    ]
    lowered = bt.jit(target)(fn).lower(*arguments)
    # The mean of the losses is a kernel of its own on a GPU.
    assert len(lowered.schedule().kernels) <= 1 + (name == "cross_entropy" and target == "gpu")
    assert len(lowered.backward.schedule().kernels) == kernels
    if target == "cpu":
        # torch itself adds up rows in bfloat16.
        ours, exact = gradients(bt.jit("cpu")(fn), *arguments), gradients(fn, *exactly(arguments))
        for one, other in zip(ours, exact, strict=True):
            assert one.dtype == dtype
            bound = 1e-5 if dtype == torch.float32 else 0.01
            largest = other.abs().max().item()
            torch.testing.assert_close(one.double(), other, rtol=bound, atol=bound * largest)


def test_the_way_back_can_be_read() -> None:
    x, b = torch.rand(64, 1024, requires_grad=True), torch.rand(1024, requires_grad=True)
    backward = bt.jit("gpu")(gelu_bias).lower(x, b).compile().backward
    assert "gelu_bias_backward_kernel" in backward.source()
    assert "y = x + b" in backward.source()
    assert "def gelu_bias_backward" in backward.source("relax")


def test_elementwise_work_is_done_again_and_the_rest_is_saved() -> None:
    def scaled(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        rstd = torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)
        return x * rstd * w

    x, w = torch.rand(8, 64, requires_grad=True), torch.rand(64, requires_grad=True)
    compiled = check(scaled, x, w)
    saved = [str(leaf.spec) for leaf in newest(compiled).backward.signature.leaves()]
    # x, w and the gradient; of what is computed, a number for each row.
    assert sorted(saved) == ["f32[64]", "f32[8, 1]", "f32[8, 64]", "f32[8, 64]"]


def test_a_result_is_saved_rather_than_computed_again() -> None:
    x = torch.rand(8, 64, requires_grad=True)
    compiled = jit(lambda x: torch.exp(x * x.sum())).lower(x).compile()
    forward, backward = compiled.scheduled.lowered.mod["main"], compiled.backward
    saved = forward.body.body.fields[1:]
    # The sum, and neither the product with it nor what exp gave, which is a result anyway.
    assert [tuple(map(int, field.ty.shape)) for field in saved] == [()]
    assert "R.sum(x" not in backward.scheduled.lowered.as_text()


def test_a_sum_saves_nothing() -> None:
    def total(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x + w

    x, w = torch.rand(4, requires_grad=True), torch.rand(4, requires_grad=True)
    compiled = check(total, x, w)
    assert [leaf.path for leaf in newest(compiled).backward.signature.leaves()] == ["grad"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_what_is_the_largest_of_computed_halves(dtype: torch.dtype) -> None:
    """It is compared as it is rounded, also where it has been computed in the same kernel."""

    def largest(x: torch.Tensor) -> torch.Tensor:
        return (1.41 * x).amax(-1)

    def least(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x).amin()

    def norm(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.vector_norm(1.41 * x, torch.inf, -1)

    def softmax(x: torch.Tensor) -> torch.Tensor:
        y = 1.41 * x
        e = torch.exp(y - y.amax(-1, keepdim=True))
        return e / e.sum(-1, keepdim=True)

    def compared(x: torch.Tensor) -> torch.Tensor:
        y = 1.41 * x
        most = y.amax(-1, keepdim=True)
        return torch.where(y >= most, y * 2, 0.0) + torch.where(y < most, y * 3, 0.0)

    x = torch.randn(3, 17, generator=torch.Generator().manual_seed(0)).to(dtype)
    for fn in (largest, least, norm, softmax, compared):
        ours, theirs = (x.clone().requires_grad_() for _ in range(2))
        for y, run in ((ours, bt.jit("cpu")(fn)), (theirs, fn)):
            (run(y).float() ** 2).sum().backward()
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=0.1, atol=0.01)


class TwoHeads(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)

    def forward(self, x):
        y = x.sin()
        return self.a(y), self.b(y).exp(), y


@pytest.mark.parametrize("used", [(0,), (1,), (2,), (0, 2), (0, 1)])
@pytest.mark.parametrize("create_graph", [False, True])
def test_what_no_gradient_reaches_has_none(used, create_graph) -> None:
    found = []
    for compile in (bt.jit("cpu"), lambda module: module):
        module = TwoHeads()
        x = torch.linspace(-1, 1, 6).view(2, 3).requires_grad_()
        results = compile(module)(x)
        loss = sum(results[n].square().sum() for n in used)
        inputs = [x, *module.parameters()]
        grads = torch.autograd.grad(loss, inputs, allow_unused=True, create_graph=create_graph)
        if create_graph:
            (second,) = torch.autograd.grad(grads[0].square().sum(), [x])
            grads = (*grads, second)
        found.append(grads)
    for ours, theirs in zip(*found):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs)


def two_results(x, w):
    return x.sin(), (x * w).sum(), x.argmax()


def test_hooks_are_not_called_with_none() -> None:
    found = []
    for compile in (bt.jit("cpu"), lambda fn: fn):
        x = torch.linspace(-1, 1, 5).requires_grad_()
        w = torch.linspace(0, 2, 5).requires_grad_()
        w.register_hook(lambda grad: grad.clamp(-1, 1))
        first, *_ = compile(two_results)(x.exp(), w * 2)
        first.sum().backward()
        found.append((x.grad, w.grad))
    torch.testing.assert_close(found[0][0], found[1][0])
    assert found[1][1] is None
    assert found[0][1] is None or not found[0][1].any()
