"""What masks select, ``x[mask]``: read, computed with, reduced, written and returned."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import babytriton as bt
from babytriton.diagnostics import CompileError
from babytriton.ops import TABLE
from babytriton.ops.selections.rules import RULES
from tests.conformance import gpu

Tree = Any


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


ROWS = torch.tensor([True, False, True, True, False, True, False])
NONE = torch.zeros(7, dtype=torch.bool)
X, Y = numbers(7, 5), numbers(7, 5).flip(0)
CLASSES = torch.arange(7) % 5
PLACES = numbers(2, 3, 4) > 0


def doubled(tree: Tree) -> Tree:
    """The same with floats in float64."""
    if isinstance(tree, (tuple, list)):
        return type(tree)(map(doubled, tree))
    is_float = isinstance(tree, torch.Tensor) and tree.is_floating_point()
    return tree.double() if is_float else copy.deepcopy(tree)


def check(fn: Callable[..., Any], *args: Any, within: float = 2e-6) -> None:
    """Compare with torch in float64, compiled for the CPU and for the GPU."""
    exact = doubled(args)
    wanted = fn(*exact), exact
    for call in (on_cpu, on_gpu):
        given = copy.deepcopy(args)
        found = call(fn, given), given
        compare(found, wanted, within)


def on_cpu(fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    return bt.jit("cpu")(fn)(*args)


def on_gpu(fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    compiled = bt.jit(gpu.TARGET)(fn).lower(*args).compile()
    return gpu.call(compiled, args)


def compare(found: Tree, wanted: Tree, within: float = 2e-6) -> None:
    if isinstance(wanted, (tuple, list)):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted):
            compare(one, other, within)
    elif isinstance(wanted, torch.Tensor):
        assert found.shape == wanted.shape
        kwargs = {"rtol": within, "atol": within, "equal_nan": True}
        torch.testing.assert_close(found.double(), wanted.double(), **kwargs)
    elif isinstance(wanted, float):
        assert found == pytest.approx(wanted, rel=1e-5)
    else:
        assert found == wanted


REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": lambda v: (v.sum(), v.sum(0), v.sum(1).sum(), v.sum((0, 1)), v.sum(0, keepdim=True)),
    "mean": lambda v: (v.mean(), v.mean(0), v.mean(-1).sum(), v.mean((0, 1), keepdim=True)),
    "prod": lambda v: (v.prod(), torch.prod(v, 0)),
    "extremes": lambda v: (v.max(), v.min(), v.amax(0), torch.amin(v, (0, 1))),
    "moments": lambda v: (v.var(), v.std(0), v.var(0, unbiased=False), v.std(dim=1).sum()),
    "with means": lambda v: (*torch.var_mean(v), *torch.std_mean(v, 0, correction=0)),
    "logsumexp": lambda v: (v.logsumexp(0), torch.logsumexp(v, (0, 1)), v.logsumexp(1).sum()),
    "norms": lambda v: (v.norm(), v.norm(1, 0), torch.linalg.vector_norm(v, math.inf)),
    "counts": lambda v: (torch.count_nonzero(v), (v > 0).sum(), (v > 1).any(), (v > -9).all()),
    "of nan": lambda v: (torch.nansum(v), torch.nanmean(v, 0), torch.nanmedian(v)),
    "by NumPy's names": lambda v: (v.sum(axis=0), v.mean(axis=0, keepdims=True)),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name: str) -> None:
    reduced = REDUCTIONS[name]

    def rows(x, m):
        return reduced(x[m])

    check(rows, X, ROWS)


def test_reductions_of_nothing() -> None:
    def sums(x, m):
        v = x[m]
        return v.sum(), v.mean(), v.mean(0), v.prod(), (v > 0).any(), (v > 0).all(), v.norm()

    check(sums, X, NONE)
    # torch raises for these, as a kernel cannot.
    largest = bt.jit("cpu")(lambda x, m: (x[m].max(), x.long()[m].min()))(X, NONE)
    assert math.isnan(largest[0])
    assert largest[1] == 0


def test_sizes() -> None:
    def sizes(x, m):
        v = x[m]
        total = v.sum() / v.shape[0] + v.sum(0).sum() / len(v) - v.size(1)
        return total, v.numel(), v.shape[0], v.size(0) * 2, v.ndim, v.dim(), v.shape[1]

    check(sizes, X, ROWS)
    check(sizes, X, NONE)


def test_elementwise_functions() -> None:
    def several(x, y, b, m):
        v, w = x[m], y[m]
        v = torch.where(v > w, v.exp(), -w) * b + (v - w).abs().sqrt() / 2
        v = torch.clamp(v, -3, 3).double().float()
        return F.gelu(v).sum(), (v @ torch.ones(5)).sum(), torch.zeros_like(v).sum()

    check(several, X, Y, numbers(5), ROWS)
    check(several, X, Y, numbers(1, 5), ROWS)


def test_writes_of_what_the_same_mask_selects() -> None:
    def clipped(x, y):
        x[x > 0] = x[x > 0] * 2
        x[x.abs() > 2] = x[x.abs() > 2].sign() * 2
        y[y > 1] = x[y > 1]
        return x

    check(clipped, X, Y)


def test_writes_at_masks() -> None:
    def writes(x, m, b):
        x[m] += 1.5
        x[m, 0] *= 2
        x[m] = x[m].exp() - b
        x[1:, b > 0] = x[:1, b > 0]
        x[~m] = b
        x[m & (x[:, 1] > 0), 1:3] = torch.tensor(7, dtype=torch.float64)
        x[..., b < 0] -= 1
        return x.sum()

    check(writes, X, ROWS, numbers(5))


def test_masks_of_several_dimensions() -> None:
    def several(x, m, b):
        v = x[m]
        x[m] = v * b
        rows = x[:, m[0]]
        x[1] = torch.where(m[0], x[0, :, :, 0], x[1, :, :, 1]).unsqueeze(-1)
        return v.sum(0), v.mean(), v.view(-1, 5).amax(0), rows.sum(1), rows.sum(0).mean(-1).sum()

    check(several, numbers(2, 3, 4, 5), PLACES, numbers(5))


def test_masked_select() -> None:
    check(
        lambda x, b: (torch.masked_select(x, x > b).mean(), x.masked_select(b > 0).sum()), X, Y[0]
    )


def test_masks_of_what_masks_select() -> None:
    def narrowed(x, m):
        v = x[m]
        v[v > 0] = v[v > 0].sqrt()
        v[v < -1] += 0.5
        rows = v[v[:, 0] > 0]
        return v.sum(), rows.sum(0), v[v > 0.5].mean(), x[m][:, 1:3].sum(), v[..., -1].mean()

    check(narrowed, X, ROWS)


def test_places_of_masks() -> None:
    def placed(x, y, m):
        (rows,) = torch.where(m)
        x[rows] = y[rows] * 2
        x[torch.nonzero(~m, as_tuple=True)] += 1
        i, j = torch.where(y > 1)
        x[i, j] = 0.0
        y[i, 0] = x[i, j] - 1
        k = m.nonzero().squeeze(-1)
        y[k, 1] = x[k, 2].abs()
        y[k - 1, 2:4] = x[k][:, :2]
        y.index_add_(0, k, y.index_select(0, k))
        found = torch.nonzero(x > 0), torch.argwhere(m), (x[:, 0] > 0).long().nonzero()
        return x, y, rows, *found, len(rows), k.numel(), rows.max()

    check(placed, X, Y, ROWS)
    check(placed, X, Y, ~ROWS)


def test_experts() -> None:
    def mixture(x, choice, w):
        out = torch.zeros_like(x)
        for e in range(w.shape[0]):
            slot, token = torch.where(choice == e)
            out.index_add_(0, token, x[token].relu() @ w[e] * (slot[:, None] + 1))
        return out

    choice = torch.tensor([[0, 1, 2, 0, 1, 2, 0], [1, 2, 2, 1, 0, 0, 1]])
    args = X, choice, numbers(3, 5, 5)
    check(mixture, *args, within=1e-5)
    wanted = gradients(mixture, *doubled(args))
    compare(gradients(bt.jit("cpu")(mixture), *args), wanted, 2e-5)


def test_likelihoods() -> None:
    def loss(x, t, m):
        likely = F.log_softmax(x[m], -1).gather(1, t[m].unsqueeze(1)).squeeze(1)
        return -likely.mean(), likely.exp()

    check(loss, X, CLASSES, ROWS)


def test_places_that_were_written_to() -> None:
    def moved(x, y, m):
        (i,) = torch.where(m)
        i.sub_(1)
        x[i] = y[i]
        j = m.nonzero(as_tuple=True)[0]
        j[j > 3] = 0
        y[j] = 1
        return x, y, x[i], i

    check(moved, X, Y, ROWS)


def test_places_of_masks_of_other_sizes() -> None:
    def placed(x, m):
        (i,) = torch.where(m[:5])
        j, k = torch.where(x[:3, :3] > 0)
        x[j, k] = 5.0
        return x, x[i], x[i, 1].sum()

    check(placed, X, ROWS)


def test_writes_to_what_masks_select() -> None:
    def written(x, m):
        v = x[m]
        w = v[:, 1:]
        v.clamp_(min=-0.5)
        v[:, 0] = 3.0
        v[:, 2] = v[:, 1] * 2
        v *= 2
        v.mul_(0.5).add_(v, alpha=0.5)
        w.neg_()
        return x, v.sum(0), w.sum(0)

    check(written, X, ROWS)


def test_shapes() -> None:
    def shaped(x, m):
        v = x[m]
        a, b = v[:, :4].chunk(2, 1)
        joined = torch.cat([b, a.unsqueeze(1).squeeze(1)], dim=1).reshape(-1, 2, 2)
        turned = torch.stack([v.T, v.t() * 2], 1).permute(2, 1, 0)
        first, *_ = v.unbind(1)
        return joined.sum(0), turned.transpose(1, 2).sum(0), first.view(-1).sum(), v[None].sum(1)

    check(shaped, X, ROWS)


def test_functions_along_other_dimensions() -> None:
    def rows(x, y, w, b, m):
        v = x[m]
        scores = (F.softmax(v, -1), F.log_softmax(v, 1), F.layer_norm(v, (5,), w[0], b))
        others = (F.normalize(v), v.cumsum(1), F.rms_norm(v, (5,)), F.glu(v[:, :4]))
        similar = F.cosine_similarity(v, y[m])
        return [x.sum(0) for x in (*scores, *others, similar, F.linear(v, w), v @ w.T)]

    check(rows, X, Y, numbers(3, 5), numbers(5), ROWS, within=1e-5)


def test_sizes_in_shapes() -> None:
    def shaped(x, m):
        v = x[m]
        return (
            v.view(v.size(0), -1),
            v.reshape(v.shape[0], 5, 1),
            v.view(v.shape),
            v.expand(v.shape),
        )

    check(shaped, X, ROWS)


def test_rows_of_more_functions() -> None:
    def several(x, t, m):
        v = x[m]
        right = (v.argmax(-1) == t[m]).float().mean()
        return (
            right,
            v.sort(1)[0],
            v.topk(2)[1],
            v.median(1)[0],
            v.flip(1),
            v.roll(1, 1),
            v.max(1)[0],
        )

    check(several, X, CLASSES, ROWS)


def test_dropout_that_drops_nothing() -> None:
    check(lambda x, m: F.dropout(x[m], 0.5, training=False).sum(), X, ROWS)


def test_many_rows() -> None:
    def halves(x, m):
        return x[m].split(2, 1)[0], x[m][:, :3]

    x = numbers(4000, 5)
    check(halves, x, x[:, 0] > 0)
    for cut in (lambda v: v[:3000], lambda v: v[-3000:], lambda v: v.split(3000), lambda v: v[2:]):
        with pytest.raises(CompileError, match="BT006"):
            bt.jit("cpu")(lambda x, m, cut=cut: cut(x[m]))(x, x[:, 0] > 0)


def test_fill_numbers_of_each_dtype() -> None:
    def reduced(x, b, m):
        v, w = x[m], b[m]
        return (
            *(v.logsumexp(0), torch.softmax(v, 0, dtype=torch.float32).sum(0)),
            *(w.amax(0), w.max(), w.min(), w.sum(0), w.prod(), v.amin(), w.any(0), v.all()),
        )

    x = (X * 3).abs().to(torch.uint8)
    for mask in (ROWS, ~ROWS):
        wanted = reduced(x, X > 0, mask)
        found = bt.jit("cpu")(reduced)(x, X > 0, mask)
        compare(found, wanted)
        assert [y.dtype for y in found] == [y.dtype for y in wanted]


def test_dimensions_that_are_kept() -> None:
    def kept(x, m):
        v = x[m]
        return torch.mean(v, None, True), v.var(keepdim=True), torch.std_mean(v, None, keepdim=True)

    check(kept, X, ROWS)


def test_functions_along_the_selected_dimension() -> None:
    def columns(x, m):
        v = x[m]
        shares, sums = torch.softmax(v, 0), torch.cumsum(v, 0)
        x[m] = shares + sums
        return x, v.T @ v, torch.mv(v.T, v[:, 0])

    check(columns, X, ROWS)


def test_embeddings_of_selected_indices() -> None:
    def summed(table, i, m):
        return F.embedding(i[m], table).sum(0), F.one_hot(i[m], 5).sum(0)

    check(summed, X, CLASSES, ROWS)


LOSSES: dict[str, Callable[..., Any]] = {
    "mse": lambda x, y: F.mse_loss(x, y),
    "mse of each": lambda x, y: F.mse_loss(x, y, reduction="none").sum(0),
    "l1": lambda x, y: F.l1_loss(x, y, reduction="sum"),
    "smooth_l1": lambda x, y: F.smooth_l1_loss(x, y, beta=0.5),
    "huber": lambda x, y: torch.nn.HuberLoss()(x, y),
    "bce": lambda x, y: F.binary_cross_entropy_with_logits(x, (y > 0).to(x.dtype)),
    "kl": lambda x, y: F.kl_div(F.log_softmax(x, 1), F.softmax(y, 1), reduction="batchmean"),
    "poisson": lambda x, y: F.poisson_nll_loss(x, y.abs()),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses(name: str) -> None:
    loss = LOSSES[name]

    def of_rows(x, y, m):
        return loss(x[m], y[m])

    check(of_rows, X, Y, ROWS)
    check(of_rows, X, Y, NONE)


def test_cross_entropy() -> None:
    def each(x, t, w, m):
        v, c = x[m], t[m]
        return (
            F.cross_entropy(v, c),
            F.cross_entropy(v, c, w, ignore_index=2, label_smoothing=0.1),
            F.cross_entropy(v, c, reduction="sum"),
            F.cross_entropy(v, c, reduction="none").sum(),
            F.nll_loss(F.log_softmax(v, 1), c),
            F.cross_entropy(v, torch.softmax(v, 1)),
        )

    check(each, X, CLASSES, numbers(5).abs(), ROWS, within=1e-5)


def test_cross_entropy_of_probabilities_in_several_places() -> None:
    def loss(x, p, m):
        return F.cross_entropy(x[m], p[m])

    check(loss, numbers(7, 5, 3), numbers(7, 5, 3).softmax(1), ROWS)


def test_cross_entropy_of_tokens() -> None:
    def loss(logits, labels):
        seen = labels != -100
        return F.cross_entropy(logits[seen], labels[seen])

    labels = torch.tensor([[1, -100, 4], [-100, 0, 2]])
    check(loss, numbers(2, 3, 5), labels, within=1e-5)


def test_results() -> None:
    def selected(x, m):
        return x[m], {"positive": x[x > 0]}["positive"], [x[:, m[:5]] * 2], m.sum()

    check(selected, X, ROWS)
    compiled = bt.jit("cpu")(selected)
    for mask in (ROWS, ~ROWS, NONE, ROWS, ~ROWS):  # later ones take the short way
        compare(compiled(X, mask), selected(X, mask))
    assert compiled(X, ROWS)[0].data_ptr() != X.data_ptr()


def test_results_of_what_is_written_later() -> None:
    def read_first(x, m):
        before = x[m]
        x += 1
        return before, x[m], x

    check(read_first, X, ROWS)


def test_branches_and_loops() -> None:
    def several(x, m):
        v = x[m]
        if x.sum() > 0:
            v = v * 2
            rows = x[m].abs()
        else:
            v = v - 1
            rows = x[~m]
        total = torch.zeros(())
        for i in range(x.shape[1]):
            column = x[:, i]
            total = total + column[m].sum() * column[column > 0].mean()
            v = v + i
        return v.sum(0), rows.sum(), total

    check(several, X, ROWS, within=1e-5)
    check(several, -X, ROWS, within=1e-5)


def test_sizes_known_only_at_the_call() -> None:
    def statistics(x, m):
        v = x[m]
        x[m] = v - v.mean(0)
        return x, v.std(), F.softmax(v, 1).sum(0), v[:, 0], F.mse_loss(v, v * 2)

    compiled = bt.jit("cpu", dynamic=True)(statistics)
    for rows, columns in ((7, 5), (9, 4), (33, 2)):
        x, mask = numbers(rows, columns), numbers(rows) > 0
        exact = statistics(x.double().clone(), mask)
        compare(compiled(x.clone(), mask), exact)
    assert len(compiled.specializations()) == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64, torch.uint8])
def test_dtypes(dtype: torch.dtype) -> None:
    x = (X * 3).abs().to(dtype)

    def sums(x, m):
        v = x[m]
        x[m] = v * 2
        return v.sum(), v.max(), v.amin(0), x

    wanted = sums(x.clone(), ROWS)
    compare(bt.jit("cpu")(sums)(x.clone(), ROWS), wanted)


def gradients(fn: Callable[..., Any], *args: Any) -> tuple[Any, ...]:
    args = tuple(
        x.clone().requires_grad_() if isinstance(x, torch.Tensor) and x.is_floating_point() else x
        for x in args
    )
    result = fn(*args)
    weights = torch.linspace(0.5, 1, result.numel(), dtype=result.dtype).view_as(result)
    wanted = [x for x in args if isinstance(x, torch.Tensor) and x.requires_grad]
    return result.detach(), torch.autograd.grad((result * weights).sum(), wanted)


GRADIENTS: dict[str, Callable[..., Any]] = {
    "mean": lambda x, b, m: (x * b)[m].mean(),
    # Of what is not selected these have none: 1 / 0, and the logarithm and root of negatives.
    "log": lambda x, b, m: (x[x > 0].log() * 2).sum() + (x[m] * b).sum(),
    "root": lambda x, b, m: torch.where(m[:, None], x, b)[m].abs().sqrt().sum(0),
    "shared": lambda x, b, m: (b / x[m]).sum() + (x[m] * b.sum()).mean(),
    "product": lambda x, b, m: (x[m].abs().log() @ b).exp(),
    "rows": lambda x, b, m: F.layer_norm(x[m], (5,), b).var(0),
    "loss": lambda x, b, m: F.cross_entropy(x[m] * b, torch.arange(7)[m] % 5),
    "softmax": lambda x, b, m: torch.softmax(x[m] * b, 0).square().sum(0),
    "entropy": lambda x, b, m: -(p := torch.softmax(x[m] * b, 0)).mul(p.log()).sum(),
    "pooled": lambda x, b, m: (torch.softmax((v := x[m]) @ b, 0)[:, None] * v).sum(0),
    "sums": lambda x, b, m: ((c := (x[m] * b).abs().cumsum(0)) / c.sum(0)).log().sum(),
    "similar": lambda x, b, m: F.cosine_similarity(x[m].abs(), b[None].abs(), -1).log().sum(),
    "scaled": lambda x, b, m: (x[m].long() * b[0] + b[1].where(x[m] > b[2], b[3])).sum(0) * x.sum(),
    "deviation": lambda x, b, m: (x * 0 + b)[m].std(0) + x[m].std(),
    "places": lambda x, b, m: (x * b)[torch.where(m)[0]].abs().log().sum(0),
    "second mask": lambda x, b, m: (v := x[m] + b)[v > 0].log().sum(),
    "largest": lambda x, b, m: (x * b)[m].amax(0),
    "result": lambda x, b, m: (x * b)[m],
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name: str) -> None:
    fn = GRADIENTS[name]
    x = X.clone()
    x[1] = 0.0  # selected by none
    wanted = gradients(fn, x.double(), numbers(5).double(), ROWS)
    found = gradients(bt.jit("cpu")(fn), x, numbers(5), ROWS)
    compare(found, wanted, 2e-5)


def test_gradients_stop_where_none_are_recorded() -> None:
    def target(x, b, m):
        with torch.no_grad():
            v = x[m]
            w = (x * b)[x > 0]
        return F.mse_loss(x[m] * b, v) + (w * b.sum()).sum()

    wanted = gradients(target, X.double(), numbers(5).double(), ROWS)
    compare(gradients(bt.jit("cpu")(target), X, numbers(5), ROWS), wanted, 2e-5)


def test_gradients_past_nan_that_is_not_selected() -> None:
    x = X.clone()
    x[~ROWS] = math.nan

    def pooled(x, b, m):
        v = x[m]
        weights = torch.softmax(v @ b, 0)
        return (weights[:, None] * v).sum(0) + F.cosine_similarity(v, b[None], dim=1).sum()

    def gradient(fn, x, b):
        b = b.requires_grad_()
        (grad,) = torch.autograd.grad(fn(x, b, ROWS).square().sum(), b)
        return grad

    wanted = gradient(pooled, x.double(), numbers(5).double())
    compare(gradient(bt.jit("cpu")(pooled), x, numbers(5)), wanted, 2e-5)


def test_gradients_of_writes() -> None:
    def written(x, b, m):
        y = x * 1
        y[m] = y[m].exp() * b
        y[y > 1] = y[y > 1].log()
        return y

    wanted = gradients(written, X.double(), numbers(5).double(), ROWS)
    compare(gradients(bt.jit("cpu")(written), X, numbers(5), ROWS), wanted, 2e-5)


def test_gradients_of_gradients() -> None:
    fn = bt.jit("cpu")(lambda x, m: (x[m] ** 3).mean())
    x = X.double().requires_grad_()
    (grad,) = torch.autograd.grad(fn(x, ROWS), x, create_graph=True)
    (second,) = torch.autograd.grad(grad.sum(), x)
    (exact,) = torch.autograd.grad((x[ROWS] ** 3).mean(), x, create_graph=True)
    (wanted,) = torch.autograd.grad(exact.sum(), x)
    compare((grad.detach(), second), (exact.detach(), wanted))


def test_while_loops() -> None:
    def grown(x, m):
        v, i = x[m], torch.zeros(())
        while i < 3:
            v = v * 1.5
            i = i + 1
        return v, i

    check(grown, X, ROWS)


def test_what_else_is_asked_of_tensors() -> None:
    def asked(x, m):
        v = x[m]
        v.data.mul_(1)
        other = copy.deepcopy(v) + copy.copy(v)
        other.data[:, 0] = 1
        new = v.new_zeros(5) + v.new_full((3, 5), 2.0) + v.new_tensor([1.0])
        return other, new, torch.is_tensor(v), isinstance(v, torch.Tensor), v.is_floating_point()

    check(asked, X, ROWS)
    compare(on_cpu(lambda x, m: x[m].cpu().sum(), (X, ROWS)), X[ROWS].sum())


def test_keywords() -> None:
    def named(x, y, w, m):
        (i,) = torch.where(m)
        y.index_add_(dim=0, index=i, source=x[i])
        v = x[m]
        return torch.matmul(v, other=w), torch.mm(input=v, mat2=w), torch.sum(v, dim=0), y

    check(named, X, Y, numbers(5, 3), ROWS)


def test_masks_of_masks_of_several_dimensions() -> None:
    def narrowed(x, m):
        v = x[m]
        v[v[:, 0] > 0] = v[v[:, 0] > 0] * 2
        return v[v[:, 1] > 0].sum(0), v

    check(narrowed, numbers(2, 3, 4, 5), PLACES)


def test_rules_are_of_rows() -> None:
    assert RULES.keys() <= {row.name for row in TABLE.values()}


def test_one_kernel() -> None:
    def scaled(x, m):
        x[m] = torch.tanh(x[m]) * 2
        return x

    compiled = bt.jit(gpu.TARGET)(scaled).lower(X.clone(), ROWS).compile()
    assert len(compiled.launches) == 1
    assert not compiled.fallbacks


def _set(x, m, new):
    x[m] = new
    return x


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "sort": (lambda x, m: x[m].sort(0), "BT006"),
    "first rows": (lambda x, m: x[m][:2], "BT006"),
    "one row": (lambda x, m: x[m][0], "BT006"),
    "other masks": (lambda x, m: x[m] + x[x[:, 0] > 0], "BT006"),
    "a whole tensor": (lambda x, m: x[m] + x, "BT006"),
    "two masks": (lambda x, m: x[m, m[:5]], "BT006"),
    "indices": (lambda x, m: x[m].max(0), "BT006"),
    "scrambled": (lambda x, m: x[m].reshape(5, -1).sum(0), "BT006"),
    "a loop": (lambda x, m: sum(row.sum() for row in x[m]), "BT006"),
    "into a tensor": (lambda x, m: (torch.masked_select(x, m[:5], out=x), x)[1], "BT006"),
    "places into a tensor": (lambda x, m: torch.nonzero(m, out=x.long()), "BT006"),
    "squeezed": (lambda x, m: x[m].squeeze(), "BT006"),
    "squeezed away": (lambda x, m: x[m].squeeze(0), "BT006"),
    "places among them": (lambda x, m: torch.where(x[m][:, 0] > 0)[0], "BT006"),
    "another dimension": (lambda x, m: _set(torch.zeros(5, 5), m[:5], x[0, m[:5]]), "BT003"),
    "a mean of rows": (lambda x, m: _set(x, m, x[m].mean(1)), "BT003"),
    "rows of another": (lambda x, m: x.gather(1, torch.arange(7)[m][:, None]), "BT006"),
    "spread of integers": (lambda x, m: x.long()[m].std(), "BT003"),
    "dropped": (lambda x, m: F.dropout(x[m], 0.5), "BT006"),
    "new ones of a size": (lambda x, m: x[m].new_ones(len(x[m]), 5), "BT006"),
    "a size": (lambda x, m: torch.zeros(len(x[m])), "BT006"),
    "truth": (lambda x, m: 1 if x[m] else 2, "BT006"),
    "item": (lambda x, m: x[m].item(), "BT006"),
    "shape of the mask": (lambda x, m: x[m[:4]], "BT003"),
    "no such dimension": (lambda x, m: x[m].sum(2), "BT003"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    fn, code = REFUSED[name]
    with pytest.raises(CompileError, match=code):
        bt.jit("cpu")(fn)(X.clone(), ROWS)
