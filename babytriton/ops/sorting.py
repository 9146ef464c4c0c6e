"""Sorts and selections by rank."""

from __future__ import annotations

import torch

from babytriton.ops.table import Op

T = torch.Tensor
_WHY = "a sort is no loop nest that fuses, and torch's is well tuned"

ROWS: tuple[Op, ...] = (
    Op("sort", (torch.sort, T.sort), why=_WHY),
    Op("argsort", (torch.argsort, T.argsort), why=_WHY),
    Op("msort", (torch.msort, T.msort), why=_WHY),
    Op("topk", (torch.topk, T.topk), why=_WHY),
    Op("kthvalue", (torch.kthvalue, T.kthvalue), why=_WHY),
)
