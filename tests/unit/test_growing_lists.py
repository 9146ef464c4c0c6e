"""Lists that grow in loops, and comprehensions over many items."""

import copy
import functools

import pytest
import torch

import babytriton as bt
from babytriton.frontend.loops import AT_MOST, UNROLL
from tests.conformance import gpu
from tests.emulator import emulator

needs_gpu = pytest.mark.skipif(
    emulator.available_gpu() is None, reason=emulator.missing() or "no GPU"
)

STEPS = UNROLL + 8
MANY = AT_MOST + 12


def cell(x, h, w):
    return torch.tanh(x @ w + h)


def appended(xs, h, w):
    outs = []
    for t in range(xs.shape[0]):
        h = cell(xs[t], h, w)
        outs.append(h)
    return torch.stack(outs), h


def extended(xs, h, w):
    outs = []
    for x in xs.unbind(0):
        h = cell(x, h, w)
        outs += [h, h * 2]
        outs.extend((h - 1,))
    return torch.stack(outs, 1), torch.cat(outs, -1), len(outs)


def reads_the_last(xs, h, w):
    outs = [h, h + 1]
    for x in xs:
        outs.append(cell(x, outs[-1] * outs[-2] + outs[0], w))
    return torch.stack(outs[2:]), torch.cat(outs), outs[-1], outs[0]


def reads_the_last_if_there_is_one(xs, h, w):
    outs = []
    for x in xs:
        before = outs[-1] if outs else h
        outs.append(cell(x, before, w))
    return torch.stack(outs[::-1])


def reads_some_of_the_last(xs, h, w):
    outs = [h, h * 2, h * 3]
    for x in xs:
        outs.append(cell(x, sum(outs[-3:]) + sum(outs[-2:-1]), w))
    return torch.stack(outs)


def counts(xs, h, w):
    outs = [h]
    for x in xs:
        outs.append(cell(x, h / len(outs), w))
        if len(outs) % 3 == 0:
            h = h + 1
    return torch.stack(outs), h


def tuples(xs, h, w):
    outs = []
    for x in xs:
        h = cell(x, h, w)
        outs.append((h, (h.sum(),)))
    sums = torch.stack([found for _, (found,) in outs])
    return torch.stack([h for h, _ in outs]), sums, outs[3][0], outs[-1][1][0]


def two_lists(xs, h, w):
    hs, ys = [], []
    for i, x in enumerate(xs):
        h = cell(x, h, w)
        ys.append(h.sum(-1) * i)
        hs.append(h)
    return torch.stack(hs), torch.stack(ys, -1)


def in_a_function(xs, h, w):
    def run(h, outs):
        for x in xs:
            h = cell(x, h, w)
            outs.append(h)
        return h

    outs = []
    return run(h, outs), torch.stack(outs)


def by_a_function(xs, h, w):
    def put(items, item):
        items.append(item)

    outs = []
    for x in xs:
        h = cell(x, h, w)
        put(outs, h)
    return torch.stack(outs)


def in_either_branch(xs, h, w):
    outs = []
    for x in xs:
        if x.sum() > 0:
            h = cell(x, h, w)
            outs.append(h)
        else:
            outs.append(h * 0.5)
    return torch.stack(outs)


def of_what_is_outside(xs, h, w):
    outs = []
    for t in range(xs.shape[0]):
        outs.append(xs[t])
        outs.append(xs[0])
    return torch.stack(outs) @ w + h


def looped_over(xs, h, w):
    outs, total = [], 0
    for x in xs:
        h = cell(x, h, w)
        outs.append(h)
    for i, (y, x) in enumerate(zip(outs, xs)):
        total = total + y.sum(-1, keepdim=True) * i + x.mean()
    for y in reversed(outs):
        total = total * 0.9 + y
    return total


def changed_after(xs, h, w):
    outs = []
    for x in xs:
        h = cell(x, h, w)
        outs.append(h)
    outs.append(h * 2)
    outs.insert(0, h * 3)
    last = outs.pop()
    outs[5] = last
    del outs[7]
    outs.reverse()
    return torch.stack(outs), torch.cat(outs[3:9], 1), len(outs)


