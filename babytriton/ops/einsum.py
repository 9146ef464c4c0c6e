"""Products of tensors over axes that the user names or numbers."""

from __future__ import annotations

from typing import Any

import torch

from babytriton.ops.contraction import contract, require_one_number_dtype
from babytriton.ops.equations import einsum_labels, tensordot_labels
from babytriton.ops.gradients import einsum as gradients
from babytriton.ops.numerics import opmath
from babytriton.ops.refusals import Unsupported
from babytriton.ops.site import Site
from babytriton.ops.table import Op
from babytriton.ops.value import Value


def _tensordot(site: Site, a: Value, b: Value, dims: Any = 2) -> Any:
    require_one_number_dtype(a, b)
    labels_a, labels_b, kept = tensordot_labels(a, b, dims)
    operands = [(a.expr, labels_a), (b.expr, labels_b)]
    return site.cast(contract(site, "tensordot", operands, kept), site.dtype)


def _einsum(site: Site, equation: Any, *operands: Any) -> Any:
    """Pairs from left to right, as torch; axes of one operand alone are summed before."""
    tensors, inputs, output = einsum_labels(equation, operands)
    dtype = opmath(require_one_number_dtype(*tensors, error=Unsupported))

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


ROWS: tuple[Op, ...] = (
    Op("tensordot", (torch.tensordot,), _tensordot, gradient=gradients.tensordot),
    Op("einsum", (torch.einsum,), _einsum, gradient=gradients.einsum),
)
