"""Rows that user code adds to the operator table."""

from __future__ import annotations

import functools
import threading
import types
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._library.custom_ops import CustomOpDef
from tvm.ir import Expr

from babytriton import errors
from babytriton.ops import tensorir
from babytriton.ops.refusals import IllTyped, RowFailed, Unsupported, reason
from babytriton.ops.site import Site
from babytriton.ops.table import Callee, Op
from babytriton.ops.value import REFUSALS, Value


@dataclass
class Registry:
    """A table of operators, and what user code has added to it.

    Adding a row makes another table: a program that is being compiled keeps the one it has.

    Args:
        below: what the rows are added to: a table, or another registry.
        lock: held while a row is added.

    Attributes:
        version: how often what this registry says of a callable changed, those below not counted.
        changes: how often it changed in this registry or in one above it.
    """

    below: Mapping[Callee, Op] | Registry
    lock: AbstractContextManager[Any] = field(default_factory=threading.RLock)
    _rows: Mapping[Callee, Op] = field(default_factory=dict)
    version: int = 0
    changes: int = 0

    @property
    def table(self) -> Mapping[Callee, Op]:
        """The row of each callable: the newest that was added for it."""
        below = self.below.table if isinstance(self.below, Registry) else self.below
        return {**below, **self._rows} if self._rows else below

    def copy(self) -> Registry:
        """Another registry over the same one, with the same rows to begin with."""
        return Registry(self.below, self.lock, self._rows, self.version)

    def register(
        self,
        *targets: Callable[..., Any],
        build: Callable[..., Any] | None = None,
        decompose: Callable[..., Any] | None = None,
        meta: Callable[..., Any] | None = None,
        gradient: Callable[..., Any] | None = None,
    ) -> Callable[..., Any]:
        """Say how a callable is compiled.

        ``register(torch.erf, build=fn)`` adds a row, and so does ``@register(torch.erf)`` above
        ``fn``. Above a function of one's own, ``@register(build=fn)`` adds a row for it. What was
        compiled before is compiled again at its next call.

        Args:
            targets: torch functions and tensor methods, custom operators (``torch.ops.ns.name``),
                or Python functions, which are then not compiled from their own source. Each
                spelling is a callable of its own: ``torch.exp`` and ``torch.Tensor.exp``. A row
                of the package for the same callable gives way.
            build: ``build(site, *args, **kwargs)`` with the arguments of the call returns a Relax
                expression, or a tuple of them. Tensors arrive as values: ``x.expr`` is Relax,
                ``x.meta`` a meta tensor of its shape and dtype; ``site.out`` is the result as a
                meta tensor where torch gives one. ``NotImplemented`` lets torch run the call.
                A TensorIR function is called with the arguments.
            decompose: the callable in terms of others, as a plain function of its arguments.
            meta: gives the result as meta tensors. By default that is what the target itself
                gives for meta tensors, or, where it fails on them, what Relax infers.
            gradient: ``gradient(grad, result, *args, **kwargs)``, a plain torch function with the
                arguments of the call, gives the gradients of its leading arguments: a tensor, or a
                tuple of tensors and of ``None``. Sums over broadcast dimensions, and casts, are not
                its task. Without one, a gradient that is asked for is refused, unless the row is
                ``decompose``.

        Returns:
            The (last) target, so that it serves as a decorator; a decorator where the target, or
            both ``build`` and ``decompose``, are left out.

        Raises:
            TypeError: an argument is none of these; the message names it.
        """
        _check(targets, build=build, decompose=decompose, meta=meta, gradient=gradient)
        if not targets:

            def above_target(target: Callable[..., Any]) -> Callable[..., Any]:
                return self.register(
                    target, build=build, decompose=decompose, meta=meta, gradient=gradient
                )

            return above_target
        if build is None and decompose is None:

            def above_build(found: Callable[..., Any]) -> Callable[..., Any]:
                self.register(*targets, build=found, meta=meta, gradient=gradient)
                return found

            return above_build
        name = getattr(targets[-1], "__name__", str(targets[-1]))
        row = Op(
            name,
            tuple(spelling for target in targets for spelling in _spellings(target)),
            None if build is None else _built(name, build),
            None if decompose is None else _decomposed(name, decompose),
            meta=meta,
            gradient=None if gradient is None else _differentiated(name, gradient),
            registered=True,
        )
        self._add(row)
        self._outdate()
        return targets[-1]

    def introduce(
        self,
        target: Callable[..., Any],
        build: Callable[..., Any],
        meta: Callable[..., Any] | None,
        gradient: Callable[..., Any],
    ) -> None:
        """Say how a callable is compiled that was just made: no program has met it.

        Args:
            target: the callable.
            build, meta, gradient: as :meth:`register` takes them.

        Raises:
            TypeError: an argument is no function.
        """
        _check((target,), build=build, decompose=None, meta=meta, gradient=gradient)
        name, rule = target.__name__, _differentiated(target.__name__, gradient)
        self._add(
            Op(name, (target,), _built(name, build), meta=meta, gradient=rule, registered=True)
        )

    def differentiate(self, fn: Callable[..., Any], gradient: Callable[..., Any]) -> None:
        """Give a Python function another gradient than that of its body, which is compiled still.

        Args:
            fn: the function.
            gradient: as :meth:`register` takes it.

        Raises:
            TypeError: an argument is no function.
        """
        _check((fn,), gradient=gradient, build=None, decompose=None)
        if not isinstance(fn, types.FunctionType):
            raise errors.BadRegistration(None, "target", f"{_kind(fn)} has no body").error()
        rule = _differentiated(fn.__name__, gradient)
        self._add(Op(fn.__name__, (fn,), inlined=True, gradient=rule, registered=True))
        self._outdate()

    def _add(self, row: Op) -> None:
        with self.lock:
            self._rows = {**self._rows, **dict.fromkeys(row.calls, row)}

    def _outdate(self) -> None:
        """Have what was compiled before compiled again."""
        with self.lock:
            self.version += 1
            registry: Any = self
            while isinstance(registry, Registry):
                registry.changes += 1
                registry = registry.below


