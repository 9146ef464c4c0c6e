"""Modules: what calling one means, where its tensors are read, and when torch runs it instead."""

from __future__ import annotations

import ast
import copy
import inspect
import operator
import types
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules import module as torch_module

from babytriton import errors
from babytriton.diagnostics import CompileError
from babytriton.frontend import calls, inlining
from babytriton.frontend.callables import module_of
from babytriton.frontend.captures import Guard, Place
from babytriton.ops.value import values_in

if TYPE_CHECKING:
    from babytriton.frontend.codegen import CodeGenerator
    from babytriton.frontend.visitor import Visitor

_TORCH = str(Path(torch.__file__).parent)


def call(
    at: CodeGenerator,
    node: ast.AST,
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """``module(...)``: its ``forward`` between its hooks and those of all modules.

    Hooks on gradients are refused where there are any: those would not pass through them.
    """
    own = inspect.getattr_static(type(module), "__call__")
    if isinstance(own, types.FunctionType) and not own.__code__.co_filename.startswith(_TORCH):
        return calls.call(at, node, own, (module, *args), kwargs)
    if isinstance(module, torch.jit.ScriptModule):
        why = "TorchScript has no Python source"
        instead = "call the module that it was made of"
        at.fail(errors.UnsupportedCall(at.span(node), type(module).__name__, why, instead))
    path = _path(at, module)
    _watch(at, (id(module), "hooks"), Place(f"{path}'s hooks", lambda: _Hooks.of(module)))
    _watch(at, ("hooks",), Place("hooks of all modules", _Hooks.of_all))
    everywhere, hooks = _Hooks.of_all(), _Hooks.of(module)
    if any(map(_is_distributed, (type(module), *hooks.functions()))):
        at.fail(errors.DistributedModule(at.span(node), type(module).__name__))
    for hook, with_kwargs in (*everywhere.before, *hooks.before):
        args, kwargs = _before(at, node, module, hook, with_kwargs, args, kwargs)
    result = forward(at, node, module, args, kwargs)
    for hook, with_kwargs in (*everywhere.after, *hooks.after):
        given = (module, args, kwargs, result) if with_kwargs else (module, args, result)
        replaced = _call_hook(at, node, hook, given)
        result = result if replaced is None else replaced
    back = [*everywhere.back, *hooks.back]
    if back and any(value.requires_grad for value in values_in((args, kwargs, result))):
        name = getattr(back[0], "__name__", type(back[0]).__name__)
        why = f"the backward hook `{name}` would not see its gradients"
        instead = "remove the hook, or put it on a tensor of the call by `register_hook`"
        at.fail(errors.UnsupportedCall(at.span(node), type(module).__name__, why, instead))
    return result


def forward(
    at: CodeGenerator,
    node: ast.AST,
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """``module.forward(...)``, inlined; one of torch's that cannot be runs through torch."""
    fn = calls.attribute(at, node, module, "forward")
    start, captured = at.program.mark(), at.program.captures.mark()
    try:
        return calls.call(at, node, fn, args, kwargs)
    except CompileError as error:
        span = error.diagnostic.span
        theirs = span is not None and span.path.startswith(_TORCH)
        if not theirs or not module_of(getattr(fn, "__func__", None)).startswith("torch."):
            raise
        if at.program.has_acted(start):
            raise
        at.program.undo(start)
        # What the module holds besides its tensors torch reads at each call.
        at.program.captures.undo(captured)
        return _through_torch(at, node, module, args, kwargs, error)


def _through_torch(
    at: CodeGenerator,
    node: ast.AST,
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    error: CompileError,
) -> Any:
    name = type(module).__name__
    if module.training and any(True for _ in module.buffers()):
        instead = "call its eval(), or leave it out of the function"
        at.fail(errors.Mutation(at.span(node), f"{name} in training", instead))
    if any(_Hooks.of(child) for child in module.modules() if child is not module):
        raise error
    tensors = {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }
    path = _path(at, module)
    state = {}
    for key, tensor in tensors.items():
        place = Place(f"{path}.{key}", _reader(module, key))
        state[key] = at.program.captures.lift(place, tensor)
    flags = Place(f"{path}.training", lambda: [child.training for child in module.modules()])
    _watch(at, (id(module), "training"), flags)
    span, title = error.diagnostic.span, error.diagnostic.render().splitlines()[0]
    line = f" ({Path(span.path).name}:{span.line})" if span else ""
    called = Forward(module, f"its forward cannot be inlined: {title.partition(': ')[2]}{line}")
    with at.program.blaming(at.span(node), name, (args, kwargs)):
        return at.program.builder.call(called, (state, *args), kwargs)


def _call_hook(at: CodeGenerator, node: ast.AST, hook: Any, args: tuple[Any, ...]) -> Any:
    """Call a hook. Those of torch are inlined as well: they are about objects, not tensors."""
    method = inspect.getattr_static(type(hook), "__call__", None)
    if isinstance(hook, types.FunctionType):
        return inlining.inline(at, node, hook, args, {})
    if isinstance(method, types.FunctionType) and not isinstance(hook, torch.nn.Module):
        return inlining.inline(at, node, method, (hook, *args), {})
    return calls.call(at, node, hook, args, {})


def _is_distributed(thing: Any) -> bool:
    """Whether a class or a hook is one of torch.distributed's, which do more than they return."""
    name = getattr(getattr(thing, "func", thing), "__module__", None) or ""
    return name.startswith(("torch.distributed.", "torch.nn.parallel."))


def _path(at: Visitor, module: torch.nn.Module) -> str:
    return at.program.captures.path_of(module) or type(module).__name__


class Forward:
    """``forward`` of a module as a function of its tensors, for torch to type and to run.

    Attributes:
        why: it runs through torch.
    """

    def __init__(self, module: torch.nn.Module, why: str) -> None:
        self._module = module
        self.why = why
        self.__name__ = type(module).__name__

    def __call__(self, state: Mapping[str, torch.Tensor], /, *args: Any, **kwargs: Any) -> Any:
        # To be typed, or differentiated, it is called on other tensors than its own.
        if not any(tensor.is_meta or tensor.requires_grad for tensor in state.values()):
            return self._module.forward(*args, **kwargs)
        inside = {f"module.{name}": tensor for name, tensor in state.items()}
        twin = _twin(self._module, {})
        call = _WithoutHooks(twin)
        # Of tensors that are there twice, each name is given.
        return torch.func.functional_call(call, inside, args, kwargs, tie_weights=False)


def _twin(module: torch.nn.Module, made: dict[torch.nn.Module, torch.nn.Module]) -> torch.nn.Module:
    """A module that holds what another one does, so that tensors of it can be put into it.

    Other threads go on calling the other one. What is in its lists and dicts may be replaced in the
    twin; whatever else it holds, the two share.

    Args:
        module: the other one.
        made: those of modules met so far, as one may be several modules' part.
    """
    if module in made:
        return made[module]
    twin: torch.nn.Module = type(module).__new__(type(module))
    made[module] = twin
    # torch's modules keep their tensors in containers, some of them twice.
    for name, held in vars(module).items():
        twin.__dict__[name] = copy.copy(held) if isinstance(held, (list, dict)) else held
    for name, child in module._modules.items():
        twin._modules[name] = None if child is None else _twin(child, made)
    return twin


class _WithoutHooks(torch.nn.Module):
    """Calls the ``forward`` of a module, where ``functional_call`` would call the module."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module.forward(*args, **kwargs)


class _Hooks:
    """The hooks of a module, or of all.

    Attributes:
        before, after: those around ``forward``, each with whether it takes keyword arguments.
        back: those on gradients.
    """

    def __init__(self, before: list[Any], after: list[Any], back: list[Any]) -> None:
        self.before = before
        self.after = after
        self.back = back

    @classmethod
    def of(cls, module: torch.nn.Module) -> _Hooks:
        before, after = module._forward_pre_hooks, module._forward_hooks
        back = [*module._backward_pre_hooks.values(), *module._backward_hooks.values()]
        if not before and not after and not back:
            return _NONE
        return cls(
            [(hook, i in module._forward_pre_hooks_with_kwargs) for i, hook in before.items()],
            [(hook, i in module._forward_hooks_with_kwargs) for i, hook in after.items()],
            back,
        )

    @classmethod
    def of_all(cls) -> _Hooks:
        before = torch_module._global_forward_pre_hooks
        after = torch_module._global_forward_hooks
        back = [
            *torch_module._global_backward_pre_hooks.values(),
            *torch_module._global_backward_hooks.values(),
        ]
        if not before and not after and not back:
            return _NONE
        named = torch_module._global_forward_hooks_with_kwargs
        return cls(
            [(hook, False) for hook in before.values()],
            [(hook, i in named) for i, hook in after.items()],
            back,
        )

    def functions(self) -> list[Any]:
        """All of them."""
        return [*(hook for hook, _ in (*self.before, *self.after)), *self.back]

    def __bool__(self) -> bool:
        return bool(self.before or self.after or self.back)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Hooks) and vars(self) == vars(other)

    # Python's way to say that there is none, which the type of `object` does not foresee.
    __hash__ = None  # type: ignore[assignment]


_NONE = _Hooks([], [], [])


def _watch(at: Visitor, key: tuple[Any, ...], place: Place) -> None:
    found = place.read()
    at.program.captures.watch(key, Guard(place, lambda now: bool(now == found)))


def _before(
    at: CodeGenerator,
    node: ast.AST,
    module: torch.nn.Module,
    hook: Callable[..., Any],
    with_kwargs: bool,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments as a hook before ``forward`` leaves them."""
    given = (module, args, kwargs) if with_kwargs else (module, args)
    found = _call_hook(at, node, hook, given)
    if found is None:
        return args, kwargs
    if not with_kwargs:
        return (found if isinstance(found, tuple) else (found,)), kwargs
    if not isinstance(found, tuple) or len(found) != 2:
        why = "a forward pre-hook with keyword arguments returns None or (args, kwargs)"
        at.fail(errors.PythonError(at.span(node), "RuntimeError", why))
    return found


def items(at: Visitor, value: Any) -> Any:
    """What iterating over a value gives; of a container of modules, what it holds is watched."""
    if not isinstance(value, torch.nn.Module):
        return at.program.numbered.items(value)
    if isinstance(value, (torch.nn.ParameterList, torch.nn.ParameterDict)):
        path, size = _path(at, value), len(value)
        _watch(at, (id(value), "len"), Place(f"len({path})", lambda: len(value)))
        if isinstance(value, torch.nn.ParameterDict):
            return list(value)
        lift = at.program.captures.lift
        reads = [(f"{path}[{i}]", partial(operator.getitem, value, i)) for i in range(size)]
        return [lift(Place(*read), read[1]()) for read in reads]
    if isinstance(value, (torch.nn.Sequential, torch.nn.ModuleList, torch.nn.ModuleDict)):
        path = _path(at, value)
        children = value._modules
        _watch(at, (id(value), "modules"), Place(f"{path}'s modules", lambda: dict(children)))
        for name, child in children.items():
            at.program.captures.name(child, f"{path}[{name}]")
        return list(children if isinstance(value, torch.nn.ModuleDict) else children.values())
    return value


def lists(fn: types.MethodType) -> bool:
    """Whether a method of a module is one of torch's that go through what the module holds."""
    name = fn.__name__.removeprefix("named_")
    known = name in ("parameters", "buffers", "modules", "children")
    return known and fn.__func__ is getattr(torch.nn.Module, fn.__name__)


def listed(at: Visitor, fn: types.MethodType, args: Any, kwargs: dict[str, Any]) -> Iterator[Any]:
    """What such a method gives, once as torch does, and a watch on it."""
    module = fn.__self__
    assert isinstance(module, torch.nn.Module)
    path = _path(at, module)
    kind = fn.__name__.removeprefix("named_")
    named = getattr(module, f"named_{kind}")
    plain = kind in ("modules", "children")
    found = list(named(*args, **kwargs))

    def held() -> list[Any]:
        return [(name, item) if plain else name for name, item in named(*args, **kwargs)]

    _watch(at, (id(module), kind, str((args, kwargs))), Place(f"{path}.{fn.__name__}()", held))
    items = []
    for name, item in found:
        place = Place(f"{path}.{name}", _reader(module, name) if name else lambda: module)
        items.append((name, at.program.captures.lift(place, item)))
    return iter(items if fn.__name__.startswith("named_") else [item for _, item in items])


def place_of(module: torch.nn.Module, path: str, name: str) -> Place | None:
    """Where a tensor or a module of a module is read, without ``Module.__getattr__``."""
    for table in (module._parameters, module._buffers, module._modules):
        if name in table:
            return Place(f"{path}.{name}", _item_reader(table, name))
    return None


def _item_reader(table: Mapping[str, Any], name: str) -> Callable[[], Any]:
    return lambda: table[name]


def _reader(module: torch.nn.Module, name: str) -> Callable[[], Any]:
    parent, _, last = name.rpartition(".")
    owner = module.get_submodule(parent)
    return lambda: getattr(owner, last)
