"""Operators of torch on DTensors: what torch.distributed is told of them, and what it traces.

Where a call runs, it is one of the compiled function. Where torch traces, the operator stays in the
graph, on the tensors of this process. It is compiled for those as for any, so a size is divided
only where the function is the same for parts of it: where no condition asks for it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._C import _len_torch_dispatch_stack
from torch._guards import tracing
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from babytriton import dividing
from babytriton.frontend.dimensions import SMALLEST
from babytriton.integrations.dtensor import distributed
from babytriton.integrations.dtensor_planning import Candidates, cost
from babytriton.jit import JitFunction
from babytriton.types import TensorType


@dataclass(frozen=True)
class Rule:
    """A size of an operator that a dimension of a mesh may divide.

    Attributes:
        inputs: of each tensor among the arguments, the dimension of that size; ``None`` for none.
        outputs: of each result, likewise.
    """

    inputs: tuple[int | None, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class Rules:
    """How an operator may be divided.

    Attributes:
        each: the sizes, of which a dimension of the mesh divides one or none.
        results: the types of the results as a whole.
    """

    each: tuple[Rule, ...]
    results: tuple[TensorType, ...]


def rules(function: JitFunction, values: Sequence[Any], meshes: Sequence[int]) -> Rules:
    """How a function may be divided, on the tensors of each process as on any others.

    Args:
        function: the one that the operator runs.
        values: of its parameters, with meta tensors for tensors.
        meshes: the sizes of the mesh's dimensions.
    """
    known: dict[Any, Rules] = function.kept.setdefault("dtensor_rules", {})
    key = (function.key_of(values), *meshes)
    if key not in known:
        known[key] = _found(function, values, meshes)
    return known[key]


def _found(function: JitFunction, values: Sequence[Any], meshes: Sequence[int]) -> Rules:
    candidates = Candidates(function, values)
    whole = function.compiled_for(values).scheduled.lowered
    results = dividing.outputs(whole, dividing.samples(whole))
    # Of a float that matters, torch would remember the answer for another one.
    if dividing.writes(whole) or whole.signature.static:
        return Rules((), tuple(results))
    types = [type for _, type in candidates.tensors()]
    if len(types) != len([x for x in pytree.tree_leaves(values) if isinstance(x, torch.Tensor)]):
        return Rules((), tuple(results))  # it captures tensors, which are no arguments
    found = []
    for name, size in candidates.sizes.items():
        divisors = {math.prod(some) for some in _subsets(meshes)}
        if any(size % n or size // n < SMALLEST for n in divisors):
            continue
        if not dividing.holds(candidates.lowered, name, [size // n for n in divisors]):
            continue
        parts = candidates.parts(name, list(meshes))
        if parts is not None and parts and None not in parts:
            dims = [_dim(type, name) for type in types]
            own = tuple(part.dim for part in parts if part is not None)
            found.append((name, Rule(tuple(dims), own)))
    if len(meshes) > 1 and len(found) > 1:
        # Two of them may be divided at once.
        names = [name for name, _ in found]
        if not candidates.allows(names, {name: list(meshes) for name in names}):
            found = found[:1]
    return Rules(tuple(rule for _, rule in found), tuple(results))


def _dim(type: TensorType, name: str) -> int | None:
    return next((i for i, n in enumerate(type.shape) if str(n) == name), None)


def _subsets(meshes: Sequence[int]) -> list[tuple[int, ...]]:
    return [some for n in range(1, len(meshes) + 1) for some in itertools.combinations(meshes, n)]


# ---------------------------------------------------------------- torch.distributed's own dispatch


def register(overload: Any, function: JitFunction) -> None:
    """Tell torch.distributed how an operator may be divided.

    Args:
        overload: the operator, of tensors that it does not write to.
        function: that it runs.
    """
    arguments = overload._schema.arguments
    first = [isinstance(x.type, torch.IntType) for x in arguments]
    # What stands before the first int is no part of what torch remembers an answer by.
    unseen = arguments[: first.index(True) if True in first else len(arguments)]
    is_fixed = not all(_is_free(argument.type) for argument in unseen)
    count = len(overload._schema.returns)

    @register_sharding(overload)  # type: ignore[untyped-decorator]  # torch gives it no types
    def acceptable(*args: Any, **kwargs: Any) -> Any:
        leaves = pytree.tree_leaves((args, kwargs), is_leaf=_is_spec)
        specs = [x for x in leaves if _is_spec(x)]
        found: list[Rule] = []
        if not is_fixed:
            own, named = pytree.tree_map_only(
                type(specs[0]), _meta, (args, kwargs), is_leaf=_is_spec
            )
            meshes = [specs[0].mesh.size(i) for i in range(specs[0].mesh.ndim)]
            found = list(_planned(function, own, named, meshes).each)
        whole = [Replicate()] * count, [Replicate() if _is_spec(x) else None for x in leaves]
        return [whole, *(_acceptable(rule, leaves) for rule in found)]


def _acceptable(rule: Rule, leaves: Sequence[Any]) -> Any:
    dims = iter(rule.inputs)
    placed: list[Placement | None] = []
    for x in leaves:
        dim = next(dims) if _is_spec(x) else None
        placed.append(None if not _is_spec(x) else Replicate() if dim is None else Shard(dim))
    return [Shard(dim) for dim in rule.outputs], placed


def _is_free(type: Any) -> bool:
    """Whether arguments of a type may differ from call to call."""
    return "Tensor" in str(type) or isinstance(type, torch.FloatType)


def _is_spec(value: Any) -> bool:
    return hasattr(value, "tensor_meta") and hasattr(value, "placements")


def _meta(spec: Any) -> torch.Tensor:
    return torch.empty(spec.tensor_meta.shape, dtype=spec.tensor_meta.dtype, device="meta")


def _planned(function: JitFunction, args: Any, kwargs: Any, meshes: Sequence[int]) -> Rules:
    """The rules for a call, found as if torch did not trace anything."""
    with _disable_current_modes(), tracing(None), torch.no_grad():
        plain = pytree.tree_map_only(torch.Tensor, _as_meta, (args, kwargs))
        return rules(function, function.bind(*plain[0], **plain[1]), meshes)


def _as_meta(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tuple(tensor.shape), dtype=tensor.dtype, device="meta")


# ---------------------------------------------------------------- above that, with gradients


def call(overload: Any, run: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
    """A call of an operator with DTensors: of its function, or where torch traces, of itself.

    Args:
        overload: the operator.
        run: what it runs.
        args, kwargs: of the call.
    """
    leaves, tree = pytree.tree_flatten((args, kwargs))
    tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
    if not (_len_torch_dispatch_stack() and isinstance(run, JitFunction)):
        found = run(*args, **kwargs)
        # As an operator does, it gives tensors of their own.
        return pytree.tree_map(lambda x: x.clone() if any(x is y for y in tensors) else x, found)
    mesh = next(x.device_mesh for x in tensors if isinstance(x, DTensor))
    meshes = [mesh.size(i) for i in range(mesh.ndim)]
    planned = _planned(run, args, kwargs, meshes)
    chosen = [_cheapest(planned.each, i, meshes[i], tensors) for i in range(mesh.ndim)]
    place = iter(range(len(tensors)))

    def local(tensor: Any) -> Any:
        number = next(place)
        if not isinstance(tensor, DTensor):
            return tensor
        dims = [None if rule is None else rule.inputs[number] for rule in chosen]
        needed = tuple(Replicate() if dim is None else Shard(dim) for dim in dims)
        pairs = zip(chosen, needed)
        grads = [Partial() if rule and x.is_replicate() else x for rule, x in pairs]
        return tensor.redistribute(mesh, needed).to_local(grad_placements=grads)

    own = [local(x) if isinstance(x, torch.Tensor) else x for x in leaves]
    args, kwargs = pytree.tree_unflatten(own, tree)
    results, tree = pytree.tree_flatten(overload(*args, **kwargs))
    placed = [
        tuple(Replicate() if rule is None else Shard(rule.outputs[i]) for rule in chosen)
        for i in range(len(results))
    ]
    pairs = zip(results, placed, planned.results)
    whole = [distributed(x, mesh, placements, type) for x, placements, type in pairs]
    return pytree.tree_unflatten(whole, tree)


def _cheapest(
    each: Sequence[Rule], number: int, count: int, tensors: Sequence[torch.Tensor]
) -> Rule | None:
    def total(rule: Rule | None) -> float:
        dims = [None] * len(tensors) if rule is None else rule.inputs
        return sum(
            cost(count, x, x.placements[number], Replicate() if dim is None else Shard(dim))
            for x, dim in zip(tensors, dims)
            if isinstance(x, DTensor)
        )

    return min([None, *each], key=total)
