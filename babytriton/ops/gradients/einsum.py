"""Gradients of products of tensors over axes that the user names or numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from babytriton.ops.equations import einsum_labels, tensordot_labels
from babytriton.ops.gradients.contraction import Term, contracted, of_factor, of_factors


def tensordot(grad: Any, result: Any, a: Any, b: Any, dims: Any = 2) -> Any:
    """Of a product over numbered axes."""
    labels_a, labels_b, kept = tensordot_labels(a, b, dims)
    return of_factors((grad, kept), (a, labels_a), (b, labels_b))


def einsum(grad: Any, result: Any, equation: Any, *operands: Any) -> Any:
    """Of a product over named axes."""
    tensors, inputs, output = einsum_labels(equation, operands)
    found = _of_chain((grad, output), list(zip(tensors, inputs)))
    if not isinstance(equation, str):
        first, *others = found
        # Each operand of this form is followed by its labels.
        return first, [x for grad in others for x in (None, grad)]
    return None, found if len(operands) == len(tensors) else [found]


def _of_chain(grad: Term, terms: Sequence[Term]) -> list[Any]:
    """The gradients of the factors of a product that is computed in pairs from left to right."""
    products = [terms[0]]
    for i, (x, labels) in enumerate(terms[1:-1], start=1):
        before, given = products[-1]
        needed = [*grad[1], *(label for _, rest in terms[i + 1 :] for label in rest)]
        kept = [label for label in dict.fromkeys([*given, *labels]) if label in needed]
        products.append((contracted([(before, given), (x, labels)], kept), kept))
    found = []
    for before, term in reversed(list(zip(products, terms[1:]))):
        of_before, of_term = of_factors(grad, before, term)
        found.append(of_term)
        grad = (of_before, before[1])
    first = of_factor(terms[0], grad) if len(terms) == 1 else grad[0]
    return [first, *reversed(found)]
