"""What a call or an attribute means: a row, a function to inline, or plain Python."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import inspect
import types
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from babytriton import errors
from babytriton.diagnostics import CompileError
from babytriton.frontend import (
    beyond,
    builtins,
    checkpoints,
    effects,
    inlining,
    modules,
    outside,
    recorded,
    rows,
)
from babytriton.frontend.callables import (
    MUTATORS,
    belongs_to_torch,
    is_hashable,
    is_users,
    module_of,
    root,
    takes_values,
)
from babytriton.frontend.callee import seen_through, signature_of_node
from babytriton.frontend.captures import Guard, Place
from babytriton.frontend.grown import Grown
from babytriton.frontend.kernel import calling
from babytriton.frontend.scope import Scope
from babytriton.ops.value import NUMBERS, REFUSALS, Method, Scalar, Text, Value, values_in

if TYPE_CHECKING:
    from babytriton.frontend.codegen import CodeGenerator

OURS: tuple[type[Exception], ...] = (CompileError, *REFUSALS)
"""What passes through plain Python on its way to becoming a message."""


@dataclass(frozen=True)
class LocalFunction:
    """A ``def`` or ``lambda`` inside a function that is being compiled."""

    home: CodeGenerator
    scope: Scope
    node: ast.FunctionDef | ast.Lambda
    defaults: Sequence[Any]
    keyword_defaults: Sequence[Any]

    wraps: str | None = None
    """The name it has taken over by ``functools.wraps``."""

    @property
    def __name__(self) -> str:
        if self.wraps is not None:
            return self.wraps
        return "<lambda>" if isinstance(self.node, ast.Lambda) else self.node.name

    def signature(self) -> inspect.Signature:
        """The parameters as ``inspect`` describes those of a function."""
        return signature_of_node(self.node.args, self.defaults, self.keyword_defaults)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # Plain Python such as functools.reduce or sorted calls what it was handed.
        return call(self.home, self.node, self, args, kwargs)


def attribute(at: CodeGenerator, node: ast.AST, owner: Any, name: str) -> Any:
    """``owner.name``, where what lies outside the function is captured.

    Raises:
        AttributeError: there is none.
    """
    if name in recorded.ATTRIBUTES and isinstance(owner, Value) and not isinstance(owner, Scalar):
        return recorded.attribute(at, node, owner, name)
    if isinstance(owner, (Value, LocalFunction, Grown)):
        return getattr(owner, name)
    described = inspect.getattr_static(type(owner), name, None)
    if isinstance(described, property) and isinstance(described.fget, types.FunctionType):
        at.program.captures.watch_class(type(owner), name, described)
        return inlining.inline(at, node, described.fget, (owner,), {})
    found = getattr(owner, name)
    captures = at.program.captures
    if _is_method(owner, found):
        captures.watch_method(owner, name, found)
        return found
    if isinstance(owner, dict) and (isinstance(found, Value) or captures.is_outside(found)):
        return found  # an item, which has been looked at already
    owner, place = captures.original(owner), None
    if isinstance(owner, torch.nn.Module):
        place = modules.place_of(owner, captures.path_of(owner) or type(owner).__name__, name)
    return captures.lift(place or captures.attribute_place(owner, name), found)


def _is_method(owner: Any, found: Any) -> bool:
    """Whether an attribute is a method, or what a library has in a module of its own.

    A function such as ``torch.relu`` that an object holds is none: it may hold another one later.
    """
    if isinstance(found, types.MethodType):
        return True
    if not isinstance(found, types.BuiltinMethodType):
        return False
    if isinstance(owner, types.ModuleType):
        return root(found) == owner.__name__.partition(".")[0]
    return not isinstance(found.__self__, types.ModuleType | None)


def call(
    at: CodeGenerator, node: ast.AST, fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Compile a call of whatever ``fn`` is: by the first of ``KINDS`` that it is one of."""
    args, kwargs, fn = tuple(args), dict(kwargs), seen_through(fn)
    kind = next(kind for kind in KINDS if kind.has(at, fn, (args, kwargs)))
    return kind.call(at, node, fn, args, kwargs)


@dataclass(frozen=True)
class Kind:
    """Calls that are compiled in one way.

    Attributes:
        has: whether a call is one of these, by what is called and its arguments.
        call: compiles one.
    """

    has: Callable[[CodeGenerator, Any, tuple[tuple[Any, ...], dict[str, Any]]], bool]
    call: Callable[[CodeGenerator, ast.AST, Any, tuple[Any, ...], dict[str, Any]], Any]


