"""Calls that are given lists which loops have made longer.

What joins their items takes rows of a tensor together.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from babytriton.frontend import builtins, calls, iteration
from babytriton.frontend.callables import belongs_to_torch, is_hashable
from babytriton.frontend.grown import Grown, Row
from babytriton.ops.value import Value

if TYPE_CHECKING:
    from babytriton.frontend.codegen import CodeGenerator


@dataclass(frozen=True)
class Part:
    """Some items of a list that follow each other.

    Attributes:
        tensor: one item, or several as the rows of a tensor.
        are_rows: whether it is several.
    """

    tensor: Any
    are_rows: bool


def parts_of(items: Any) -> list[Part] | None:
    """Items of which some are rows, by rows of one tensor that follow each other.

    None of those of what is no list, or has no rows, or where an item is more than a tensor.
    """
    if isinstance(items, Grown):
        if items.tensor is None:
            return None
        return [Part(items.tensor, True), *_parts(items.later)]
    has_rows = isinstance(items, (list, tuple)) and any(type(x) is Row for x in items)
    return list(_parts(items)) if has_rows else None


def _parts(items: Iterable[Any]) -> Iterator[Part]:
    """Items by rows of one tensor that follow each other, and the others by themselves."""
    run: list[Row] = []
    for item in (*items, None):
        if run and not _follows(item, run):
            yield Part(_together(run), True)
            run = []
        if type(item) is Row:
            run.append(item)
        elif item is not None:
            yield Part(item, False)


def _follows(item: Any, run: Sequence[Row]) -> bool:
    """Whether it is the next row of the tensor that these are, in either direction."""
    if type(item) is not Row or item.rows is not run[0].rows:
        return False
    step = item.index - run[-1].index
    return abs(step) == 1 and (len(run) == 1 or step == run[-1].index - run[-2].index)


def _together(run: Sequence[Row]) -> Any:
    rows, first, last = run[0].rows, run[0].index, run[-1].index
    low, high = min(first, last), max(first, last) + 1
    is_all = low == 0 and high == rows.meta.shape[0]
    found: Any = rows if is_all else rows[low:high]
    return found.flip(0) if last < first else found


def _item_ndim(part: Part) -> int:
    return int(part.tensor.ndim) - part.are_rows


def _stacked(parts: Sequence[Part], dim: int = 0) -> Any:
    dim %= _item_ndim(parts[0]) + 1
    found = [
        part.tensor.movedim(0, dim) if part.are_rows else part.tensor.unsqueeze(dim)
        for part in parts
    ]
    return _one(found, dim)


def _concatenated(parts: Sequence[Part], dim: int = 0) -> Any:
    dim %= _item_ndim(parts[0])
    found = [
        part.tensor.movedim(0, dim).flatten(dim, dim + 1) if part.are_rows else part.tensor
        for part in parts
    ]
    return _one(found, dim)


def _below(parts: Sequence[Part]) -> Any:
    ndim = _item_ndim(parts[0])
    found = _stacked(parts) if ndim < 2 else _concatenated(parts)
    return found if ndim else found.unsqueeze(1)


def _beside(parts: Sequence[Part]) -> Any:
    ndim = _item_ndim(parts[0])
    return _concatenated(parts, min(ndim - 1, 1)) if ndim else _stacked(parts)


def _one(tensors: Sequence[Any], dim: int) -> Any:
    return torch.cat(list(tensors), dim) if len(tensors) > 1 else tensors[0].clone()


def _sum(parts: Sequence[Part], start: Any = 0) -> Any:
    for part in parts:
        # torch adds integers as they are, and counts bools.
        dtype = None if part.tensor.dtype == torch.bool else part.tensor.dtype
        start = start + (part.tensor.sum(0, dtype=dtype) if part.are_rows else part.tensor)
    return start


_JOINS: dict[Any, Callable[..., Any]] = {
    torch.stack: _stacked,
    **dict.fromkeys((torch.cat, torch.concat, torch.concatenate), _concatenated),
    torch.vstack: _below,
    torch.hstack: _beside,
    sum: _sum,
}
"""What makes one tensor of items."""


def joins(at: CodeGenerator, fn: Any, given: tuple[tuple[Any, ...], Any]) -> bool:
    """Whether a call makes one tensor of items of which some are rows."""
    args, _ = given
    found = parts_of(args[0]) if args and is_hashable(fn) and fn in _JOINS else None
    # What torch refuses, it is to refuse itself.
    return found is not None and (_JOINS[fn] is not _concatenated or _item_ndim(found[0]) > 0)


def join(
    at: CodeGenerator, node: ast.AST, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Compile such a call."""
    items, *rest = args
    with at.program.blaming(at.span(node), fn.__name__, (rest, kwargs)):
        return _JOINS[fn](parts_of(items), *rest, **kwargs)


def unbound(fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Grown | None:
    """What ``torch.unbind`` gives where a call tells how many there are."""
    tensor, dim = iteration.unbound(fn, args, kwargs) or (None, 0)
    if type(tensor) is not Value or isinstance(tensor.meta.shape[dim], int):
        return None
    rows: Any = tensor.movedim(dim, 0)
    return Grown(lambda items: items[0], [rows], tensor.meta.shape[dim], kind=tuple)


def takes_list(at: CodeGenerator, fn: Any, given: tuple[tuple[Any, ...], Any]) -> bool:
    """Whether what is no function to be inlined is given a list that a loop has made longer."""
    args, kwargs = given
    is_given = any(isinstance(x, Grown) for x in (*args, *kwargs.values()))
    goes_over = is_hashable(fn) and fn in builtins.ITERATORS
    is_known = isinstance(fn, (type, types.BuiltinFunctionType)) or calls.has_row(at, fn)
    return is_given and not goes_over and (is_known or belongs_to_torch(fn))


def with_lists(
    at: CodeGenerator, node: ast.AST, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Compile such a call: with a list of Python, which is of as many items as in this call."""

    def listed(item: Any) -> Any:
        return at.python(node, list, item) if isinstance(item, Grown) else item

    if fn is isinstance or fn is type:  # what is in it does not matter
        return at.python(node, fn, args[0].kind(), *args[1:])
    given = [listed(item) for item in args]
    return calls.call(at, node, fn, given, {key: listed(x) for key, x in kwargs.items()})
