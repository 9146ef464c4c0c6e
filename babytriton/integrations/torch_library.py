"""Compiled functions as operators of torch, which torch.compile, export and transforms call."""

from __future__ import annotations

import functools
import inspect
import linecache
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, overload

import torch
from torch._C import _len_torch_dispatch_stack
from torch.compiler import is_dynamo_compiling
from torch.overrides import TorchFunctionMode

from babytriton import errors
from babytriton.frontend.callee import function_of, signature_of
from babytriton.integrations.torch_operator import Operator
from babytriton.jit import JitFunction, jit
from babytriton.ops.registry import Registry
from babytriton.ops.trees import leaves_in
from babytriton.tensor import annotated_tensors


class LibraryOp:
    """A compiled function that is an operator of torch's as well.

    A call runs the compiled function directly. Where torch traces, as torch.compile, torch.export
    and fake tensors do, a call is one of the operator, which stays in the graph as it is.

    Attributes:
        name: of the operator, with its namespace.
        function: the compiled function.
        inplace: the operator that writes its results into arguments, if there is one.
    """

    def __init__(
        self, name: str, function: JitFunction, mutates_args: Sequence[str], inplace: Sequence[str]
    ) -> None:
        namespace, _, own = name.partition("::")
        if not (namespace.isidentifier() and own.isidentifier()):
            raise errors.OperatorName(None, name).error()
        for taken in (own, f"{own}_") if inplace else (own,):
            if hasattr(getattr(torch.ops, namespace), taken):
                raise errors.RegisteredTwice(None, f"{namespace}::{taken}").error()
        for parameter in inplace:
            if parameter not in signature_of(function.fn).parameters:
                raise errors.NoParameter(None, name, parameter).error()
        self.name = name
        self.function = function
        parameters = _typed(name, function)
        schema = _schema(name, parameters, mutates_args)
        draws = function.draws
        self._operator = Operator(name, schema, function, self._fake, mutates_args, draws)
        self._operator.register_related()
        functools.update_wrapper(self, function)
        self.__name__ = own
        self.inplace = None
        if inplace:
            function = jit(function.target, dynamic=function.dynamic)(_in_place(self, inplace))
            self.inplace = _InPlace(f"{name}_", function, inplace, ())

    @property
    def fn(self) -> Callable[..., Any]:
        """The plain Python function."""
        return self.function.fn

    @property
    def overload(self) -> Any:
        """The operator as torch knows it: ``torch.ops.namespace.name.default``."""
        return self._operator.overload

    @property
    def __babytriton_function__(self) -> Callable[..., Any]:
        return self.function.__babytriton_function__

    @property
    def __babytriton_rows__(self) -> Registry:
        return self.function.__babytriton_rows__

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run the function, or have torch trace a call of the operator.

        Raises:
            CompileError: it cannot be compiled; the message points at the line.
            TypeError, ValueError: an argument cannot be compiled for; the message names it.
        """
        if is_dynamo_compiling() or _len_torch_dispatch_stack():
            return self._operator.overload(*args, **kwargs)
        return self.function(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> LibraryOp:
        return self  # torch has one operator of the name

    def __reduce__(self) -> str:
        """Pickled by name, as functions are."""
        return self.function.__qualname__

    def backward(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """As :meth:`JitFunction.backward`."""
        return self.function.backward(rule)

    def __repr__(self) -> str:
        return f"<operator {self.name}: {self.function!r}>"

    def _fake(self, *args: Any, **kwargs: Any) -> Any:
        """The results for tensors without numbers: what the plain function gives.

        Both sides of a branch give tensors of the same types.
        """
        parameters = signature_of(self.function.fn).bind(*args, **kwargs).arguments
        sizes: dict[str, tuple[int, str, int]] = {}
        for name, tensor in annotated_tensors(function_of(self.function.fn)).items():
            if isinstance(parameters.get(name), torch.Tensor):
                tensor.check(name, parameters[name], sizes)
        try:
            with _Undecided(self.name, False):
                return self.function.fn(*args, **kwargs)
        except AssertionError:
            with _Undecided(self.name, True):
                return self.function.fn(*args, **kwargs)


class _Undecided(TorchFunctionMode):
    """Inside, conditions on a tensor's numbers, which are not there, all have one outcome.

    Args:
        name: of the operator.
        outcome: of the conditions.
    """

    def __init__(self, name: str, outcome: bool) -> None:
        super().__init__()
        self._name, self._outcome = name, outcome

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        for tensor in leaves_in((args, dict(kwargs or {})), torch.Tensor):
            # Arguments are fake; whether they require grad is no matter here.
            if tensor.requires_grad and type(tensor) in (torch.Tensor, torch.nn.Parameter):
                raise errors.CapturedByOperator(None, self._name).error()
        if func is torch.Tensor.__bool__:
            return self._outcome
        if func is torch.Tensor.item and args[0].dtype == torch.bool:
            return self._outcome
        if func is torch.Tensor.item:
            return 1.0 if args[0].is_floating_point() else 1
        if func in (torch.Tensor.__float__, torch.Tensor.__int__):
            return 1.0 if func is torch.Tensor.__float__ else 1
        return func(*args, **(kwargs or {}))


class _InPlace(LibraryOp):
    """An operator that writes its results into arguments, and returns these, as torch's do."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        names = list(signature_of(self.fn).parameters)
        self._written = [(names.index(name), name) for name in args[2]]

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        super().__call__(*args, **kwargs)
        given = tuple(kwargs[name] if name in kwargs else args[i] for i, name in self._written)
        return given[0] if len(given) == 1 else given