def _tensors_method(
    at: CodeGenerator, node: ast.AST, fn: Method, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    if fn.fn is torch.Tensor.item:
        return at.number(node, builtins.kind_of(fn.value), fn.value)
    if fn.fn is torch.Tensor.backward:
        _refused(at, node, fn.fn)
    if fn.fn is torch.Tensor.unbind:
        return call(at, node, fn.fn, (fn.value, *args), kwargs)
    return _torch(at, node, fn.fn, (fn.value, *args), kwargs)


def _partial(
    at: CodeGenerator, node: ast.AST, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    held, named = _held(at, fn)
    return call(at, node, fn.func, (*held, *args), {**named, **kwargs})


def _beyond_torch(
    at: CodeGenerator, node: ast.AST, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    with _at_one_place(at, node, args, kwargs):
        return beyond.call(at, node, fn, args, kwargs)


def _kernel(
    at: CodeGenerator, node: ast.AST, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    with _at_one_place(at, node, args, kwargs):
        return calling.call(at, node, fn, args, kwargs)


def _compiled(
    at: CodeGenerator, node: ast.AST, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    with beyond.rows_of(at, fn):
        return call(at, node, fn.__babytriton_function__, args, kwargs)


_GONE_THROUGH = frozenset((*builtins.ITERATORS, len, list, tuple))
"""What takes the items of its arguments, or counts them."""


def _iterator(
    at: CodeGenerator, node: ast.AST, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    args = tuple(modules.items(at, arg) for arg in args)
    return at.python(node, builtins.ITERATORS.get(fn, fn), *args, **kwargs)


def _method(
    at: CodeGenerator, node: ast.AST, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    function = fn.__func__
    # Modules of torch.nn are written in terms of functions that are rows.
    if isinstance(fn.__self__, torch.nn.Module) and modules.lists(fn):
        return at.python(node, modules.listed, at, fn, args, kwargs)
    if isinstance(fn.__self__, torch.nn.Module) and isinstance(function, types.FunctionType):
        return inlining.inline(at, node, function, (fn.__self__, *args), kwargs)
    return call(at, node, function, (fn.__self__, *args), kwargs)


def _object(
    at: CodeGenerator, node: ast.AST, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    method = inspect.getattr_static(type(fn), "__call__")
    if is_users(method):
        at.program.captures.watch_class(type(fn), "__call__", method)
    return call(at, node, method, (fn, *args), kwargs)


def _asks_for_attribute(at: CodeGenerator, fn: Any, given: tuple[tuple[Any, ...], Any]) -> bool:
    args, _ = given
    asks = fn is getattr or fn is hasattr
    return asks and len(args) > 1 and isinstance(args[1], str)


def _is_one_of(fn: Any, known: Container[Any]) -> bool:
    return is_hashable(fn) and fn in known


def _is_torchs(at: CodeGenerator, fn: Any, given: Any) -> bool:
    if isinstance(getattr(fn, "__self__", None), torch.Size):
        return False
    row = inlining.row_of(at, fn)
    return belongs_to_torch(fn) and not (row is not None and row.inlined)


def _is_callable_object(at: CodeGenerator, fn: Any, given: Any) -> bool:
    method = inspect.getattr_static(type(fn), "__call__", None)
    return not isinstance(fn, type) and isinstance(method, types.FunctionType)


def _is_users_object(at: CodeGenerator, fn: Any, given: Any) -> bool:
    """Whether calls are what a class of the user's says: its objects are asked for nothing else.

    They may answer any name, and compare with nothing but their own kind.
    """
    if isinstance(fn, torch.nn.Module) or not _is_callable_object(at, fn, given):
        return False
    method = inspect.getattr_static(type(fn), "__call__")
    return root(method) != "babytriton" and is_users(method) and not inlining.has_row(at, fn)


def _refused(at: CodeGenerator, node: ast.AST, fn: Any, *_: Any) -> NoReturn:
    """Fail: a call has no meaning within a program."""
    why = outside.refusal(fn)
    assert why is not None
    name = getattr(fn, "__name__", type(fn).__name__)
    at.fail(errors.OutsideEffect(at.span(node), name, *why))


_SCALED = (
    *(torch.add, torch.sub, torch.subtract),
    *(torch.Tensor.add, torch.Tensor.sub, torch.Tensor.subtract),
    *(torch.Tensor.add_, torch.Tensor.sub_, torch.Tensor.subtract_),
)
"""What adds a tensor times ``alpha``."""


def _torch(
    at: CodeGenerator,
    node: ast.AST,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    name = getattr(fn, "__name__", str(fn))
    factor = kwargs.get("alpha") if fn in _SCALED else None
    if isinstance(factor, Value) and factor.meta.ndim == 0 and not factor.requires_grad:
        # A tensor that stands for a number is one.
        kwargs = {**kwargs, "alpha": at.number(node, builtins.kind_of(factor), factor)}
    at.hand(node, fn, (*args, *kwargs.values()))
    with at.program.blaming(at.span(node), name, (args, kwargs)):
        found = at.program.builder.call(fn, args, kwargs)
    at.program.numbered.note_call(fn, args, kwargs, found)
    return found


def _python(
    at: CodeGenerator, node: ast.AST, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    name = getattr(fn, "__name__", type(fn).__name__)
    if not callable(fn):
        why = f"'{type(fn).__name__}' object is not callable"
        at.fail(errors.PythonError(at.span(node), "TypeError", why))
    if fn is next and at.program.apart:
        why = "how far the iterator has gone is decided at run time"
        at.fail(errors.UnsupportedCall(at.span(node), name, why, "loop over its items"))
    owner = getattr(fn, "__self__", None)
    if name in MUTATORS and at.program.captures.is_outside(owner):
        at.fail(errors.CapturedContainer(at.span(node), type(owner).__name__))
    if effects.defers(fn, (args, kwargs)):
        return Text(fn, *args, **kwargs)
    if isinstance(fn, functools._lru_cache_wrapper) and values_in((args, kwargs)):
        why = "functools.lru_cache keeps results from call to call, a program does not"
        instead = f"call the function behind it: {name}.__wrapped__"
        at.fail(errors.UnsupportedCall(at.span(node), name, why, instead))
    if values_in((args, kwargs)) and not takes_values(fn):
        why = f"{module_of(fn) or 'it'} works on numbers, not on the program's tensors"
        instead = "use torch's function of that name, or return the tensor and call it outside"
        if module_of(fn).startswith("torch.distributions"):
            instead = (
                "write out its formula, such as -0.5 * z**2 - log(sigma), with torch's functions"
            )
        at.fail(errors.UnsupportedCall(at.span(node), name, why, instead))
    return at.python(node, fn, *args, **kwargs)


@contextlib.contextmanager
def _at_one_place(
    at: CodeGenerator, node: ast.AST, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[None]:
    """A call of the user's own kernel, which may write to its operands: they are not moved."""
    with at.program.blaming(at.span(node), "this kernel", (args, kwargs)):
        emitting = at.program.builder.at_one_place(values_in((args, kwargs)))
    with emitting:
        yield


def _held(at: CodeGenerator, partial: functools.partial[Any]) -> tuple[Any, dict[str, Any]]:
    """The arguments that a partial holds."""
    path = at.program.captures.path_of(partial)
    if path is None:  # it was made inside the function, of what the program knows
        return partial.args, partial.keywords
    lift = at.program.captures.lift
    args = lift(Place(f"{path}.args", lambda: partial.args), partial.args)
    return args, lift(Place(f"{path}.keywords", lambda: partial.keywords), partial.keywords)


def _named_attribute(
    at: CodeGenerator, node: ast.AST, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    return (_getattr if fn is getattr else _hasattr)(at, node, *args)


def _getattr(at: CodeGenerator, node: ast.AST, owner: Any, name: str, *default: Any) -> Any:
    try:
        return attribute(at, node, owner, name)
    except AttributeError:
        if default:
            at.program.captures.watch_presence(owner, name, False)
            return default[0]
        at.fail(errors.NoAttribute(at.span(node), f"a {type(owner).__name__}", name))


def _hasattr(at: CodeGenerator, node: ast.AST, owner: Any, name: str) -> bool:
    found = bool(at.python(node, hasattr, owner, name))
    if not isinstance(owner, (Value, LocalFunction)):
        at.program.captures.watch_presence(owner, name, found)
    return found


def _records_gradients(at: CodeGenerator, *_: Any) -> bool:
    """``torch.is_grad_enabled()``: as it is at the call, but in blocks that turn it off."""
    now = torch.is_grad_enabled()
    place = Place("torch.is_grad_enabled()", torch.is_grad_enabled)
    guard = Guard(place, lambda found: found == now, str(now))
    at.program.captures.watch(("torch.is_grad_enabled",), guard)
    return now and not at.program.builder.tape.is_off


def _super(at: CodeGenerator, node: ast.AST, *_: Any) -> Any:
    """``super()`` of a method: its class is in a cell, its object is its first argument."""
    place = at.scope.place("__class__")
    parameters = at.source.node.args.args
    if place is None or not parameters:
        at.fail(errors.PythonError(at.span(node), "RuntimeError", "super(): no arguments"))
    return super(place.read(), at.scope.local(parameters[0].arg))


def _wrapping(
    at: CodeGenerator, node: ast.AST, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> LocalFunction:
    """``functools.wraps``, of which a program can see the name."""
    wrapped = args[1] if len(args) > 1 else kwargs["wrapped"]
    wrapper: LocalFunction = args[0]
    return dataclasses.replace(wrapper, wraps=wrapped.__name__)


KINDS: tuple[Kind, ...] = (
    # Methods of the program's tensors, and what asks for attributes.
    Kind(lambda at, fn, given: isinstance(fn, Method), _tensors_method),
    Kind(lambda at, fn, given: fn is super and not given[0], _super),
    Kind(_asks_for_attribute, _named_attribute),
    # What holds another function, which may be of any kind.
    Kind(lambda at, fn, given: isinstance(fn, functools.partial), _partial),
    Kind(
        lambda at, fn, given: (
            fn is functools.update_wrapper
            and bool(given[0])
            and isinstance(given[0][0], LocalFunction)
        ),
        _wrapping,
    ),
    Kind(_is_users_object, _object),
    # What a program cannot do, and what happens when it runs, before there is a row for either.
    Kind(lambda at, fn, given: outside.refusal(fn) is not None, _refused),
    Kind(lambda at, fn, given: effects.is_effect(fn), effects.emit),
    Kind(lambda at, fn, given: fn is torch.is_grad_enabled, _records_gradients),
    Kind(inlining.asks_for_overrides, lambda *_: False),
    Kind(checkpoints.is_checkpoint, checkpoints.call),
    Kind(lambda at, fn, given: isinstance(fn, LocalFunction), inlining.inline_local),
    Kind(lambda at, fn, given: isinstance(fn, torch.nn.Module), modules.call),
    # Of lists that loops have made longer, some items are in rows of tensors.
    Kind(
        lambda at, fn, given: isinstance(getattr(fn, "__self__", None), Grown),
        lambda at, node, fn, args, kwargs: at.python(node, fn, *args, **kwargs),
    ),
    Kind(
        lambda at, fn, given: fn is type and len(given[0]) == 1 and isinstance(given[0][0], Grown),
        lambda at, node, fn, args, kwargs: args[0].kind,
    ),
    Kind(rows.joins, rows.join),
    Kind(rows.unbinds, rows.unbind),
    Kind(rows.takes_list, rows.with_lists),
    # Of the user's, a row comes before the function's own body.
    Kind(lambda at, fn, given: inlining.has_row(at, fn), _torch),
    Kind(lambda at, fn, given: beyond.is_beyond_torch(fn), _beyond_torch),
    Kind(lambda at, fn, given: hasattr(fn, "__babytriton_kernel__"), _kernel),
    Kind(lambda at, fn, given: hasattr(fn, "__babytriton_function__"), _compiled),
    # Python's own, of which some mean something else of the program's tensors.
    Kind(
        lambda at, fn, given: _is_one_of(fn, builtins.ON_VALUES) and bool(values_in(given)),
        lambda at, node, fn, args, kwargs: at.python(node, builtins.ON_VALUES[fn], *args, **kwargs),
    ),
    Kind(
        lambda at, fn, given: (
            _is_one_of(fn, NUMBERS) and len(given[0]) == 1 and isinstance(given[0][0], Value)
        ),
        lambda at, node, fn, args, kwargs: at.number(node, fn, args[0]),
    ),
    Kind(lambda at, fn, given: _is_one_of(fn, _GONE_THROUGH), _iterator),
    Kind(lambda at, fn, given: isinstance(fn, types.MethodType), _method),
    Kind(_is_torchs, _torch),
    # Functions are inlined where tensors pass through them, or where they are the user's.
    Kind(
        lambda at, fn, given: (
            isinstance(fn, types.FunctionType) and (bool(values_in(given)) or is_users(fn))
        ),
        inlining.inline,
    ),
    Kind(_is_callable_object, _object),
    Kind(lambda at, fn, given: True, _python),
)
"""The kinds of calls; a call is of the first of them that has it."""
