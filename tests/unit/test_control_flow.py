"""Branches and loops on constants, on tensors and on numbers of the run time, against Python."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import pytest
import torch

import babytriton as bt

X = torch.tensor([0.5, 2.0, 1.0])


def cloned(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def check(fn: Callable[..., Any], *calls: tuple[Any, ...]) -> bt.JitFunction:
    """The compiled function gives what the plain one gives, for each of some calls."""
    compiled = bt.jit("cpu")(fn)
    for arguments in calls:
        ours, theirs = [cloned(x) for x in arguments], [cloned(x) for x in arguments]
        found, expected = compiled(*ours), fn(*theirs)
        assert type(found) is type(expected)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    return compiled


SIGNS = ((X,), (-X,), (X * 10,), (-X * 10,), (X * 0,))

# ------------------------------------------------------------ branches


def test_if_on_a_tensor() -> None:
    def f(x):
        if x.sum() > 0:
            y = x * 2
            z = y + 1
        else:
            z = -x
        return z

    check(f, *SIGNS)


def test_branches_fuse() -> None:
    def f(x):
        if x.sum() > 0:
            y = torch.exp(x) * 2 + 1
        else:
            y = torch.sin(x) - x * 3
        return y

    compiled = bt.jit("cpu")(f).lower(X).compile()
    # One kernel for the sum and its comparison, and one for each branch.
    assert len(compiled.kernels) == 3


def test_elif_chains_and_nesting() -> None:
    def f(x):
        y = x + 1
        if x.sum() > 20:
            if x[0] > 4:
                y = y * 3
            else:
                y = y * 5
        elif x.sum() > 0:
            y = y - 7
        elif x.sum() < -20:
            if x.max() > -3:
                y = y * y
        return y + x

    check(f, *SIGNS)


def test_early_returns() -> None:
    def f(x):
        y = x + 1
        if x.sum() > 0:
            if x[0] > 1:
                return y
            y = y * 3
        elif x.sum() < -20:
            y = y + 1
            return y * 2
        s = 1.5 if x.max() > 1 else 2.5
        return y * s

    check(f, *SIGNS)


def test_a_branch_without_a_value_gives_none() -> None:
    def f(x):
        if x.sum() > 1000:
            x.mul_(2)
            return
        x.add_(1)

    check(f, (X,), (X * 1000,))


def test_constants_are_folded() -> None:
    def f(x, flag: bool):
        if flag:
            return x * 2
        return x.no_such_method()

    compiled = bt.jit("cpu")(f)
    torch.testing.assert_close(compiled(X, True), X * 2)
    assert "if" not in compiled.lower(X, True).as_text().replace("ir_module", "").split()
    with pytest.raises(bt.CompileError, match="no_such_method"):
        compiled(X, False)


def test_numbers_of_the_run_time() -> None:
    def f(x):
        n, s = 0, 1.0
        if x.sum() > 0:
            n, s = 3, 2.5
        return n, s, x * s + n, n + 1, s > 2, n // 2, -n, max(n, 1), min(s, 2.0)

    check(f, *SIGNS)


def test_int_float_and_item() -> None:
    def f(x):
        n = int(x.abs().sum())
        s = float(x.max())
        m = x.sum().item()
        return x * n + s, n, s, m, bool(x[0] > 0)

    check(f, *SIGNS)


def test_powers_to_numbers_of_the_run_time() -> None:
    def f(x, beta: float):
        steps, n = x.abs().sum().item(), int(x.abs().sum())
        return 0.5**steps, 2.0**n, beta**steps, beta**n, steps**3, x * (1 - beta**steps)

    check(f, *((x, beta) for (x,) in SIGNS for beta in (0.9, 0.5)))
    with pytest.raises(bt.CompileError, match="pow"):
        bt.jit("cpu")(lambda x: 2 ** int(x.sum()))(X)


def test_conditional_expressions() -> None:
    def f(x):
        y = x * 2 if x.sum() > 0 else (x * 3 if x[0] < -1 else -x)
        return y + (1.0 if x.max() > 1 else 0.0)

    check(f, *SIGNS)


def test_and_or_not() -> None:
    def f(x):
        y = x
        if x.sum() > 0 and not x.max() > 5:
            y = y + 1
        if x.sum() < -20 or 0 <= x[0] < 0.4:
            y = y * 2
        if not (x.min() < 0 or x.sum()):
            y = y - 3
        return y, x.sum() > 0 and x.max() > 1, not x.sum() > 0

    compiled = bt.jit("cpu")(f)
    for (x,) in SIGNS:
        y, both, neither = f(x)
        found = compiled(x)
        torch.testing.assert_close(found[0], y)
        assert (bool(found[1]), bool(found[2])) == (bool(both), neither)


def test_and_or_on_constants_stop_as_python() -> None:
    def f(x, n: int):
        return x * (n or 5), (n and x.shape) or 7

    check(f, (X, 0), (X, 2))


def test_a_tensor_of_one_element_is_a_condition() -> None:
    def f(x):
        return x * 2 if x[:1] else x

    check(f, (X,), (X * 0,))


def test_names_that_only_one_branch_needs() -> None:
    def f(x):
        if x.sum() > 0:
            temporary = x.sum()
            y = x * temporary
        else:
            temporary = "longer"
            y = x * len(temporary)
        return y

    check(f, *SIGNS)


def test_containers_changed_in_branches() -> None:
    def f(x):
        parts = [x, x + 1]
        named = {"a": x}
        if x.sum() > 0:
            parts[1] = parts[1] * 2
            named["a"] = x * 5
        else:
            parts.reverse()
        return parts, named

    check(f, *SIGNS)


def test_helpers_return_from_branches() -> None:
    def helper(v):
        if v.mean() > 0:
            return v, 1.0
        return -v, 2.0

    def f(x):
        a, b = helper(x)
        c = helper(-x)
        return a * b, c, b > 1.5

    check(f, *SIGNS)


def test_float_arguments_decide_at_run_time() -> None:
    def f(x, t):
        if t > 0.5:
            return x + t
        return x - t

    compiled = check(f, (X, 0.3), (X, 0.7), (X, 0.5))
    assert len(compiled.specializations()) == 1


def test_float_arguments_become_constants_where_branches_differ() -> None:
    def f(x, p):
        if p > 0:
            return x.sum()
        return x

    check(f, (X, 0.3), (X, -0.7), (X, 0.4))


def test_writes_in_branches() -> None:
    def f(x, y):
        local = x * 1
        view = local[0]
        if x.sum() > 0:
            local += 1
            y[0] = 7
        else:
            view.mul_(3)
        return local, view

    check(f, *((x, x + 1) for (x,) in SIGNS))


# ------------------------------------------------------------ loops


def test_short_loops_are_written_out() -> None:
    def f(x):
        y = x
        for i in range(5):
            y = y * 0.5 + i
        return y, i

    compiled = check(f, *SIGNS)
    assert "steps" not in compiled.lower(X).as_text()


def test_long_loops_run() -> None:
    def f(x):
        y = x
        for i in range(100):
            y = y * 0.9 + i
        return y, i

    compiled = check(f, *SIGNS)
    assert "steps" in compiled.lower(X).as_text()


def test_many_steps() -> None:
    @bt.jit("cpu")
    def f(x):
        for _ in range(1_000_000):
            x = x * 0.5 + 1
        return x

    torch.testing.assert_close(f(X), torch.full((3,), 2.0))


def test_ranges() -> None:
    def f(x, n: int):
        for i in range(3, n, 2):
            x = x + i
        for j in range(n, -n, -3):
            x = x - j
        return x

    check(f, (X, 4), (X, 3), (X, 200))


def test_a_range_that_a_tensor_bounds() -> None:
    def f(x):
        n = int(x.abs().sum())
        for i in range(n):
            x = x + i
        for j in range(1, n + 2, 3):
            x = x - j
        return x, n

    check(f, *SIGNS)


@pytest.mark.parametrize("rows", [1, 7, 40])
def test_rows_of_a_tensor(rows: int) -> None:
    def f(x, w):
        total = 0
        for row in x:
            total = total + row * 2
        for i, (row, weight) in enumerate(zip(x, w), 1):
            if row.sum() > 0:
                continue
            total = total - i * weight
        for row in reversed(x):
            total = total * 0.5 + row
        return total

    check(f, (torch.randn(rows, 3), torch.randn(rows)))


def test_tuples_and_lists() -> None:
    def f(x):
        for scale, name in ((1, "a"), (2, "b")):
            x = x * scale + len(name)
        for operation in [torch.exp, torch.neg]:
            x = operation(x)
        return x

    check(f, (X,))


def test_break_continue_and_else() -> None:
    def f(x):
        total, best = torch.zeros(()), -1
        for i in range(200):
            v = x.sum() * 0.01 * i
            if v > 3:
                best = i
                break
            if v < -3:
                continue
            total += v
        else:
            best = -5
        return total, best

    check(f, *SIGNS)


def test_break_in_a_short_loop() -> None:
    def f(x):
        for i in range(6):
            x = x * 2
            if x.sum() > 30:
                break
        else:
            x = x - 100
        return x, i

    check(f, *SIGNS)


def test_return_from_a_loop() -> None:
    def f(x):
        for i in range(1000):
            y = x + i
            if y.sum() > 50:
                return y * 2, i
        return x * 0.0, -1

    check(f, *SIGNS, (X - 1000,))


def test_return_from_a_short_loop() -> None:
    def f(x):
        for i in range(4):
            if x.sum() > 10:
                return x + i
            x = x + 1
        return x

    check(f, *SIGNS)


def test_while() -> None:
    def f(x):
        n = 0
        while x.abs().sum() > 1:
            x = x * 0.5
            n += 1
        return x, n

    check(f, *SIGNS, (X * 1e6,))


def test_while_on_constants() -> None:
    def f(x):
        i = 0
        while i < 100:
            i += 1
            if i % 2 == 0:
                continue
            x = x + i
            if x.sum() > 200:
                break
        j = 3
        while j:
            x, j = x * 2, j - 1
        return x, i

    check(f, *SIGNS)


def test_while_true() -> None:
    def f(x):
        k = 0
        while True:
            x = x * 0.5
            k = k + 1
            if x.abs().max() < 1:
                break
        return x, k

    check(f, *SIGNS)


def test_while_with_else_and_return() -> None:
    def f(x):
        while x.sum() < 20:
            x = x.abs() * 2 + 0.1
            if x.max() > 9:
                return x
        else:
            x = -x
        return x + 1

    check(f, *SIGNS)


def test_nested_loops() -> None:
    def f(x):
        for a in range(40):
            for b in range(50):
                x = x * 0.999 + a - b * 0.5
            while x.sum() > 3:
                x = x * 0.7
        return x

    check(f, *SIGNS)


def test_loops_carry_tuples_and_containers() -> None:
    def f(x):
        state, history = (x, torch.ones(3)), [x, x]
        for _ in range(60):
            h, c = state
            state = (torch.tanh(h + c), c * 0.9)
            history[0] = h
        return state, history

    check(f, *SIGNS)


def test_loops_write() -> None:
    def f(x):
        out = torch.zeros(50, 3)
        for i in range(50):
            out[i] = x * i
        x += 1
        for _ in range(40):
            x.mul_(1.01)
        return out

    check(f, *SIGNS)


def test_comprehensions() -> None:
    def f(x):
        parts = [x * k for k in range(4) if k != 2]
        named = {k: v.sum() for k, v in zip("ab", parts)}
        pairs = [a + b for a in parts for b in parts[:2]]
        return parts, named, pairs, sum(v * 2 for v in parts), [row * 2 for row in x]

    check(f, (X,))


def test_an_accumulator_that_begins_as_a_number() -> None:
    def f(x):
        total = 0
        for i in range(100):
            total = total + x * i
        return total

    check(f, (X,))


def test_loops_leave_names_behind() -> None:
    def f(x):
        for i in range(100):
            last = x * i
            squared = last * last
        return last + squared + i

    check(f, (X,))


def test_loops_in_helpers() -> None:
    def power(v, n):
        result = v
        for _ in range(n - 1):
            result = result * v
        return result

    def f(x):
        return power(x, 3) + power(x * 0.1, 50)

    check(f, (X,))


def test_newton() -> None:
    def f(a):
        x = a
        for _ in range(100):
            following = 0.5 * (x + a / x)
            if (following - x).abs().max() < 1e-7:
                return following
            x = following
        return x

    check(f, (X + 1,))


def test_powers_of_numbers_of_the_run_time() -> None:
    def f(x, p):
        n = int(x.sum())
        y = torch.zeros(40)
        for i in range(40):
            y[i] = i**2
        return n**2, float(x.sum()) ** 2, y, p**2, 2**p, x * p**2

    check(f, (X * 2, 3.0), (X * 4, 2.0))


def test_or_and_of_numbers_give_one_of_them() -> None:
    def f(x):
        n = int(x.sum())
        return n or 5, n and 7, not x[0]

    check(f, (X * 0,), (X * 2,))


def test_a_number_is_no_key() -> None:
    compiled = bt.jit("cpu")(lambda x, p: {2.0: x, 3.0: x + 1}.get(p, x + 2))
    for p in (2.0, 3.0, 4.0):
        torch.testing.assert_close(compiled(X, p), X + (p - 2))


def test_none_before_a_loop() -> None:
    def f(x):
        best, previous, state = None, None, (None, 0)
        for row in x:
            if best is None or row.sum() > best.sum():
                best = row * 2
            previous = row
            state = (row.sum(), state[1] + 1)
        return best, previous, state

    check(f, (torch.randn(40, 3),), (torch.randn(5, 3),))


def test_names_exchange_tensors_and_lists() -> None:
    def f(x):
        p, q, a, b = x * 1, torch.ones(3), [x], [x * 2]
        for _ in range(201):
            p, q = q, p
            p += 1
            a, b = b, a
            a[0] = a[0] + 1
        return p, q, a, b

    check(f, (X,))


def test_a_return_in_the_middle_of_a_chain() -> None:
    def f(x):
        if x.sum() > 0:
            y = x
        elif x.sum() < 0:
            return x * 3
        else:
            y = x - 1
        z = y + 1
        return z

    check(f, *SIGNS)


def test_nests_of_loops_are_run() -> None:
    def f(x):
        y, count = torch.zeros(24, 24), 0
        for i in range(24):
            for j in range(24):
                y[i, j] = x[j, i] * 2
            if x[i, i] > 0:
                for j in range(24):
                    if x[i, j] > x[i, i]:
                        count += 1
        return y, count

    check(f, (torch.randn(24, 24),))


def test_functions_of_a_comprehension_share_its_variable() -> None:
    def f(x):
        functions = [lambda t: t * i for i in range(3)]
        return [function(x) for function in functions]

    check(f, (X,))


@pytest.mark.parametrize("cut", [True, False])
def test_a_list_with_two_names_on_one_path(cut: bool) -> None:
    def f(x):
        a = [x]
        b = [x, x] if cut else a
        if x.sum() > 0:
            b = [x + 1] * len(b)
        b[0] = x * 7
        return a, b

    if cut:
        check(f, (X,), (-X,))
    else:
        with pytest.raises(bt.CompileError, match="another name's on some paths"):
            bt.jit("cpu")(f)(X)


def test_tensors_that_may_be_parts_of_others_are_not_written() -> None:
    def exchanged(x):
        p, q = x, torch.ones(3)
        for _ in range(201):
            p, q = q, p
            p += 1
        return q

    def rebound(x):
        r = x[0]
        for i in range(201):
            r = x[i % 3]
        r += 10
        return x

    for fn in (exchanged, rebound):
        with pytest.raises(bt.CompileError, match="BT007"):
            bt.jit("cpu")(fn)(X)


def test_a_test_of_a_loop_is_computed_once_a_step() -> None:
    def f(x):
        steps = 0
        while (x := x * 2).sum() < 100:
            steps += 1
        return x, steps

    check(f, (X,), (X * 60,))


def test_containers_keep_their_class() -> None:
    def f(x):
        named = OrderedDict(a=x)
        if x.sum() > 0:
            named["a"] = x * 2
        for i in range(40):
            named["a"] = named["a"] + i
        return named["a"], isinstance(named, OrderedDict)

    check(f, (X,), (-X,))


def test_a_queue_changed_in_a_branch() -> None:
    def f(x):
        queue = deque([1])
        if x.sum() > 0:
            queue.append(2)
        return x * len(queue)

    with pytest.raises(bt.CompileError, match="a container is of two types"):
        bt.jit("cpu")(f)(X)


def test_a_list_that_grows_in_its_own_loop() -> None:
    def f(x):
        todo = [1, 2]
        for n in todo:
            if n == 1:
                todo.append(5)
            x = x * n
        return x

    with pytest.raises(bt.CompileError, match="changes its length"):
        bt.jit("cpu")(f)(X)


def test_an_iterator_in_a_branch() -> None:
    def f(x):
        numbers = iter([1, 2])
        if x.sum() > 0:
            x = x * next(numbers)
        return x + next(numbers)

    with pytest.raises(bt.CompileError, match="how far the iterator has gone"):
        bt.jit("cpu")(f)(X)


def test_names_bound_inside_expressions() -> None:
    def f(x):
        y = (z := x * 2) + 1 if x.sum() > 0 else (z := x * 3) - 1
        return y + z

    check(f, (X,), (-X,))


def test_names_bound_inside_comprehensions() -> None:
    def last(x):
        kept = x * 100
        scaled = [(kept := x * i) + kept for i in range(3)]
        return kept, scaled[1]

    def nested(x):
        sums = {i: sum([(last := x * i * j) for j in range(3)]) for i in range(2)}
        return last, sums[1]

    def tested(x):
        found = [y for i in range(4) if (y := i * 2) > 2]
        return x * y, len(found)

    def inner(x):
        def scaled(z):
            return [(own := z * i) for i in range(3)], own

        own = x + 1
        return scaled(x)[1], own

    for fn in (last, nested, tested, inner):
        check(fn, (X,), (-X,))


def test_names_bound_inside_generators_are_not_read_after_them() -> None:
    def inside(x):
        return x * sum((y := i + 1) * y for i in range(3))

    def after(x):
        if any((found := i) > 2 for i in range(6)):
            return x + found
        return x

    check(inside, (X,))
    with pytest.raises(bt.CompileError, match=r"found after found := \.\.\. in a generator"):
        bt.jit("cpu")(after)(X)


def test_a_return_on_the_second_path() -> None:
    def f(x, limit):
        a = torch.sin(x)
        if a.sum() > -0.83:
            a = torch.sin(a + x)
        else:
            if limit < 1.31 or a.sum() > 1:
                return a, 1
        if x[0] > 0.2:
            if x[1] > 0:
                return a, 2
            a = a * 2
        a[0] = 5
        return a, 3

    check(f, *((x, 0.5) for (x,) in SIGNS), *((x, 5.0) for (x,) in SIGNS))


def test_the_way_back_of_a_branch_after_a_loop_of_any_length() -> None:
    """Its blocks are fused one after the other, and call what is left of the loop's function."""

    def gated(x):
        h = x[0] * 0
        g = x[0] * 0
        for row in x:
            g = g * torch.sigmoid(row + h) + row
            h = torch.tanh(g)
        if g.mean() > 0:
            y = g * 2
        else:
            y = g * 3
        return y

    fn = bt.jit("cpu", dynamic=True)(gated)
    for rows in (5, 40):
        generator = torch.Generator().manual_seed(rows)
        x = torch.randn(rows, 7, generator=generator, dtype=torch.float64).requires_grad_()
        ours, theirs = fn(x), gated(x)
        torch.testing.assert_close(ours, theirs)
        grads = [torch.autograd.grad(y.square().sum(), x)[0] for y in (ours, theirs)]
        torch.testing.assert_close(*grads)


