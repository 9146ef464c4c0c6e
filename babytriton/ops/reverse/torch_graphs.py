"""What torch's autograd records of a call of torch, and how the way back finds it again.

What a program hands from one half to the other are tensors. A graph is kept by one of a single
byte: it lives as long as the memory of that tensor, by whose address it is found.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from babytriton.ops.meta import apply, tensors_of
from babytriton.ops.table import Callee
from babytriton.ops.trees import map_leaves
from babytriton.types import TensorType

KEEPER = TensorType((1,), torch.uint8)
"""The type of a tensor that keeps a graph."""


@dataclass(eq=False)
class Graph:
    """A call of torch that autograd has recorded.

    Attributes:
        inputs: the tensors of the call, each of its own: the same tensor twice is two of them.
        results: of the call, with their history.
    """

    inputs: Sequence[torch.Tensor]
    results: Sequence[torch.Tensor]

    @classmethod
    def of(
        cls, fn: Callee, args: tuple[Any, ...], kwargs: Mapping[str, Any], wanted: Collection[int]
    ) -> Graph:
        """Run a callable.

        Args:
            fn: the callable.
            args, kwargs: of the call.
            wanted: the numbers of the tensors among these that gradients are asked of.
        """
        inputs: list[torch.Tensor] = []

        def own(tensor: torch.Tensor) -> torch.Tensor:
            found = tensor.view_as(tensor) if tensor.requires_grad else tensor.detach()
            if len(inputs) in wanted and not found.requires_grad:
                found.requires_grad_()
            inputs.append(found)
            return found

        with torch.enable_grad():
            args, kwargs = map_leaves((args, dict(kwargs)), torch.Tensor, own)
            results = tensors_of(apply(fn, args, dict(kwargs)))
        return cls(inputs, results)

    @classmethod
    def kept_by(cls, keeper: torch.Tensor) -> Graph | None:
        """The graph that a tensor keeps; None if it is a copy of the one that does."""
        return _GRAPHS.get(keeper.data_ptr())

    def keeper(self) -> torch.Tensor:
        """A tensor that keeps the graph."""
        tensor = torch.empty(1, dtype=KEEPER.dtype, device=self.results[0].device)
        memory: Any = tensor.untyped_storage()
        memory.graph = self
        _GRAPHS[tensor.data_ptr()] = self
        return tensor

    def gradients(
        self,
        wanted: Sequence[int],
        have: Sequence[int],
        grads: Sequence[torch.Tensor],
        create_graph: bool = False,
    ) -> list[torch.Tensor]:
        """The gradients of some inputs, as often as they are asked for.

        Args:
            wanted: the numbers of the inputs.
            have: the numbers of the results that gradients are given for.
            grads: these.
            create_graph: whether the gradients have gradients.
        """
        inputs = [self.inputs[i] for i in wanted]
        pairs = [(self.results[i], grad) for i, grad in zip(have, grads)]
        pairs = [(result, grad) for result, grad in pairs if result.requires_grad]
        if not pairs:  # such as what torch.Tensor.data gives
            return [torch.zeros_like(x) for x in inputs]
        chosen, given = zip(*pairs)
        with torch.enable_grad():
            found = torch.autograd.grad(
                chosen,
                inputs,
                given,
                retain_graph=True,
                create_graph=create_graph,
                materialize_grads=True,
            )
        return list(found)


_GRAPHS: weakref.WeakValueDictionary[int, Graph] = weakref.WeakValueDictionary()
"""By the addresses of the tensors that keep them."""
