"""One operator of torch: its kernel, its fake kernel, its gradient as an operator, and ``vmap``."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any

import torch
from torch._functorch.utils import enable_single_level_autograd_function
from torch._guards import detect_fake_mode
from torch.autograd.function import _SingleLevelFunction
from torch.utils import _pytree as pytree

from babytriton import errors
from babytriton.jit import JitFunction
from babytriton.ops.generators import Generators
from babytriton.ops.torch_graphs import TorchGradient
from babytriton.runtime.interop import has_tangent
from babytriton.wrappers import WRAPPERS


class Operator:
    """A callable on tensors, registered with torch under a name.

    Args:
        name: with its namespace.
        schema: its parameters and results, in torch's notation.
        run: the callable, through which torch's autograd can go.
        fake: likewise, for tensors without numbers.
        mutates_args: the parameters that it writes to.
        draws: whether a call draws random numbers, or may.

    Attributes:
        overload: the operator as torch knows it.
    """

    def __init__(
        self,
        name: str,
        schema: str,
        run: Callable[..., Any],
        fake: Callable[..., Any],
        mutates_args: Sequence[str] = (),
        draws: Callable[..., bool] = lambda *_, **__: False,
    ) -> None:
        self._name, self._schema = name, schema
        self._run, self._fake, self._mutates_args = run, fake, mutates_args
        self._draws = draws
        made = torch.library.custom_op(name, self._kernel, mutates_args=mutates_args, schema=schema)
        self.overload = made._opoverload
        made.register_fake(self._fake_kernel)
        made.register_vmap(self._each)
        # Not by register_autograd, whose gradients torch.func cannot go through.
        space, own = name.split("::")
        self._library = torch.library.Library(space, "FRAGMENT")
        for kind in ("CPU", "CUDA"):
            self._library.impl(own, self._autograd, f"Autograd{kind}", with_keyset=True)
            self._library.impl(own, partial(self._autocast, kind), f"Autocast{kind}")
        self._told = False
        self._tell_dtensors()

    # ------------------------------------------------------------ kernels

    def _kernel(self, /, *args: Any, **kwargs: Any) -> Any:
        # What is recorded is the operator, and not what it does.
        given = pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, (args, kwargs))
        with torch.no_grad(), self._unwritten(args, kwargs):
            found = self._run(*given[0], **given[1])
        return self._fitting(found, given, torch.clone)

    def _fake_kernel(self, /, *args: Any, **kwargs: Any) -> Any:
        # torch.distributed asks for the type of the result before it asks how to divide it.
        self._tell_dtensors()
        with _real_tensors_allowed((args, kwargs)), self._unwritten(args, kwargs):
            found = self._fake(*args, **kwargs)
        return self._fitting(found, None, _like)

    def _fitting(self, found: Any, given: Any, own: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        """Results as the schema has them, in memory of their own.

        Args:
            found: what was computed.
            given: the arguments; ``None`` where all results are to be made anew.
            own: makes a result anew.
        """
        returns = self.overload._schema.returns
        parts = list(found) if isinstance(found, (tuple, list)) else [found]
        is_list = len(returns) == 1 and isinstance(returns[0].type, torch.ListType)
        declared = len(parts) if is_list else len(returns)
        if found is None and not returns:
            return None
        if len(parts) != declared or not all(isinstance(x, torch.Tensor) for x in parts):
            raise errors.ResultsDiffer(
                None, self._name, ", ".join(str(x.type) for x in returns) or "nothing", _kind(found)
            ).error()
        if given is None:
            parts = [own(part) for part in parts]
        else:
            taken = {x.untyped_storage().data_ptr() for x in _tensors(given)}
            for i, part in enumerate(parts):
                place = part.untyped_storage().data_ptr()
                parts[i] = own(part).contiguous() if place in taken else part.contiguous()
                taken.add(place)
        return parts if is_list else parts[0] if len(returns) == 1 else tuple(parts)

    @contextlib.contextmanager
    def _unwritten(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[None]:
        """Refuse writes to arguments that the schema does not name."""
        kept = []
        for i, argument in enumerate(self.overload._schema.arguments):
            value = kwargs.get(argument.name, args[i] if i < len(args) else None)
            is_written = argument.alias_info is not None and argument.alias_info.is_write
            if isinstance(value, torch.Tensor) and not (is_written or value.is_inference()):
                kept.append((argument.name, value, value._version))
        with _autograd_not_excluded(torch._C.DispatchKey.ADInplaceOrView):  # it counts versions
            yield
        for name, value, version in kept:
            if value._version != version:
                raise errors.UndeclaredWrite(None, self._name, name).error()

    def _with_more(self, first: Sequence[str]) -> str:
        """The parameters, after some others."""
        text = str(self.overload._schema)
        own = text[text.index("(") + 1 : text.rindex(") ->")]
        names = [argument.name for argument in self.overload._schema.arguments]
        other = [parameter + "_" * (parameter.split()[1] in names) for parameter in first]
        return f"({', '.join([*other, own])})"

    # ------------------------------------------------------------ autocast

    def _autocast(self, kind: str, /, *args: Any, **kwargs: Any) -> Any:
        """What autocast makes of a call: one of an operator that is told how to cast.

        A traced program runs without autocast, as the casts of all other operators are part of it.
        """
        if WRAPPERS.handler(pytree.tree_leaves((args, kwargs))) is not None:
            return self._on_dtensors(args, kwargs)
        device = kind.lower()
        dtype = torch.get_autocast_dtype(device)
        with torch.autocast(device, enabled=False):
            return self._under_autocast.overload(device, dtype, *args, **kwargs)

    @cached_property
    def _under_autocast(self) -> Operator:
        def run(device: str, dtype: torch.dtype, /, *args: Any, **kwargs: Any) -> Any:
            with torch.autocast(device, dtype=dtype):
                return self._run(*args, **kwargs)

        def fake(device: str, dtype: torch.dtype, /, *args: Any, **kwargs: Any) -> Any:
            with torch.autocast(device, dtype=dtype):
                return self._fake(*args, **kwargs)

        _, returns = str(self.overload._schema).rsplit("->", 1)
        schema = f"{self._with_more(('str autocast_to', 'ScalarType autocast_dtype'))} ->{returns}"

        def draws(device: str, dtype: torch.dtype, /, *args: Any, **kwargs: Any) -> bool:
            with torch.autocast(device, dtype=dtype):
                return self._draws(*args, **kwargs)

        return Operator(f"{self._name}_autocast", schema, run, fake, self._mutates_args, draws)

    # ------------------------------------------------------------ several processes

    def _on_dtensors(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call with DTensors, whose gradients flow through those of each process."""
        rules = importlib.import_module("babytriton.integrations.dtensor_operator")
        return rules.call(self.overload, self._run, args, kwargs)

    def _tell_dtensors(self) -> None:
        """Tell torch.distributed how the operator may be divided, once that is imported."""
        is_known = self._told or self._mutates_args or not isinstance(self._run, JitFunction)
        if not is_known and "torch.distributed.tensor" in sys.modules:
            self._told = True
            rules = importlib.import_module("babytriton.integrations.dtensor_operator")
            rules.register(self.overload, self._run)

    # ------------------------------------------------------------ gradients

    @cached_property
    def _gradient(self) -> Operator:
        """Of gradients of results and of the arguments, those of the wanted arguments."""
        first = ("Tensor[] grads", "int[] wanted", "int[] through")
        schema = f"{self._with_more(first)} -> Tensor[]"

        def run(
            grads: Sequence[Any], wanted: Any, through: Any, /, *args: Any, **kwargs: Any
        ) -> list[torch.Tensor]:
            with _autograd_not_excluded(
                torch._C.DispatchKey.AutogradFunctionality, torch._C.DispatchKey.AutogradOther
            ):
                watched = self._draws(*args, **kwargs)
                gradient = TorchGradient(self._run, tuple(wanted), tuple(through), watched)
                return gradient(grads, args, kwargs)

        def fake(
            grads: Sequence[Any], wanted: Any, through: Any, /, *args: Any, **kwargs: Any
        ) -> list[torch.Tensor]:
            tensors = _tensors((args, kwargs))
            return [tensors[i] for i in wanted]

        def draws(grads: Any, wanted: Any, through: Any, /, *args: Any, **kwargs: Any) -> bool:
            return self._draws(*args, **kwargs)

        return Operator(f"{self._name}_backward", schema, run, fake, (), draws)

    def register_related(self) -> None:
        """Register what else a program that was traced before may call, by name."""
        for operator in (self, self._under_autocast):
            if not operator._mutates_args:
                assert operator._gradient.overload

    def _autograd(self, keys: torch._C.DispatchKeySet, /, *args: Any, **kwargs: Any) -> Any:
        """What autograd runs in place of the operator: the operator, recorded if need be."""
        leaves, tree = pytree.tree_flatten((args, kwargs))
        if WRAPPERS.handler(leaves) is not None:
            return self._on_dtensors(args, kwargs)
        call = _Call(self, keys, leaves, tree)
        tensors = [leaves[i] for i in call.places]
        if has_tangent(tensors):
            raise errors.ForwardMode(None, self._name).error()
        if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
            if self._mutates_args:
                raise errors.WrittenRequiresGrad(None, self._mutates_args[0]).error()
            apply: Callable[..., Any] = _Recorded.apply  # type: ignore[attr-defined]
            with enable_single_level_autograd_function():
                return pytree.tree_unflatten(apply(call, *tensors), call.result)
        return call.below(tensors)

    def pulled(self, call: _Call, tensors: Sequence[torch.Tensor], needs: Any, grads: Any) -> Any:
        """The gradients of the tensors of a call that need one.

        Args:
            call: of this operator.
            tensors: its arguments.
            needs: whether each needs a gradient.
            grads: of its results; ``None`` where nothing depends on one.
        """
        wanted = [i for i, is_needed in enumerate(needs) if is_needed]
        through = [i for i in call.floats if grads[i] is not None]
        args, kwargs = call.filled(tensors)
        given = [grads[i] for i in through]
        found = self._gradient.overload(given, wanted, through, *args, **kwargs)
        by_number = dict(zip(wanted, found))
        return [by_number.get(i) for i in range(len(tensors))]

    # ------------------------------------------------------------ vmap

    def _each(self, info: Any, in_dims: Any, /, *args: Any, **kwargs: Any) -> Any:
        """A call for each element of a batch: programs are compiled for what one of them is."""
        leaves, tree = pytree.tree_flatten(args)
        dims = pytree.tree_leaves(in_dims, is_leaf=lambda x: x is None)

        for argument, dim in zip(self.overload._schema.arguments, in_dims):
            if argument.name in self._mutates_args and dim is None:
                raise RuntimeError(
                    f"vmap: {self._name} writes to `{argument.name}`, which needs a dimension for "
                    "the elements of the batch"
                )

        def given(element: Callable[[torch.Tensor, int], torch.Tensor]) -> Any:
            own = [x if d is None else element(x, d) for x, d in zip(leaves, dims)]
            return pytree.tree_unflatten(own, tree)

        def call(element: Callable[[torch.Tensor, int], torch.Tensor]) -> Any:
            return self.overload(*given(element), **kwargs)

        draws = info.batch_size > 0 and self._draws(*given(partial(_element, 0)), **kwargs)
        numbers = Generators.elements(info.batch_size, info.randomness, draws, _tensors(args))
        each = [call(partial(_element, n)) for n in numbers]
        if not each:
            one = call(lambda x, dim: x.new_zeros(x.shape[:dim] + x.shape[dim + 1 :]))
            found = pytree.tree_map(lambda x: x.new_empty((0, *x.shape)), one)
        else:
            found = pytree.tree_map(lambda *parts: torch.stack(parts), each[0], *each[1:])
        return found, pytree.tree_map(lambda _: 0, found)


