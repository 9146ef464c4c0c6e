"""How a loss makes one number of many."""

from __future__ import annotations

from typing import Any

from torch.nn import _reduction


def reduction_of(size_average: Any, reduce: Any, reduction: str) -> str:
    """``reduction``, unless the arguments that were before it say another."""
    if size_average is None and reduce is None:
        return reduction
    return str(_reduction.legacy_get_string(size_average, reduce, emit_warning=False))
