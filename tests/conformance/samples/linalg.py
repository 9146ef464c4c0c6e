"""Samples of ops/linalg.py."""

import torch
import torch.nn.functional as F

from tests.conformance.sample import NUMBERS, Sample, t

FULL = (torch.float32, torch.float64)

SAMPLES = (
    Sample("matmul", lambda x, y: x @ y, (t(7, 33), t(33, 13)), NUMBERS),
    Sample("matmul", lambda x, y: x @ y, (t(64, 64), t(64, 64))),
    Sample("matmul", lambda x, y: torch.relu(x @ y + 1), (t(1, 100), t(100, 3))),
    Sample("matmul", lambda *xs: torch.matmul(*xs), (t(100), t(100)), NUMBERS),
    Sample("matmul", lambda *xs: torch.matmul(*xs), (t(31), t(31, 5))),
    Sample("matmul", lambda *xs: torch.matmul(*xs), (t(2, 3, 5), t(5))),
    Sample("matmul", lambda x, y: x.matmul(y), (t(2, 1, 3, 5), t(7, 5, 2))),
    Sample("matmul", lambda *xs: torch.matmul(*xs), (t(3), t(2, 3, 4))),
    Sample("matmul", lambda *xs: torch.matmul(*xs), (t(5, 7, special=True), t(7, 3))),
    Sample("mv", lambda *xs: torch.mv(*xs), (t(13, 1003), t(1003))),
    Sample("mm", lambda x, y: x.mm(y), (t(17, 3), t(3, 1))),
    Sample("mm", lambda *xs: torch.bmm(*xs), (t(3, 8, 15), t(3, 15, 7)), NUMBERS),
    Sample("dot", lambda *xs: torch.dot(*xs), (t(1003), t(1003)), NUMBERS),
    Sample("dot", lambda x, y: x.vdot(y), (t(1), t(1))),
    Sample("inner", lambda *xs: torch.inner(*xs), (t(3, 7), t(2, 5, 7))),
    Sample("inner", lambda *xs: torch.inner(*xs), (t(7), t(7))),
    Sample("inner", lambda *xs: torch.inner(*xs), (t(), t(4, 7))),
    Sample("vecdot", lambda *xs: torch.linalg.vecdot(*xs), (t(3, 1, 7), t(5, 7))),
    Sample("vecdot", lambda x, y: torch.linalg.vecdot(x, y, dim=0), (t(7, 3), t(7, 3))),
    Sample("addmm", lambda *xs: torch.addmm(*xs), (t(5), t(3, 9), t(9, 5)), NUMBERS),
    Sample(
        "addmm",
        lambda x, a, b: torch.addmm(x, a, b, beta=0.5, alpha=-2),
        (t(3, 5), t(3, 9), t(9, 5)),
    ),
    Sample(
        "addmm",
        lambda x, a, b: x.addmm(a, b, beta=0),
        (t(3, 5, special=True), t(3, 9), t(9, 5)),
    ),
    Sample("addmm", lambda x, a, b: x.addmm(a, b, beta=2, alpha=0), (t(5), t(3, 9), t(9, 5))),
    Sample("addmv", lambda x, a, v: torch.addmv(x, a, v, alpha=3), (t(5), t(5, 31), t(31))),
    Sample(
        "baddbmm",
        lambda x, a, b: torch.baddbmm(x, a, b, beta=2, alpha=3),
        (t(1, 5), t(3, 7, 9), t(3, 9, 5)),
        NUMBERS,
    ),
    Sample(
        "addbmm",
        lambda x, a, b: torch.addbmm(x, a, b, alpha=2),
        (t(7, 5), t(3, 7, 9), t(3, 9, 5)),
    ),
    Sample("addr", lambda x, a, b: torch.addr(x, a, b, beta=3), (t(7, 5), t(7), t(5)), NUMBERS),
    Sample("addr", lambda x, a, b: torch.addr(x, a, b, alpha=2), (t(5), t(7), t(5))),
    Sample("linear", lambda *xs: F.linear(*xs), (t(7, 33), t(13, 33), t(13))),
    Sample("linear", lambda x, w: F.gelu(F.linear(x, w)), (t(2, 3, 100), t(5, 100))),
    Sample("linear", lambda *xs: F.linear(*xs), (t(100), t(1, 100), t(1))),
    Sample("linear", lambda *xs: F.linear(*xs), (t(3, 100), t(100))),
    Sample(
        "bilinear", lambda *xs: F.bilinear(*xs), (t(2, 3, 5), t(2, 3, 7), t(4, 5, 7), t(4)), FULL
    ),
    Sample("bilinear", lambda *xs: F.bilinear(*xs), (t(3), t(4), t(2, 3, 4)), FULL),
    Sample("outer", lambda *xs: torch.outer(*xs), (t(7), t(1003)), NUMBERS),
    Sample("outer", lambda x, y: x.ger(y), (t(1), t(3))),
    # torch itself refuses other layouts.
    Sample(
        "kron", lambda x, y: torch.kron(x.contiguous(), y.contiguous()), (t(3, 2), t(1, 5)), NUMBERS
    ),
    Sample("kron", lambda x, y: torch.kron(x.contiguous(), y.contiguous()), (t(2, 3, 2), t(7))),
    Sample(
        "multi_dot", lambda *xs: torch.linalg.multi_dot(xs), (t(7), t(7, 3), t(3, 9), t(9)), FULL
    ),
    Sample(
        "multi_dot", lambda *xs: torch.linalg.multi_dot(xs), (t(9, 2), t(2, 30), t(30, 4)), FULL
    ),
    Sample("chain_matmul", lambda *xs: torch.chain_matmul(*xs), (t(3, 5), t(5, 1), t(1, 7)), FULL),
    Sample("matrix_power", lambda x: torch.matrix_power(x, 5), (t(2, 6, 6, low=-1, high=1),), FULL),
    Sample("matrix_power", lambda x: x.matrix_power(1), (t(3, 3),), FULL),
    Sample("cdist", lambda *xs: torch.cdist(*xs), (t(2, 7, 3), t(5, 3)), FULL),
    Sample("cdist", lambda x, y: torch.cdist(x, y, p=1), (t(7, 31), t(30, 31)), FULL),
    Sample("cdist", lambda x, y: torch.cdist(x, y, p=float("inf")), (t(7, 31), t(3, 31)), FULL),
    Sample("cdist", lambda x, y: torch.cdist(x, y, p=0), (t(7, 31), t(3, 31)), FULL),
    Sample("cdist", lambda x, y: torch.cdist(x, y, p=3.5), (t(7, 31), t(3, 31)), FULL),
    Sample("cross", lambda x, y: torch.cross(x, y, dim=1), (t(7, 3, 2), t(7, 3, 2)), NUMBERS),
    Sample("linalg.cross", lambda *xs: torch.linalg.cross(*xs), (t(100, 3), t(1, 3))),
    Sample("linalg.cross", lambda x, y: torch.linalg.cross(x, y, dim=0), (t(3, 5), t(3, 1))),
    Sample("inv", lambda *xs: torch.linalg.inv(*xs), (t(3, 3),), FULL, gpu=False),  # through torch
    Sample("det", lambda *xs: torch.linalg.det(*xs), (t(3, 3),), FULL, gpu=False),  # through torch
    Sample(
        "solve", lambda *xs: torch.linalg.solve(*xs), (t(3, 3), t(3, 2)), FULL, gpu=False
    ),  # through torch
    Sample(
        "cholesky",
        lambda x: torch.linalg.cholesky(x @ x.mT),
        (t(3, 5),),
        FULL,
        gpu=False,  # through torch
    ),
    Sample("svd", lambda x: torch.linalg.svd(x)[1], (t(3, 4),), FULL, gpu=False),  # through torch
    Sample("qr", lambda x: torch.linalg.qr(x)[1], (t(4, 3),), FULL, gpu=False),  # through torch
)
