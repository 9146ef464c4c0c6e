"""Call arguments -> the key a specialization is found by, and the leaves it runs on."""

from __future__ import annotations

import enum
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch

from babytriton import errors
from babytriton.containers import DictKind, sequence
from babytriton.frontend.dimensions import Dimensions
from babytriton.frontend.known import Known, is_static, known_of
from babytriton.frontend.objects import described, is_object, object_key
from babytriton.frontend.parameters import Absent
from babytriton.ops import autocast
from babytriton.ops.autocast import State
from babytriton.tensor import Tensor
from babytriton.types import (
    DTYPES,
    MemoryFormat,
    TensorType,
    find_dtype,
    of_any_sizes,
    without_gaps,
)

_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
_unwrapped = torch._C._functorch.get_unwrapped

OF_TORCH = (torch.dtype, torch.device, torch.layout, torch.memory_format)
"""What torch has besides tensors that Python compares by value."""
CONSTANTS = (bool, int, str, range, type(None), *OF_TORCH, Absent)
"""Python values that are part of the program: another value is another program."""


@dataclass(frozen=True)
class TensorSpec:
    """A tensor argument.

    Attributes:
        type: of it.
        device: it was on.
        requires_grad: whether gradients of it are asked for.
        format: how it lies in memory; None where it is read as a contiguous tensor.
    """

    type: TensorType
    device: torch.device
    requires_grad: bool = False
    format: MemoryFormat | None = None

    def __str__(self) -> str:
        return str(self.type) if self.format is None else f"{self.type} ({self.format})"


@dataclass(frozen=True)
class FloatSpec:
    """A Python float whose value stays variable; ``sample`` is the one of the first call."""

    sample: float

    def __str__(self) -> str:
        return "float"


@dataclass(frozen=True)
class ConstSpec:
    """A Python value that the program depends on."""

    value: Any

    def __str__(self) -> str:
        return repr(self.value)


