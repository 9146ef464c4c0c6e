"""``torch.autocast`` in programs: torch itself says, of each call, what it would cast.

A call is run on fake tensors under autocast, and what is done to its arguments is looked at. So
there is no list here of what runs in which dtype: there is one in torch, for each kind of device.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from babytriton.ops.meta import apply, tensors_of, typed
from babytriton.ops.refusals import IllTyped, NeedsData, Unavailable, UnsupportedDtype
from babytriton.ops.table import Callee
from babytriton.ops.trees import leaves_in
from babytriton.ops.value import Scalar, Value, map_values, values_in

if TYPE_CHECKING:
    from babytriton.ops.builder import Builder
    from babytriton.ops.symbols import Symbols

State = tuple[tuple[str, torch.dtype], ...]
"""The kinds of devices that autocast is on for, and the dtype it casts to there."""

_KINDS = ("cpu", "cuda")


def state() -> State:
    """That of the caller now."""
    if not any(map(torch.is_autocast_enabled, _KINDS)):
        return ()
    on = filter(torch.is_autocast_enabled, _KINDS)
    return tuple((kind, torch.get_autocast_dtype(kind)) for kind in on)


def text(state: State) -> str:
    """What autocast is set to, in words."""
    dtypes = (f"{str(dtype).removeprefix('torch.')} on {kind}" for kind, dtype in state)
    return ", ".join(dtypes) or "off"


class Autocast:
    """What autocast does to the calls of a program.

    Args:
        state: that of the program's caller.
    """

    def __init__(self, state: State) -> None:
        self._dtypes: dict[str, torch.dtype | None] = dict(state)

    @contextmanager
    def within(self, kind: str, dtype: torch.dtype | None) -> Iterator[None]:
        """Inside, it casts to another dtype on a kind of devices, or with ``None`` not at all."""
        before, self._dtypes = self._dtypes, self._dtypes | {kind: dtype}
        try:
            yield
        finally:
            self._dtypes = before

    def call(
        self,
        builder: Builder,
        emit: Callable[..., Any],
        fn: Callee,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Emit a call with its arguments cast, or its parts, where torch casts within it.

        Raises:
            Unavailable: torch does, and it has no parts.
        """
        try:
            given = self.cast(builder, fn, args, kwargs)
        except Unavailable:
            op = builder.table.get(fn)
            if op is None or op.parts is None:
                raise
            return op.parts(*args, **kwargs)
        return emit(fn, *given)

    def cast(
        self, builder: Builder, fn: Callee, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The arguments of a call that is about to be emitted, cast.

        Raises:
            Unavailable: torch casts where casting the arguments is not the same.
        """
        kind = builder.device.type
        dtype = self._dtypes.get(kind)
        operands = values_in((args, kwargs)) if dtype is not None else []
        if dtype is None or not any(_may_be_cast(value, kind) for value in operands):
            return args, kwargs
        seen = _look(kind, dtype, builder.symbols, fn, args, kwargs)
        if seen is None:
            return args, kwargs
        casts, results = seen
        wanted = iter(casts)

        def own(value: Value) -> Value:
            dtype = None if isinstance(value, Scalar) else next(wanted)
            if dtype is None or dtype == value.meta.dtype:
                return value
            with builder.interior(builder.span, builder.device):
                found: Value = value.to(dtype)
                return found

        args, kwargs = map_values((args, kwargs), own)
        op = builder.table.get(fn)
        if op is None or not op.registered:
            typed_by = op.meta if op and op.meta else fn
            try:
                ours = typed(builder.device, builder.symbols, typed_by, args, kwargs)
            except (IllTyped, NeedsData, UnsupportedDtype):
                return args, kwargs  # to be refused
            if results != [meta.dtype for meta in tensors_of(ours)]:
                instead = "call it in a block of torch.autocast(..., enabled=False)"
                raise Unavailable("autocast casts within it", instead)
        return args, kwargs


def _may_be_cast(value: Value, kind: str) -> bool:
    """Whether autocast for a kind of device may cast a tensor."""
    dtype = value.meta.dtype
    on_device = value.device.type == kind and not isinstance(value, Scalar)
    return on_device and dtype.is_floating_point and dtype != torch.float64


def _look(
    kind: str,
    dtype: torch.dtype,
    symbols: Symbols | None,
    fn: Callee,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> tuple[list[torch.dtype | None], list[torch.dtype]] | None:
    """What autocast makes of a call; ``None`` where torch refuses it.

    Returns:
        For each tensor among the arguments, the dtype it is cast to, or ``None``; and the dtypes
        of the results.
    """

    def fake(value: Value) -> Any:
        if isinstance(value, Scalar):
            return value.sample
        return torch.empty(value.meta.shape, dtype=value.meta.dtype, device=value.device)

    try:
        with _faking(symbols), torch.no_grad():
            given, named = map_values((args, dict(kwargs)), fake)
            operands = leaves_in((given, named), torch.Tensor)
            own = _Watch()  # what the call casts by itself
            with suppress(Exception), own, torch.autocast(kind, enabled=False):
                apply(fn, given, named)
            watch = _Watch()
            with watch, torch.autocast(kind, dtype=dtype, cache_enabled=False):
                results = tensors_of(apply(fn, given, named))
    except Exception:
        return None
    casts = [watch.cast(x) if watch.cast(x) != own.cast(x) else None for x in operands]
    return casts, [tensor.dtype for tensor in results]


_CASTS = (torch.ops.aten._to_copy.default, torch.ops.aten.to.dtype)
"""The second is what there is to see in an operator's kernel, below autograd."""


class _Watch(TorchDispatchMode):
    """Notes which tensors are cast, or views and copies of them, and to what first of all."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._casts: dict[Any, torch.dtype] = {}
        self._copies: dict[Any, Any] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        if func in _CASTS:
            for dtype in (*args[1:], *named.values()):
                if isinstance(dtype, torch.dtype):
                    self._casts.setdefault(self._source(args[0]), dtype)
        found = func(*args, **named)
        if func is torch.ops.aten.clone.default:
            self._copies[_memory(found)] = self._source(args[0])
        return found

    def cast(self, tensor: torch.Tensor) -> torch.dtype | None:
        """What it was cast to, if it was."""
        return self._casts.get(self._source(tensor))

    def _source(self, tensor: torch.Tensor) -> Any:
        return self._copies.get(_memory(tensor), _memory(tensor))


def _memory(tensor: torch.Tensor) -> Any:
    return tensor.untyped_storage()._cdata


@contextmanager
def _faking(symbols: Symbols | None) -> Iterator[None]:
    """Inside, torch computes with fake tensors, and does not log what it refuses."""
    if symbols is not None:
        with symbols.typing():
            yield
        return
    # Imported where it is needed, as it takes a good part of torch's compiler.
    from torch._subclasses.fake_tensor import FakeTensorMode

    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before, logger.disabled = logger.disabled, True
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            yield
    finally:
        logger.disabled = before