def _check(targets: tuple[Any, ...], **given: Any) -> None:
    for target in targets:
        if isinstance(target, torch.nn.Module):
            why = "a module's own code is compiled; give a function that it calls"
            raise errors.BadRegistration(None, "target", why).error()
        if isinstance(target, type) or not callable(target):
            why = f"expected a function, got {_kind(target)}"
            raise errors.BadRegistration(None, "target", why).error()
        try:
            hash(target)
        except TypeError as error:
            raise errors.BadRegistration(None, "target", str(error)).error() from None
    for name, value in given.items():
        if value is not None and not callable(value):
            why = f"expected a function, got {_kind(value)}"
            raise errors.BadRegistration(None, name, why).error()
    if given["build"] is not None and given["decompose"] is not None:
        why = "a row has either build or decompose, and both were given"
        raise errors.BadRegistration(None, "decompose", why).error()
    if not targets and given["build"] is None and given["decompose"] is None:
        why = "give what is to be compiled, or how: register(target, build=...)"
        raise errors.BadRegistration(None, "target", why).error()


def _kind(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"{value!r}"


def _spellings(target: Any) -> tuple[Callee, ...]:
    """The callables that are the same one to the user."""
    plain = getattr(target, "__babytriton_function__", None)
    if plain is not None:
        return target, plain
    if isinstance(target, CustomOpDef):
        packet = getattr(getattr(torch.ops, target._namespace), target._name)
        return target, *_spellings(packet)
    if isinstance(target, torch._ops.OpOverloadPacket):
        return target, *(getattr(target, overload) for overload in target.overloads())
    return (target,)


def _built(name: str, build: Any) -> Callable[..., Any]:
    if tensorir.is_prim_func(build):
        prim_func = build

        def build(site: Site, *args: Any, **kwargs: Any) -> Any:
            result, written = tensorir.call_by_name(site.builder, name, prim_func, args, kwargs)
            if written:
                raise IllTyped("a TensorIR function in a row takes its inputs alone")
            return result

    def row(site: Site, *args: Any, **kwargs: Any) -> Any:
        with _Blaming(name, build):
            found = build(site, *args, **kwargs)
            _check_result(name, found)
            parts = found if isinstance(found, (tuple, list)) else [found]
            return [part if isinstance(part, Value) else site.emit(part) for part in parts]

    return row


def _decomposed(name: str, decompose: Callable[..., Any]) -> Callable[..., Any]:
    def row(*args: Any, **kwargs: Any) -> Any:
        with _Blaming(name, decompose):
            found = decompose(*args, **kwargs)
            _check_result(name, found)
            return found

    return row


def _differentiated(name: str, gradient: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(gradient)  # whose parameters are looked at
    def rule(*args: Any, **kwargs: Any) -> Any:
        with _Blaming(f"the gradient of {name}", gradient):
            found = gradient(*args, **kwargs)
            for part in found if isinstance(found, (tuple, list)) else [found]:
                if part is not None and not isinstance(part, (Value, list)):
                    raise RowFailed(f"the gradient of {name}", f"it gives {part!r}, and no tensor")
            return found

    return rule


def _check_result(name: str, found: Any) -> None:
    if found is NotImplemented:
        raise Unsupported("the row registered for it does not cover this call")
    for part in found if isinstance(found, (tuple, list)) else [found]:
        if not isinstance(part, (Value, Expr)):
            raise RowFailed(name, f"it gives {part!r}, which is no Relax expression")


@dataclass(frozen=True)
class _Blaming:
    """What fails inside is a failure of the row that user code registered."""

    name: str
    fn: Any

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if not isinstance(error, Exception) or isinstance(error, REFUSALS):
            return
        code = getattr(self.fn, "__code__", None)
        place = ""
        while isinstance(trace, types.TracebackType):
            if trace.tb_frame.f_code is code:
                place = f" ({code.co_filename}:{trace.tb_lineno})"
            trace = trace.tb_next
        why = f"{type(error).__name__}: {reason(error)}{place}"
        raise RowFailed(self.name, why) from error
