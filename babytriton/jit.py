"""``@jit``: finds the specialization of a call, or makes it."""

from __future__ import annotations

import copy
import functools
import importlib
import itertools
import types
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, overload

import torch
from torch import get_default_dtype
from torch._C import _len_torch_dispatch_stack, _len_torch_function_stack
from torch.compiler import is_dynamo_compiling

from babytriton import errors, tracing
from babytriton.arguments import Arguments
from babytriton.arrays import OUT
from babytriton.config import CONFIG
from babytriton.diagnostics import CompileError
from babytriton.frontend.callee import behind, function_of, name_of, signature_of
from babytriton.frontend.dimensions import Dimensions, Seen
from babytriton.frontend.parameters import Parameters
from babytriton.frontend.signature import Signature, call_key, leaves_of
from babytriton.frontend.source import Source
from babytriton.ops import TABLE, autocast
from babytriton.ops.refusals import Related
from babytriton.ops.registry import Registry
from babytriton.ops.trees import leaves_in
from babytriton.ops.value import NeedsConstant
from babytriton.runtime.attempts import MISSED
from babytriton.runtime.executable import COMPILE_LOCK, uncollected
from babytriton.shortcuts import Moment, Shortcut, is_worth_a_shortcut, newest_first
from babytriton.sources import SOURCE_KINDS
from babytriton.specializations import RECOMPILES, Specialization, Specializations
from babytriton.stages import Compiled, Lowered, target_of
from babytriton.targets import Target, as_target
from babytriton.tensor import Tensor, annotated_tensors
from babytriton.tracing import is_recorded, traced
from babytriton.wrappers import WRAPPERS

Function = Callable[..., Any]

REGISTRY = Registry(TABLE, COMPILE_LOCK)
"""The operator table of this process."""

register = REGISTRY.register

# Tell compiled functions apart, of which an object may have several of one name.
_NUMBERS = itertools.count()


