"""Calls that are given lists which loops have made longer.

What joins their items takes rows of a tensor together.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from babytriton.frontend import builtins, calls, inlining, iteration
from babytriton.frontend.callables import belongs_to_torch, is_hashable
from babytriton.frontend.grown import Grown, Head, Row
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

    None of those of what is no list of tensors, or has no rows.
    """
    if not isinstance(items, (list, tuple)):
        return None
    head = items.head if isinstance(items, Grown) else None
    given: Any = items.later if isinstance(items, Grown) else items
    has_rows = head is not None or any(type(x) is Row for x in given)
    if not has_rows or not all(type(x) in (Value, Row) for x in given):
        return None
    if head is not None and (head.is_inside or head.tensor is None):
        return None
    first = [] if head is None else [Part(head.tensor, True)]
    return [*first, *_parts(given)]


def _parts(items: Iterable[Any]) -> Iterator[Part]:
    """Items by rows of one tensor that follow each other, and the others by themselves."""
    run: list[Row] = []
    for item in items:
        if run and not _follows(item, run):
            yield Part(_together(run), True)
            run = []
        if type(item) is Row:
            run.append(item)
        else:
            yield Part(item, False)
    if run:
        yield Part(_together(run), True)


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


def _sides(part: Part, dim: int | None) -> tuple[str, ...]:
    """The sizes of an item, as they must be alike where it is joined to others."""
    sizes = list(map(str, part.tensor.shape[part.are_rows :]))
    if dim is not None:
        sizes[dim] = "any"
    return tuple(sizes)


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
    return _stacked(parts) if _item_ndim(parts[0]) == 1 else _concatenated(parts)


def _beside(parts: Sequence[Part]) -> Any:
    return _concatenated(parts, min(_item_ndim(parts[0]) - 1, 1))


def _one(tensors: Sequence[Any], dim: int) -> Any:
    return torch.cat(list(tensors), dim) if len(tensors) > 1 else tensors[0].clone()


def _sum(parts: Sequence[Part], start: Any = 0) -> Any:
    for part in parts:
        start = start + (part.tensor.sum(0) if part.are_rows else part.tensor)
    return start


_JOINS: dict[Any, Callable[..., Any]] = {
    torch.stack: _stacked,
    **dict.fromkeys((torch.cat, torch.concat, torch.concatenate), _concatenated),
    torch.vstack: _below,
    torch.hstack: _beside,
    sum: _sum,
}
"""What makes one tensor of items."""


def joins(at: CodeGenerator, fn: Any, given: tuple[tuple[Any, ...], dict[str, Any]]) -> bool:
    """Whether a call makes one tensor of items of which some are rows; others are torch's alone."""
    args, kwargs = given
    if not args or not is_hashable(fn) or fn not in _JOINS or not kwargs.keys() <= {"dim"}:
        return False
    found = parts_of(args[0])
    if found is None or len({_item_ndim(part) for part in found}) > 1:
        return False
    ndim, others = _item_ndim(found[0]), (*args[1:], *kwargs.values())
    if fn is sum:
        # Numbers that are added up in another type, or rounded after each, are added one by one.
        wide = (torch.float32, torch.float64)
        return not others and all(part.tensor.dtype in wide for part in found)
    [dim] = others if len(others) == 1 else [None if others else 0]
    most = ndim + (fn is torch.stack)
    fits = type(dim) is int and -most <= dim < most
    return fits and len({_sides(part, None if fn is torch.stack else dim) for part in found}) == 1


def join(
    at: CodeGenerator, node: ast.AST, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Compile such a call."""
    items, *rest = args
    with at.program.blaming(at.span(node), fn.__name__, (rest, kwargs)):
        return _JOINS[fn](parts_of(items), *rest, **kwargs)


_FEW = 32
"""Tensors of ``torch.unbind`` that are made at once; of more, those that are asked for."""


def unbinds(at: CodeGenerator, fn: Any, given: tuple[tuple[Any, ...], dict[str, Any]]) -> bool:
    """Whether a call is ``torch.unbind`` of many tensors, or of as many as a call tells."""
    tensor, dim = (is_hashable(fn) and iteration.unbinds(fn, *given)) or (None, 0)
    if type(tensor) is not Value:
        return False
    count = tensor.meta.shape[dim]
    return not isinstance(count, int) or count > _FEW


def unbind(
    at: CodeGenerator, node: ast.AST, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Compile such a call."""
    found = iteration.unbinds(fn, args, kwargs)
    assert found is not None
    tensor, dim = found
    with at.program.blaming(at.span(node), "unbind", (args, kwargs)):
        rows: Any = tensor.movedim(dim, 0)
    count = rows.meta.shape[0]
    if isinstance(count, int):
        items = tuple(Row(rows, i) for i in range(count))
        at.program.numbered.note_call(fn, args, kwargs, items)
        return items
    return Grown((), Head(lambda items: items[0], [rows], rows.shape[0], kind=tuple))


def takes_list(at: CodeGenerator, fn: Any, given: tuple[tuple[Any, ...], Any]) -> bool:
    """Whether what is no function to be inlined is given a list of which items are in rows."""
    args, kwargs = given
    is_given = any(isinstance(x, Grown) and x.head for x in (*args, *kwargs.values()))
    goes_over = is_hashable(fn) and fn in (*builtins.ITERATORS, len, isinstance, type)
    is_known = isinstance(fn, (type, types.BuiltinFunctionType)) or inlining.has_row(at, fn)
    return is_given and not goes_over and (is_known or belongs_to_torch(fn))


def with_lists(
    at: CodeGenerator, node: ast.AST, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Compile such a call: with a list of all items, of as many as in this call."""

    def listed(item: Any) -> Any:
        return list(item) if isinstance(item, Grown) and item.head else item

    name = getattr(fn, "__name__", str(fn))
    with at.program.blaming(at.span(node), name, (args, kwargs)):
        given = [listed(item) for item in args]
        named = {key: listed(item) for key, item in kwargs.items()}
    return calls.call(at, node, fn, given, named)
