"""Compiled functions as functions of JAX's arrays.

While JAX traces, the function is lowered for the shapes at hand, which tells the types of results
and of what is saved for the way back. Both ways are programs that XLA calls (:mod:`.xla`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch

from babytriton import errors
from babytriton.buffers import Differentiable, Program, Saved, leaves, target_on
from babytriton.frontend.program import Cotangent
from babytriton.integrations import require
from babytriton.integrations.xla import PLATFORMS, Call
from babytriton.jit import JitFunction
from babytriton.recording import Key
from babytriton.stages import require_runs
from babytriton.types import DTYPES, find_dtype

jax: Any = require("jax", "as_jax", "jax")


def as_jax(function: JitFunction) -> Callable[..., Any]:
    """A compiled function as one of JAX's arrays.

    Python values among the arguments are constants of a call, as static arguments are.

    Args:
        function: to compile for each kind of arguments, and for the platform that they are on.

    Returns:
        A function to call, and to pass to jax.jit, jax.grad, jax.vjp and jax.vmap.

    Raises:
        RuntimeError: it is compiled for its source alone.
    """
    if function.target is not None:
        require_runs(function.__name__, function.target)
    kinds: dict[Any, _Kind] = {}

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        bound = dict(zip(function.names, function.bind(*args, **kwargs)))
        given = _Arguments.of(bound, (args, kwargs))
        platform = _platform(function, given.arrays)
        types = tuple((x.shape, x.dtype) for x in given.arrays)
        key = (given.structure, given.constants, types, platform, function.environment())
        kind = kinds.get(key)
        if kind is None or not kind.plain.program.is_current:
            given.require_types(bound)
            kind = kinds[key] = _Kind(function, given, platform)
        return kind(given.arrays)

    return run


@dataclass(frozen=True)
class _Arguments:
    """The arguments of a call, with arrays apart from constants.

    Attributes:
        structure: of the parameters' values, as JAX has it.
        leaves: of these.
        constants: a text for each leaf that is no array; ``None`` for an array.
        arrays: the leaves that are arrays.
    """

    structure: Any
    leaves: tuple[Any, ...]
    constants: tuple[Any, ...]
    arrays: tuple[Any, ...]

    @classmethod
    def of(cls, bound: dict[str, Any], given: Any) -> _Arguments:
        """Those of a call.

        Args:
            bound: the value of each parameter.
            given: what was passed; the other values are defaults.

        Raises:
            TypeError: an argument is a tensor of torch's.
        """
        found, structure = jax.tree_util.tree_flatten(list(bound.values()))
        leaves, constants = [], []
        for i, leaf in enumerate(found):
            if isinstance(leaf, torch.Tensor):
                _require_default(bound, i, given)
            is_array = _is_array(leaf)
            if not is_array and hasattr(leaf, "__jax_array__"):
                leaf, is_array = leaf.__jax_array__(), True
            if is_array and not isinstance(leaf, jax.Array):
                leaf = jax.numpy.asarray(leaf)
            leaves.append(leaf)
            constants.append(None if is_array else _constant(leaf))
        arrays = tuple(x for x, constant in zip(leaves, constants) if constant is None)
        return cls(structure, tuple(leaves), tuple(constants), arrays)

    def require_types(self, bound: dict[str, Any]) -> None:
        """Refuse arrays that no program can be compiled for.

        Args:
            bound: the value of each parameter.

        Raises:
            TypeError, ValueError: a dtype is not supported, or a size is no number.
        """
        for i, (leaf, constant) in enumerate(zip(self.leaves, self.constants)):
            if constant is not None:
                continue
            if find_dtype(str(leaf.dtype)) is None:
                expected = f"one of {', '.join(dtype.name for dtype in DTYPES)}"
                path = _path(bound, i)
                raise errors.ArgumentDtype(None, path, expected, str(leaf.dtype)).error()
            if not all(isinstance(n, int) for n in leaf.shape):
                shape = f"({', '.join(map(str, leaf.shape))})"
                path = _path(bound, i)
                raise errors.ArgumentShape(None, path, "sizes that are numbers", shape).error()

    def described(self, records: bool) -> tuple[list[Any], list[torch.Tensor]]:
        """The values to lower the function for, and those that stand for arrays.

        Args:
            records: whether gradients are asked for.
        """
        leaves, metas = [], []
        for leaf, constant in zip(self.leaves, self.constants):
            if constant is None:
                dtype = _dtype(leaf.dtype)
                asked = records and dtype.is_floating_point
                leaf = torch.empty(leaf.shape, dtype=dtype, device="meta", requires_grad=asked)
                metas.append(leaf)
            leaves.append(leaf.detach() if constant and isinstance(leaf, torch.Tensor) else leaf)
        return jax.tree_util.tree_unflatten(self.structure, leaves), metas


class _Kind:
    """The function for arguments of one kind: of the same shapes, dtypes and constants.

    Args:
        function: to compile.
        given: such arguments.
        platform: that JAX traces for, as far as one can tell.
    """

    def __init__(self, function: JitFunction, given: _Arguments, platform: str) -> None:
        self._function, self._platform = function, platform
        # Of the arrays their types alone, so that they are not kept.
        leaves = tuple(map(_types, given.leaves))
        self._given = _Arguments(given.structure, leaves, given.constants, ())
        self._texts = repr(given.constants)
        self._places: dict[Key, int] = {}
        self.plain = Call(self._plain, platform, self._texts)
        self.plain.program.require_unwritten()
        recorded = jax.custom_vjp(self._run)
        recorded.defvjp(self._forward, self._backward)

        def run(*arrays: Any) -> Any:
            return recorded(*arrays)

        run.__name__ = run.__qualname__ = function.__name__
        self._jitted = jax.jit(run)

    def __call__(self, arrays: Sequence[Any]) -> Any:
        """The function's result for such arguments."""
        outputs = self._jitted(*arrays) if self.plain.program.results else ()

        def input(key: Key, read: Callable[[], Any] | None) -> Any:
            if read is None:
                return arrays[self._places[key]]
            value = read()
            return _from_torch(value) if isinstance(value, torch.Tensor) else value

        return self.plain.program.filled(outputs, input)

    def _plain(self, platform: str) -> Program:
        return Program.of(*self._lowered(platform, records=False), records=False)

    def _differentiable(self, platform: str) -> Differentiable:
        return Differentiable(*self._lowered(platform, records=True))

    def _lowered(self, platform: str, records: bool) -> tuple[Any, dict[Key, Any]]:
        """The function lowered for a platform, and the values of leaves that are no arrays."""
        values, metas = self._given.described(records)
        target = target_on(self._function.__name__, self._function.target, platform)
        with torch.set_grad_enabled(records):
            lowered = self._function.lower_bound(values, target)
        numbers = {id(meta): i for i, meta in enumerate(metas)}
        own = {}
        for i, leaf in enumerate(leaves(lowered, values)):
            if id(leaf) in numbers:
                self._places["leaf", i] = numbers[id(leaf)]
            else:
                own["leaf", i] = functools.partial(_same, leaf)
        return lowered, own

    def _run(self, *arrays: Any) -> list[Any]:
        return self.plain([arrays[self._places[key]] for key in self.plain.keys])

    @cached_property
    def _level(self) -> _Level:
        return _Level(self._differentiable, self._platform, self._texts)

    def _forward(self, *arrays: Any) -> tuple[list[Any], Any]:
        values = [arrays[self._places[key]] for key in self._level.given]
        results, kept = self._level.forward(*values)
        return results, (values, kept)

    def _backward(self, recorded: Any, grads: Any) -> tuple[Any, ...]:
        values, kept = recorded
        found = self._level.backward(values, kept, self._level.followed(grads))
        places = [self._places[key] for key in self._level.differentiated]
        by_place = dict(zip(places, found))
        return tuple(map(by_place.get, range(len(self._places))))


