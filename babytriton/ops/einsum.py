"""Products of tensors over axes that the user names or numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from babytriton.ops.contraction import contract, require_one_number_dtype
from babytriton.ops.numerics import opmath
from babytriton.ops.refusals import Unsupported
from babytriton.ops.site import Site
from babytriton.ops.table import Op
from babytriton.ops.value import Value


def _tensordot(site: Site, a: Value, b: Value, dims: Any = 2) -> Any:
    require_one_number_dtype(a, b)
    if isinstance(dims, Value):
        raise Unsupported("dims is a tensor")
    if isinstance(dims, int):
        dims = (range(a.meta.ndim - dims, a.meta.ndim), range(dims))
    left, right = ([d] if isinstance(d, int) else d for d in dims)
    summed = {d % a.meta.ndim: e % b.meta.ndim for d, e in zip(left, right)}
    from_b = {e: d for d, e in summed.items()}
    labels_a: list[Any] = list(range(a.meta.ndim))
    labels_b: list[Any] = [from_b.get(e, f"b{e}") for e in range(b.meta.ndim)]
    kept = [d for d in labels_a if d not in summed] + [e for e in labels_b if isinstance(e, str)]
    operands = [(a.expr, labels_a), (b.expr, labels_b)]
    return site.cast(contract(site, "tensordot", operands, kept), site.dtype)


def _einsum(site: Site, equation: Any, *operands: Any) -> Any:
    """Pairs from left to right, as torch; axes of one operand alone are summed before."""
    if isinstance(equation, str):
        # einsum(equation, [x, y]) is an old spelling of einsum(equation, x, y).
        one_list = len(operands) == 1 and isinstance(operands[0], (tuple, list))
        tensors = list(operands[0] if one_list else operands)
        inputs, output = _parse(equation, [x.meta.ndim for x in tensors])
    else:
        tensors, inputs, output = _sublists((equation, *operands))
    dtype = opmath(require_one_number_dtype(*tensors))

    terms = [(x.expr, labels) for x, labels in zip(tensors, inputs)]
    terms = [_sum_own(site, terms, i, output, dtype) for i in range(len(terms))]
    (expr, labels), *others = terms
    for i, (other, other_labels) in enumerate(others):
        later = [label for _, rest in others[i + 1 :] for label in rest]
        last = i == len(others) - 1
        kept = (
            output
            if last
            else [x for x in dict.fromkeys([*labels, *other_labels]) if x in (*output, *later)]
        )
        expr = contract(site, "einsum", [(expr, labels), (other, other_labels)], kept, dtype)
        labels = kept
    if list(labels) != output:
        expr = contract(site, "einsum", [(expr, labels)], output, dtype)
    return site.cast(expr, site.dtype)


def _sum_own(site: Site, terms: Any, at: int, output: list[Any], dtype: torch.dtype) -> Any:
    """A term summed over the axes that no other term and not the result has.

    Left to the product, two terms' own axes would multiply.
    """
    expr, labels = terms[at]
    others = [label for i, (_, rest) in enumerate(terms) if i != at for label in rest]
    kept = [label for label in dict.fromkeys(labels) if label in output or label in others]
    if len(terms) == 1 or len(kept) == len(set(labels)):
        return expr, labels
    return contract(site, "einsum_sum", [(expr, labels)], kept, dtype), kept


def _parse(equation: str, ranks: Sequence[int]) -> tuple[list[list[Any]], list[Any]]:
    """The labels of the operands and of the result; an ellipsis is labelled -2, -1 and so on."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    inputs = [_labels(term, rank) for term, rank in zip(terms, ranks)]
    return inputs, _output(inputs, _labels(right, None, inputs) if arrow else None)


def _labels(term: str, rank: int | None, inputs: Sequence[list[Any]] = ()) -> list[Any]:
    before, dots, after = term.partition("...")
    if not dots:
        return list(term)
    if rank is None:
        covered = -min((x for labels in inputs for x in labels if isinstance(x, int)), default=0)
    else:
        covered = rank - len(before) - len(after)
    return [*before, *range(-covered, 0), *after]


def _sublists(operands: Sequence[Any]) -> tuple[list[Value], list[list[Any]], list[Any]]:
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


def _output(inputs: Sequence[list[Any]], explicit: list[Any] | None) -> list[Any]:
    """By default the ellipsis, then what occurs once, in order of the alphabet."""
    if explicit is not None:
        return explicit
    every = [label for labels in inputs for label in labels]
    dots = sorted({label for label in every if isinstance(label, int)})
    return dots + sorted(x for x in every if isinstance(x, str) and every.count(x) == 1)


ROWS: tuple[Op, ...] = (
    Op("tensordot", (torch.tensordot,), _tensordot),
    Op("einsum", (torch.einsum,), _einsum),
)