def joined_otherwise(xs, h, w):
    outs = []
    for x in xs:
        h = cell(x, h, w)
        outs.append(h)
    rows = [y[0] for y in outs]
    numbers = [y.sum() for y in outs]
    return (
        torch.vstack(outs),
        torch.hstack(outs),
        torch.vstack(rows),
        torch.hstack(rows),
        torch.stack(numbers),
        torch.hstack(numbers),
        torch.vstack(numbers),
        sum(outs),
        sum(numbers, 1.5),
    )


def joined_with_others(xs, h, w):
    outs = []
    for x in xs:
        h = cell(x, h, w)
        outs.append(h)
    return torch.stack([*outs, h, *outs[2:5]], -1), torch.cat((h, *outs[::2]))


def nested(xs, h, w):
    outs = []
    for x in xs:
        inner = []
        for k in range(STEPS):
            h = cell(x, h * k / STEPS, w)
            inner.append(h)
        outs.append(torch.stack(inner).mean(0))
    return torch.stack(outs)


FUNCTIONS = [
    *(appended, extended, reads_the_last, reads_the_last_if_there_is_one, reads_some_of_the_last),
    *(counts, tuples, two_lists, in_a_function, by_a_function, in_either_branch),
    *(of_what_is_outside, looped_over, changed_after, joined_otherwise, joined_with_others, nested),
]


def arguments(steps: int, dtype=torch.float64, requires_grad=False):
    made = torch.randn(steps, 3, 4), torch.randn(3, 5), torch.randn(4, 5) / 2
    return [x.to(dtype).requires_grad_(requires_grad) for x in made]


@pytest.mark.parametrize("fn", FUNCTIONS)
@pytest.mark.parametrize("steps", [1, UNROLL, STEPS])
def test_lists(fn, steps: int) -> None:
    if fn in (changed_after, tuples, joined_otherwise):
        steps = max(steps, 10)
    given = arguments(steps)
    torch.testing.assert_close(bt.jit("cpu")(fn)(*given), fn(*given))


WRITTEN_OUT = changed_after, joined_otherwise, joined_with_others
"""Items that are taken one by one."""


@pytest.mark.parametrize("fn", [f for f in FUNCTIONS if f not in WRITTEN_OUT])
def test_steps_are_compiled_once(fn) -> None:
    """As many kernels for more steps: no step is written out."""
    counts = []
    for steps in (STEPS, STEPS + 20):
        given = arguments(steps)
        compiled = bt.jit("cpu")(fn).lower(*given).compile()
        counts.append(len(compiled.launches))
    assert counts[0] == counts[1]


@pytest.mark.parametrize("fn", [f for f in FUNCTIONS if f is not changed_after])
def test_lists_of_any_length(fn) -> None:
    compiled = bt.jit("cpu", dynamic=True)(fn)
    for steps in (STEPS, 7, STEPS + 5):
        given = arguments(steps)
        torch.testing.assert_close(compiled(*given), fn(*given))


@pytest.mark.parametrize("fn", [appended, extended, reads_the_last, tuples, two_lists, nested])
def test_one_program_for_any_length(fn) -> None:
    compiled = bt.jit("cpu", dynamic=True)(fn)
    for steps in (STEPS, STEPS + 5):
        given = arguments(steps)
        torch.testing.assert_close(compiled(*given), fn(*given))
    assert len(compiled.specializations()) == 1


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_gradients(fn) -> None:
    ours, theirs = arguments(STEPS, requires_grad=True), None
    theirs = [x.detach().clone().requires_grad_() for x in ours]

    def total(found):
        found = found if isinstance(found, tuple) else (found,)
        return sum(x.sin().sum() for x in found if isinstance(x, torch.Tensor))

    total(bt.jit("cpu")(fn)(*ours)).backward()
    total(fn(*theirs)).backward()
    for one, other in zip(ours, theirs):
        torch.testing.assert_close(one.grad, other.grad)


