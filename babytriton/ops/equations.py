"""Labels of the axes of products: what an einsum's equation and a tensordot's numbers say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from babytriton.ops.refusals import Unsupported
from babytriton.ops.value import Value

Labels = list[Any]


def einsum_labels(
    equation: Any, operands: Sequence[Any]
) -> tuple[list[Value], list[Labels], Labels]:
    """The operands of an einsum, the labels of each, and those of the result."""
    if not isinstance(equation, str):
        return _sublists((equation, *operands))
    # einsum(equation, [x, y]) is an old spelling of einsum(equation, x, y).
    one_list = len(operands) == 1 and isinstance(operands[0], (tuple, list))
    tensors = list(operands[0] if one_list else operands)
    return tensors, *_parse(equation, [x.meta.ndim for x in tensors])


def tensordot_labels(a: Value, b: Value, dims: Any) -> tuple[Labels, Labels, Labels]:
    """The labels of both operands of a tensordot, and of the result.

    Raises:
        Unsupported: a tensor says which axes are summed over.
    """
    if isinstance(dims, Value):
        raise Unsupported("dims is a tensor")
    if isinstance(dims, int):
        dims = (range(a.meta.ndim - dims, a.meta.ndim), range(dims))
    left, right = ([d] if isinstance(d, int) else d for d in dims)
    summed = {d % a.meta.ndim: e % b.meta.ndim for d, e in zip(left, right)}
    from_b = {e: d for d, e in summed.items()}
    labels_a: Labels = list(range(a.meta.ndim))
    labels_b: Labels = [from_b.get(e, f"b{e}") for e in range(b.meta.ndim)]
    kept = [d for d in labels_a if d not in summed] + [e for e in labels_b if isinstance(e, str)]
    return labels_a, labels_b, kept


def _parse(equation: str, ranks: Sequence[int]) -> tuple[list[Labels], Labels]:
    """The labels of the operands and of the result; an ellipsis is labelled -2, -1 and so on."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    inputs = [_labels(term, rank) for term, rank in zip(terms, ranks)]
    return inputs, _output(inputs, _labels(right, None, inputs) if arrow else None)


def _labels(term: str, rank: int | None, inputs: Sequence[Labels] = ()) -> Labels:
    before, dots, after = term.partition("...")
    if not dots:
        return list(term)
    if rank is None:
        covered = -min((x for labels in inputs for x in labels if isinstance(x, int)), default=0)
    else:
        covered = rank - len(before) - len(after)
    return [*before, *range(-covered, 0), *after]


def _sublists(operands: Sequence[Any]) -> tuple[list[Value], list[Labels], Labels]:
    """The form ``einsum(x, [0, 1], y, [1, 2], [0, 2])``."""

    def term(sublist: Sequence[Any]) -> str:
        # Only the order of the numbers counts, and ordinals keep it.
        return "".join("..." if x is Ellipsis else chr(ord("A") + x) for x in sublist)

    pairs = len(operands) // 2
    tensors, sublists = list(operands[0 : 2 * pairs : 2]), operands[1 : 2 * pairs : 2]
    inputs = [_labels(term(s), x.meta.ndim) for x, s in zip(tensors, sublists)]
    explicit = len(operands) % 2 == 1
    output = _labels(term(operands[-1]), None, inputs) if explicit else None
    return tensors, inputs, _output(inputs, output)


def _output(inputs: Sequence[Labels], explicit: Labels | None) -> Labels:
    """By default the ellipsis, then what occurs once, in order of the alphabet."""
    if explicit is not None:
        return explicit
    every = [label for labels in inputs for label in labels]
    dots = sorted({label for label in every if isinstance(label, int)})
    return dots + sorted(x for x in every if isinstance(x, str) and every.count(x) == 1)
