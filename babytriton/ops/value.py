"""A tensor of the program being compiled, as rows and plain torch functions see it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from tvm import relax

from babytriton.containers import sequence
from babytriton.ops import refusals
from babytriton.ops.storage import Storage

NUMBERS: dict[type, torch.dtype] = {bool: torch.bool, int: torch.int64, float: torch.float64}
"""The dtype of each kind of Python number at run time."""


class Emitter(Protocol):
    """Where values send the operations applied to them; the builder is the one implementation."""

    @property
    def device(self) -> torch.device:
        """The device that what is emitted now runs on."""

    def call(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Emit a call of a torch callable and return its result."""

    def follows(self, value: Value) -> bool:
        """Whether gradients flow through a tensor."""

    def counted_axis(self, value: Value) -> int | None:
        """The axis along which a tensor counts from 0, as ``torch.arange`` does, if any."""

    def read(self, value: Value) -> relax.Expr:
        """A tensor whose storage may have been written to since it was made."""


class Value:
    """A Relax expression, and torch's own opinion of it as a meta tensor.

    It can be handed to torch functions and takes operators and tensor methods, which emit rows
    of the table: a decomposition is written in plain torch.

    Attributes:
        made: the expression it was made as.
        storage: the memory it lies in; ``None`` for what no user's code can write to.
    """

    def __init__(
        self,
        emitter: Emitter,
        expr: relax.Expr,
        meta: torch.Tensor,
        storage: Storage | None = None,
    ) -> None:
        self.emitter = emitter
        self.made = expr
        self.meta = meta
        self.device = emitter.device
        """Where it is computed."""
        self.storage = storage
        self.version = None if storage is None else storage.version
        self.side: object = None
        self.is_detached = False

    @property
    def expr(self) -> relax.Expr:
        """The tensor as it is now."""
        storage = self.storage
        if storage is None:
            return self.made
        is_alone = storage.part is None and not storage.copies
        if is_alone and self.version is storage.version:
            return self.made
        return self.emitter.read(self)

    @property
    def requires_grad(self) -> bool:
        """Whether gradients flow through it."""
        return self.emitter.follows(self)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        attribute = getattr(torch.Tensor, name)
        if name in ("is_cuda", "is_cpu", "is_meta"):
            return self.device.type == name.removeprefix("is_")
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

    def __str__(self) -> str:
        raise DataDependent("a formatted string")

    def __format__(self, spec: str) -> str:
        raise DataDependent("a formatted string")

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
    """A Python number whose value is known only at run time: a bool, an int or a float.

    It promotes as a Python number does. Ints are those of int64. Whatever needs the number itself
    while compiling asks for it with :func:`constant_needed`.

    Attributes:
        sample: a number of its kind; for an argument, the one of the first call.
        arguments: of the function, which make it a constant if they are constants.
    """

    def __init__(
        self,
        emitter: Emitter,
        expr: relax.Expr,
        sample: bool | int | float,
        arguments: frozenset[str] = frozenset(),
    ) -> None:
        dtype = NUMBERS[type(sample)]
        super().__init__(emitter, expr, torch.empty((), dtype=dtype, device="meta"))
        self.sample = sample
        self.arguments = arguments

    @property
    def kind(self) -> type:
        """``bool``, ``int`` or ``float``."""
        return type(self.sample)

    @property
    def tensor(self) -> Value:
        """The number as a tensor without dimensions."""
        return Value(self.emitter, self.made, self.meta)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise constant_needed(name, [self])

    def _constant(self, *_: Any) -> Any:
        raise constant_needed(self.kind.__name__, [self])

    __bool__ = __float__ = __int__ = __index__ = __len__ = __iter__ = _constant
    # As a key, it would be found by its identity and not by its value.
    __hash__ = _constant


class Text:
    """A string that shows numbers of the program, so that it is known only at run time.

    It may be joined to other strings and printed. Whatever needs its characters while compiling
    raises :class:`DataDependent`, or :class:`NeedsConstant` where constants would do.

    Args:
        make: makes the string from the arguments, once the values in them are real.
    """

    def __init__(self, make: Callable[..., str], *args: Any, **kwargs: Any) -> None:
        self.make = make
        self.args = args
        self.kwargs = kwargs

    def refuse(self, *_: Any) -> Any:
        """Say that the characters are not known."""
        values = values_in(self)
        if all(isinstance(value, Scalar) for value in values):
            raise constant_needed("a formatted string", values)
        raise DataDependent("a formatted string")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self.refuse()

    def __add__(self, other: Any) -> Any:
        return Text(operator.add, self, other) if isinstance(other, (str, Text)) else NotImplemented

    def __radd__(self, other: Any) -> Any:
        return Text(operator.add, other, self) if isinstance(other, str) else NotImplemented

    def __repr__(self) -> str:
        return "a formatted string"

    __str__ = __format__ = __bool__ = __len__ = __iter__ = __contains__ = __getitem__ = refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = __mul__ = __mod__ = refuse


