"""Samples of ops/subscript.py, indexing.py and scattering.py."""

import torch
import torch.nn.functional as F

from babytriton.ops.assignments import put_at
from tests.conformance.sample import ALL, FLOATS, NUMBERS, Sample, Tensor, t

F32 = (torch.float32,)
FULL = (torch.float32, torch.float64)
EACH = (torch.float32, torch.bfloat16, torch.int64, torch.bool)


def ids(*shape: int, to: int, negative: bool = False) -> Tensor:
    """Indices below ``to``, also counted from the end if asked."""
    return t(*shape, low=-to if negative else 0, high=to - 1, dtype=torch.int64)


SUBSCRIPTS = (
    Sample("getitem", lambda x: (x[1], x[-1, 0], x[2, 3, 4]), (t(3, 5, 7),), ALL),
    Sample("getitem", lambda x: (x[1:], x[:, -2:, ::3], x[..., 0]), (t(3, 5, 7),), EACH),
    Sample("getitem", lambda x: (x[None], x[:, None, 1:2], x[..., None], x[...]), (t(3, 5),), EACH),
    Sample("getitem", lambda x: (x[[0, 2]], x[:, [-1, 0, 0]]), (t(3, 5),), EACH),
    Sample("getitem", lambda x, i: x[i], (t(7, 33), ids(5, to=7, negative=True)), ALL),
    Sample("getitem", lambda x, i: x[:, i] * 2, (t(3, 7, 2), ids(2, 4, to=7, negative=True)), F32),
    Sample(
        "getitem",
        lambda x, i, j: (x[i, :, j], x[:, i, j], x[0, :, j], x[i, None, j]),
        (t(3, 4, 5), ids(2, 1, to=3), ids(6, to=4)),
        EACH,
    ),
    Sample("getitem", lambda x, i: x[i.int(), 1:3], (t(5, 4), ids(3, to=5)), F32),
    Sample(
        "getitem",
        lambda x, i: (x[i], x[:, i, None], x[0, i, 1:], x[i, :, [0, 1]]),
        (t(3, 5, 4), ids(to=3, negative=True)),
        F32,
    ),
    Sample("getitem", lambda x, i: x[..., i, None, :2], (t(3, 5, 4), ids(3, to=5)), F32),
    Sample(
        "getitem",
        lambda x, i: (x[torch.arange(5), i], x[i, torch.arange(5)] * 2),
        (t(5, 5, 3), ids(5, to=5, negative=True)),
        EACH,
    ),
    Sample(
        "getitem",
        lambda x, i: (x[torch.arange(4)[:, None], i], x[torch.arange(4).view(-1, 1), :, i]),
        (t(4, 6, 6), ids(4, 3, to=6, negative=True)),
        FULL,
    ),
    Sample(
        "getitem",
        lambda x, i: x[torch.arange(3)[:, None], torch.arange(4), i],
        (t(3, 4, 7), ids(3, 4, to=7)),
        FULL,
    ),
    Sample(
        "getitem",
        lambda x: (x[torch.arange(4), torch.arange(4)], x[torch.arange(3), torch.arange(3)]),
        (t(4, 4),),
        FULL,
    ),
    Sample(
        "getitem",
        lambda x, i: (x[1:2, ::3, None, 1::2], x[::2, 0], x[i, 3], x[:, i, ::2, None], x[2:1]),
        (t(3, 8, 5), ids(to=3, negative=True)),
        FULL,
    ),
)