class _Level:
    """The function with its gradients; or its gradient with gradients of that, and so on.

    Args:
        of: gives its programs for a platform.
        platform: that JAX traces for, as far as one can tell.
        constants: a text for the values that the function has of its own.

    Attributes:
        given: the keys of the values that it is computed from.
        differentiated: of these, those that it gives gradients of.
    """

    def __init__(self, of: Callable[[str], Differentiable], platform: str, constants: str) -> None:
        self._of = functools.cache(of)
        self._platform, self._constants = platform, constants
        self._programs = found = self._of(platform)
        self._ahead = Call(lambda at: self._of(at).forward, platform, constants, found.results)
        self._behind = Call(lambda at: self._of(at).backward, platform, constants)
        self.given = self._ahead.keys
        self.differentiated = [key for key, n in found.gradients.items() if n is not None]
        self.differentiated = [key for key in self.differentiated if key in self.given]

    @cached_property
    def _next(self) -> _Level:
        return _Level(lambda at: self._of(at).next, self._platform, self._constants)

    @cached_property
    def forward(self) -> Callable[..., Any]:
        """Of values: the results, and what is kept for the way back.

        What is kept has no gradient of its own: that of the way back is of the values as well.
        """

        @jax.custom_vjp  # type: ignore[untyped-decorator]  # JAX may not be installed
        def run(*values: Any) -> tuple[list[Any], list[Any]]:
            found = self._ahead(values)
            kept = [found[x.number] for x in self._programs.sources if isinstance(x, Saved)]
            return found[: self._programs.results], kept

        def record(*values: Any) -> Any:
            results, kept = run(*values)
            return (results, kept), (list(values), kept)

        def back(recorded: Any, grads: Any) -> tuple[Any, ...]:
            values, kept = recorded
            found = self.backward(values, kept, self.followed(grads[0]))
            by_key = dict(zip(self.differentiated, found))
            return tuple(map(by_key.get, self.given))

        run.defvjp(record, back)
        return cast(Callable[..., Any], run)

    @cached_property
    def backward(self) -> Callable[..., Any]:
        """Of values, of what is kept, and of gradients of results: the gradients of values."""
        programs = self._programs
        order = programs.order

        @jax.custom_vjp  # type: ignore[untyped-decorator]  # JAX may not be installed
        def run(values: Any, kept: Any, grads: Any) -> list[Any]:
            by_key, saved = dict(zip(self.given, values)), iter(kept)
            by_output = dict(zip(programs.differentiable, grads))
            operands = []
            for source in programs.sources:
                if isinstance(source, Saved):
                    operands.append(next(saved))
                elif isinstance(source, Cotangent):
                    operands.append(by_output[source.output])
                else:
                    operands.append(by_key[source])
            found = self._behind(operands)
            numbers = [programs.gradients[key] for key in self.differentiated]
            return [found[n] for n in numbers if n is not None]

        def record(values: Any, kept: Any, grads: Any) -> Any:
            by_key = dict(zip(self.given, values))
            outputs = programs.differentiable
            by_key |= {("gradient", order, n): x for n, x in zip(outputs, grads)}
            given = [by_key[key] for key in self._next.given]
            results, others = self._next.forward(*given)
            places = programs.next_results
            found = [results[places[key]] for key in self.differentiated]
            return found, (given, others, results, kept)

        def back(recorded: Any, grads: Any) -> tuple[Any, Any, Any]:
            given, others, results, kept = recorded
            of_results = [jax.numpy.zeros_like(x) for x in results]
            for key, grad in zip(self.differentiated, grads):
                of_results[programs.next_results[key]] = grad
            found = self._next.backward(given, others, self._next.followed(of_results))
            by_key = dict(zip(self._next.differentiated, found))
            outputs = [("gradient", order, n) for n in programs.differentiable]
            of_values = list(map(by_key.get, self.given))
            return of_values, [None for _ in kept], [by_key.get(key) for key in outputs]

        run.defvjp(record, back)
        return cast(Callable[..., Any], run)

    def followed(self, grads: Sequence[Any]) -> list[Any]:
        """Of gradients of results, those of the results that gradients flow through."""
        return [grads[n] for n in self._programs.differentiable]