@dataclass(frozen=True, eq=False)
class ObjectSpec:
    """A function, a class, a module or another object that the program knows."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectSpec) and object_key(self.value) == object_key(other.value)

    def __hash__(self) -> int:
        return hash(object_key(self.value))

    def __str__(self) -> str:
        return described(self.value)


@dataclass(frozen=True)
class SequenceSpec:
    """A tuple or list of arguments, and its class."""

    kind: type
    items: tuple[Spec, ...]

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.items))})"


@dataclass(frozen=True)
class DictSpec:
    """A dict of arguments."""

    kind: DictKind
    keys: tuple[Any, ...]
    items: tuple[Spec, ...]

    def __str__(self) -> str:
        return f"{{{', '.join(f'{k!r}: {v}' for k, v in zip(self.keys, self.items))}}}"


Spec = TensorSpec | FloatSpec | ConstSpec | ObjectSpec | SequenceSpec | DictSpec


@dataclass(frozen=True)
class Leaf:
    """A tensor or float among the arguments, named as the user would reach it: ``w['bias'][0]``."""

    path: str
    spec: TensorSpec | FloatSpec


@dataclass(frozen=True)
class Signature:
    """What a function is compiled for: a spec for each parameter, in order."""

    names: tuple[str, ...]
    specs: tuple[Spec, ...]
    static: frozenset[str] = frozenset()
    """Paths of float arguments that are constants of the program, and of tensors of which it asks
    more than their types."""
    known: tuple[Known, ...] = ()
    """What is so of each of these tensors."""
    autocast: State = ()
    """What torch.autocast is set to."""
    copies: bool = False
    """Whether arguments that are parts of other tensors are copied, as the sizes of these vary."""

    @classmethod
    def of(
        cls,
        names: Sequence[str],
        values: Sequence[Any],
        static: frozenset[str] = frozenset(),
        dimensions: Dimensions | None = None,
    ) -> Signature:
        """Describe the arguments of a call.

        Args:
            names: the parameters' names.
            values: their values: tensors (real or meta), :class:`Tensor` specs, Python values.
            static: as the attribute.
            dimensions: says which of them are symbolic; none, if not given.

        Raises:
            TypeError: an argument is of a type that cannot be compiled for.
        """
        dims = dimensions or Dimensions()
        specs = (_describe(name, value, static, dims) for name, value in zip(names, values))
        known = known_of(names, values, static)
        found = cls(tuple(names), tuple(specs), static, known, autocast.state())
        found = replace(found, copies=dims.parts_vary)
        formats = [getattr(leaf.spec, "format", None) for leaf in found.leaves()]
        if found.copies_parts(formats):
            found = found._of_formats(lambda spec: without_gaps(spec.format))
        if found.is_symbolic:
            found = found._of_formats(lambda spec: of_any_sizes(spec.format, spec.type))
        return found

    def _of_formats(self, format: Callable[[TensorSpec], MemoryFormat | None]) -> Signature:
        """The same for tensors that lie otherwise."""
        return replace(self, specs=tuple(_of_formats(spec, format) for spec in self.specs))

    def leaves(self) -> list[Leaf]:
        """The tensors and variable floats, in the order in which a call passes them."""
        return [leaf for name, spec in zip(self.names, self.specs) for leaf in _leaves(name, spec)]

    def objects(self) -> dict[str, Any]:
        """Of the arguments those that are neither tensors nor constants, by their paths."""
        return {
            path: spec.value
            for name, own in zip(self.names, self.specs)
            for path, spec in _parts(name, own)
            if isinstance(spec, ObjectSpec)
        }

    @property
    def is_symbolic(self) -> bool:
        """Whether a size is known only at the call."""
        specs = [leaf.spec for leaf in self.leaves()]
        return any(isinstance(spec, TensorSpec) and spec.type.dims for spec in specs)

    @property
    def has_gaps(self) -> bool:
        """Whether an argument is part of another tensor, and read where it lies."""
        specs = [leaf.spec for leaf in self.leaves()]
        return any(isinstance(x, TensorSpec) and x.format and x.format.gaps for x in specs)

    def copies_parts(self, formats: Iterable[MemoryFormat | None]) -> bool:
        """Whether arguments that are parts of other tensors are copied.

        All of them, if what one is part of varies, or does not tell the symbolic sizes.

        Args:
            formats: of the tensors and variable floats of a call; None for these.
        """
        return self.copies or any(
            isinstance(leaf.spec, TensorSpec)
            and format is not None
            and format.gaps
            and not format.repeated
            and of_any_sizes(format, leaf.spec.type) is None
            for leaf, format in zip(self.leaves(), formats, strict=True)
        )

    def require(self, given: Signature) -> None:
        """Refuse other arguments than these.

        Raises:
            TypeError, ValueError: an argument does not fit; the message names it.
        """
        for name, spec, other in zip(self.names, self.specs, given.specs):
            _require(name, spec, other)
        for known, found in zip(self.known, given.known, strict=True):
            known.require(found)

    def __str__(self) -> str:
        return ", ".join(f"{name}: {spec}" for name, spec in zip(self.names, self.specs))


def call_key(values: Sequence[Any], static: frozenset[str], names: Sequence[str]) -> Any:
    """What two calls must share to run the same program, hashable.

    Values that no program can be compiled for give a key that no specialization has.
    """
    if not static:
        return tuple([_key(value) for value in values])
    keys = [_static_key(name, value, static) for name, value in zip(names, values)]
    return (*keys, known_of(names, values, static))


def records(tensor: torch.Tensor) -> bool:
    """Whether torch, or a torch.func around the call, records what is computed from a tensor."""
    while not tensor.requires_grad:
        if not _is_wrapped(tensor):
            return False
        tensor = _unwrapped(tensor)
    return torch.is_grad_enabled()


def loosened(key: Any, sizes: bool, gaps: bool) -> Any:
    """A :func:`call_key` without some of what programs are compiled for.

    Args:
        key: of a call.
        sizes: whether for any sizes: then there are ranks in place of shapes.
        gaps: whether tensors that are parts of others are copied.
    """
    if isinstance(key, torch.Size):
        return len(key) if sizes else key
    if isinstance(key, MemoryFormat):
        return None if (key.repeated and sizes) or (key.gaps and gaps) else key
    return tuple([loosened(part, sizes, gaps) for part in key]) if isinstance(key, tuple) else key


def leaves_of(values: Sequence[Any], static: frozenset[str], names: Sequence[str]) -> list[Any]:
    """The tensors and variable floats of a call, in the order of :meth:`Signature.leaves`."""
    found: list[Any] = []
    for name, value in zip(names, values):
        _collect(name, value, static, found)
    return found


def _key(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if _has_functions(type(value)) or value.is_nested:
            return (type(value), None)
        format = MemoryFormat.of(value)
        return (value.dtype, value.shape, value.device, value.layout, format, records(value))
    if _is_float(value):
        return float
    kind = type(value)
    if isinstance(value, (tuple, list)):
        return (kind, *[_key(item) for item in value])
    if isinstance(value, dict):
        return (DictKind.of(value), *[(name, _key(item)) for name, item in value.items()])
    # The type as well: True, 1 and 1.0 are equal, and mean different programs.
    return (kind, value) if _is_constant(value) else object_key(value)


def _is_float(value: Any) -> bool:
    return isinstance(value, float) and not isinstance(value, enum.Enum)


def _is_constant(value: Any) -> bool:
    return isinstance(value, CONSTANTS) and not isinstance(value, enum.Enum)


def _static_key(path: str, value: Any, static: frozenset[str]) -> Any:
    if _is_float(value) and is_static(path, static):
        # NaN is not equal to itself, and 0.0 equals -0.0.
        return (float, value.hex())
    kind = type(value)
    if isinstance(value, (tuple, list)):
        items = enumerate(value)
        return (kind, *[_static_key(f"{path}[{i}]", item, static) for i, item in items])
    if isinstance(value, dict):
        pairs = value.items()
        return (
            DictKind.of(value),
            *[(k, _static_key(f"{path}[{k!r}]", item, static)) for k, item in pairs],
        )
    return _key(value)


def _describe(path: str, value: Any, static: frozenset[str], dims: Dimensions) -> Spec:
    if isinstance(value, torch.Tensor):
        return _describe_tensor(path, value, dims)
    if isinstance(value, Tensor):
        return TensorSpec(dims.described(path, value), torch.device("meta"))
    if _is_float(value):
        # As Python's own: NumPy has a subclass.
        return ConstSpec(value) if is_static(path, static) else FloatSpec(float(value))
    if isinstance(value, (tuple, list)):
        items = [_describe(f"{path}[{i}]", x, static, dims) for i, x in enumerate(value)]
        return SequenceSpec(type(value), tuple(items))
    if isinstance(value, dict):
        items = [_describe(f"{path}[{key!r}]", x, static, dims) for key, x in value.items()]
        return DictSpec(DictKind.of(value), tuple(value), tuple(items))
    if _is_constant(value):
        return ConstSpec(value)
    return ObjectSpec(value) if is_object(value) else _refuse_type(path, value)


def _require(path: str, spec: Spec, given: Spec) -> None:
    if isinstance(spec, TensorSpec) and isinstance(given, TensorSpec):
        if spec.type.dtype != given.type.dtype:
            dtypes = [str(t.type.dtype).removeprefix("torch.") for t in (spec, given)]
            raise errors.ArgumentDtype(None, path, *dtypes).error()
        if not spec.type.covers(given.type):
            raise errors.ArgumentShape(None, path, str(spec.type), str(given.type)).error()
        repeated = frozenset() if spec.format is None else spec.format.repeated
        if not repeated <= (frozenset() if given.format is None else given.format.repeated):
            axes = ", ".join(map(str, sorted(repeated)))
            raise errors.ArgumentExpanded(None, path, axes).error()
    elif isinstance(spec, SequenceSpec) and isinstance(given, SequenceSpec):
        if spec.kind is not given.kind or len(spec.items) != len(given.items):
            raise errors.ArgumentValue(None, path, str(spec), str(given)).error()
        for i, (item, other) in enumerate(zip(spec.items, given.items)):
            _require(f"{path}[{i}]", item, other)
    elif isinstance(spec, DictSpec) and isinstance(given, DictSpec):
        if spec.kind != given.kind or spec.keys != given.keys:
            raise errors.ArgumentValue(None, path, str(spec), str(given)).error()
        for key, item, other in zip(spec.keys, spec.items, given.items):
            _require(f"{path}[{key!r}]", item, other)
    elif not (isinstance(spec, FloatSpec) and isinstance(given, FloatSpec)) and spec != given:
        another = "another one" if str(spec) == str(given) else str(given)
        raise errors.ArgumentValue(None, path, str(spec), another).error()


def _of_formats(spec: Spec, format: Callable[[TensorSpec], MemoryFormat | None]) -> Spec:
    """A spec of tensors that lie otherwise."""
    if isinstance(spec, TensorSpec):
        return replace(spec, format=format(spec))
    if isinstance(spec, (SequenceSpec, DictSpec)):
        return replace(spec, items=tuple(_of_formats(item, format) for item in spec.items))
    return spec


def _refuse_type(path: str, value: Any) -> NoReturn:
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    given = f"an instance of {kind}"
    if kind.startswith("numpy.") and hasattr(value, "item"):
        raise errors.ArgumentType(None, path, given, f"pass {path}.item()").error()
    raise errors.ArgumentType(None, path, given).error()


# As plain tensors have it, and parameters.
_PLAIN = (
    inspect.getattr_static(torch.Tensor, "__torch_function__").__func__,
    torch._C._disabled_torch_function_impl,
)


@functools.cache
def _has_functions(kind: type[torch.Tensor]) -> bool:
    """Whether a class says itself what torch's functions do with its tensors."""
    own = kind.__torch_function__
    return getattr(own, "__func__", own) not in _PLAIN


