"""Assignments to elements as functions."""

from __future__ import annotations

from typing import Any

from torch.overrides import handle_torch_function, has_torch_function


def put_at(input: Any, item: tuple[Any, ...], values: Any) -> Any:
    """A tensor with others of its elements at what an index of numbers and slices tells.

    Args:
        input: the tensor.
        item: the index, with a part for each dimension. Numbers may be tensors without dimensions.
        values: what is put there; it broadcasts, and has the tensor's dtype.
    """
    if has_torch_function((input, values)):
        return handle_torch_function(put_at, (input, values), input, item, values)
    found = input.clone()
    found[item] = values
    return found
