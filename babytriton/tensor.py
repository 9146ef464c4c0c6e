"""``Tensor``: the annotation of a parameter, and the article's boxed tensor."""

from __future__ import annotations

import typing
from collections.abc import Callable, Sequence
from typing import Any

import torch

from babytriton import errors
from babytriton.types import DType, Size, TensorType, find_dtype


class Tensor:
    """Shape and dtype of a tensor, and, once it is put in, the tensor itself.

    All of these say the same::

        bt.Tensor(shape=(2, 3), dtype="float32")
        bt.Tensor[(2, 3), "float32"]

    Args:
        shape: sizes; a name such as ``"n"`` stands for any size, the same wherever it is used.
        dtype: a name such as ``"float32"``, or a ``torch.dtype``.

    Raises:
        TypeError: the shape is no tuple or list, or a size is neither an int nor a name.
        ValueError: a size is negative or a dtype, or the dtype is not supported.
    """

    def __init__(self, shape: Sequence[int | str], dtype: str | torch.dtype = "float32") -> None:
        if not isinstance(shape, (tuple, list)):
            raise TypeError(f"shape must be a tuple or list, not {shape!r}")
        for size in shape:
            if isinstance(size, bool) or not isinstance(size, (int, str)):
                raise TypeError(f"size {size!r} in shape {tuple(shape)} is no int or name")
            if isinstance(size, int) and size < 0:
                raise ValueError(f"size {size} in shape {tuple(shape)} is negative")
            if isinstance(size, str) and find_dtype(size) is not None:
                sizes = ", ".join(repr(other) for other in shape if other != size)
                instead = f"a dtype stands behind the shape: Tensor[({sizes},), {size!r}]"
                raise ValueError(f"size {size!r} in shape {tuple(shape)} is a dtype; {instead}")
        found = find_dtype(dtype)
        if found is None:
            raise ValueError(f"unsupported dtype {dtype!r}")
        self.shape: tuple[int | str, ...] = tuple(shape)
        self.dtype: str = found.name
        self._dtype: DType = found
        self._data: torch.Tensor | None = None

    def __class_getitem__(cls, item: Any) -> Tensor:
        shape, dtype = item if _is_pair(item) else (item, "float32")
        return cls(shape if isinstance(shape, tuple) else (shape,), dtype)

    @property
    def data(self) -> torch.Tensor | None:
        """The tensor in the box, or ``None``.

        Raises:
            TypeError: on assignment, if it is no tensor or its dtype is another than the box's.
            ValueError: on assignment, if its shape is another.
        """
        return self._data

    @data.setter
    def data(self, data: torch.Tensor) -> None:
        if not isinstance(data, torch.Tensor):
            raise TypeError(f"data must be a torch.Tensor, not {type(data).__name__}")
        self.check("data", data, {})
        self._data = data

    def type(self, size: Callable[[str], Size]) -> TensorType:
        """The type, with ``size(name)`` for each size that is a name."""
        sizes = (size(n) if isinstance(n, str) else n for n in self.shape)
        return TensorType(tuple(sizes), self._dtype.torch)

    def check(
        self, path: str, tensor: torch.Tensor, sizes: dict[str, tuple[int, str, int]]
    ) -> None:
        """Hold a tensor against this annotation.

        Args:
            path: what the user calls the tensor.
            tensor: the one given.
            sizes: what names stand for so far: a size, and the tensor and dimension that it was
                seen in; extended.

        Raises:
            TypeError: the dtype is another.
            ValueError: the shape does not fit.
        """
        if tensor.dtype != self._dtype.torch:
            dtype = str(tensor.dtype).removeprefix("torch.")
            raise errors.ArgumentDtype(None, path, self.dtype, dtype).error()
        given = TensorType.of(tensor)
        if len(self.shape) != tensor.ndim:
            raise errors.ArgumentShape(None, path, str(self), str(given)).error()
        for d, (wanted, size) in enumerate(zip(self.shape, tensor.shape)):
            if isinstance(wanted, int):
                if wanted != size:
                    raise errors.ArgumentShape(None, path, str(self), str(given)).error()
                continue
            before = sizes.setdefault(wanted, (size, path, d))
            if before[0] != size:
                raise errors.SizesDiffer(None, path, wanted, size, d, *before).error()

    def __str__(self) -> str:
        return f"{self._dtype.short}[{', '.join(map(str, self.shape))}]"

    def __repr__(self) -> str:
        return f"Tensor(shape={self.shape}, dtype={self.dtype!r})"


def _is_pair(item: Any) -> bool:
    return (
        isinstance(item, tuple)
        and len(item) == 2
        and isinstance(item[0], (tuple, list))
        and isinstance(item[1], (str, torch.dtype))
    )


def annotated_tensors(fn: Callable[..., Any]) -> dict[str, Tensor]:
    """The parameters of a function whose annotation describes a tensor.

    Understood are :class:`Tensor`, ``Annotated[torch.Tensor, Tensor(...)]`` and jaxtyping's
    ``Float[torch.Tensor, "n 1024"]`` where its dtype is one; other annotations say nothing.
    """
    scope = getattr(fn, "__globals__", {})
    hints = {name: _evaluated(hint, scope) for name, hint in fn.__annotations__.items()}
    found = {name: _as_tensor(hint) for name, hint in hints.items() if name != "return"}
    return {name: tensor for name, tensor in found.items() if tensor is not None}


def _evaluated(hint: Any, scope: dict[str, Any]) -> Any:
    """An annotation, where ``from __future__ import annotations`` keeps it as text."""
    if not isinstance(hint, str):
        return hint
    try:
        return eval(hint, scope)
    except Exception:  # an annotation that is not ours may be anything
        return None


def _as_tensor(hint: Any) -> Tensor | None:
    if isinstance(hint, Tensor):
        return hint
    if typing.get_origin(hint) is typing.Annotated:
        return next((x for x in typing.get_args(hint)[1:] if isinstance(x, Tensor)), None)
    return _from_jaxtyping(hint)


def _from_jaxtyping(hint: Any) -> Tensor | None:
    """jaxtyping's own attributes: ``dim_str`` such as "n 1024" and the accepted ``dtypes``."""
    dims, dtypes = getattr(hint, "dim_str", None), getattr(hint, "dtypes", None)
    if not isinstance(dims, str) or not isinstance(dtypes, (list, tuple)):
        return None
    known = [name for name in dtypes if isinstance(name, str) and find_dtype(name)]
    sizes = dims.split()
    if len(known) != 1 or not all(s.isdigit() or s.isidentifier() for s in sizes):
        return None
    return Tensor([int(size) if size.isdigit() else size for size in sizes], known[0])
