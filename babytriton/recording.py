"""Calls as torch's autograd records them: what is saved, and how a gradient flows back."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import torch

from babytriton import errors
from babytriton.frontend.program import Cotangent, Hidden, Input
from babytriton.halves import Division
from babytriton.ops.generators import Generators
from babytriton.passes.gradient import Parameter, Result

Key = tuple[Any, ...]


class Run(Protocol):
    """A program that can be run: the runner of a stage is the one implementation."""

    differentiated: Differentiated | None

    @property
    def entry(self) -> str:
        """What the user calls it."""

    @property
    def inputs(self) -> Sequence[Input]:
        """What each parameter of the program gets."""

    @property
    def places(self) -> Sequence[int]:
        """The numbers of its parameters that are tensors."""

    @property
    def draws(self) -> bool:
        """Whether it draws random numbers, or calls what may."""

    def outputs(self, parameters: Sequence[Any], sizes: Mapping[str, int]) -> Sequence[Any]:
        """Run, and record it."""

    def given(self, values: Mapping[Key, Any], sizes: Mapping[str, int]) -> list[Any]:
        """The parameters of the program, of values by their keys."""


@dataclass(frozen=True)
class Differentiated:
    """How the gradients of a program are computed.

    Attributes:
        division: what is saved at a call, and what it is for.
        order: of the gradient that the program is; 0 for a function itself.
        places: the numbers of the program's parameters that are tensors.
        backward: runs the way back, on the leaves of its call.
        gradient: gives the program of the next order, whose calls are recorded in turn.
    """

    division: Division
    order: int
    places: Sequence[int]
    backward: Callable[[Sequence[Any]], Sequence[Any]]
    gradient: Callable[[], Run]

    @functools.cached_property
    def saved(self) -> _Saved:
        """What a call keeps for the way back."""
        division, sources = self.division, self.division.sources
        numbers = {x.number for x in sources if isinstance(x, Parameter)} | division.reads
        read = sorted(numbers & set(self.places))
        return _Saved(
            tuple(i for i in read if i not in division.written),
            tuple(i for i in read if i in division.written),
            tuple(x.number for x in sources if isinstance(x, Result)),
        )


@dataclass(frozen=True)
class _Saved:
    """What a call keeps for the way back, by number.

    Attributes:
        read: the parameters that are kept as they are.
        before: those that are written to once the call has returned, kept as they were.
        results: the outputs.
    """

    read: Sequence[int]
    before: Sequence[int]
    results: Sequence[int]


def key_of(input: Input) -> Key | None:
    """What an input of a program is known by in the programs of all orders."""
    if isinstance(input, int):
        return ("leaf", input)
    if isinstance(input, Hidden):
        return ("hidden", input.number)
    if isinstance(input, Cotangent):
        return ("gradient", input.order, input.output)
    return None


@dataclass(slots=True)
class _Call:
    """One call of a program.

    Attributes:
        program: that is called.
        launch: runs it on its parameters.
        parameters: of it, with ``None`` for each tensor.
        sizes: its symbolic sizes.
        generators: as they stand before it; ``None`` where it draws no random numbers.
    """

    program: Run
    launch: Callable[[Sequence[Any]], Sequence[Any]]
    parameters: Sequence[Any]
    sizes: Mapping[str, int]
    generators: Generators | None

    def filled(self, places: Sequence[int], tensors: Sequence[torch.Tensor]) -> list[Any]:
        """The parameters, with tensors by their numbers."""
        found = list(self.parameters)
        for i, tensor in zip(places, tensors):
            found[i] = tensor
        return found


def record(
    program: Run,
    launch: Callable[[Sequence[Any]], Sequence[Any]],
    parameters: Sequence[Any],
    sizes: Mapping[str, int],
) -> Sequence[Any]:
    """Run a program so that gradients flow back through it.

    Args:
        program: to run.
        launch: runs it on its parameters.
        parameters: of it.
        sizes: its symbolic sizes.

    Returns:
        Its outputs.
    """
    rest, tensors = list(parameters), []
    for i in program.places:
        tensors.append(parameters[i])
        rest[i] = None
    how = program.differentiated
    generators = Generators.now(tensors) if how is not None and how.division.draws else None
    call = _Call(program, launch, rest, sizes, generators)
    apply: Callable[..., Sequence[Any]] = _Recorded.apply
    if not torch._C._are_functorch_transforms_active():
        # All that torch's own does then, but for a look at default arguments at each call.
        apply = super(torch.autograd.Function, _Recorded).apply
        tensors = list(map(torch._C._functorch.unwrap_if_dead, tensors))
    return apply(call, *tensors)


class _Recorded(torch.autograd.Function):
    """A call of a program in torch's graph."""

    @staticmethod
    def forward(call: _Call, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = call.launch(call.filled(call.program.places, tensors))
        # An input may not be an output as well as saved: a gradient that is passed on is both.
        given = set(map(id, tensors))
        return _each_its_own([x.view_as(x) if id(x) in given else x for x in found])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        call = inputs[0]
        how = call.program.differentiated
        through = () if how is None else how.division.differentiable
        ctx.mark_non_differentiable(*[x for i, x in enumerate(output) if i not in through])
        if how is None:
            return
        given, saved = dict(zip(how.places, inputs[1:])), how.saved
        ctx.call = call
        if len(through) > 1:  # of which some may have no gradient
            ctx.set_materialize_grads(False)
            each = ((i, output[i]) for i in through)
            ctx.like = {i: {"size": x.shape, "dtype": x.dtype, "device": x.device} for i, x in each}
        ctx.before = [given[i].detach().clone() for i in saved.before]
        ctx.save_for_backward(*[given[i] for i in saved.read], *[output[i] for i in saved.results])

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        call, tensors = ctx.call, ctx.saved_tensors
        how = call.program.differentiated
        missing = {i for i in how.division.differentiable if grads[i] is None}
        again = torch.is_grad_enabled()
        zeros = missing if again else missing & how.division.taken
        given = [torch.zeros(**ctx.like[i]) if i in zeros else x for i, x in enumerate(grads)]
        saved, count = how.saved, len(how.saved.read)
        places = (*saved.read, *saved.before)
        parameters = call.filled(places, (*tensors[:count], *ctx.before))
        if again:
            found = _again(call, how, parameters, given)
        else:
            found = _back(how, parameters, dict(zip(saved.results, tensors[count:])), given)
        by_input = dict(zip(how.division.inputs, how.division.outputs))
        if missing:
            nodes = dict(zip(how.places, getattr(ctx, "next_functions", ())))
            for i, needs in zip(how.division.inputs, how.division.needs):
                if needs and needs <= missing and _ends_at_leaf(nodes.get(i)):
                    by_input[i] = None
        numbers = [by_input.get(i) for i in how.places]
        return (None, *[None if n is None else found[n] for n in numbers])

    @staticmethod
    def jvp(ctx: Any, *tangents: torch.Tensor | None) -> NoReturn:
        # Within other transforms of torch.func a call does not see that there are any.
        raise errors.ForwardMode(None, ctx.call.program.entry).error()

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], call: _Call, *tensors: torch.Tensor
    ) -> tuple[tuple[torch.Tensor, ...], tuple[int, ...]]:
        """A call for each element of the batch: programs are compiled for what one of them is."""
        each = [
            _repeated(
                call,
                [x if dim is None else x.select(dim, n) for dim, x in zip(in_dims[1:], tensors)],
            )
            for n in Generators.elements(
                info.batch_size, info.randomness, call.program.draws, tensors
            )
        ]
        if not each:
            return _without_elements(call, in_dims, tensors)
        outputs = tuple(torch.stack(parts) for parts in zip(*each))
        return outputs, (0,) * len(outputs)


