"""What torch's callables make of what masks select: a rule for each row of the operator table."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from babytriton.ops import activations, casts, elementwise, logic, math, mutation, powers
from babytriton.ops.selections import calls, items, linear, places, reductions
from babytriton.ops.selections.calls import Call
from babytriton.ops.selections.selection import UNKNOWN, Selection
from babytriton.ops.table import Callee, Op
from babytriton.ops.value import DataDependent, Value, values_in

if TYPE_CHECKING:
    from babytriton.ops.builder import Builder

T = torch.Tensor
Rule = Callable[[Call], Any]


def _names(rows: Iterable[Op]) -> set[str]:
    return {row.name for row in rows}


_ELEMENTWISE = (
    _names((*elementwise.ROWS, *powers.ROWS, *math.ROWS, *logic.ROWS, *activations.ROWS))
    | {"clone", "contiguous", "detach", "zeros_like", "ones_like", "full_like", "empty"}
) - {"glu", "prelu", "rrelu"}
_CASTS = _names(casts.ROWS) - _ELEMENTWISE
_SHAPED = (
    *("reshape", "view", "flatten", "unflatten", "ravel", "squeeze", "unsqueeze", "permute"),
    *("transpose", "swapaxes", "movedim", "t", "mT", "expand", "cat", "stack", "split"),
    *("split_with_sizes", "unsafe_split", "chunk", "tensor_split", "unbind", "narrow", "select"),
)
_LOSSES = (
    *("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy"),
    *("binary_cross_entropy_with_logits", "kl_div", "poisson_nll_loss", "gaussian_nll_loss"),
    *("hinge_embedding_loss", "soft_margin_loss"),
)

RULES: Mapping[str, Rule] = {
    **dict.fromkeys(_ELEMENTWISE, calls.elementwise),
    **dict.fromkeys(_CASTS, calls.casts),
    **dict.fromkeys(_SHAPED, calls.shaped),
    **dict.fromkeys(reductions.KEEPING, reductions.keeping),
    **dict.fromkeys(reductions.LOOKING, reductions.looking),
    **dict.fromkeys(reductions.REDUCING, reductions.reducing),
    **dict.fromkeys(("var", "std", "var_mean", "std_mean"), reductions.moments),
    **dict.fromkeys(("cross_entropy", "nll_loss"), reductions.classification),
    **dict.fromkeys(_LOSSES, reductions.loss),
    **dict.fromkeys(("layer_norm", "rms_norm"), linear.normalized),
    **dict.fromkeys(("linear", "embedding", "one_hot", "prelu"), linear.each_row),
    **dict.fromkeys(("matmul", "mm", "mv"), linear.product),
    **dict.fromkeys(("index_add", "index_copy", "index_fill"), places.adding),
    **dict.fromkeys(("getitem", "index_select", "take"), places.indexed),
    "mean": reductions.mean,
    "dropout": calls.unless_training,
}
"""By the names of rows."""


def concerns(fn: Callee, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call selects by a mask, or is one of what masks select."""
    if _begins(fn, args, kwargs):
        return True
    return any(isinstance(value, Selection) for value in values_in((args, kwargs)))


def _begins(fn: Callee, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call makes a selection; one into a tensor of the user's has no known size."""
    begins = items.selects(fn, args) or places.finds(fn, args, kwargs)
    return begins and kwargs.get("out") is None


def call(builder: Builder, fn: Callee, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Emit such a call.

    Raises:
        DataDependent: it has no meaning without knowing how many elements are selected.
        IllTyped: torch refuses the arguments.
    """
    if _begins(fn, args, kwargs):
        if items.selects(fn, args):
            return items.select(builder, fn, args)
        return places.find(builder, fn, args, kwargs)
    if fn in (T.cpu, T.cuda) and args[0].device.type == fn.__name__:
        return args[0]
    if fn in _NEW and not any(isinstance(x, Value) for x in values_in((args[1:], kwargs))):
        return builder.call(fn, (args[0].whole, *args[1:]), kwargs)
    if fn in _QUERIES:
        return _QUERIES[fn](*args, **kwargs)
    name = str(getattr(fn, "__name__", fn))
    written = mutation.find(fn, args, kwargs)
    does = fn if written is None else written.fn
    row = builder.table.get(does)
    if row is not None and row.name == "where" and len(args) == 1:
        raise DataDependent(name, UNKNOWN)  # where among those that are selected
    if row is not None and not row.registered and row.name in RULES:
        rule = RULES[row.name]
    elif mutation.is_assignment(does):
        rule = calls.elementwise
    else:
        raise DataDependent(name, UNKNOWN)
    target = None
    if written is not None:
        [target, *others] = written.targets
        in_place = (calls.elementwise, calls.casts)
        takes = in_place if isinstance(target, Selection) else (places.adding,)
        if rule not in takes or others or target is not args[0]:
            raise DataDependent(name, UNKNOWN)
    name = name if row is None else row.name
    return rule(Call(builder, name, fn, args, kwargs, target))


_NEW = (T.new_zeros, T.new_ones, T.new_empty, T.new_full, T.new_tensor)
"""What makes tensors of the dtype of another one, and of other sizes."""


def _size(selection: Selection, dim: int | None = None) -> Any:
    return selection.shape if dim is None else selection.shape[dim]


def _numel(selection: Selection) -> Any:
    return selection.emitter.call(operator.mul, (selection.count, selection.others), {})


def _ndim(selection: Selection) -> int:
    return selection.ndim


def _of_whole(fn: Callee) -> Callable[[Selection], Any]:
    return lambda selection: fn(selection.whole.meta)


_QUERIES: Mapping[Callee, Callable[..., Any]] = {
    T.size: _size,
    **dict.fromkeys((T.numel, T.nelement, torch.numel), _numel),
    torch.is_tensor: lambda selection: True,
    **dict.fromkeys((T.dim, T.ndimension), _ndim),
    **{
        fn: _of_whole(fn)
        for fn in (T.is_floating_point, torch.is_floating_point, T.is_complex, torch.is_complex)
    },
}
