"""What a row built, held against torch's types of its results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tvm import relax, te
from tvm.relax.script import builder as R

from babytriton.ops.refusals import RowError, RowFailed
from babytriton.ops.site import relax_type, type_of
from babytriton.ops.sizes import is_symbolic, same_shape
from babytriton.ops.table import Op
from babytriton.types import TensorType


def checked(op: Op, exprs: list[relax.Expr], metas: list[torch.Tensor]) -> list[relax.Expr]:
    """What a row built, held against torch's types of it."""
    expected = [TensorType.of(meta) for meta in metas]
    built = [type_of(expr) for expr in exprs]
    alike = [(type.dtype, len(type.shape)) for type in built] == [
        (type.dtype, len(type.shape)) for type in expected
    ]
    found: list[relax.Expr] = []
    for expr, type in zip(exprs, expected):
        if alike and same_shape(expr.ty.shape, type.shape):
            found.append(expr)
        elif alike and any(map(is_symbolic, type.shape)):
            # Sizes that Relax has computed are none of ours, and equal where this program runs. Not
            # by a `match_cast`: TVM drops those where it knows symbols for both.
            found.append(R.emit(relax.op.reshape(expr, relax_type(type).shape)))
        else:
            why = f"it gives {_listed(built)}, where {_listed(expected)} is expected"
            raise RowFailed(op.name, why) if op.registered else RowError(f"row {op.name}: {why}")
    return found


def _listed(types: Sequence[TensorType]) -> str:
    return " and ".join(map(str, types)) or "nothing"


def same(x: te.Tensor) -> te.Tensor:
    """A tensor of the same numbers, in memory of its own."""
    return te.compute(x.shape, lambda *i: x(*i), name="copy")


def sizes_of(*tensors: Sequence[torch.Tensor]) -> list[Any]:
    """The sizes in the shapes of tensors."""
    return [n for metas in tensors for meta in metas for n in meta.shape]