def _ends_at_leaf(edge: tuple[Any, int] | None) -> bool:
    """Whether a gradient goes to a tensor that only adds it to its own.

    Torch gives it none where nothing reaches it; what else there is would be called with none.
    """
    leaf = getattr(edge[0], "variable", None) if edge is not None else None
    if leaf is None:
        return False
    return not (leaf._backward_hooks or getattr(leaf, "_post_accumulate_grad_hooks", None))


def _each_its_own(outputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Outputs none of which is another one, as gradients may flow through one of the two alone."""
    if len(set(map(id, outputs))) == len(outputs):
        return tuple(outputs)
    found: list[torch.Tensor] = []
    for x in outputs:
        found.append(x.detach() if any(x is other for other in found) else x)
    return tuple(found)


def _repeated(call: _Call, tensors: Sequence[torch.Tensor]) -> Sequence[Any]:
    """The same call of other tensors."""
    parameters = call.filled(call.program.places, tensors)
    return record(call.program, call.launch, parameters, call.sizes)


def _without_elements(
    call: _Call, in_dims: tuple[Any, ...], tensors: Sequence[torch.Tensor]
) -> tuple[tuple[torch.Tensor, ...], tuple[int, ...]]:
    """The results for a batch of no elements, of the types that those of one element have."""
    ones = [
        x if dim is None else x.new_zeros([n for i, n in enumerate(x.shape) if i != dim])
        for dim, x in zip(in_dims[1:], tensors)
    ]
    found = _repeated(call, ones)
    return tuple(x.new_empty((0, *x.shape)) for x in found), (0,) * len(found)


def _back(
    how: Differentiated,
    parameters: Sequence[Any],
    results: Mapping[int, torch.Tensor],
    grads: Sequence[torch.Tensor | None],
) -> Sequence[Any]:
    """What the way back gives, of what was saved."""
    leaves: list[Any] = []
    for source in how.division.sources:
        if isinstance(source, Parameter):
            leaves.append(parameters[source.number])
        else:
            of = results if isinstance(source, Result) else grads
            leaves.append(of[source.number if isinstance(source, Result) else source.output])
    return how.backward(leaves)


def _again(
    call: _Call,
    how: Differentiated,
    parameters: Sequence[Any],
    grads: Sequence[torch.Tensor | None],
) -> Sequence[Any]:
    """The same from the start, so that gradients flow back through the way back as well."""
    program = how.gradient()
    keys = map(key_of, call.program.inputs)
    values: dict[Any, Any] = {key: x for key, x in zip(keys, parameters) if key is not None}
    values |= {("gradient", how.order, i): grad for i, grad in enumerate(grads)}
    with contextlib.nullcontext() if call.generators is None else call.generators.again():
        return program.outputs(program.given(values, call.sizes), call.sizes)
