"""What torch's autograd records of a call of torch, and the gradient of a call through that.

What a program hands from one half to the other are tensors. A graph is kept by one of a single
byte: it lives as long as the memory of that tensor, by whose address it is found.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

from babytriton.ops.generators import Generators, may_draw
from babytriton.ops.meta import apply, tensors_of
from babytriton.ops.table import Callee, Op, called
from babytriton.ops.trees import leaves_in, map_leaves
from babytriton.types import TensorType

KEEPER = TensorType((1,), torch.uint8)
"""The type of a tensor that keeps a graph."""


@dataclass(frozen=True, eq=False)
class Graph:
    """A call of torch that autograd has recorded.

    Attributes:
        inputs: the tensors of the call, each of its own: the same tensor twice is two of them.
        results: where the gradients of its results go; None for one that has none.
    """

    inputs: Sequence[torch.Tensor]
    results: Sequence[GradientEdge | None]

    @classmethod
    def of(
        cls, fn: Callee, args: tuple[Any, ...], kwargs: Mapping[str, Any], wanted: Collection[int]
    ) -> tuple[Graph, list[torch.Tensor]]:
        """Run a callable.

        Args:
            fn: the callable.
            args, kwargs: of the call.
            wanted: the numbers of the tensors among these that gradients are asked of.

        Returns:
            The graph, and the results: without history, but those that are views are views.
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
        edges = [get_gradient_edge(x) if x.requires_grad else None for x in results]
        return cls(inputs, edges), [_plain(x, inputs) for x in results]

    @classmethod
    def kept_by(cls, keeper: torch.Tensor) -> Graph | None:
        """The graph that a tensor keeps; None if it is a copy of the one that does."""
        return _GRAPHS.get(keeper.data_ptr())

    def keeper(self, device: torch.device) -> torch.Tensor:
        """A tensor that keeps the graph."""
        tensor = torch.empty(1, dtype=KEEPER.dtype, device=device)
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
        """The gradients of some inputs. The graph stays, for who asks for them once more.

        Args:
            wanted: the numbers of the inputs.
            have: the numbers of the results that gradients are given for.
            grads: these.
            create_graph: whether the gradients have gradients.
        """
        inputs = [self.inputs[i] for i in wanted]
        pairs = [(self.results[i], grad) for i, grad in zip(have, grads)]
        known = [(edge, grad) for edge, grad in pairs if edge is not None]
        if not known:  # such as what torch.Tensor.data gives
            return [torch.zeros_like(x) for x in inputs]
        edges, given = zip(*known)
        with torch.enable_grad():
            found = torch.autograd.grad(
                edges,
                inputs,
                given,
                retain_graph=True,
                create_graph=create_graph,
                materialize_grads=True,
            )
        return list(found)


_GRAPHS: weakref.WeakValueDictionary[int, Graph] = weakref.WeakValueDictionary()
"""By the addresses of the tensors that keep them."""


def _plain(tensor: torch.Tensor, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
    """A tensor without its history; whoever writes to a view of an input is told so by torch."""
    found = tensor.detach()
    if any(tensor is x for x in inputs) or (tensor._is_view() and _shares(tensor, inputs)):
        return found.view_as(found)
    return found


def _shares(tensor: torch.Tensor, others: Sequence[torch.Tensor]) -> bool:
    """Whether a tensor lies in the memory of another one."""
    memory = tensor.untyped_storage().data_ptr()
    return any(x.untyped_storage().data_ptr() == memory for x in others)


@dataclass(frozen=True)
class TorchGradient:
    """The gradient of a callable as a callable itself, which torch's autograd computes.

    Attributes:
        fn: the callable.
        wanted: the numbers of the tensors among its arguments to give gradients of.
        have: the numbers of its results that gradients are given for.
        may_draw: whether it may draw random numbers, so that it is watched if it is run again.
    """

    fn: Callee
    wanted: tuple[int, ...]
    have: tuple[int, ...]
    may_draw: bool = True

    @property
    def __name__(self) -> str:
        return f"gradient_of_{called(self.fn)}"

    def __call__(
        self,
        grads: Sequence[torch.Tensor],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        keeper: torch.Tensor | None = None,
    ) -> list[torch.Tensor]:
        """The gradients of the wanted tensors, themselves with gradients where any is recorded.

        Args:
            grads: of results.
            args, kwargs: of the callable.
            keeper: keeps the graph of a call with these. The callable is run again if there is
                none, where the gradients are to have gradients, and where the keeper is a copy.
        """
        every = leaves_in((list(grads), args, dict(kwargs)), torch.Tensor)
        # A program may be given the caller's own tensors, where nothing is recorded of them.
        again = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in every)
        graph = None if again or keeper is None else Graph.kept_by(keeper)
        if graph is None:
            graph = self._run(args, dict(kwargs))
        return graph.gradients(self.wanted, self.have, grads, create_graph=again)

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Graph:
        """The callable run again, where it draws no random numbers."""
        if not self.may_draw:
            return Graph.of(self.fn, args, kwargs, self.wanted)[0]
        before = Generators.now(leaves_in((args, kwargs), torch.Tensor))
        graph, _ = Graph.of(self.fn, args, kwargs, self.wanted)
        if before.have_moved():
            raise RuntimeError(
                f"`{called(self.fn)}` draws random numbers, which are others when it is run again "
                "for its gradient: detach() its result, or draw the numbers apart from it"
            )
        return graph


def draws_unseen(fn: Callee, table: Mapping[Callee, Op]) -> bool:
    """Whether a callable may draw random numbers without a row that says so.

    Args:
        fn: what torch runs.
        table: the row of each torch callable.
    """
    if isinstance(fn, TorchGradient):
        return fn.may_draw
    return fn not in table and may_draw(fn)
