"""Arrays of other libraries as arguments, and results as theirs: NumPy's, and all with DLPack."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from babytriton import errors
from babytriton.containers import DictKind, sequence

OUT = ("torch", "numpy", "same")
"""What results may be: torch's tensors, NumPy's arrays, or what the arguments are."""


def is_array(value: Any) -> bool:
    """Whether a value is an array of another library than torch."""
    kind = type(value)
    return hasattr(kind, "__dlpack_device__") and not isinstance(value, (torch.Tensor, float, int))


def kind_of(value: Any) -> type | None:
    """The kind of array that a value is; None for what is none."""
    if isinstance(value, torch.Tensor):
        return torch.Tensor
    return type(value) if is_array(value) else None


def has_arrays(value: Any) -> bool:
    """Whether there is an array of another library in nested tuples, lists and dicts."""
    if isinstance(value, (tuple, list)):
        return any(map(has_arrays, value))
    if isinstance(value, dict):
        return any(map(has_arrays, value.values()))
    return is_array(value)


class Arrays:
    """The arrays among the arguments of one call, which are all of one kind.

    Attributes:
        first: the first of them, by name.
        copied: by the names of those that are read from a copy, the copy.
    """

    def __init__(self) -> None:
        self.first: tuple[str, Any] | None = None
        self.copied: dict[str, torch.Tensor] = {}

    def tensors(self, names: Sequence[str], values: Sequence[Any]) -> list[Any]:
        """Arguments with a tensor in place of each array, in the same memory if possible.

        Raises:
            TypeError: torch has no such dtype, or arguments are of several kinds.
        """
        pairs = zip(names, values)
        return [map_arrays(name, value, self._tensor) for name, value in pairs]

    def _tensor(self, path: str, value: Any) -> torch.Tensor:
        if self.first is None:
            self.first = path, value
        name, other = self.first
        if kind_of(value) is not kind_of(other):
            kinds = (_named(kind_of(x)) for x in (value, other))
            raise errors.MixedArrays(None, path, name, *kinds).error()
        if isinstance(value, torch.Tensor):
            return value
        tensor = _as_tensor(path, value)
        if not _is_readable(value):
            self.copied[path] = tensor
        return tensor

    def require_own(self, written: Sequence[str]) -> None:
        """Refuse a call that writes to a copy.

        Args:
            written: the names of the arguments that are written to.

        Raises:
            ValueError: one of them is an array that is read from a copy.
        """
        for path in self.copied:
            if path in written:
                raise errors.ReadOnlyArray(None, path).error()

    @property
    def written(self) -> list[str]:
        """The names of copies that were written to since."""
        return [path for path, tensor in self.copied.items() if tensor._version]

    def converter(self, out: str) -> Callable[[torch.Tensor], Any] | None:
        """What makes of a tensor what results are to be; None for tensors.

        Args:
            out: one of ``OUT``.
        """
        like: Any = None if self.first is None else self.first[1]
        if out == "torch" or (out == "same" and not is_array(like)):
            return None
        if out == "numpy" or _named(type(like)) == "numpy.ndarray":
            return _as_numpy
        namespace = like.__array_namespace__()
        return lambda tensor: namespace.from_dlpack(tensor.detach())


def _as_numpy(tensor: torch.Tensor) -> Any:
    try:
        return tensor.detach().cpu().numpy()
    except TypeError:
        raise errors.NoArrayDtype(None, str(tensor.dtype)).error() from None


def _as_tensor(path: str, value: Any) -> torch.Tensor:
    try:
        value = value if _is_readable(value) else value.copy()
        return from_dlpack(value)
    except Exception as error:
        dtype = f" of {value.dtype}" if hasattr(value, "dtype") else ""
        given = f"a {_named(type(value))}{dtype}"
        why = " ".join(str(error).split()) or type(error).__name__
        raise errors.ArgumentType(None, path, given, f"pass a tensor: {why}").error() from error


def _is_readable(array: Any) -> bool:
    """Whether torch can share its memory.

    It would write to what must not be written to, and what lies backwards ends the process.
    """
    flags, strides = getattr(array, "flags", None), getattr(array, "strides", None) or ()
    return bool(getattr(flags, "writeable", True)) and all(stride >= 0 for stride in strides)


def _named(kind: type | None) -> str:
    return "" if kind is None else f"{kind.__module__}.{kind.__qualname__}"


def map_arrays(path: str, value: Any, fn: Callable[[str, Any], Any]) -> Any:
    """An argument with each tensor and array in it replaced, which ``fn`` is given by its path."""
    if kind_of(value) is not None:
        return fn(path, value)
    if isinstance(value, (tuple, list)):
        items = [map_arrays(f"{path}[{i}]", item, fn) for i, item in enumerate(value)]
        return sequence(type(value), items)
    if isinstance(value, dict):
        named = {key: map_arrays(f"{path}[{key!r}]", item, fn) for key, item in value.items()}
        return DictKind.of(value).make(named)
    return value
