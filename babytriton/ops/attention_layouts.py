"""How tensors of attention lie in memory, where torch's libraries compute it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from babytriton.ops.sizes import is_empty
from babytriton.ops.table import Callee
from babytriton.ops.torch_graphs import TorchGradient
from babytriton.ops.value import Value
from babytriton.ops.views import Read

NAME = "scaled_dot_product_attention"
"""Of the row of the operator table."""

TOKENS_FIRST = (0, 2, 1, 3)
"""The axes in an order that they may have in memory: the heads of a token lie together. Who joins
the heads afterwards reads what is there from front to back."""

_OPERANDS = ("query", "key", "value", "attn_mask")


@dataclass(frozen=True)
class Attention:
    """A call of attention, or of its gradient.

    Attributes:
        tensors: all that the call is given, in order.
        query: the queries.
        memory: the keys and the values.
        grads: the gradients of what attention gave, if this is the gradient.
        has_mask: whether there is a mask that is a tensor.
    """

    tensors: Sequence[Value]
    query: Value
    memory: tuple[Value, ...]
    grads: tuple[Value, ...]
    has_mask: bool

    @classmethod
    def of(
        cls, fn: Callee, args: Sequence[Any], kwargs: Mapping[str, Any], tensors: Sequence[Value]
    ) -> Attention:
        """The call of a function, or of its gradient, with some arguments."""
        grads: Iterable[Value] = ()
        if isinstance(fn, TorchGradient):
            grads, args, kwargs, *_ = args
        given = {**dict(zip(_OPERANDS, args)), **kwargs}
        query, *memory = (given[name] for name in _OPERANDS[:3])
        has_mask = isinstance(given.get("attn_mask"), Value)
        return cls(tensors, query, tuple(memory), tuple(grads), has_mask)

    def deciding(self, has_gradient: bool) -> list[int]:
        """The numbers of the tensors of which depends how results lie.

        Libraries give results as the queries lie, and the gradient of each tensor as that does; of
        those that come they read what lies as the results do.

        Args:
            has_gradient: whether the gradient of the call will be asked for.
        """
        if not self._is_by_library:
            return []
        all_count = bool(self.grads) or has_gradient
        wanted = [self.query, *(self.memory if all_count else ()), *self.grads]
        return [n for n, x in enumerate(self.tensors) if any(x is other for other in wanted)]

    def layout(
        self, reads: Sequence[Read], order_of: Callable[[Read], tuple[int, ...] | None]
    ) -> tuple[int, ...]:
        """The order in which the axes of results lie in memory; none if that is not known.

        The library that takes float32, and masks, has the tokens first whatever it is given. What
        torch computes by plain products, as that of float64, is contiguous.

        Args:
            reads: how the tensors are given.
            order_of: the order in which the axes of one lie, if that is known.
        """
        if not self._is_by_library:
            return ()
        if self.query.meta.dtype == torch.float32 or self.has_mask:
            return TOKENS_FIRST
        number = next(n for n, x in enumerate(self.tensors) if x is self.query)
        return TOKENS_FIRST if order_of(reads[number]) == TOKENS_FIRST else ()

    @property
    def _is_by_library(self) -> bool:
        """Whether a library may compute it, of some elements with their heads apart."""
        if any(is_empty(tensor.meta) for tensor in self.tensors):
            return False
        meta = self.query.meta
        return meta.dtype != torch.float64 and meta.ndim == len(TOKENS_FIRST)
