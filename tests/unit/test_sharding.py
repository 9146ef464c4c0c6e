"""Which sizes of a function processes may share, without any processes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import babytriton as bt
from babytriton.integrations.placements import placeable

T = torch.randn


def divided(fn, *args, **kwargs):
    """For each dimension of the arguments, what it divides of the results: or why it is whole."""
    found = placeable(bt.jit("cpu")(fn), *args, **kwargs)
    return {
        f"{path}{dim}": size.why.partition(" (")[0] or dict(size.outputs)
        for size in found.sizes
        for path, dim in size.inputs
    }


REDUCED = "places are reduced to one"
ACROSS = "places are combined, or told apart"
NUMBER = "the size is used as a number"
OPAQUE = "what runs there cannot be looked into"


def rms_norm(x, w):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w


def rotated(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


def branch_on_size(x):
    return x * 2 if x.shape[0] > 4 else x


def branch_on_data(x):
    if x.sum() > 0:
        return x * 2
    return x


def loop_on_data(x):
    while x.abs().max() > 1:
        x = x / 2
    return x


def rolled(x):
    return torch.roll(x, 1, 0)


def scaled_by_size(x):
    return x * (1.0 / x.shape[0])


def of_both(x):
    return x + x.t()


def heads(x):
    return x.view(x.shape[0], x.shape[1], 2, 4).transpose(1, 2)


CASES = {
    "add": (lambda x, b: x + b, (T(8, 4), T(4)), {"x0": {0: 0}, "x1": {0: 1}, "b0": {0: 1}}),
    "column": (lambda x, b: x + b, (T(8, 4), T(8, 1)), {"x0": {0: 0}, "b0": {0: 0}, "x1": {0: 1}}),
    "softmax": (lambda x: torch.softmax(x, -1), (T(8, 4),), {"x0": {0: 0}, "x1": REDUCED}),
    "rms_norm": (rms_norm, (T(8, 4), T(4)), {"x0": {0: 0}, "x1": REDUCED, "w0": REDUCED}),
    "layer_norm": (
        lambda x, w: F.layer_norm(x, x.shape[-1:], w),
        (T(3, 8, 4), T(4)),
        {"x0": {0: 0}, "x1": {0: 1}, "x2": ACROSS, "w0": ACROSS},
    ),
    "transpose": (lambda x: x.t() * 2, (T(8, 4),), {"x0": {0: 1}, "x1": {0: 0}}),
    "matmul": (
        lambda x, w: x @ w,
        (T(8, 4), T(4, 6)),
        {"x0": {0: 0}, "x1": REDUCED, "w0": REDUCED, "w1": {0: 1}},
    ),
    "bmm": (
        lambda x, y: torch.bmm(x, y),
        (T(3, 8, 4), T(3, 4, 6)),
        {"x0": {0: 0}, "y0": {0: 0}, "x1": {0: 1}, "y2": {0: 2}}
        | dict.fromkeys(("x2", "y1"), REDUCED),
    ),
    "linear": (
        lambda x, w, b: F.linear(x, w, b),
        (T(8, 4), T(6, 4), T(6)),
        {"x0": {0: 0}, "w0": {0: 1}, "b0": {0: 1}, "x1": REDUCED, "w1": REDUCED},
    ),
    "attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
        (T(6, 2, 5, 4),) * 3,
        None,
    ),
    "cat": (
        lambda x, y: torch.cat([x, y], 0),
        (T(8, 4), T(6, 4)),
        {"x0": NUMBER, "y0": NUMBER, "x1": {0: 1}, "y1": {0: 1}},
    ),
    "flip": (lambda x: x.flip(0), (T(8, 4),), {"x0": ACROSS, "x1": {0: 1}}),
    "roll": (rolled, (T(8, 4),), None),
    "cumsum": (lambda x: x.cumsum(0), (T(8, 4),), {"x0": ACROSS, "x1": {0: 1}}),
    "divided by size": (lambda x: x / x.shape[0], (T(8, 4),), {"x0": NUMBER, "x1": {0: 1}}),
    "scaled by size": (scaled_by_size, (T(8, 4),), {"x0": NUMBER, "x1": {0: 1}}),
    "size as result": (
        lambda x: (x * 2, x.shape[0]),
        (T(8, 4),),
        {"x0": "the size is a result", "x1": {0: 1}},
    ),
    "less its mean": (lambda x: x - x.mean(0), (T(8, 4),), {"x0": REDUCED, "x1": {0: 1}}),
    "sum": (lambda x: x.sum(), (T(8, 4),), {"x0": REDUCED, "x1": REDUCED}),
    "embedding": (
        lambda table, i: F.embedding(i, table),
        (T(10, 4), torch.randint(10, (6, 3))),
        {"table0": ACROSS, "table1": {0: 2}, "i0": {0: 0}, "i1": {0: 1}},
    ),
    "arange": (
        lambda x: x + torch.arange(x.shape[0])[:, None],
        (T(8, 4),),
        {"x0": ACROSS, "x1": {0: 1}},
    ),
    "lower triangle": (
        lambda x: x.tril(),
        (T(3, 8, 4),),
        {"x0": {0: 0}, "x1": ACROSS, "x2": ACROSS},
    ),
    "rows as one": (
        lambda x, w: x.reshape(-1, x.shape[-1]) @ w,
        (T(8, 3, 4), T(4, 5)),
        {"x0": {0: 0}, "x1": ACROSS, "x2": REDUCED, "w0": REDUCED, "w1": {0: 1}},
    ),
    "heads": (heads, (T(6, 3, 8),), {"x0": {0: 0}, "x1": {0: 2}}),
    "rotary": (
        rotated,
        (T(3, 2, 5, 4), T(5, 4), T(5, 4)),
        {"x0": {0: 0}, "x1": {0: 1}, "x2": {0: 2}, "cos0": {0: 2}, "sin0": {0: 2}}
        | dict.fromkeys(("x3", "cos1", "sin1"), NUMBER),
    ),
    "several": (
        lambda x, y: (x * 2, y.sum(-1)),
        (T(8, 4), T(6, 3)),
        {"x0": {0: 0}, "x1": {0: 1}, "y0": {1: 0}, "y1": REDUCED},
    ),
    "max and its index": (
        lambda x: x.max(-1),
        (T(8, 4),),
        {"x0": {0: 0, 1: 0}, "x1": REDUCED},
    ),
    "square": (
        of_both,
        (T(8, 8),),
        dict.fromkeys(("x0", "x1"), "one tensor has two dimensions of this size"),
    ),
    "squeeze": (lambda x: x.squeeze(0) + 1, (T(8, 4),), {"x0": {0: 0}, "x1": {0: 1}}),
    "branch on size": (branch_on_size, (T(8, 4),), {"x0": {0: 0}, "x1": {0: 1}}),
    "branch on data": (branch_on_data, (T(8, 4),), dict.fromkeys(("x0", "x1"), REDUCED)),
    "loop on data": (loop_on_data, (T(8, 4),), None),
    "dropout": (lambda x: F.dropout(x), (T(8, 4),), dict.fromkeys(("x0", "x1"), OPAQUE)),
    "sort": (lambda x: x.sort(-1)[0], (T(8, 4),), dict.fromkeys(("x0", "x1"), OPAQUE)),
    "zeros": (lambda x: torch.zeros_like(x), (T(8, 4),), {"x0": {0: 0}, "x1": {0: 1}}),
}


@pytest.mark.parametrize("name", CASES)
def test_what_may_be_divided(name):
    fn, args, expected = CASES[name]
    found = divided(fn, *args)
    if expected is not None:
        assert found == expected
    slices_are_computed_by_themselves(fn, args)


def slices_are_computed_by_themselves(fn, args):
    """What is said to be divisible is: of plain torch, on parts of the arguments."""
    names = list(bt.jit("cpu")(fn).names)
    whole = results_of(fn(*args))
    for size in placeable(bt.jit("cpu")(fn), *args).sizes:
        if size.why or fn is branch_on_size:  # which torch computes otherwise for few rows
            continue
        dims = dict(size.inputs)
        for part in (slice(0, 2), slice(2, None)):
            own = [
                x.narrow(dims[n], *span(part, x.shape[dims[n]])) if n in dims else x
                for n, x in zip(names, args)
            ]
            for number, dim in size.outputs:
                of_part = results_of(fn(*own))[number]
                count = args[names.index(size.inputs[0][0])].shape[size.inputs[0][1]]
                start, length = span(part, count)
                times = whole[number].shape[dim] // count
                expected = whole[number].narrow(dim, start * times, length * times)
                torch.testing.assert_close(of_part, expected)


def span(part, count):
    start, stop, _ = part.indices(count)
    return start, stop - start


def results_of(found):
    return [found] if isinstance(found, torch.Tensor) else list(found)


def test_captured_tensors_belong_to_it():
    weight = T(6, 4)

    def project(x):
        return F.linear(x, weight)

    found = divided(project, T(8, 4))
    assert found == {"x0": {0: 0}, "weight0": {0: 1}, "x1": REDUCED, "weight1": REDUCED}


def test_nested_arguments():
    def of_dict(d, pair):
        return d["x"] * pair[0] + pair[1]

    found = divided(of_dict, {"x": T(8, 4)}, (T(4), 2.0))
    assert found == {"d['x']0": {0: 0}, "d['x']1": {0: 1}, "pair[0]0": {0: 1}}


def test_gradients_do_not_matter():
    x, w = T(8, 4, requires_grad=True), T(4, requires_grad=True)
    assert divided(rms_norm, x, w)["x0"] == {0: 0}


def test_it_says_which_line():
    def centered(x):
        y = x * 2
        return y - y.mean(0)

    text = str(placeable(bt.jit("cpu")(centered), T(8, 4)))
    line = centered.__code__.co_firstlineno + 2
    assert text.splitlines() == [
        f"x.shape[0]: whole, as places are reduced to one ({__file__}:{line})",
        "x.shape[1]: divides result 0, dimension 1",
    ]


def test_what_is_not_compiled_for_any_size():
    def numbers(x):
        return x.reshape(3, -1) * float(str(len(x)))

    size, *_ = placeable(bt.jit("cpu")(numbers), T(6, 4)).sizes
    assert size.why