class JitFunction:
    """A Python function that compiles itself for the arguments it is called with.

    Attributes:
        fn: the plain Python function.
        target: what it compiles for; ``None`` lets the device of the arguments decide.
        dynamic: whether sizes are symbolic; ``None`` for those that vary from call to call.
        out: what results are: ``"torch"``, ``"numpy"``, or ``"same"`` as the first argument.
        kept: what integrations keep of the function, for as long as there is one.
    """

    # A slot is found faster than an attribute: this one is looked at in every call.
    __slots__ = ("__dict__", "__weakref__", "_shortcuts")

    def __init__(
        self,
        fn: Function,
        target: Target | None = None,
        static_argnames: Iterable[str] = (),
        dynamic: bool | None = None,
        out: str = "torch",
    ) -> None:
        self.fn = fn
        self.target = target
        self.dynamic = dynamic
        self.out = out
        self._dynamic = dynamic
        self._static_argnames = frozenset(static_argnames)
        self._parameters = Parameters.of(fn)
        unknown = self._static_argnames - set(self._parameters.names)
        if unknown:
            raise ValueError(f"static_argnames: {name_of(fn)} has no parameter {min(unknown)!r}")
        self._registry = Registry(REGISTRY, COMPILE_LOCK)
        self._number = next(_NUMBERS)
        self._specializations = Specializations()
        self._seen = Seen()
        self._static = self._static_argnames
        self._shortcuts: tuple[Shortcut, ...] = ()
        self._arrivals: Counter[Compiled] = Counter()
        self._classes: dict[type, dict[str, Any]] = {}
        self.kept: dict[str, Any] = {}
        Source.remember(fn)
        functools.update_wrapper(self, function_of(fn))
        # What torch.export asks of a module's forward; of a method, without the object.
        self.__signature__, self.__code__ = signature_of(fn), function_of(fn).__code__
        self.__name__ = name_of(fn)
        self.__qualname__ = getattr(fn, "__qualname__", self.__name__)

    @property
    def __babytriton_function__(self) -> Function:
        """What a call from another compiled function inlines."""
        return self.fn

    @property
    def __babytriton_rows__(self) -> Registry:
        """The operator table that a call from another compiled function inlines it with."""
        return self._registry

    @property
    def register(self) -> Callable[..., Any]:
        """As :func:`babytriton.register`, for what this one function calls."""
        return self._registry.register

    def backward(self, rule: Function) -> Function:
        """Give the function a gradient of its own, in place of the one derived from its body.

        A decorator. What calls the function, compiled or not, is compiled again at its next call.

        Args:
            rule: ``rule(grad, result, *args)``, a plain torch function of the gradient of the
                result, the result, and the arguments of the call with defaults filled in, gives
                the gradients of the leading arguments: a tensor, or a tuple of tensors and of
                ``None``. It is compiled in turn, and differentiated where that is asked for.
                ``grad`` and ``result`` are tuples where the function returns several tensors.

        Returns:
            The rule.

        Raises:
            TypeError: the rule is no function, or what was compiled is none but a method or module.
        """
        REGISTRY.differentiate(self.fn, rule)
        tracing.give(function_of(self.fn), rule)
        return rule

    def draws(self, /, *args: Any, **kwargs: Any) -> bool:
        """Whether a call with these arguments draws random numbers, or calls what may."""
        values = Arguments(self.names, self._parameters.bind(args, kwargs)).values
        return self.compiled_for(values).scheduled.lowered.lowering.draws

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run the function, compiled for these arguments.

        Where torch traces, as torch.compile, torch.export, torch.fx, torch.jit.trace and fake
        tensors do, the plain function runs in its place.

        Raises:
            CompileError: it cannot be compiled; the message points at the line.
            TypeError, ValueError: an argument cannot be compiled for; the message names it.
        """
        if is_dynamo_compiling() or _len_torch_dispatch_stack():
            return traced(self.fn)(*args, **kwargs)
        for attempt in self._shortcuts:
            result = attempt(args, kwargs)
            if result is not MISSED:
                return result
        if is_recorded((args, kwargs)):
            return traced(self.fn)(*args, **kwargs)
        if args and self._is_method_of(args[0]):
            return self.__get__(args[0])(*args[1:], **kwargs)
        bound = self._parameters.bind(args, kwargs)
        if CONFIG.interpret:
            given = Arguments(self.names, bound, out=self.out)
            result = self._parameters.call(self.fn, given.values)
            given.require_unwritten()
            return given.results(result)
        elsewhere = WRAPPERS.handler(bound)
        if elsewhere is not None:
            return elsewhere(self, bound)
        # Of before the program is looked for: another thread may change the table meanwhile.
        moment = Moment.now(REGISTRY)
        given = Arguments(self.names, bound, out=self.out)
        static = self._static
        leaves = leaves_of(given.values, static, self.names)
        compiled = self._specializations.find(self._key(given.values, static), leaves)
        if compiled is None:
            compiled = self._make(given.values)
            leaves = leaves_of(given.values, compiled.signature.static, self.names)
        given.require_own(compiled.written)
        result = compiled.run(leaves)
        if not given.gives_tensors:
            return given.results(result)
        self._arrivals[compiled] += 1
        if is_worth_a_shortcut(self._arrivals[compiled]):
            made = compiled.shortcut(args, kwargs, moment)
            if made is not None:
                self._shortcuts = newest_first(self._shortcuts, made)
        return result

    def environment(self) -> tuple[Any, ...]:
        """What a program depends on besides its arguments."""
        return get_default_dtype(), REGISTRY.version, self._registry.version

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """The first stage for these arguments: tensors, meta tensors or ``Tensor`` specs.

        Without arguments, a function whose parameters are all annotated is lowered for those.

        Raises:
            CompileError: the function cannot be compiled.
        """
        if not args and not kwargs:
            args = tuple(self._annotated())
        given = Arguments(self.names, self._parameters.bind(args, kwargs), is_example=True)
        # Of itself, not of what earlier calls were.
        return self._lower(given.values, Seen())

    def lower_bound(self, values: Sequence[Any], target: Target) -> Lowered:
        """The first stage for a target, with every size as it is.

        Args:
            values: of the parameters, in order: tensors, meta tensors or Python values.
            target: in place of the function's own.

        Raises:
            CompileError: the function cannot be compiled.
        """
        fixed = JitFunction(self.fn, target, self._static_argnames, dynamic=False)
        fixed._registry = self._registry
        return fixed._lower(values, Seen())

    def as_jax(self) -> Callable[..., Any]:
        """The same as a function of JAX's arrays: for jax.jit, jax.grad and jax.vmap.

        Raises:
            ImportError: JAX or jax-tvm-ffi is not installed.
        """
        # By name: of what carries a function into other frameworks it knows nothing.
        integration = importlib.import_module("babytriton.integrations.jax")
        found: Callable[..., Any] = integration.as_jax(self)
        return found

    def lower_any_size(
        self, values: Sequence[Any], related: Mapping[str, str | int] | None = None
    ) -> Lowered:
        """The first stage with a symbolic size for every one of 2 or more.

        Args:
            values: of the function's parameters, in order.
            related: the names of sizes that are others, or constants.

        Raises:
            CompileError: the function cannot be compiled so.
        """
        dimensions = Dimensions(True, self._annotations, Seen(), dict(related or {}))
        return self._lowered(values, dimensions)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the function's parameters, in order."""
        return self._parameters.names

    def bind(self, /, *args: Any, **kwargs: Any) -> Sequence[Any]:
        """The values of the function's parameters, in order, defaults filled in."""
        return self._parameters.bind(args, kwargs)

    def compiled_for(self, values: Sequence[Any]) -> Compiled:
        """The specialization for the values of the function's parameters, found or made."""
        return self._find(values) or self._make(values)

    def key_of(self, values: Sequence[Any]) -> Any:
        """What calls must share to run the same program, hashable; other than captured values."""
        return self._key(values, self._static)

    def source(
        self, /, *args: Any, kind: str | None = None, full: bool = False, **kwargs: Any
    ) -> str:
        """The source of the newest specialization, or of the one for the given arguments.

        Args:
            args, kwargs: example arguments, or nothing; a single string that names a kind is
                ``kind``.
            kind: see :meth:`Compiled.source`.
            full: likewise.
        """
        first = args[0] if len(args) == 1 and not kwargs else None
        if kind is None and isinstance(first, str) and first in SOURCE_KINDS:
            args, kind = (), first
        if args or kwargs:
            bound = self._parameters.bind(args, kwargs)
            given = Arguments(self.names, bound, is_example=True)
            if given.is_abstract:  # no call will ask for it again
                return self._lower(given.values, Seen()).compile().source(kind, full=full)
            return self.compiled_for(given.values).source(kind, full=full)
        if self._specializations.newest is None:
            raise errors.NothingCompiled(None, self.__name__).error()
        return self._specializations.newest.source(kind, full=full)

    def specializations(self) -> tuple[Specialization, ...]:
        """What was compiled so far, in order."""
        return tuple(map(Specialization.of, self._specializations))

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        """As a method: a function compiled for the object it is called on."""
        if owner is None or not isinstance(self.fn, types.FunctionType):
            return self
        if is_dynamo_compiling():  # which makes no methods
            return functools.partial(self, owner)
        if isinstance(owner, type):  # a classmethod
            attributes = self._classes.setdefault(owner, {})
        elif hasattr(owner, "__dict__"):
            # Beside the object's own attributes, so that the two are forgotten together.
            attributes = vars(owner)
        else:
            kept = f"{type(owner).__qualname__} has __slots__ and no __dict__ to keep it in"
            raise TypeError(f"a compiled method needs a place on its object: {kept}")
        # A class may override what it calls by super(): these are methods of one name.
        name = f"_babytriton_{self.__name__}_{self._number}"
        bound = attributes.get(name)
        # A copy of an object has the attributes of the first, this one among them; and one that was
        # pickled those of another process.
        is_own = bound is not None and bound.fn.__self__ is owner
        if bound is None or not is_own or bound.fn.__func__ is not self.fn:
            method = types.MethodType(self.fn, owner)
            options = self._static_argnames, self.dynamic, self.out
            bound = JitFunction(method, self.target, *options)
            bound._registry = self._registry
            attributes[name] = bound
        return bound

    def _is_method_of(self, owner: Any) -> bool:
        """Whether an object is called on as ``Class.method(owner)`` does."""
        if isinstance(owner, (torch.Tensor, bool, int, float, str, tuple, list, dict)):
            return False
        return any(vars(kind).get(self.__name__) is self for kind in type(owner).__mro__)

    def __deepcopy__(self, memo: dict[int, Any]) -> JitFunction:
        """A function that compiles anew: what was compiled belongs to the first one."""
        fn = copy.deepcopy(self.fn, memo)
        copied = JitFunction(fn, self.target, self._static_argnames, self.dynamic, self.out)
        copied._registry = self._registry.copy()
        return copied

    def __reduce__(self) -> Any:
        """Pickled by name, as functions are; of an object, with the object."""
        if isinstance(self.fn, types.FunctionType):
            return self.__qualname__
        if isinstance(self.fn, types.MethodType):
            owner, name = self.fn.__self__, self.__name__
            if name.startswith("__") and not name.endswith("__"):  # as Python has it in a class
                name = f"_{self.__qualname__.split('.')[-2].lstrip('_')}{name}"
            if isinstance(getattr(type(owner), name, None), JitFunction):
                return getattr, (owner, name)
        options = tuple(self._static_argnames), self.dynamic, self.out
        return JitFunction, (self.fn, self.target, *options)

    def __repr__(self) -> str:
        return f"<jit {self.__qualname__} for {self.target or 'the device of its arguments'}>"

    def _find(self, values: Sequence[Any]) -> Compiled | None:
        static = self._static  # another thread may be about to change it
        leaves = leaves_of(values, static, self._parameters.names)
        return self._specializations.find(self._key(values, static), leaves)

    def _key(self, values: Sequence[Any], static: frozenset[str]) -> Any:
        key = call_key(values, static, self._parameters.names)
        # Each way to set torch's default device, where such calls run, is a mode.
        if _len_torch_function_stack() and not leaves_in(values, torch.Tensor):
            key = torch.get_default_device(), key
        return (*self.environment(), autocast.state(), key)

    def _make(self, values: Sequence[Any]) -> Compiled:
        with COMPILE_LOCK, uncollected():
            found = self._find(values)  # another thread may have been faster
            if found is None:
                found = self._compiled(values)
                static = found.signature.static
                call = Signature.of(self._parameters.names, values, static, Dimensions(None))
                self._specializations.add(self._key(values, static), found, call)
            return found

    def _compiled(self, values: Sequence[Any]) -> Compiled:
        """The function compiled for a call; from now on for each size alone, where it must be.

        What cannot be compiled for all sizes at once mostly can be for those of one call. If not,
        the message about that is the one that speaks of the function alone.
        """
        try:
            return self._lower(values, self._seen).compile()
        except CompileError as error:
            named = any(isinstance(n, str) for x in self._annotations.values() for n in x.shape)
            if self._dynamic is False or not (self._dynamic or named or self._seen.varied):
                raise
            reason = str(error).splitlines()[0]
        given, self._dynamic = self._dynamic, False
        try:
            found = self._lower(values, self._seen).compile()
        except CompileError:
            self._dynamic = given
            raise
        RECOMPILES.info("%s: compiled for each size alone from now on, as: %s", self, reason)
        return found

    def _lower(self, values: Sequence[Any], seen: Seen) -> Lowered:
        return self._lowered(values, Dimensions(self._dynamic, self._annotations, seen))

    def _lowered(self, values: Sequence[Any], dimensions: Dimensions) -> Lowered:
        self._check_annotations(values)
        names = self._parameters.names
        while True:
            signature = Signature.of(names, values, self._static, dimensions)
            target = self.target or target_of(signature)
            table = self._registry.table
            try:
                return Lowered.of(self.fn, self._parameters, signature, target, dimensions, table)
            except NeedsConstant as needed:
                # Specializations made before keep a float variable that this one cannot.
                self._static |= needed.arguments
                dimensions = dimensions.restarted({})
            except Related as relation:
                dimensions = dimensions.restarted(relation.sizes)

    @functools.cached_property
    def _annotations(self) -> dict[str, Tensor]:
        return annotated_tensors(function_of(self.fn))

    def _annotated(self) -> list[Tensor]:
        """The annotations of the parameters that have one, in order."""
        annotations = self._annotations
        return [annotations[name] for name in self._parameters.names if name in annotations]

    def _check_annotations(self, values: Sequence[Any]) -> None:
        annotations = self._annotations
        sizes: dict[str, tuple[int, str, int]] = {}
        for name, value in zip(self._parameters.names, values):
            if name in annotations and isinstance(value, torch.Tensor):
                annotations[name].check(name, value, sizes)