@contextlib.contextmanager
def _autograd_not_excluded(*keys: torch._C.DispatchKey) -> Iterator[None]:
    """Inside, these parts of autograd work also in an operator, where torch turns them off."""
    with torch._C._PreserveDispatchKeyGuard():
        for key in keys:
            torch._C._dispatch_tls_set_dispatch_key_excluded(key, False)
        yield


def _element(number: int, batch: torch.Tensor, dim: int) -> torch.Tensor:
    return batch.select(dim, number)


class _Call:
    """A call of an operator.

    Args:
        operator: that is called.
        keys: what torch dispatches the call by.
        leaves: of its arguments.
        tree: what these are the leaves of.

    Attributes:
        places: the numbers of the leaves that are tensors.
        floats: the numbers of the results that gradients flow through.
        result: what the results are the leaves of.
    """

    def __init__(
        self, operator: Operator, keys: torch._C.DispatchKeySet, leaves: list[Any], tree: Any
    ) -> None:
        self.operator, self._keys, self._tree = operator, keys, tree
        self.places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        self._rest = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        self.floats: list[int] = []
        self.result: Any = None

    def filled(self, tensors: Sequence[torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with these tensors."""
        leaves = list(self._rest)
        for place, tensor in zip(self.places, tensors):
            leaves[place] = tensor
        filled: tuple[tuple[Any, ...], dict[str, Any]] = pytree.tree_unflatten(leaves, self._tree)
        return filled

    def below(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Call the operator with what comes below autograd."""
        args, kwargs = self.filled(tensors)
        with torch._C._AutoDispatchBelowAutograd():
            keys = self._keys & torch._C._after_autograd_keyset
            return self.operator.overload.redispatch(keys, *args, **kwargs)


class _Recorded(_SingleLevelFunction):
    """A call of an operator in torch's graph.

    As with operators of torch's own, torch.func has taken its tensors apart before.
    """

    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        # The transforms around the one whose tensors these are do their own recording.
        with torch.set_grad_enabled(torch._C._are_functorch_transforms_active()):
            results, call.result = pytree.tree_flatten(call.below(tensors))
        call.floats = [i for i, x in enumerate(results) if x.is_floating_point()]
        ctx.call = call
        ctx.save_for_backward(*tensors)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        call = ctx.call
        found = call.operator.pulled(call, ctx.saved_tensors, ctx.needs_input_grad[1:], grads)
        return (None, *found)


def _tensors(nested: Any) -> list[torch.Tensor]:
    return [x for x in pytree.tree_leaves(nested) if isinstance(x, torch.Tensor)]


def _like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)


def _kind(found: Any) -> str:
    if isinstance(found, (tuple, list)):
        return f"({', '.join(map(_kind, found))})"
    return "Tensor" if isinstance(found, torch.Tensor) else type(found).__name__


@contextlib.contextmanager
def _real_tensors_allowed(args: Any) -> Iterator[None]:
    """Inside, a function may read tensors from outside, as constants."""
    mode = detect_fake_mode(args)
    if mode is None:
        yield
        return
    before, mode.allow_non_fake_inputs = mode.allow_non_fake_inputs, True
    try:
        yield
    finally:
        mode.allow_non_fake_inputs = before