def test_what_a_failed_attempt_called_is_not_told() -> None:
    @bt.jit("cpu")
    def inverses(x):
        found = []
        for i in range(5):
            for _ in range(2):
                x = torch.linalg.inv(x)
            found.append(x[i:])
        return found

    x = torch.eye(5) + torch.rand(5, 5) / 10
    torch.testing.assert_close(inverses(x), inverses.fn(x))
    assert len(inverses.lower(x).compile().fallbacks) == 10


def while_early(x, v):
    for t in range(40):
        if t < 20:
            x = x * v[t]
    return x


def zeros_of_a_size(x, n):
    if n > 0:
        y = x * 2
    else:
        y = torch.zeros(x.shape[0], x.shape[1])
    for t in range(40):
        y = y + x
        if t > 35:
            y = y * torch.ones(x.shape)
    return y


@pytest.mark.parametrize("dynamic", [True, None])
def test_parts_know_their_sizes(dynamic: bool | None) -> None:
    early = bt.jit("cpu", dynamic=dynamic)(while_early)
    zeros = bt.jit("cpu", dynamic=dynamic)(zeros_of_a_size)
    for size in (2, 3, 5):
        x, v = torch.rand(size, requires_grad=True), torch.rand(40, size, requires_grad=True)
        torch.testing.assert_close(early(x, v), while_early(x, v))
        ours = torch.autograd.grad(early(x, v).sum(), (x, v))
        torch.testing.assert_close(ours, torch.autograd.grad(while_early(x, v).sum(), (x, v)))
        y = torch.rand(size, 4, requires_grad=True)
        for n in (torch.tensor(0), torch.tensor(1)):
            torch.testing.assert_close(zeros(y, n), zeros_of_a_size(y, n))
            (grad,) = torch.autograd.grad(zeros(y, n).sum(), y)
            (wanted,) = torch.autograd.grad(zeros_of_a_size(y, n).sum(), y)
            torch.testing.assert_close(grad, wanted)
    compiled = bt.jit("cpu", dynamic=True)(zeros_of_a_size).lower(y, torch.tensor(0)).compile()
    assert compiled.fallbacks == ()