READS = (
    Sample("index_select", lambda x, i: x.index_select(0, i), (t(7, 33), ids(5, to=7)), ALL),
    Sample("index_select", lambda x, i: torch.index_select(x, -1, i), (t(3, 7), ids(9, to=7)), F32),
    Sample("index_select", lambda x, i: torch.index_select(x, 0, i), (t(), ids(1, to=1)), F32),
    Sample("gather", lambda x, i: x.gather(1, i), (t(3, 7, 2), ids(2, 5, 2, to=7)), ALL),
    Sample("gather", lambda x, i: torch.gather(x, dim=-1, index=i), (t(100), ids(3, to=100)), F32),
    Sample(
        "take_along_dim",
        lambda x, i: torch.take_along_dim(x, i, dim=1),
        (t(3, 7), ids(1, 5, to=7, negative=True)),
        EACH,
    ),
    Sample(
        "take_along_dim",
        lambda x, i: x.contiguous().take_along_dim(i),
        (t(3, 7), ids(5, to=21)),
        F32,
    ),
    Sample("take", lambda x, i: x.take(i), (t(3, 7), ids(2, 4, to=21, negative=True)), EACH),
    Sample("embedding", lambda w, i: F.embedding(i, w), (t(11, 8), ids(3, 5, to=11)), FLOATS),
    Sample(
        "embedding",
        lambda w, i: F.embedding(i, w, padding_idx=0) * 2,
        (t(11, 8), ids(3, to=11)),
        F32,
    ),
    Sample(
        "torch.embedding", lambda w, i: torch.embedding(w, i), (t(11, 8), ids(3, to=11)), FLOATS
    ),
    Sample(
        "embedding_bag",
        lambda w, i: F.embedding_bag(i, w, mode="mean"),
        (t(11, 8), ids(3, 5, to=11)),
        F32,
    ),
    Sample(
        "embedding",
        lambda w, i: F.embedding(i, w, -1, scale_grad_by_freq=True),
        (t(5, 8), ids(3, 4, to=5)),
        FULL,
    ),
    Sample(
        "torch.embedding",
        lambda w, i: torch.embedding(w, i, 2, False, False),
        (t(5, 8), ids(9, to=5)),
        FULL,
    ),
    Sample(
        "embedding_bag",
        lambda w, i, s: F.embedding_bag(i, w, mode="sum", per_sample_weights=s),
        (t(11, 8), ids(3, 5, to=11), t(3, 5)),
        FULL,
        gpu=False,  # through torch
    ),
    Sample(
        "embedding_bag",
        lambda w, i: F.embedding_bag(i, w, torch.tensor([0, 2, 2]), mode="mean"),
        (t(11, 8), ids(5, to=11)),
        FULL,
        gpu=False,  # through torch
    ),
    Sample("one_hot", lambda i: F.one_hot(i, 5), (ids(3, 4, to=5),), F32),
    Sample("one_hot", lambda i: F.one_hot(i, num_classes=7).float(), (ids(to=5),), F32),
    Sample(
        "searchsorted",
        lambda v: torch.searchsorted(torch.tensor([[1, 1, 2], [0, 2, 3]]).to(v.dtype), v),
        (t(2, 5),),
        NUMBERS,
    ),
    Sample(
        "searchsorted",
        lambda v: torch.searchsorted(torch.linspace(-2, 2, 9), v, right=True, out_int32=True),
        (t(2, 5, special=True),),
        F32,
    ),
    Sample(
        "bucketize",
        lambda v: torch.bucketize(v, torch.tensor([0, 1, 1, 3]).to(v.dtype), right=True),
        (t(3, 5),),
        NUMBERS,
    ),
)

