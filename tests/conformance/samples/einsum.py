"""Samples of ops/einsum.py."""

import torch

from tests.conformance.sample import NUMBERS, Sample, t

SAMPLES = (
    Sample("tensordot", lambda x, y: torch.tensordot(x, y, dims=2), (t(3, 4, 5), t(4, 5, 6))),
    Sample(
        "tensordot",
        lambda x, y: torch.tensordot(x, y, dims=([2, 0], [0, -1])),
        (t(3, 4, 5), t(5, 6, 3)),
        NUMBERS,
    ),
    Sample("tensordot", lambda x, y: torch.tensordot(x, y, dims=0), (t(3, 4), t(2))),
    Sample("einsum", lambda x, y: torch.einsum("ij,jk->ik", x, y), (t(7, 33), t(33, 5)), NUMBERS),
    Sample("einsum", lambda x, y: torch.einsum("b i d, b j d", x, y), (t(2, 3, 5), t(2, 4, 5))),
    Sample("einsum", lambda x: torch.einsum("...ii->...i", x), (t(2, 5, 5),), NUMBERS),
    Sample("einsum", lambda x: torch.einsum("ij->", x), (t(5, 13),)),
    Sample("einsum", lambda x, y: torch.einsum("i...,...j->j...", x, y), (t(3, 2, 5), t(5, 4))),
    Sample("einsum", lambda x, y: torch.einsum("ij,kl->jk", x, y), (t(30, 4), t(5, 60))),
    Sample(
        "einsum",
        lambda x, y, z: torch.einsum("ab,bc,cd->da", x, y, z),
        (t(3, 4), t(4, 5), t(5, 6)),
    ),
    Sample("einsum", lambda x, y: torch.einsum(x, [0, 1], y, [0, 2], [2, 1]), (t(5, 3), t(5, 4))),
    # A diagonal, an operand of axes that the next one has, and a size of 1 that broadcasts.
    Sample(
        "einsum",
        lambda x, y, z: torch.einsum("iij,jk,k->ik", x, y, z),
        (t(3, 3, 4), t(4, 5), t(5)),
    ),
    Sample("einsum", lambda x, y: torch.einsum("ij,jk->ik", x, y), (t(3, 1), t(4, 5))),
    Sample("einsum", lambda x, y: torch.einsum("ij,ij->", [x, y]), (t(3, 4), t(3, 4))),
)
