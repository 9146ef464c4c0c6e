"""Writing to tensors: local ones, views, and the caller's own, against torch."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import babytriton as bt
from tests.conformance import gpu
from tests.unit.test_control_flow import check

X, INDEX = torch.randn(4, 6), torch.tensor([2, 0])


def test_items_and_slices() -> None:
    def f(x):
        y = x * 2
        y[1] = 5
        y[:, 2] = x[:, 0]
        y[0, 1:3] = torch.tensor([1.0, 2.0])
        y[..., -1] *= 3
        y[::2, ::3] += x[::2, ::3]
        y[2:, None, 0] = 1.5
        return y

    check(f, (X,))


def test_nothing_is_written_to_views_without_elements() -> None:
    def f(x):
        part = x[:, :, :2]
        part[0] = 1
        return part

    def g(x):
        x[4:] = 3
        x[:, 2:2] *= 2
        return x

    check(f, (torch.zeros(2, 0, 3),))
    check(g, (torch.ones(4, 3),))


@pytest.mark.parametrize("shape", [(1, 3), (4, 3), (5, 0, 3), (0, 3)])
@pytest.mark.parametrize("dynamic", [None, True])
def test_gradients_of_what_may_be_written_nowhere(
    dynamic: bool | None, shape: tuple[int, ...]
) -> None:
    def f(x):
        y = torch.zeros_like(x)
        y[1:] = x[:-1]
        return y

    ours, theirs = (torch.ones(shape, requires_grad=True) for _ in range(2))
    found, expected = bt.jit("cpu", dynamic=dynamic)(f)(ours), f(theirs)
    torch.testing.assert_close(found, expected)
    assert found.requires_grad
    for result in (found, expected):
        (result * 3).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_windows_that_overlap_are_not_written_to() -> None:
    def f(x):
        x[::2] += 1

    with pytest.raises(ValueError, match="several elements of argument `x` lie in one place"):
        bt.jit("cpu")(f)(torch.zeros(15).as_strided((4, 6), (3, 1)))


def test_views_see_what_is_written() -> None:
    def f(x):
        y = x * 2
        row, transposed, flat = y[0], y.T, y.reshape(-1)
        row += 1
        transposed[1] = -1
        flat[::5] = 9
        left, right = y.chunk(2, 1)
        left.add_(1)
        right.zero_()
        return y, row, transposed, flat, left, right

    check(f, (X,))


def test_indices_and_masks() -> None:
    def f(x):
        y = x.clone()
        where = torch.tensor([0, 2])
        y[where] = 7
        y[:, where] += 1
        y[1, torch.tensor([[0], [1]])] = torch.tensor([[9.0], [8.0]])
        y[where, 1:3] = x[where, 1:3] * 2
        y[y > 8] = 0
        y[torch.tensor(3), torch.tensor(-1)] = 4
        return y

    check(f, (X,))


def test_what_a_mask_selects_is_updated() -> None:
    def f(x, step):
        y = x.clone()
        y[y > 1] += 1
        y[x < 0] *= step
        y[(x > 0)[:, 0]] -= x[0, 0]
        z = y[1:]
        z[z > 3] /= 2
        counts = (x > 0).to(torch.int64)
        counts[x > 2] <<= 3
        return y, z, counts

    check(f, (X, 0.5))
    check(f, (X, torch.tensor([0.25])))


def test_updates_through_masks_that_torch_refuses() -> None:
    def fractions(x, mask):
        x[mask] += 1.5
        return x

    mask = torch.tensor([True, False, True])
    with pytest.raises(bt.CompileError, match="BT003"):
        bt.jit("cpu")(fractions)(torch.arange(3), mask)
    with pytest.raises(bt.CompileError, match="does not fit"):
        bt.jit("cpu")(fractions)(torch.ones(4), mask)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int32, torch.bool])
def test_dtypes(dtype: torch.dtype) -> None:
    def f(x, y):
        z = x.clone()
        z[0] = 1
        z[1:] = y[1:]
        z[:, 0] = 2.5
        return z

    check(f, (X.to(dtype), X * 3))


def test_methods_in_place() -> None:
    def f(x):
        y = x * 1
        y.add_(1).mul_(2).clamp_(-3, 3)
        y.masked_fill_(y > 2, 0.5)
        y[0].fill_(3)
        y[1].copy_(x[2])
        z = y.relu_()
        F.relu(y, inplace=True)
        y.index_add_(0, torch.tensor([1, 1]), x[:2])
        y.scatter_(1, torch.zeros(4, 1, dtype=torch.int64), -1.0)
        return y, z is y

    check(f, (X,))


IN_PLACE: dict[str, tuple[Any, ...]] = {
    "celu": (1.5,),
    "dropout": (0.0, True),
    "elu": (0.5,),
    "hardsigmoid": (),
    "hardswish": (),
    "hardtanh": (-0.5, 0.5),
    "leaky_relu": (0.2,),
    "mish": (),
    "relu": (),
    "relu6": (),
    "rrelu": (0.1, 0.1, False),
    "selu": (),
    "silu": (),
    "threshold": (0.3, 5.0),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place_by_position(name: str) -> None:
    """As modules of torch pass it on."""
    fn, rest = getattr(F, name), IN_PLACE[name]

    def f(x, y):
        z = y * 2
        fn(z, *rest, True)
        w = y * 3
        return fn(x, *rest, True), z, fn(w, *rest, False), w

    check(f, (X, X + 1))


def test_all_that_write_by_position() -> None:
    """Which of torch's functions that are there."""
    functions = {name: getattr(F, name) for name in dir(F) if not name.startswith("_")}
    found = {
        name
        for name, fn in functions.items()
        if inspect.isfunction(fn) and "inplace" in inspect.signature(fn).parameters
    }
    random = {"alpha_dropout", "dropout1d", "dropout2d", "dropout3d", "feature_alpha_dropout"}
    assert found - random == IN_PLACE.keys()