@needs_gpu
@pytest.mark.parametrize("fn", [appended, extended, reads_the_last, tuples, in_either_branch])
def test_lists_on_gpus(fn) -> None:
    given = arguments(STEPS, torch.float32)
    compiled = bt.jit(gpu.TARGET)(fn).lower(*given).compile()
    exact = fn(*[x.double() for x in given])
    for order in ("fixed", "shuffled"):
        with emulator.thread_order(order, seed=1):
            found = gpu.call(compiled, given)
        torch.testing.assert_close(found, exact, rtol=1e-4, atol=1e-4, check_dtype=False)


# ---------------------------------------------------------------- comprehensions


def each(xs, h, w):
    return torch.stack([cell(x, h, w) for x in xs])


def each_number(xs, h, w):
    return torch.cat([xs[t].sum(0, keepdim=True) * t for t in range(xs.shape[0])], 1)


def each_of_each(xs, h, w):
    ys = [cell(x, h, w) for x in xs]
    zs = [(y + 1, y.sum()) for y in ys]
    return sum(z for z, _ in zs), len(zs), zs[-1][0], zs[0][1], torch.stack(ys[1:-1])


def each_of_numbers(xs, h, w):
    return xs.sum(0) @ w * sum([i * 2 for i in range(MANY)]) + h


def each_in_a_loop(xs, h, w):
    for _ in range(STEPS):
        h = torch.stack([cell(x, h, w) for x in xs]).mean(0)
    return h


@pytest.mark.parametrize("fn", [each, each_number, each_of_each, each_of_numbers, each_in_a_loop])
@pytest.mark.parametrize("dynamic", [False, True])
def test_comprehensions(fn, dynamic: bool) -> None:
    compiled = bt.jit("cpu", dynamic=True)(fn) if dynamic else bt.jit("cpu")(fn)
    for steps in (MANY, MANY + 1) if dynamic else (MANY,):
        given = arguments(steps)
        torch.testing.assert_close(compiled(*given), fn(*given))


def test_names_of_a_comprehension_are_its_own() -> None:
    def f(xs, items):
        x = items + 1
        found = [x.sum() * items[0] for x in xs]
        return torch.stack(found), x

    given = torch.randn(MANY, 3), torch.randn(4)
    torch.testing.assert_close(bt.jit("cpu")(f)(*given), f(*given))


# ---------------------------------------------------------------- whose memory it is


def written_each_step(x, count):
    found, total = [], torch.zeros(3)
    for _ in range(count):
        total += x
        found.append(total)
    return torch.stack(found)


def written_after(x, count):
    found = []
    for _ in range(count):
        x = x * 0.5
        found.append(x)
    x += 1
    return torch.stack(found), x


def item_written_after(x, count):
    found = []
    for _ in range(count):
        x = x * 0.5
        found.append(x)
    found[-1].add_(1)
    return torch.stack(found), x


def clones(x, count):
    found, total = [], torch.zeros(3)
    for _ in range(count):
        total += x
        found.append(total.clone())
    total += 1
    found[3].mul_(2)
    return torch.stack(found), total


def own_items(x, count):
    found = []
    for i in range(count):
        x = x * 0.9
        found.append(x + i)
    found[2].mul_(2)
    x.add_(1)
    found[0] += x
    return torch.stack(found), x


@pytest.mark.parametrize("fn", [written_each_step, written_after, item_written_after])
def test_what_a_list_holds_is_not_written_to(fn) -> None:
    x = torch.randn(3)
    with pytest.raises(bt.CompileError, match="BT007"):
        bt.jit("cpu")(fn)(x, 1000)
    torch.testing.assert_close(bt.jit("cpu")(fn)(x, 5), fn(x.clone(), 5))


def test_each_step_may_be_written_out_where_a_list_shares_memory() -> None:
    x = torch.randn(3)
    found = bt.jit("cpu")(written_each_step)(x, STEPS)
    torch.testing.assert_close(found, written_each_step(x, STEPS))


