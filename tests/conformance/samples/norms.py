"""Samples of ops/norms.py."""

import math

import torch

from tests.conformance.sample import Sample, t

SAMPLES = (
    Sample("norm", lambda x: x.norm(), (t(7, 143),)),
    Sample("norm", lambda x: torch.norm(x, 1, -1, True), (t(7, 33, special=True),)),
    Sample("norm", lambda x: x.norm(float("inf"), dim=(0, 1)), (t(3, 4, 5),)),
    Sample("norm", lambda x: torch.norm(x, p=-float("inf"), dim=0), (t(9, 5, special=True),)),
    Sample("norm", lambda x: torch.norm(x, p=0), (t(100, special=True),)),
    Sample("norm", lambda x: torch.norm(x, 3.5, dtype=torch.float64), (t(100),)),
    Sample("norm", lambda x: (x * (x > 0)).norm(1, 1), (t(9, 3),)),
    Sample("norm", lambda x: (x * (x > 0)).norm(math.inf, 1, True), (t(9, 3),)),  # ties
    Sample("linalg.norm", lambda x: torch.linalg.norm(x), (t(7, 9),)),
    Sample("linalg.norm", lambda x: torch.linalg.norm(x, 3, -1), (t(7, 9),)),
    Sample("linalg.norm", lambda x: torch.linalg.norm(x, "fro", (0, 1)), (t(7, 9),)),
    Sample("linalg.vector_norm", lambda x: torch.linalg.vector_norm(x, dim=1), (t(7, 64),)),
    Sample("linalg.vector_norm", lambda x: torch.linalg.vector_norm(x, ord=0.5), (t(20),)),
    Sample("linalg.vector_norm", lambda x: torch.linalg.vector_norm(x, 1.5, (0, 2)), (t(2, 3, 4),)),
    Sample(
        "linalg.matrix_norm", lambda x: torch.linalg.matrix_norm(x, keepdim=True), (t(3, 5, 7),)
    ),
    Sample("dist", lambda x, y: torch.dist(x, y), (t(5, 9), t(9))),
    Sample("dist", lambda x, y: x.dist(y, 1), (t(5, 9), t(5, 1))),
)
