"""Gradients of sums of products over labelled axes."""

from __future__ import annotations

import string
from collections.abc import Hashable, Sequence
from typing import Any

import torch

from babytriton.ops.sizes import is_one, same_shape

Term = tuple[Any, Sequence[Hashable]]
"""A tensor and the labels of its axes; a string serves where letters do."""


def contracted(terms: Sequence[Term], labels: Sequence[Hashable]) -> Any:
    """The product of one or two tensors, summed over the axes that the result does not have.

    It reads the tensors where they lie: no kernel only transposes or only adds up one of them.

    Args:
        terms: the tensors. An axis of size 1 broadcasts.
        labels: of the result's axes.
    """
    every = dict.fromkeys(label for _, given in terms for label in given)
    letters = dict(zip(every, string.ascii_letters))
    spelled = ["".join(letters[label] for label in given) for _, given in terms]
    equation = f"{','.join(spelled)}->{''.join(letters[label] for label in labels)}"
    return torch.einsum(equation, *(x for x, _ in terms))


def of_factor(factor: Term, *others: Term) -> Any:
    """The gradient of one factor of a sum of products.

    Args:
        factor: what the gradient is of.
        others: the gradient of the sum, and the other factor where there is one.
    """
    x, labels = factor
    own = dict(zip(labels, x.shape))
    known: dict[Hashable, Any] = {}
    for other, given in others:
        known |= {label: n for label, n in zip(given, other.shape) if is_one(known.get(label, 1))}
    # An axis that the factor alone had was summed up; one of size 1 was broadcast.
    kept = [label for label, n in own.items() if label in known and _fits(n, known[label])]
    found = contracted(others, kept)
    if len(kept) < len(own):
        sizes = dict(zip(kept, found.shape))
        found = found.reshape([sizes.get(label, 1) for label in own])
    if not same_shape(found.shape, list(own.values())):
        found = found.expand(list(own.values()))
    for place, label in enumerate(labels):
        first = list(labels).index(label)
        if first < place:  # The sum had the diagonal only.
            found = torch.diag_embed(torch.movedim(found, first, -1), 0, first, place)
    return found


def _fits(own: Any, size: Any) -> bool:
    return is_one(size) or not is_one(own)


def of_factors(grad: Term, left: Term, right: Term) -> tuple[Any, Any]:
    """The gradients of both factors of a sum of products."""
    return of_factor(left, grad, right), of_factor(right, grad, left)