@dataclass(frozen=True)
class Method:
    """A method of a tensor of the program, bound to it."""

    value: Value
    fn: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.value.emitter.call(self.fn, (self.value, *args), kwargs)


class DataDependent(Exception):
    """Python asked for a number that a tensor holds only at run time.

    Attributes:
        what: asked for it.
        instead: what the user can write, where that is known.
    """

    def __init__(self, what: str, instead: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.instead = instead


class NeedsConstant(Exception):
    """More must be known of arguments: the values of floats, and which tensors are the same."""

    def __init__(self, arguments: frozenset[str]) -> None:
        super().__init__(", ".join(sorted(arguments)))
        self.arguments = arguments


REFUSALS: tuple[type[Exception], ...] = (
    refusals.IllTyped,
    refusals.MixedDevices,
    refusals.Mutation,
    refusals.NoGradient,
    refusals.Related,
    refusals.RowError,
    refusals.RowFailed,
    refusals.Unavailable,
    refusals.Unsupported,
    refusals.UnsupportedDtype,
    refusals.WrongDevice,
    DataDependent,
    NeedsConstant,
    RecursionError,
)
"""What the frontend turns into messages, or compiles again for."""


def constant_needed(what: str, values: Iterable[Value]) -> NeedsConstant | DataDependent:
    """Why ``what`` cannot be compiled: numbers among its operands are not known yet."""
    scalars = [value for value in values if isinstance(value, Scalar)]
    arguments: frozenset[str] = frozenset().union(*(value.arguments for value in scalars))
    # Where none depends on an argument, compiling again for the argument's value does not help.
    return NeedsConstant(arguments) if arguments else DataDependent(what)


class InTensors(list[Any]):
    """A list some of whose items stand in tensors, and are none for Python."""

    @property
    def tensors(self) -> Sequence[Value]:
        """Those tensors."""
        raise NotImplementedError


def values_in(tree: Any) -> list[Value]:
    """The values in nested tuples, lists, dicts, slices and texts, in order."""
    if isinstance(tree, Value):
        return [tree]
    if isinstance(tree, Text):
        return values_in((tree.args, tree.kwargs))
    if isinstance(tree, InTensors):
        return values_in((*tree.tensors, *list.__iter__(tree)))
    if isinstance(tree, (tuple, list)):
        return [value for item in tree for value in values_in(item)]
    if isinstance(tree, dict):
        return [value for item in tree.values() for value in values_in(item)]
    if isinstance(tree, slice):
        return values_in((tree.start, tree.stop, tree.step))
    return []


def map_values(tree: Any, fn: Callable[[Value], Any]) -> Any:
    """The same nested tuples, lists, dicts, slices and texts with ``fn`` applied to each value."""

    def leaf(item: Any) -> Any:
        if isinstance(item, Text):
            args, kwargs = map_values((item.args, item.kwargs), fn)
            return Text(item.make, *args, **kwargs)
        return fn(item) if isinstance(item, Value) else item

    return _map(tree, leaf)


def written(tree: Any) -> Any:
    """The same nested tuples, lists, dicts and slices with the string of each text filled in."""

    def leaf(item: Any) -> Any:
        if not isinstance(item, Text):
            return item
        args, kwargs = written((item.args, item.kwargs))
        return item.make(*args, **kwargs)

    return _map(tree, leaf)


def _map(tree: Any, leaf: Callable[[Any], Any]) -> Any:
    if isinstance(tree, (tuple, list)):
        items = [_map(item, leaf) for item in tree]
        return items if isinstance(tree, list) else sequence(type(tree), items)
    if isinstance(tree, dict):
        return {key: _map(item, leaf) for key, item in tree.items()}
    if isinstance(tree, slice):
        return slice(*(_map(x, leaf) for x in (tree.start, tree.stop, tree.step)))
    return leaf(tree)


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