@pytest.mark.parametrize("train", [False, True])
def test_modules_in_place(train: bool) -> None:
    layers = torch.nn.Sequential(
        torch.nn.Linear(6, 6),
        torch.nn.LeakyReLU(0.2, inplace=True),
        torch.nn.Linear(6, 6),
        torch.nn.Hardswish(inplace=True),
        torch.nn.Linear(6, 6),
        torch.nn.Dropout(0.0, inplace=True),
    ).train(train)
    found = torch.autograd.grad(bt.jit("cpu")(layers)(X).sum(), list(layers.parameters()))
    expected = torch.autograd.grad(layers(X).sum(), list(layers.parameters()))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: torch.nn.init.orthogonal_(x[0]),
        lambda x: torch.nn.init.orthogonal_(torch.empty(4, 4)) + x[0, 0],
        lambda x: torch.nn.init.sparse_(x, 0.5),
        lambda x: torch.nn.init.zeros_(x),
        lambda x: torch.nn.init.ones_(x[0]),
        lambda x: torch.nn.init.eye_(x[1]),
        lambda x: torch.nn.init.xavier_uniform_(x[:, 0]),
    ],
)
def test_initializers(fn: Callable) -> None:
    shape = (4, 4) if "sparse" in fn.__code__.co_names[-1] else (2, 4, 4)
    ours, theirs = torch.ones(shape), torch.ones(shape)
    torch.manual_seed(3)
    expected = fn(theirs)
    torch.manual_seed(3)
    torch.testing.assert_close((bt.jit("cpu")(fn)(ours), ours), (expected, theirs))


def test_out() -> None:
    def f(x, out):
        torch.add(x, 1, out=out)
        values, places = torch.empty(4), torch.empty(4, dtype=torch.int64)
        torch.max(x, 1, out=(values, places))
        result = torch.exp(x, out=out[0].new_empty(4, 6))
        return values, places, result

    check(f, (X, X * 0))


def test_arguments_are_written_to() -> None:
    def f(x, y):
        x += 1
        y[0] = x[0]
        x[:, 1].mul_(y[0, 0])
        return x.sum()

    check(f, (X, X * 2))
    check(f, (torch.randn(6, 4).T, X * 2))
    check(f, (torch.randn(4, 12)[:, ::2], torch.randn(25)[1:].view(4, 6)))


def test_a_written_argument_is_returned_itself() -> None:
    compiled = bt.jit("cpu")(lambda x: x.add_(1))
    x = X.clone()
    assert compiled(x) is x
    torch.testing.assert_close(x, X + 1)


def test_every_way_out_writes() -> None:
    def f(x, y):
        x[0] = 1
        if y.sum() > 0:
            x.mul_(2)
            return x.sum()
        x[1] = 3
        for i in range(100):
            x.add_(0.1)
            if i > y.max() + 50:
                return x[0].sum()
        return x[1].sum()

    for scale in (1, -1, -100, -1e4):
        check(f, (X, X.abs() * scale))


def test_captured_tensors_are_written_to() -> None:
    state = torch.zeros(6)
    compiled = bt.jit("cpu")(lambda x: state.mul_(0.5).add_(x.sum(0)))
    compiled(X)
    torch.testing.assert_close(state, X.sum(0))
    compiled(X)
    torch.testing.assert_close(state, X.sum(0) * 1.5)


