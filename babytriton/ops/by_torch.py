"""What rows do not build: torch runs it, and the tape notes where its gradient comes from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from tvm import relax

from babytriton.ops.reverse.rows import RowStep
from babytriton.ops.reverse.tape import all_still
from babytriton.ops.reverse.torch_graphs import KEEPER
from babytriton.ops.reverse.torch_steps import TorchStep
from babytriton.ops.table import Callee, Op, stops
from babytriton.ops.value import Value, values_in

if TYPE_CHECKING:
    from babytriton.ops.builder import Builder

_NUMPY_NAMES = {"axis": "dim", "keepdims": "keepdim"}
"""NumPy's names of parameters, which torch takes everywhere; rows know torch's own."""


def by_torch(
    builder: Builder,
    op: Op | None,
    fn: Callee,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    result: Any,
    metas: list[torch.Tensor],
    reason: str,
    random: bool,
) -> list[relax.Expr]:
    """Emit a call that torch runs.

    Args:
        builder: emits it.
        op: the row of the callable, if it has one.
        fn: the callable.
        args, kwargs: values and Python objects.
        result: of the call, on meta tensors.
        metas: the tensors of that.
        reason: why torch runs it.
        random: whether it draws random numbers.
    """
    rule = None if op is None else op.gradient
    if rule is stops or not builder.tape.depends((args, kwargs)):
        return builder.call_torch(fn, args, kwargs, metas, reason, random)
    has_rule = rule is not None and not random
    # Gradients that have gradients themselves are computed from the arguments.
    is_recorded = builder.records_torch and not has_rule
    operands = enumerate(values_in((args, kwargs)))
    wanted = tuple(i for i, x in operands if is_recorded and builder.follows(x))
    exprs = builder.call_torch(fn, args, kwargs, metas, reason, random, wanted)
    graph = Value(builder, exprs.pop(), builder.meta(KEEPER)) if wanted else None
    values = tuple(Value(builder, expr, meta) for expr, meta in zip(exprs, metas))
    given, named = all_still(args, torch_names(kwargs))
    if op is not None and has_rule:
        single = isinstance(result, torch.Tensor)
        builder.tape.note(RowStep(op, fn, given, named, values, single, builder.span))
    else:
        builder.tape.note(TorchStep(fn, given, named, values, builder.span, random, graph))
    return exprs


def torch_names(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of a call as rows know them."""
    # Where ``out`` is given at all, it is None: anything else is a mutation.
    return {_NUMPY_NAMES.get(k, k): value for k, value in kwargs.items() if k != "out"}