@pytest.mark.parametrize("fn", [clones, own_items])
@pytest.mark.parametrize("count", [5, STEPS, MANY])
def test_what_only_a_list_holds_may_be_written_to(fn, count: int) -> None:
    x = torch.randn(3)
    torch.testing.assert_close(bt.jit("cpu")(fn)(x, count), fn(x.clone(), count))


def test_a_list_with_two_names() -> None:
    def f(x):
        found = other = []

        def last():
            return found[-1] * other[-1]

        for i in range(MANY):
            found.append(x / (i + 1))
            x = x + other[-1].sum() + last()
            x = x / x.norm()
        return torch.stack(other), len(found)

    x = torch.randn(3, dtype=torch.float64)
    torch.testing.assert_close(bt.jit("cpu")(f)(x), f(x))


def test_a_list_that_a_tuple_holds() -> None:
    def f(x):
        state = ([], x)
        found = state[0]
        for i in range(STEPS):
            found.append(x * i)
            x = x + state[0][-1].sum()
        return torch.stack(state[0])

    x = torch.randn(3, dtype=torch.float64)
    torch.testing.assert_close(bt.jit("cpu")(f)(x), f(x))


def test_types_of_lists() -> None:
    def f(xs):
        found = []
        for x in xs:
            found.append(x * 2)
        assert isinstance(found, list)
        assert not isinstance(found, torch.Tensor)
        assert type(found) is list
        return (torch.stack(found) if found else xs), [len(found)]

    xs = torch.randn(STEPS, 2)
    for compiled in (bt.jit("cpu")(f), bt.jit("cpu", dynamic=True)(f)):
        torch.testing.assert_close(compiled(xs), f(xs))


def test_a_returned_list() -> None:
    def f(xs):
        found = []
        for x in xs:
            found.append(x * 2)
        return found

    xs = torch.randn(STEPS, 2)
    for compiled in (bt.jit("cpu")(f), bt.jit("cpu", dynamic=True)(f)):
        result = compiled(xs)
        assert type(result) is list
        torch.testing.assert_close(result, f(xs))


