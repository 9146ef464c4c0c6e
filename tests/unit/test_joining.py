"""Many tensors that are joined: few conditions lead to each, and compiling takes no longer for each
than for the one before."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from tvm import ir, s_tir, te, tirx

import babytriton as bt
from babytriton.ops.primfunc import nodes, with_fields
from babytriton.passes.blocks import element, in_loops
from babytriton.passes.inlining import with_few_blocks
from babytriton.passes.intrinsics import function_name
from tests.conformance import gpu

COUNT = 100


def _parts(*shape: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape, dtype=torch.float64) for _ in range(COUNT)]


def _uneven() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(n % 4, 5, dtype=torch.float64) for n in range(COUNT)]


def rows(xs):
    return torch.cat(xs)


def columns(xs):
    return torch.cat([x * 2 - 1 for x in xs], -1)


def stacked(xs):
    return torch.stack([x + 1 for x in xs]), torch.stack(xs, 1), torch.stack(xs, -1)


def sums(xs):
    return torch.stack([x.square().sum() for x in xs]).sum().sqrt()


def read_twice(xs):
    doubled = [x * 2 for x in xs]
    return torch.cat(doubled), doubled[3] + doubled[7].sin()


def in_pieces(x):
    return torch.cat(x.split(1)[::-1])


@pytest.mark.parametrize("fn", [rows, columns, stacked, sums, read_twice], ids=lambda f: f.__name__)
def test_a_hundred_tensors_are_joined(fn):
    xs = _parts(3, 5)
    torch.testing.assert_close(bt.jit("cpu")(fn)(xs), fn(xs), rtol=1e-14, atol=0)


def test_tensors_of_several_sizes_are_joined():
    xs = _uneven()
    torch.testing.assert_close(bt.jit("cpu")(rows)(xs), rows(xs), rtol=0, atol=0)


def test_pieces_of_a_tensor_are_joined():
    x = torch.randn(COUNT, 5)
    torch.testing.assert_close(bt.jit("cpu")(in_pieces)(x), in_pieces(x), rtol=0, atol=0)


@pytest.mark.parametrize("fn", [columns, stacked], ids=lambda f: f.__name__)
def test_joined_tensors_have_gradients(fn):
    ours, theirs = ([x.requires_grad_() for x in _parts(2, 3)] for _ in range(2))
    for xs, run in ((ours, bt.jit("cpu")(fn)), (theirs, fn)):
        found = run(xs)
        sum(y.sin().sum() for y in (found if isinstance(found, tuple) else (found,))).backward()
    for x, y in zip(ours, theirs):
        torch.testing.assert_close(x.grad, y.grad, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("fn", [rows, stacked], ids=lambda f: f.__name__)
def test_joined_on_the_emulator(fn):
    xs = [x.float() for x in _parts(2, 4)]
    compiled = bt.jit(gpu.TARGET)(fn).lower(xs).compile()
    torch.testing.assert_close(gpu.call(compiled, (xs,)), fn(xs), rtol=0, atol=0)


def _deepest(expr: ir.Expr) -> int:
    """How many conditions lead to what is read."""
    if not isinstance(expr, ir.Call) or function_name(expr) != "if_then_else":
        return 0
    return 1 + max(map(_deepest, expr.args[1:]))


@pytest.mark.parametrize("fn", [rows, columns], ids=lambda f: f.__name__)
def test_seven_conditions_lead_to_each_of_a_hundred(fn):
    mod = bt.jit("cpu")(fn).lower(_parts(3, 5)).mod
    stores = [
        store
        for func in mod.functions.values()
        if isinstance(func, tirx.PrimFunc)
        for store in nodes(func.body, tirx.BufferStore)
    ]
    depths = [_deepest(store.value) for store in stores]
    assert max(depths) == 7


def _double(x: te.Tensor, i: tirx.Var) -> ir.Expr:
    return x[i] * 2.0


def _sum_of(count: int, *, twice: bool) -> tirx.PrimFunc:
    """A kernel that adds twice each of some numbers, one value after the other."""
    xs = [te.placeholder((8,), "float32", f"x{n}") for n in range(count)]
    doubled = [te.compute((8,), partial(_double, x), f"d{n}") for n, x in enumerate(xs)]
    read = [*doubled, doubled[0]] if twice else doubled

    def total(i):
        found = read[0][i]
        for value in read[1:]:
            found = found + value[i]
        return found

    return te.create_prim_func([*xs, te.compute((8,), total, "total")])


@pytest.mark.parametrize(("twice", "left"), [(False, 1), (True, 2)])
def test_values_that_are_read_once_are_inlined_together(twice, left):
    func = with_few_blocks(_sum_of(40, twice=twice))
    assert len(nodes(func.body, tirx.BufferStore)) == left
    assert len(func.body.block.alloc_buffers) == left - 1


def test_values_are_of_what_was_there() -> None:
    """Many values of a tensor that is written to before they are read."""

    def fn(x):
        values = [x * (n + 1) for n in range(40)]
        x.add_(1)
        total = x * 0
        for value in values:
            total = total + value
        return total, torch.cat(values)

    ours, theirs = (torch.arange(12.0, dtype=torch.float64).reshape(3, 4) for _ in range(2))
    torch.testing.assert_close(bt.jit("cpu")(fn)(ours), fn(theirs), rtol=1e-14, atol=0)
    assert torch.equal(ours, theirs)


def test_values_of_what_changes_stay_where_they_are() -> None:
    func = _sum_of(40, twice=False)
    first = nodes(func.body, s_tir.SBlock)[0]
    x = func.params[0]
    changed = with_few_blocks(_storing(func, x, lambda axis: tirx.const(0.0, "float32"), -1))
    assert len(nodes(changed.body, tirx.BufferStore)) == 3
    assert first.writes[0].source in changed.body.block.alloc_buffers


def test_values_that_are_added_to_stay_where_they_are() -> None:
    """The block that adds to one says that it writes it, and not that it reads it."""
    func = _sum_of(40, twice=False)
    total = func.params[-1]
    added = _storing(func, total, lambda axis: tirx.BufferLoad(total, [axis]) + 1.0, 40 + 1)
    stores = nodes(with_few_blocks(added).body, tirx.BufferStore)
    assert [store.buffer for store in stores] == [total, total]


def _storing(
    func: tirx.PrimFunc, to: tirx.Var, value: Callable[[tirx.Var], ir.Expr], place: int
) -> tirx.PrimFunc:
    """A kernel with one more block, at that place of them."""
    last = nodes(func.body, s_tir.SBlock)[-2]
    (axis,) = last.iter_vars
    store = tirx.BufferStore(to, value(axis.var), [axis.var])
    block = with_fields(last, reads=[], writes=[element(to, [axis.var])], body=store)
    parts = list(func.body.block.body.seq)
    parts.insert(place, in_loops(block))
    root = with_fields(func.body.block, body=tirx.SeqStmt(parts))
    whole = s_tir.SBlockRealize([], tirx.const(True, "bool"), root)
    return tirx.PrimFunc(func.params, whole, func.ret_type, func.attrs)


def test_kernels_of_few_blocks_stay_as_they_are():
    func = _sum_of(8, twice=False)
    assert with_few_blocks(func).same_as(func)