def _describe_tensor(path: str, tensor: torch.Tensor, dims: Dimensions) -> TensorSpec:
    if _has_functions(type(tensor)):
        raise errors.ArgumentSubclass(None, path, type(tensor).__qualname__).error()
    if tensor.is_nested:
        raise errors.ArgumentLayout(None, path, "nested", "to_padded_tensor(0.0)").error()
    if tensor.layout is not torch.strided:
        layout = str(tensor.layout).removeprefix("torch.")
        raise errors.ArgumentLayout(None, path, layout).error()
    if find_dtype(tensor.dtype) is None:
        expected = f"one of {', '.join(dtype.name for dtype in DTYPES)}"
        given = str(tensor.dtype).removeprefix("torch.")
        raise errors.ArgumentDtype(None, path, expected, given).error()
    found = dims.argument(path, TensorType.of(tensor))
    return TensorSpec(found, tensor.device, records(tensor), dims.lying(path, tensor))


def _leaves(path: str, spec: Spec) -> Iterator[Leaf]:
    for place, part in _parts(path, spec):
        if isinstance(part, (TensorSpec, FloatSpec)):
            yield Leaf(place, part)


def _parts(path: str, spec: Spec) -> Iterator[tuple[str, Spec]]:
    """What is in sequences and dicts, each part with its path."""
    if isinstance(spec, SequenceSpec):
        for i, item in enumerate(spec.items):
            yield from _parts(f"{path}[{i}]", item)
    elif isinstance(spec, DictSpec):
        for key, item in zip(spec.keys, spec.items):
            yield from _parts(f"{path}[{key!r}]", item)
    else:
        yield path, spec


def _collect(path: str, value: Any, static: frozenset[str], found: list[Any]) -> None:
    if isinstance(value, torch.Tensor):
        found.append(value)
    elif _is_float(value):
        if not is_static(path, static):
            found.append(value)
    elif isinstance(value, (tuple, list)):
        for i, item in enumerate(value):
            _collect(f"{path}[{i}]" if static else path, item, static, found)
    elif isinstance(value, dict):
        for key, item in value.items():
            _collect(f"{path}[{key!r}]" if static else path, item, static, found)


def rebuild(spec: Spec, leaf: Callable[[], Any]) -> Any:
    """The Python object a spec describes, with ``leaf()`` for each tensor and float in order."""
    if isinstance(spec, (TensorSpec, FloatSpec)):
        return leaf()
    if isinstance(spec, (ConstSpec, ObjectSpec)):
        return spec.value
    items = [rebuild(item, leaf) for item in spec.items]
    if isinstance(spec, DictSpec):
        return spec.kind.make(dict(zip(spec.keys, items)))
    return sequence(spec.kind, items)