def _same(value: Any) -> Any:
    return value


def _is_array(leaf: Any) -> bool:
    is_number = isinstance(leaf, (bool, int, float))  # NumPy has a subclass of float
    return isinstance(leaf, (jax.Array, np.ndarray, np.generic)) and not is_number


def _constant(leaf: Any) -> str:
    """A text that differs for values that make different programs."""
    if isinstance(leaf, torch.Tensor):
        return f"tensor {id(leaf)}"
    text = leaf.hex() if isinstance(leaf, float) else repr(leaf)
    return f"{type(leaf).__name__} {text}"


def _dtype(dtype: Any) -> torch.dtype:
    found = find_dtype(str(dtype))
    assert found is not None
    return found.torch


def _require_default(bound: dict[str, Any], number: int, given: Any) -> None:
    """Refuse a tensor among the arguments that is no parameter's default."""
    tensor = jax.tree_util.tree_leaves(list(bound.values()))[number]
    if any(x is tensor for x in jax.tree_util.tree_leaves(given)):
        instead = "pass one of JAX's or NumPy's arrays"
        path = _path(bound, number)
        raise errors.ArgumentType(None, path, "a torch.Tensor", instead).error()


def _path(bound: dict[str, Any], number: int) -> str:
    """What the user calls a leaf of the parameters' values, by its number."""
    paths, _ = jax.tree_util.tree_flatten_with_path(list(bound.values()))
    (first, *rest), _ = paths[number]
    return f"{list(bound)[first.idx]}{jax.tree_util.keystr(tuple(rest))}"


def _types(leaf: Any) -> Any:
    """A leaf, or of an array what is known when JAX traces."""
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if _is_array(leaf) else leaf


def _platform(function: JitFunction, arrays: Sequence[Any]) -> str:
    """The platform that JAX most likely traces for; when it lowers, it says which it is."""
    if function.target is not None:
        return function.target.device_type
    device = jax.config.jax_default_device
    for array in arrays:
        if not isinstance(array, jax.core.Tracer):
            device = next(iter(array.devices()))
            break
    found = device or jax.default_backend()
    found = getattr(found, "platform", found)
    return next((ours for ours, its in PLATFORMS.items() if found in (ours, its)), "cpu")


def _from_torch(tensor: torch.Tensor) -> Any:
    """A copy of a tensor as an array."""
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:  # NumPy has none
        return jax.numpy.asarray(tensor.float().numpy(), jax.numpy.bfloat16)
    return jax.numpy.array(tensor.numpy())