# Indices of samples that write have no duplicates where torch leaves the order open.
WRITES = (
    Sample(
        "scatter",
        lambda x, s: x.scatter(1, torch.tensor([[2, 0, 6], [1, 5, 3]]), s),
        (t(3, 7), t(3, 4)),
        ALL,
    ),
    Sample(
        "scatter",
        lambda x, s: x.scatter(1, torch.tensor([[2, 0, 6], [1, 5, 3]]), s),
        (t(3, 7), t(2, 3)),
        FULL,
    ),
    Sample("scatter", lambda x, i, s: x.scatter(0, i, s), (t(), ids(to=1), t()), FULL),
    Sample("scatter", lambda x, i: x.scatter(0, i, 2.5), (t(3, 7), ids(2, 5, to=3)), FLOATS),
    Sample(
        "scatter",
        lambda x, i, s: torch.scatter(x, 1, i, s, reduce="multiply"),
        (t(3, 7), ids(3, 5, to=7), t(3, 5)),
        FLOATS,
    ),
    Sample(
        "scatter_add",
        lambda x, i, s: x.scatter_add(0, i, s),
        (t(3, 7), ids(9, 5, to=3), t(9, 7)),
        NUMBERS,
    ),
    Sample(
        "scatter_add",
        lambda x, i, s: torch.scatter_add(x, -1, i, s),
        (t(1000), ids(1003, to=1000), t(1003)),
        FLOATS,
    ),
    Sample(
        "scatter_add",
        lambda x, i, s: x.scatter_add(0, i, s),
        (t(3, 7), ids(9, 5, to=3), t(9, 5)),
        FULL,
    ),
    *(
        # Whole numbers: some are equal, and some 0.
        Sample(
            "scatter_reduce",
            lambda x, i, s, how=how, own=own: (
                x.round().scatter_reduce(1, i, s.round(), how, include_self=own) * x
            ),
            (t(3, 7), ids(3, 9, to=7), t(3, 9)),
            FULL,
        )
        for how in ("prod", "amax", "amin")
        for own in (True, False)
    ),
    *(
        Sample(
            "scatter_reduce",
            lambda x, i, s, how=how, own=own: x.scatter_reduce(1, i, s, how, include_self=own),
            (t(3, 7, special=how != "prod"), ids(3, 9, to=7), t(3, 9, special=how != "prod")),
            NUMBERS if own else F32,
        )
        for how in ("sum", "prod", "mean", "amax", "amin")
        for own in (True, False)
    ),
    Sample(
        "index_add",
        lambda x, i, s: x.index_add(1, i, s, alpha=2),
        (t(3, 7), ids(9, to=7), t(3, 9)),
        NUMBERS,
    ),
    Sample("index_copy", lambda x, i, s: x.index_copy(0, i, s), (t(5), ids(to=5), t()), FULL),
    Sample(
        "index_copy",
        lambda x, s: x.index_copy(0, torch.tensor([4, 0, 3]), s),
        (t(5, 7), t(3, 7)),
        ALL,
    ),
    Sample("index_fill", lambda x, i: x.index_fill(1, i, 2), (t(3, 7), ids(3, to=7)), ALL),
    Sample(
        "index_fill", lambda x, i, v: x.index_fill(0, i, v), (t(3, 7), ids(2, to=3), t()), FLOATS
    ),
    Sample(
        "index_put",
        lambda x, v: x.index_put((torch.tensor([4, -5, 3]),), v),
        (t(5, 7), t(7)),
        EACH,
    ),
    Sample(
        "index_put",
        lambda x, i, j, v: x.index_put((i, j), v, accumulate=True),
        (t(5, 7), ids(9, to=5, negative=True), ids(9, to=7), t(9)),
        NUMBERS,
    ),
    Sample(
        "index_put",
        lambda x, v: x.index_put((x > 0,), v),
        (t(5, 7), t()),
        FULL,
    ),
    Sample(
        "index_put",
        lambda x, i, v: x.index_put((i,), v, accumulate=True),
        (t(5, 7), ids(2, 3, to=5), t(3, 1)),
        FULL,
    ),
    Sample(
        "setitem",
        lambda x, i, v: put_at(x, (i, -1, slice(1, None, 2)), v),
        (t(3, 5, 7), ids(to=3, negative=True), t(3)),
        ALL,
    ),
    Sample(
        "setitem",
        lambda x, i, v: put_at(x, (slice(1, 3), i), v),
        (t(5, 7), ids(to=7), t(1)),
        EACH,
    ),
    Sample("masked_scatter", lambda x, s: x.masked_scatter(x > 0, s), (t(3, 7), t(21)), EACH),
    Sample("select_scatter", lambda x, s: x.select_scatter(s, 1, -1), (t(3, 7), t(3)), ALL),
    Sample(
        "slice_scatter",
        lambda x, s: x.slice_scatter(s, 1, 1, -1, 2),
        (t(3, 7), t(3, 3)),
        EACH,
    ),
    Sample("slice_scatter", lambda x, s: torch.slice_scatter(x, s, end=2), (t(3, 7), t(2, 7)), F32),
)

SAMPLES = (*SUBSCRIPTS, *READS, *WRITES)
