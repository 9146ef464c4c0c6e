"""A tensor of the program being compiled, as rows and plain torch functions see it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from tvm import relax

from babytriton.ops.trees import leaves_in, map_leaves


class Emitter(Protocol):
    """Where values send the operations applied to them; the builder is the one implementation."""

    @property
    def device(self) -> torch.device:
        """The device that the program runs on."""

    def call(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Emit a call of a torch callable and return its result."""


class Value:
    """A Relax expression, and torch's own opinion of it as a meta tensor.

    It can be handed to torch functions and takes operators and tensor methods, which emit rows
    of the table: a decomposition is written in plain torch.
    """

    def __init__(self, emitter: Emitter, expr: relax.Expr, meta: torch.Tensor) -> None:
        self.emitter = emitter
        self.expr = expr
        self.meta = meta

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        attribute = getattr(torch.Tensor, name)
        if name == "device":
            return self.emitter.device
        if name in ("is_cuda", "is_cpu", "is_meta"):
            return self.emitter.device.type == name.removeprefix("is_")
        if callable(attribute):
            return Method(self, attribute)
        found = getattr(self.meta, name)
        return self.emitter.call(attribute, (self,), {}) if _holds_tensor(found) else found

    @classmethod
    def __torch_function__(
        cls,
        fn: Callable[..., Any],
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        [first, *_] = values_in((args, kwargs or {}))
        return first.emitter.call(fn, args, dict(kwargs or {}))

    def __bool__(self) -> bool:
        raise DataDependent("bool")

    def __float__(self) -> float:
        raise DataDependent("float")

    def __int__(self) -> int:
        raise DataDependent("int")

    __index__ = __int__

    def __len__(self) -> int:
        return len(self.meta)

    def __iter__(self) -> Iterator[Any]:
        return iter([self[i] for i in range(len(self.meta))])

    def __repr__(self) -> str:
        return f"Value({tuple(self.meta.shape)}, {self.meta.dtype})"

    def __getitem__(self, item: Any) -> Any:
        return self.emitter.call(operator.getitem, (self, item), {})

    # Comparison by value builds a graph node; identity is what containers of values need.
    __hash__ = object.__hash__


class Scalar(Value):
    """A Python float argument whose value is known only at run time.

    It promotes as a Python number does. Whatever needs the number itself while compiling raises
    :class:`NeedsConstant`, and the function is compiled for that one value.
    """

    def __init__(
        self, emitter: Emitter, expr: relax.Expr, sample: float, arguments: frozenset[str]
    ) -> None:
        super().__init__(emitter, expr, torch.empty((), dtype=torch.float64, device="meta"))
        self.sample = sample
        self.arguments = arguments

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NeedsConstant(self.arguments)

    def _constant(self, *_: Any) -> Any:
        raise NeedsConstant(self.arguments)

    __bool__ = __float__ = __int__ = __index__ = __len__ = __iter__ = _constant


@dataclass(frozen=True)
class Method:
    """A method of a tensor of the program, bound to it."""

    value: Value
    fn: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.value.emitter.call(self.fn, (self.value, *args), kwargs)


class DataDependent(Exception):
    """Python asked for a number that a tensor holds only at run time."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


class NeedsConstant(Exception):
    """Float arguments must be constants of the program for it to be compiled."""

    def __init__(self, arguments: frozenset[str]) -> None:
        super().__init__(", ".join(sorted(arguments)))
        self.arguments = arguments


def values_in(tree: Any) -> list[Value]:
    """The values in nested tuples, lists, dicts and slices, in order."""
    return leaves_in(tree, Value)


def map_values(tree: Any, fn: Callable[[Value], Any]) -> Any:
    """The same nested tuples, lists, dicts and slices with ``fn`` applied to each value."""
    return map_leaves(tree, Value, fn)


def _holds_tensor(found: Any) -> bool:
    return isinstance(found, torch.Tensor) or (
        isinstance(found, (tuple, list)) and any(_holds_tensor(item) for item in found)
    )


def _binary(fn: Callable[[Any, Any], Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def forward(self: Value, other: Any) -> Any:
        return self.emitter.call(fn, (self, other), {})

    def reflected(self: Value, other: Any) -> Any:
        return self.emitter.call(fn, (other, self), {})

    return forward, reflected


def _unary(fn: Callable[[Any], Any]) -> Callable[[Value], Any]:
    return lambda self: self.emitter.call(fn, (self,), {})


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"):
    _forward, _reflected = _binary(getattr(operator, _name))
    setattr(Value, f"__{_name}__", _forward)
    setattr(Value, f"__r{_name}__", _reflected)
for _name in ("and_", "or_", "xor", "lshift", "rshift"):
    _forward, _reflected = _binary(getattr(operator, _name))
    setattr(Value, f"__{_name.rstrip('_')}__", _forward)
    setattr(Value, f"__r{_name.rstrip('_')}__", _reflected)
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Value, f"__{_name}__", _binary(getattr(operator, _name))[0])
for _name in ("neg", "pos", "abs", "invert"):
    setattr(Value, f"__{_name}__", _unary(getattr(operator, _name)))
