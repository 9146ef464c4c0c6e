"""Functions with gradients of their own as what traces torch sees them."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Proxy
from torch.utils import _pytree as pytree

from babytriton import errors
from babytriton.ops.trees import leaves_in

_OWN = "__babytriton_gradient__"


def give(fn: types.FunctionType, rule: Callable[..., Any]) -> None:
    """Have what traces torch take a function's gradient from a rule.

    Args:
        fn: the function.
        rule: as :meth:`JitFunction.backward` takes it.
    """
    # With the function: wrappers have the attributes of what they wrap.
    setattr(fn, _OWN, (fn, _with_gradient(fn, rule)))


def is_recorded(values: Any) -> bool:
    """Whether torch.jit.trace or torch.fx records what is done to values."""
    return torch._C._get_tracing_state() is not None or bool(leaves_in(values, Proxy))


def traced(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function as what traces torch is to see it: with the gradient that it was given, if any."""
    of, found = getattr(fn, _OWN, (None, None))
    if isinstance(fn, types.MethodType):
        return _bound(found, fn.__self__) if of is fn.__func__ and found is not None else fn
    return found if of is fn and found is not None else fn


def _bound(fn: Callable[..., Any], of: Any) -> Callable[..., Any]:
    def method(*args: Any, **kwargs: Any) -> Any:
        return fn(of, *args, **kwargs)

    return method


def _with_gradient(fn: Callable[..., Any], rule: Callable[..., Any]) -> Callable[..., Any]:
    # By names: an inspect.Signature, whose bind would do, torch.compile cannot hold in a graph.
    parameters = inspect.signature(fn).parameters.values()
    positional = [x for x in parameters if x.kind in (x.POSITIONAL_ONLY, x.POSITIONAL_OR_KEYWORD)]
    names = [x.name for x in positional]
    defaults = {x.name: x.default for x in parameters if x.default is not x.empty}
    others = {x.name: x.default for x in parameters if x.kind is x.KEYWORD_ONLY}
    given_named = {name: x for name, x in others.items() if x is not inspect.Parameter.empty}
    of_rule = list(inspect.signature(rule).parameters.values())
    order = [x.name for x in of_rule]
    takes_any = [i for i, x in enumerate(of_rule) if x.kind is x.VAR_POSITIONAL]

    class Ruled(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(tree: Any, *leaves: Any) -> Any:
            args, kwargs = pytree.tree_unflatten(leaves, tree)
            found = fn(*args, **kwargs)
            parts = found if type(found) is tuple else (found,)
            if not all(isinstance(part, torch.Tensor) for part in parts):
                raise errors.OwnGradientTraced(None, fn.__name__).error()
            return found

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
            tensors, rest = iter(ctx.saved_tensors[:count]), iter(ctx.others)
            leaves = [next(tensors if is_tensor else rest) for is_tensor in ctx.is_tensor]
            args, kwargs = pytree.tree_unflatten(leaves, ctx.tree)
            results = ctx.saved_tensors[count:]
            first = (grads[0], results[0]) if ctx.is_single else (grads, results)
            found = rule(*first, *args, **kwargs)
            named = sorted(kwargs, key=order.index)
            if takes_any:  # A gradient that is a list stands for all that it takes.
                args = [*args[: takes_any[0] - 2], tuple(args[takes_any[0] - 2 :])]
            given = [*args, *(kwargs[name] for name in named)]
            is_list = isinstance(found, list) and not isinstance(given[0], (tuple, list))
            parts = found if is_list or isinstance(found, tuple) else (found,)
            parts = [*parts, *([None] * (len(given) - len(parts)))]
            by_name = dict(zip(named, parts[len(args) :]))
            each = _grads_of(args, parts[: len(args)])
            for name, argument in kwargs.items():
                each += _grads_of(argument, by_name[name])
            # Of too many, torch says so.
            return (None, *each, *parts[len(given) :])

    def with_gradient(*args: Any, **kwargs: Any) -> Any:
        leaves = pytree.tree_leaves((args, kwargs))
        tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
        if not (torch.is_grad_enabled() and any(x.requires_grad for x in tensors)):
            return fn(*args, **kwargs)
        missing = names[len(args) :]
        if any(name not in kwargs and name not in defaults for name in missing):
            return fn(*args, **kwargs)  # Python says what is missing
        filled = [kwargs[name] if name in kwargs else defaults[name] for name in missing]
        named = {name: x for name, x in kwargs.items() if name not in missing}
        leaves, tree = pytree.tree_flatten(([*args, *filled], {**given_named, **named}))
        # torch.compile takes no tensor twice.
        for i, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor) and any(leaf is other for other in leaves[:i]):
                leaves[i] = leaf.view_as(leaf)
        return Ruled.apply(tree, *leaves)  # type: ignore[no-untyped-call]  # torch's

    return with_gradient


def _grads_of(argument: Any, grad: Any) -> list[Any]:
    """What a rule gives for an argument, for each leaf of it."""
    if grad is None:
        return [None] * len(pytree.tree_leaves(argument))
    if isinstance(argument, (tuple, list)):
        parts = [*grad, *([None] * (len(argument) - len(grad)))]
        return [leaf for pair in zip(argument, parts) for leaf in _grads_of(*pair)]
    if isinstance(argument, dict):
        return [leaf for key in argument for leaf in _grads_of(argument[key], grad.get(key))]
    return [grad if isinstance(argument, torch.Tensor) else None]
