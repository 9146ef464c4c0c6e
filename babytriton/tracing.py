"""Functions with gradients of their own as what traces torch sees them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree


def with_gradient(
    fn: Callable[..., Any], signature: inspect.Signature, rule: Callable[..., Any]
) -> Callable[..., Any]:
    """A plain function whose gradient torch takes from a rule.

    Args:
        fn: the function.
        signature: of it.
        rule: as :meth:`JitFunction.backward` takes it.
    """
    names = tuple(signature.parameters)
    defaults = {x.name: x.default for x in signature.parameters.values()}

    places = [x.name for x in signature.parameters.values() if x.kind is not x.KEYWORD_ONLY]

    def called(args: Any) -> Any:
        """The function, of the values of all its parameters in order."""
        return fn(*args[: len(places)], **dict(zip(names[len(places) :], args[len(places) :])))

    class Ruled(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(tree: Any, *leaves: Any) -> Any:
            return called(pytree.tree_unflatten(leaves, tree))

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            tree, *leaves = inputs
            results = output if isinstance(output, tuple) else (output,)
            ctx.tree = tree
            ctx.is_tensor = [isinstance(x, torch.Tensor) for x in leaves]
            ctx.others = [x for x in leaves if not isinstance(x, torch.Tensor)]
            ctx.is_single = not isinstance(output, tuple)
            ctx.save_for_backward(*[x for x in leaves if isinstance(x, torch.Tensor)], *results)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            count = sum(ctx.is_tensor)
            tensors, others = iter(ctx.saved_tensors[:count]), iter(ctx.others)
            leaves = [next(tensors if is_tensor else others) for is_tensor in ctx.is_tensor]
            args = pytree.tree_unflatten(leaves, ctx.tree)
            results = ctx.saved_tensors[count:]
            found = rule(*((grads[0], results[0]) if ctx.is_single else (grads, results)), *args)
            parts = tuple(found) if isinstance(found, (tuple, list)) else (found,)
            every = [*parts, *([None] * (len(args) - len(parts)))]
            each: list[Any] = []
            for part, argument in zip(every, args):
                size = len(pytree.tree_leaves(argument))
                each += [None] * size if part is None else pytree.tree_leaves(part)
            return (None, *each)

    def traced(*args: Any, **kwargs: Any) -> Any:
        leaves = pytree.tree_leaves((args, kwargs))
        tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
        if not (torch.is_grad_enabled() and any(x.requires_grad for x in tensors)):
            return fn(*args, **kwargs)
        given = [*args, *(kwargs.get(name, defaults[name]) for name in names[len(args) :])]
        leaves, tree = pytree.tree_flatten(given)
        # torch.compile takes no tensor twice.
        for i, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor) and any(leaf is other for other in leaves[:i]):
                leaves[i] = leaf.view_as(leaf)
        return Ruled.apply(tree, *leaves)  # type: ignore[no-untyped-call]  # torch's

    return traced