def test_scalars_of_the_run_time_as_places() -> None:
    def f(x):
        best = int(x.sum(1).argmax())
        x[best] = 0
        x[best, int(x.sum(0).argmin())] += 5
        return best

    check(f, (X,), (-X,))


@pytest.mark.parametrize("module", [nn.BatchNorm1d(6), nn.BatchNorm1d(6, momentum=None)])
def test_batch_norm_updates_its_statistics(module: nn.Module) -> None:
    import copy

    ours = copy.deepcopy(module)
    compiled = bt.jit("cpu")(ours)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(9, 6)
            torch.testing.assert_close(compiled(x), module(x), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(dict(ours.named_buffers()), dict(module.named_buffers()))


def test_instance_norm_updates_its_statistics() -> None:
    def f(x, mean, variance):
        return F.instance_norm(x, mean, variance, momentum=0.3)

    check(f, (torch.randn(4, 3, 5), torch.zeros(3), torch.ones(3)))


def test_augmented_assignment_of_numbers_and_lists() -> None:
    def f(x):
        n, items, pair = 2, [x], (x, 1)
        n += 3
        items += [x * 2]
        items[0] += 1
        pair += (n,)
        return n, items, pair

    check(f, (X,))


def test_numbers_wrap_as_torch_wraps_them() -> None:
    def f(x):
        x[0] = -1
        return x

    check(f, (torch.zeros(2, dtype=torch.uint8),))

    def g(x):
        x[0] = 300

    with pytest.raises(bt.CompileError, match="overflow"):
        bt.jit("cpu")(g)(torch.zeros(2, dtype=torch.uint8))


@pytest.mark.parametrize("dynamic", [False, True])
def test_writes_through_permuted_views(dynamic: bool) -> None:
    """Of symbolic sizes, places that are computed from strides keep TVM busy for minutes."""

    def f(x, mask, y, z):
        x.permute(3, 1, 2, 0).copy_(torch.where(mask, y, z.permute(0, 3, 2, 1)))
        return x * 2, x.transpose(0, 2)

    def g(x, y):
        turned = x.permute(1, 0, 2)
        turned.mul_(y)
        turned[0] = 1.5
        return turned, x.sum()

    x, y = torch.randn(5, 3, 4, 2), torch.randn(2, 3, 4, 5)
    calls = [
        (f, (x, y > 0, y, torch.randn(2, 5, 4, 3))),
        (g, (torch.randn(3, 3, 3), torch.rand(3))),
    ]
    for fn, arguments in calls:
        ours, theirs = ([t.clone() for t in arguments] for _ in range(2))
        found, expected = bt.jit("cpu", dynamic=dynamic)(fn)(*ours), fn(*theirs)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(ours, theirs)


def _shifted(x):
    y = torch.zeros_like(x)
    y[:, 1:] = x[:, :-1]
    return y.softmax(-1)


def _in_steps(x):
    y = torch.empty_like(x)
    y[:] = x
    y[:, ::2] *= 2
    y[1:, -1] += x[:-1, -1]
    y[..., 1:-1:3] = 7
    return y


def _half(x):
    y = x.clone()
    y[..., x.shape[-1] // 2 :] = 0
    y[-1, :, -1] = x[0, :, 0]
    return y


def _diagonals(x):
    y = x.clone()
    y.diagonal(0, -2, -1).fill_(1.5)
    y.diagonal(1, 0, -1).mul_(2)
    return y.var(-1, keepdim=True) + y


def _merged(x):
    y = x.clone()
    y.flatten(0, 1)[1:] *= 3
    y.view(-1)[::2].neg_()
    return y


def _divided(x):
    y = x.clone()
    y.view(*x.shape[:-1], 2, x.shape[-1] // 2)[..., 0] = 0
    return y


def _seen_twice(x):
    y = x.clone()
    pairs = y.unfold(-1, 2, 1)
    y[..., 1] = 0
    return pairs * 2


@pytest.mark.parametrize(
    "fn", [_shifted, _in_steps, _half, _diagonals, _merged, _divided, _seen_twice]
)
def test_parts_of_any_sizes(fn: Any) -> None:
    """Written through places computed from strides, they too kept TVM busy for minutes."""
    jitted = bt.jit("cpu", dynamic=True)(fn)
    for shape in [(6, 5, 7, 8), (7, 6, 8, 10), (3, 4, 5, 6)]:
        x = torch.randn(shape)
        torch.testing.assert_close(jitted(x), fn(x))
    if fn not in (_diagonals, _half):  # of which it matters what is shorter
        assert len(jitted.specializations()) == 1


def test_a_shift_of_any_sizes_is_one_kernel() -> None:
    def f(x):
        y = torch.zeros_like(x)
        y[:, 1:] = x[:, :-1]
        return y

    lowered = bt.jit("cpu", dynamic=True)(f).lower(torch.randn(6, 5, 7, 8))
    assert len(lowered.compile().kernels) == 1
    assert all(isinstance(size, bt.types.Dim) for size in lowered.signature.specs[0].type.shape)


def test_numbers_are_copied() -> None:
    def f(x):
        y = x * 2
        x.copy_(2)
        y[0].copy_(3.5)
        return y

    check(f, (X,), (X.long(),))


def test_several_ellipses() -> None:
    def f(x, i):
        y = x * 2
        y[..., ...] = 3
        y[i, ..., ...] = 1
        return y[..., i, ...], x[0, ..., None, ...], x[..., :, ...]

    check(f, (X, torch.tensor([0, 2])))


def test_ranges_are_indices() -> None:
    def f(x):
        x[range(2)] = 3.0
        x[:, range(1, 3)] += 4
        return x.sum(0)

    check(f, (X,))


def test_overloads_of_operators_write() -> None:
    def f(x, i):
        torch.ops.aten.add_.Tensor(x, x * 2)
        torch.ops.aten.index_put_.default(x, [i], torch.ones(6))

    check(f, (X, torch.tensor([0, 2])))


@pytest.mark.parametrize("shape", [(0, 4), (3, 0, 4), (0, 3, 4), (3, 4)])
def test_a_part_of_what_has_no_elements(shape: tuple[int, ...]) -> None:
    def doubled(x):
        found = x.expand(2, *x.shape).clone()
        found[..., 1:].mul_(2)
        return found

    x = torch.ones(shape)
    assert torch.equal(bt.jit("cpu")(doubled)(x), doubled(x))


def test_copies() -> None:
    def copied(x):
        y, z, both = copy.copy(x), copy.deepcopy(x), copy.deepcopy({"x": [x, x.sum().item()]})
        y.mul_(2)
        return y, z, both["x"][0] + both["x"][1]

    given, expected = X.clone(), X.clone()
    found, wanted = bt.jit("cpu")(copied)(given), copied(expected)
    torch.testing.assert_close((*found, given), (*wanted, expected))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.clone().normal_(),
        lambda x: x.clone().normal_(1, 2),
        lambda x: torch.empty_like(x).normal_(mean=1.0, std=2.0),
        lambda x: torch.nn.init.normal_(x.clone(), 3.0, 0.1),
    ],
)
def test_normal_numbers_in_place(fn: Any) -> None:
    x = X + 50  # of which torch.normal would take the means
    drawn = []
    for each in (bt.jit("cpu")(fn), fn):
        torch.manual_seed(0)
        drawn.append(each(x))
    torch.testing.assert_close(*drawn)


NUMBERS_AND_INDICES = [
    (1, slice(None), INDEX),
    (INDEX, slice(None), 1),
    (slice(None), -1, INDEX),
    (1, INDEX),
    (INDEX, -1),
    (-2, slice(None), INDEX[:, None]),
    (1, INDEX, 2),
    (INDEX, 1, INDEX),
    (None, 1, slice(None), INDEX),
    (1, None, INDEX),
    (1, torch.tensor(1), INDEX),
    (INDEX, slice(1, 3), 1),
    (1, slice(0, 2), [0, 2]),
]


@pytest.mark.parametrize("item", NUMBERS_AND_INDICES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_numbers_beside_indices(item, dynamic):
    def fn(x, v):
        y = x * 1
        y[item] = v
        x[item] = v * 2
        x[item] += 1
        return y

    x = torch.randn(3, 4, 5, dtype=torch.float64)
    ours, theirs = x.clone(), x.clone()
    for v in (torch.randn(x[item].shape, dtype=torch.float64), torch.tensor(2.5).double()):
        found = bt.jit("cpu", dynamic=dynamic)(fn)(ours, v)
        torch.testing.assert_close(found, fn(theirs, v))
        torch.testing.assert_close(ours, theirs)


def test_a_row_of_a_stack_of_caches_is_written_alone():
    def fn(cache, new, layer: int, place):
        cache[layer, :, place] = new

    cache, new, place = torch.randn(3, 4, 5, 8), torch.randn(4, 1, 8), torch.tensor([2])
    compiled = bt.jit(gpu.TARGET)(fn).lower(cache, new, 1, place).compile()
    assert len(compiled.launches) == 1
    assert "cache: float32[3, 4, 5, 8] in place" in compiled.source()
    ours, theirs = cache.clone(), cache.clone()
    gpu.call(compiled, (ours, new, 1, place))
    fn(theirs, new, 1, place)
    torch.testing.assert_close(ours, theirs)