@overload
def jit(
    fn: Function,
    /,
    *,
    static_argnames: Iterable[str] = (),
    dynamic: bool | None = None,
    out: str = "torch",
) -> JitFunction: ...
@overload
def jit(
    target: Target | str | None = None,
    *,
    static_argnames: Iterable[str] = (),
    dynamic: bool | None = None,
    out: str = "torch",
) -> Callable[[Callable[..., Any]], JitFunction]: ...
def jit(
    target: Any = None,
    *,
    static_argnames: Iterable[str] = (),
    dynamic: bool | None = None,
    out: str = "torch",
) -> Any:
    """Compile a plain Python function over torch tensors.

    Works bare, ``@jit``, and with a target, ``@jit("gpu")`` or ``@jit(target=Target("cuda"))``;
    the function may come first, too: ``jit(fn, out="numpy")``.

    Args:
        target: ``"cpu"``, ``"gpu"``, a :class:`Target`, or ``None`` for the device of the inputs.
        static_argnames: parameters whose floats are constants of the program, so that a new value
            compiles again; ints, bools and strings are constants anyway.
        dynamic: ``True`` makes every size of 2 or more symbolic, so that one program serves all
            sizes; ``False`` none, so that each has a program of its own. By default those are that
            an annotation names, and those that have had two values.
        out: what results are: ``"torch"`` for tensors, ``"numpy"`` for NumPy's arrays, ``"same"``
            for what the first array among the arguments is. Arguments may be tensors, NumPy's
            arrays or any objects with ``__dlpack__``, all of one kind; memory is shared.

    Returns:
        A :class:`JitFunction`, called as the function is.

    Raises:
        ValueError: the target is unknown, or ``out`` is.
        TypeError: what is decorated is not a Python function, the target is no target, or
            ``dynamic`` none of the three.
    """
    names = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames)
    if out not in OUT:
        raise ValueError(f"out must be one of {', '.join(map(repr, OUT))}, not {out!r}")
    if dynamic is not None and not isinstance(dynamic, bool):
        raise TypeError(f"dynamic must be True, False or None, not {dynamic!r}")
    is_target = target is None or isinstance(target, (str, Target))
    chosen = as_target(target) if is_target and target is not None else None

    def decorate(fn: Any) -> JitFunction:
        return JitFunction(_as_function(fn), chosen, names, dynamic, out)

    return decorate if is_target else decorate(target)


def _as_function(fn: Any) -> Function:
    found: Function = behind(fn)
    function_of(found)  # it refuses what runs no Python function
    return found
