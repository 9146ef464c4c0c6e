"""``@kernel``: loops over the elements of tensors, compiled as they are written."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence
from typing import Any, overload

import torch

from babytriton import errors
from babytriton.arguments import Arguments
from babytriton.config import CONFIG
from babytriton.frontend.kernel.lowering import Definition
from babytriton.frontend.parameters import Parameters
from babytriton.frontend.signature import Signature, call_key, leaves_of
from babytriton.frontend.source import Source
from babytriton.kernel_stages import CompiledKernel, LoweredKernel
from babytriton.runtime.executable import COMPILE_LOCK
from babytriton.sources import SOURCE_KINDS
from babytriton.stages import target_of
from babytriton.targets import Target, as_target
from babytriton.tensor import Tensor, annotated_tensors


class KernelFunction:
    """A Python function of loops over elements that compiles itself for its arguments.

    Attributes:
        fn: the plain Python function.
        target: what it compiles for; ``None`` lets the device of the arguments decide.
        bounds_check: whether indices are checked when it runs.
    """

    def __init__(
        self, fn: types.FunctionType, target: Target | None = None, bounds_check: bool = False
    ) -> None:
        self.fn = fn
        self.target = target
        self.bounds_check = bounds_check
        self._parameters = Parameters.of(fn)
        self._specializations: dict[Any, list[CompiledKernel]] = {}
        self._newest: CompiledKernel | None = None
        Source.remember(fn)
        functools.update_wrapper(self, fn)

    @property
    def __babytriton_kernel__(self) -> Definition:
        """What a call from another kernel inlines, and one from a compiled function emits."""
        return Definition(self.fn, self.bounds_check)

    def __call__(self, /, *args: Any, **kwargs: Any) -> None:
        """Run the kernel; its results are what it writes into the tensors it is given.

        Raises:
            CompileError: it cannot be compiled; the message points at the line.
            TypeError, ValueError: an argument cannot be compiled for, or shares memory with one
                that is written; the message names it.
            IndexError: an index is out of range, with ``bounds_check=True``.
            ZeroDivisionError: an integer is divided by zero.
        """
        names = self._parameters.names
        given = Arguments(names, self._parameters.bind(args, kwargs))
        if CONFIG.interpret:
            self._parameters.call(self.fn, given.values)
            given.require_unwritten()
            return
        compiled = self._find(given.values) or self._make(given.values)
        given.require_own(compiled.written)
        compiled.run(leaves_of(given.values, frozenset(), names))

    def lower(self, *args: Any, **kwargs: Any) -> LoweredKernel:
        """The first stage for these arguments: tensors, meta tensors or ``Tensor`` specs.

        Without arguments, a kernel whose parameters are all annotated is lowered for those.

        Raises:
            CompileError: the kernel cannot be compiled.
        """
        if not args and not kwargs:
            named = [name for name in self._parameters.names if name in self._annotations]
            args = tuple(self._annotations[name] for name in named)
        bound = self._parameters.bind(args, kwargs)
        return self._lower(Arguments(self._parameters.names, bound, is_example=True).values)

    def source(
        self, /, *args: Any, kind: str | None = None, full: bool = False, **kwargs: Any
    ) -> str:
        """The source of the newest specialization, or of the one for the given arguments.

        Args:
            args, kwargs: example arguments, or nothing; a single string that names a kind is
                ``kind``.
            kind: see :meth:`CompiledKernel.source`.
            full: likewise.
        """
        first = args[0] if len(args) == 1 and not kwargs else None
        if kind is None and isinstance(first, str) and first in SOURCE_KINDS:
            args, kind = (), first
        if args or kwargs:
            bound = self._parameters.bind(args, kwargs)
            given = Arguments(self._parameters.names, bound, is_example=True)
            if given.is_abstract:  # no call will ask for it again
                return self._lower(given.values).compile().source(kind, full=full)
            found = self._find(given.values) or self._make(given.values)
            return found.source(kind, full=full)
        if self._newest is None:
            raise errors.NothingCompiled(None, self.fn.__name__).error()
        return self._newest.source(kind, full=full)

    def __deepcopy__(self, memo: dict[int, Any]) -> KernelFunction:
        """A kernel that compiles anew: what was compiled belongs to the first one."""
        return KernelFunction(self.fn, self.target, self.bounds_check)

    def __reduce__(self) -> Any:
        """Pickled by name, as functions are."""
        return self.fn.__qualname__

    def __repr__(self) -> str:
        target = self.target or "the device of its arguments"
        return f"<kernel {self.fn.__qualname__} for {target}>"

    def _find(self, values: Sequence[Any]) -> CompiledKernel | None:
        try:
            candidates = self._specializations.get(self._key(values), ())
        except TypeError:  # an argument that is not hashable: making one says which
            return None
        return next((c for c in candidates if all(guard() for guard in c.guards)), None)

    def _key(self, values: Sequence[Any]) -> Any:
        key = call_key(values, frozenset(), self._parameters.names)
        return (torch.get_default_dtype(), key)

    def _make(self, values: Sequence[Any]) -> CompiledKernel:
        with COMPILE_LOCK:
            found = self._find(values)  # another thread may have been faster
            if found is None:
                found = self._lower(values).compile()
                self._specializations.setdefault(self._key(values), []).append(found)
            self._newest = found
            return found

    def _lower(self, values: Sequence[Any]) -> LoweredKernel:
        sizes: dict[str, tuple[int, str, int]] = {}
        for name, value in zip(self._parameters.names, values):
            if name in self._annotations and isinstance(value, torch.Tensor):
                self._annotations[name].check(name, value, sizes)
        signature = Signature.of(self._parameters.names, values)
        for path, value in signature.objects().items():
            raise errors.ArgumentType(None, path, f"an instance of {type(value).__name__}").error()
        target = self.target or target_of(signature)
        return LoweredKernel.of(self.fn, self._parameters, signature, target, self.bounds_check)

    @functools.cached_property
    def _annotations(self) -> dict[str, Tensor]:
        return annotated_tensors(self.fn)


@overload
def kernel(fn: types.FunctionType, /, *, bounds_check: bool = False) -> KernelFunction: ...
@overload
def kernel(
    target: Target | str | None = None, *, bounds_check: bool = False
) -> Callable[[Callable[..., None]], KernelFunction]: ...
def kernel(target: Any = None, *, bounds_check: bool = False) -> Any:
    """Compile a Python function that reads and writes elements of tensors in loops.

    Works bare, ``@kernel``, and with a target, ``@kernel("gpu")``; the function may come first,
    too: ``kernel(fn, bounds_check=True)``. Loops whose iterations are independent run in
    parallel, sums and maxima as reductions, anything else in the order in which it is written.

    Args:
        target: ``"cpu"``, ``"gpu"``, a :class:`Target`, or ``None`` for the device of the inputs.
        bounds_check: check every index that may be out of range when the kernel runs. Without,
            an index that is out of range is undefined behaviour, as in C.

    Returns:
        A :class:`KernelFunction`, called as the function is; it returns nothing.

    Raises:
        ValueError: the target is unknown.
        TypeError: what is decorated is not a Python function, or the target is no target.
    """
    is_target = target is None or isinstance(target, (str, Target))
    chosen = as_target(target) if is_target and target is not None else None

    def decorate(fn: Any) -> KernelFunction:
        return KernelFunction(_as_function(fn), chosen, bounds_check)

    return decorate if is_target else decorate(target)


def _as_function(fn: Any) -> types.FunctionType:
    if isinstance(fn, KernelFunction):
        return fn.fn
    if not isinstance(fn, types.FunctionType):
        given = type(fn).__name__
        raise TypeError(f"kernel compiles Python functions, not a {given}")
    return fn