def test_raise_where_a_float_decides() -> None:
    @bt.jit("cpu")
    def positive(x, alpha: float, reduction: str = "none"):
        if alpha <= 0:
            raise ValueError(f"alpha must be positive, got {alpha}")
        if reduction == "mean":
            return (x * alpha).mean()
        return x * alpha

    x = torch.ones(3)
    assert positive(x, 0.5).tolist() == [0.5] * 3
    assert positive(x, 2.5, reduction="mean") == 2.5
    with pytest.raises(bt.CompileError, match=r"(?s)BT.*alpha must be positive, got -1.0"):
        positive(x, -1.0)


def appended(x):
    found = []
    for t in range(40):
        x = x * 0.9 + t
        found.append(x)
    return torch.stack(found)


def advantages(rewards, values, last):
    found, following = torch.zeros_like(rewards), 0
    for t in reversed(range(40)):
        if t == 39:
            next_values = last
        else:
            next_values = values[t + 1]
        delta = rewards[t] + 0.99 * next_values - values[t]
        found[t] = following = delta + 0.9 * following
    return found


def overlapped(frames):
    y = torch.zeros(40 * 3 + 5)
    for i in range(40):
        y[i * 3 : i * 3 + 8] += frames[i]
    return y


@pytest.mark.parametrize(
    ("fn", "arguments"),
    [
        (appended, [(3,)]),
        (advantages, [(40, 2), (40, 2), (1, 2)]),
        (overlapped, [(40, 8)]),
    ],
)
def test_what_is_no_loop_is_written_out(fn, arguments) -> None:
    given = [torch.rand(*shape, dtype=torch.float64, requires_grad=True) for shape in arguments]
    found, expected = bt.jit("cpu")(fn)(*given), fn(*given)
    torch.testing.assert_close(found, expected)
    ours = torch.autograd.grad(found.sum(), given)
    torch.testing.assert_close(ours, torch.autograd.grad(expected.sum(), given))


def test_longer_ones_are_refused() -> None:
    @bt.jit("cpu")
    def longer(x):
        found = []
        for t in range(129):
            found.append(t * 2)
        return x + sum(found)

    with pytest.raises(bt.CompileError, match="BT021"):
        longer(X)


def test_factors_that_tensors_hold() -> None:
    def f(x, y, rate):
        x.add_(y, alpha=-rate)
        return torch.sub(x, y, alpha=rate * 2) + x.add(y, alpha=rate)

    rate = torch.tensor(0.5)
    check(f, *((x.clone(), x * 3, rate) for (x,) in SIGNS))
