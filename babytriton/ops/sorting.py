"""Sorts and selections by rank."""

from __future__ import annotations

from typing import Any

import torch

from babytriton.ops.gradients import sorting as gradients
from babytriton.ops.table import Op

T = torch.Tensor
_WHY = "a sort is no loop nest that fuses, and torch's is well tuned"


def _msort(input: Any) -> Any:
    return torch.sort(input, 0)[0]


ROWS: tuple[Op, ...] = (
    Op("sort", (torch.sort, T.sort), why=_WHY, gradient=gradients.sort),
    Op("argsort", (torch.argsort, T.argsort), why=_WHY),
    Op("msort", (torch.msort, T.msort), decompose=_msort),
    Op("topk", (torch.topk, T.topk), why=_WHY, gradient=gradients.topk),
    Op("kthvalue", (torch.kthvalue, T.kthvalue), why=_WHY, gradient=gradients.kthvalue),
)