def test_unbind_of_any_length() -> None:
    def f(xs, h):
        for x in xs.unbind(1):
            h = torch.tanh(h + x)
        y = xs * 2
        for row in torch.unbind(y, -1):
            row += h.sum()
        return h, y, torch.stack(y.unbind(1)), isinstance(xs.unbind(0), tuple)

    compiled = bt.jit("cpu", dynamic=True)(f)
    for steps in (STEPS, STEPS + 1):
        given = torch.randn(3, steps, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
        torch.testing.assert_close(compiled(*given), f(*given))


# ---------------------------------------------------------------- as Python has it, or refused


def last_written_in_a_step(x, n):
    found = [x * 1]
    for _ in range(n):
        x = x * 0.9
        found.append(x)
        found[-1].add_(1)
        found[-2].mul_(2)
    return torch.stack(found), x


def held_by_a_dict(x, n):
    state, found = {"x": x * 1}, []
    for _ in range(n):
        state["x"] = state["x"] * 0.9
        found.append(state["x"])
    state["x"].add_(1)
    return torch.stack(found), state["x"]


def frozen_on_both_sides(x, n):
    found = []
    if x.sum() > 0:
        for _ in range(n):
            x = x * 0.9
            found.append(x)
    else:
        for _ in range(n):
            x = x * 0.8
            found.append(x)
    x.add_(1)
    return torch.stack(found), x


def the_same_dict(x, n):
    found, state = [], {}
    for i in range(n):
        state["x"] = x * i
        found.append(state)
    return sum(item["x"] for item in found)


def dicts_changed_in_steps(x, n):
    found = [{"x": x}]
    for i in range(n):
        found.append({"x": found[-1]["x"] * 0.9 + i})
        found[-2]["x"] = x * 0
    return torch.stack([item["x"] for item in found])


def _length_of(items):
    return lambda: len(items)


def known_by_a_closure(x, n):
    found = []
    count = _length_of(found)
    for _ in range(n):
        found.append(x * count())
    return torch.stack(found), count()


def known_by_a_default(x, n):
    found = [x]

    def total(items=found):
        return sum(items)

    for i in range(n):
        x = x * 0.9 + i
        found.append(x)
    return total(), len(found)


def known_by_a_partial(x, n):
    found = []
    count = functools.partial(len, found)
    for i in range(n):
        found.append(x * i + count())
    return torch.stack(found)


def on_its_way(x, n):
    def filled(items):
        for i in range(n):
            items.append(x * i)
        return len(items)

    found = []
    return found, filled(found)


def compared(x, n):
    found, other = [], [x]
    for i in range(n):
        if found == []:
            x = x + 1
        found.append(x * i)
    same = copy.copy(found)
    same.append(x)
    return torch.stack(found), len(found), len(same), found == same, found != other


def changed_while_it_is_gone_over(x, n):
    found, total = [], x * 0
    for i in range(n):
        found.append(x * i)
    for y in found:
        found[n - 1] = y * 3
        total = total + y
    return total


def joined_in_a_step(x, n):
    found = [x]
    for _ in range(n):
        found.append(torch.stack(found).mean(0) * 0.9 + 1)
    return torch.stack(found)


def added_up_in_a_step(x, n):
    found, total = [x], 0
    for i in range(n):
        total = total + sum(found) + torch.vstack(found).shape[0]
        found.append(x / (i + 1))
    return total


def added_to_others(x, n):
    halves, bytes_ = [], []
    for i in range(n):
        halves.append((x * 900 + i).half())
        bytes_.append((x * 100).to(torch.uint8))
    return sum(halves, x), sum(bytes_, x), sum(bytes_), sum([*halves[:2], 3])


def the_same_twice(x, n):
    found = []
    for _ in range(n):
        x = x * 0.9
        found.append(x)
        found.append(x)
    return torch.stack(found), found[0] is found[1], found[0] is found[2]


def with_an_axis(x, n):
    found, other = [], torch.empty(n, 3, dtype=x.dtype)
    for i in range(n):
        found.append(x * i)
    torch.stack(found, out=other)
    return torch.concatenate(found, axis=0), other


def with_others_of_more_dimensions(x, n):
    found = []
    for i in range(n):
        found.append(x * i)
    return torch.vstack([x.expand(2, 3), *found]), torch.hstack([x.sum(), *found])


def sizes_in_items(x, n):
    found = [(x.shape, x * i) for i in range(n)]
    return found[0][0], found[3][1], torch.stack([y for _, y in found])


PECULIAR = [
    *(last_written_in_a_step, held_by_a_dict, frozen_on_both_sides, the_same_dict),
    *(dicts_changed_in_steps, known_by_a_closure, known_by_a_default, known_by_a_partial),
    *(on_its_way, compared, changed_while_it_is_gone_over, joined_in_a_step, added_up_in_a_step),
    *(added_to_others, the_same_twice, with_an_axis, with_others_of_more_dimensions),
    sizes_in_items,
]


ALWAYS_REFUSED = held_by_a_dict, frozen_on_both_sides
"""What is written to after the loop stands in a list too."""

REFUSED_OF_MANY = (
    *(last_written_in_a_step, the_same_dict, dicts_changed_in_steps, compared),
    *(changed_while_it_is_gone_over, joined_in_a_step, added_up_in_a_step, the_same_twice),
)
"""Fewer steps are written out; where these add up the list so far, that takes a minute."""

WRITTEN_OUT_FOR_LONG = joined_in_a_step, added_up_in_a_step


@pytest.mark.parametrize("fn", [f for f in PECULIAR if f not in ALWAYS_REFUSED])
@pytest.mark.parametrize("count", [STEPS, MANY])
def test_lists_are_as_python_has_them_or_refused(fn, count: int) -> None:
    x = torch.randn(3, dtype=torch.float64)
    count = 8 if count == STEPS and fn in WRITTEN_OUT_FOR_LONG else count
    if count == MANY and fn in REFUSED_OF_MANY:
        with pytest.raises(bt.CompileError, match=r"BT007|BT021|BT022|BT040"):
            bt.jit("cpu")(fn)(x, count)
    else:
        found = bt.jit("cpu")(fn)(x.clone(), count)
        torch.testing.assert_close(found, fn(x.clone(), count))


@pytest.mark.parametrize("fn", ALWAYS_REFUSED)
@pytest.mark.parametrize("count", [STEPS, MANY])
def test_writes_to_what_a_loop_has_put_into_a_list(fn, count: int) -> None:
    with pytest.raises(bt.CompileError, match="BT007"):
        bt.jit("cpu")(fn)(torch.randn(3), count)


def test_items_from_before_a_loop_are_what_they_were() -> None:
    def f(x, w):
        found = [x]
        for _ in range(STEPS):
            found.append(torch.tanh(found[-1] * w))
        return found[0] is x, found[0], torch.stack(found)

    x, w = torch.randn(3), torch.randn(3, requires_grad=True)
    same, first, stacked = bt.jit("cpu")(f)(x, w)
    assert same
    assert not first.requires_grad
    torch.testing.assert_close(stacked, f(x, w)[2])


def test_gradients_flow_to_what_is_not_detached() -> None:
    def f(x, w):
        found = []
        for _ in range(STEPS):
            x = torch.tanh(x * w)
            found.append((x, x.detach()))
        return found[3][0], found[3][1]

    x, w = torch.randn(3), torch.randn(3, requires_grad=True)
    found = bt.jit("cpu")(f)(x, w)
    assert [y.requires_grad for y in found] == [True, False]


@pytest.mark.parametrize("join", [torch.stack, torch.cat])
def test_dimensions_that_are_not_there(join) -> None:
    def f(x):
        found = []
        for i in range(STEPS):
            found.append(x * i)
        return join(found, 3)

    with pytest.raises(bt.CompileError, match="Dimension out of range"):
        bt.jit("cpu")(f)(torch.randn(3))


def stacked_parts(x):
    return torch.stack(x.unbind(1), 1), sum(x.unbind(0)), torch.stack(x.unbind(0)[::-1])


def parts_of_what_is_written(x):
    y = x * 1
    parts = y.unbind(0)
    y.mul_(2)
    parts[3].add_(1)
    parts[0].copy_(parts[1])
    parts[2][:3] = 7
    return y, parts[0], torch.stack(parts)


def parts_by_name(x):
    first, second, *others = x.unbind(0)
    return first + second, torch.stack(others), others, len(others), first is second


def parts_in_a_list(x):
    parts = list(x.unbind(0))
    parts[3] = parts[4] * 2
    x.add_(1)
    return torch.stack(parts), parts[3], parts[-1], x


@pytest.mark.parametrize(
    "fn", [stacked_parts, parts_of_what_is_written, parts_by_name, parts_in_a_list]
)
def test_many_parts_are_read_where_they_are_used(fn) -> None:
    for _ in range(2):
        mine, theirs = (torch.arange(40.0 * 40).reshape(40, 40) for _ in range(2))
        torch.testing.assert_close(bt.jit("cpu")(fn)(mine), fn(theirs))
        assert torch.equal(mine, theirs)


def test_gradients_of_many_parts() -> None:
    def loss(x):
        parts = x.unbind(0)
        return (torch.stack(parts[::-1]) * torch.stack(parts)).sum() + parts[3].sin().sum()

    x = torch.randn(40, 5, dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(loss(x), x)
    (found,) = torch.autograd.grad(bt.jit("cpu")(loss)(x), x)
    torch.testing.assert_close(found, expected)


def test_thousands_of_parts_are_a_few_kernels() -> None:
    x = torch.randn(2000, 3)
    compiled = bt.jit("cpu")(stacked_parts)
    torch.testing.assert_close(compiled(x), stacked_parts(x))
    (found,) = compiled.specializations()
    assert found.kernels <= 3