@overload
def library_op(
    name: str, /, *, mutates_args: Iterable[str] = (), inplace: Iterable[str] = ()
) -> Callable[[Callable[..., Any]], LibraryOp]: ...
@overload
def library_op(
    name: str,
    fn: Callable[..., Any],
    /,
    *,
    mutates_args: Iterable[str] = (),
    inplace: Iterable[str] = (),
) -> LibraryOp: ...
def library_op(
    name: str,
    fn: Callable[..., Any] | None = None,
    /,
    *,
    mutates_args: Iterable[str] = (),
    inplace: Iterable[str] = (),
) -> Any:
    """Register a compiled function as an operator of torch.

    ``library_op("mylib::swiglu", fn)``, or ``@library_op("mylib::swiglu")`` above a function or
    above ``@jit``. The operator is ``torch.ops.mylib.swiglu`` too. Its schema is what the
    annotations of the function say, as ``torch.library.infer_schema`` reads them; a parameter
    without an annotation or a default, and a result without one, is a tensor. It has a fake
    implementation, gradients of any order, and a rule for ``vmap``.

    Args:
        name: ``"namespace::name"``.
        fn: a Python function, or a compiled one.
        mutates_args: the parameters that the function writes to.
        inplace: if given, a second operator, ``name_``, writes each result into the argument of
            the parameter named here for it. It is ``op.inplace``.

    Returns:
        A :class:`LibraryOp`, called as the function is.

    Raises:
        TypeError: a parameter or the result is of a type that operators do not have.
        ValueError: the name is taken, or is none; or a parameter that is named does not exist.
    """
    if fn is None:
        return lambda fn: library_op(name, fn, mutates_args=mutates_args, inplace=inplace)
    function = fn if isinstance(fn, JitFunction) else jit(fn)
    return LibraryOp(name, function, _names(mutates_args), _names(inplace))


def _names(given: Iterable[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _typed(name: str, function: JitFunction) -> inspect.Signature:
    """The parameters of a function, each with a type that schemas have."""
    signature = signature_of(function.fn)
    plain = function_of(function.fn)
    tensors = annotated_tensors(plain)
    try:
        hints = inspect.get_annotations(plain, eval_str=True)
    except NameError as error:
        raise errors.OperatorSchema(None, name, str(error)).error() from None
    parameters = []
    for parameter in signature.parameters.values():
        hint = hints.get(parameter.name)
        if parameter.name in tensors:
            hint = torch.Tensor
        elif hint is None:
            default = parameter.default
            is_given = default is not parameter.empty and default is not None
            hint = torch.Tensor | None if default is None else torch.Tensor
            hint = type(default) if is_given else hint
        parameters.append(parameter.replace(annotation=hint))
    result = hints.get("return", torch.Tensor)
    return signature.replace(parameters=parameters, return_annotation=result)


def _schema(name: str, signature: inspect.Signature, mutates_args: Sequence[str]) -> str:
    def prototype() -> None:
        """What ``infer_schema`` reads the parameters of."""

    # What inspect reads; the types of functions do not have it.
    prototype.__signature__ = signature  # type: ignore[attr-defined]
    try:
        return torch.library.infer_schema(prototype, mutates_args=mutates_args)
    except ValueError as error:
        why = str(error).removeprefix("infer_schema(func): ").partition(" The valid types are")[0]
        why = why.partition(" Please file")[0]
        raise errors.OperatorSchema(None, name, why).error() from None


def _in_place(op: LibraryOp, written: Sequence[str]) -> types.FunctionType:
    """A function that writes what the operator's gives into arguments: its text, and from that."""
    signature = signature_of(op.fn)
    plain = [x.replace(default=x.empty, annotation=x.empty) for x in signature.parameters.values()]
    given = [x.name if x.kind != x.KEYWORD_ONLY else f"{x.name}={x.name}" for x in plain]
    results = [f"new_{name}" for name in written]
    # All but the first are read once an argument was written to, which they may be.
    copies = [result if i == 0 else f"{result}.clone()" for i, result in enumerate(results)]
    lines = [
        f"def {op.__name__}_{inspect.Signature(plain)}:",
        f"    {', '.join(results)} = {op.__name__}({', '.join(given)})",
        *([f"    {', '.join(results)} = {', '.join(copies)}"] if len(results) > 1 else []),
        *(f"    {name}.copy_({result})" for name, result in zip(written, results)),
    ]
    text, path = "\n".join(lines) + "\n", f"<{op.name}_>"
    linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
    scope = {op.__name__: op, "__name__": op.fn.__module__}
    exec(compile(text, path, "exec"), scope)
    # What the text above defines.
    made: types.FunctionType = scope[f"{op.__name__}_"]  # type: ignore[assignment]
    own = function_of(op.fn)
    made.__defaults__, made.__kwdefaults__ = own.__defaults__, own.__kwdefaults__
    made.__annotations__ = {**inspect.get_annotations(own, eval_str=True), "return": None}
    return made
