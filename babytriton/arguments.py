"""The arguments of a call: tensors in the place of the boxes and of the arrays among them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from babytriton import errors
from babytriton.arrays import Arrays, has_arrays
from babytriton.ops.trees import leaves_in, map_leaves
from babytriton.runtime.dispatch import fill
from babytriton.tensor import Tensor


class Arguments:
    """What a call gives the parameters of a function.

    Args:
        names: of the parameters.
        values: of each, as the call has them.
        is_example: whether a ``Tensor`` may stand for a tensor that is not there.
        out: what results are, one of :data:`babytriton.arrays.OUT`.

    Attributes:
        values: of each: tensors, Python's values and, of an example, ``Tensor``.

    Raises:
        TypeError: a ``Tensor`` is empty, or an array is none that torch can have.
    """

    def __init__(
        self,
        names: Sequence[str],
        values: Sequence[Any],
        *,
        is_example: bool = False,
        out: str = "torch",
    ) -> None:
        self._arrays, self._out = Arrays(), out
        # What has none of these stays as it is: plain Python may write to a list.
        if out != "torch" or has_arrays(values):
            values = self._arrays.tensors(names, values)
        if leaves_in(values, Tensor):
            pairs = zip(names, values)
            taken_out = partial(_taken_out, is_example=is_example)
            values = [fill(value, partial(taken_out, name), (Tensor,)) for name, value in pairs]
        self.values = values

    @property
    def is_abstract(self) -> bool:
        """Whether a tensor among them is not there."""
        return bool(leaves_in(self.values, Tensor))

    @property
    def gives_tensors(self) -> bool:
        """Whether results stay as they are."""
        return self._out == "torch" or self._arrays.converter(self._out) is None

    def require_own(self, written: Sequence[str]) -> None:
        """Refuse to write to what is no memory of the caller's.

        Args:
            written: the names of the arguments that are written to.

        Raises:
            ValueError: one of them is an array that is read from a copy.
        """
        self._arrays.require_own(written)

    def require_unwritten(self) -> None:
        """Refuse, after plain Python has run, that it has written to what is no caller's memory.

        Raises:
            ValueError: it has written to an array that is read from a copy.
        """
        self._arrays.require_own(self._arrays.written)

    def results(self, given: Any) -> Any:
        """The results of the call, with arrays in place of tensors where it is to give these."""
        converted = None if self._out == "torch" else self._arrays.converter(self._out)
        return given if converted is None else map_leaves(given, torch.Tensor, converted)


def _taken_out(name: str, box: Tensor, is_example: bool) -> Any:
    if box.data is None and not is_example:
        instead = f"put a tensor into it: {name}.data = torch.ones({box.shape})"
        raise errors.ArgumentType(None, name, "a Tensor without data", instead).error()
    return box if box.data is None else box.data
