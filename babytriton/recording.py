"""Calls as torch's autograd records them: what is saved, and how a gradient flows back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from babytriton.frontend.program import Cotangent, Hidden, Input
from babytriton.halves import Division
from babytriton.ops.generators import Generators
from babytriton.passes.gradient import Parameter, Result

Key = tuple[Any, ...]


class Run(Protocol):
    """A program that can be run: the runner of a stage is the one implementation."""

    differentiated: Differentiated | None

    @property
    def inputs(self) -> Sequence[Input]:
        """What each parameter of the program gets."""

    @property
    def draws(self) -> bool:
        """Whether it draws random numbers, or calls what may."""

    def launch(self, parameters: Sequence[Any]) -> Sequence[Any]:
        """Run on the parameters of the program."""

    def outputs(self, parameters: Sequence[Any], sizes: Mapping[str, int]) -> Sequence[Any]:
        """Run, and record it."""

    def given(self, values: Mapping[Key, Any], sizes: Mapping[str, int]) -> list[Any]:
        """The parameters of the program, of values by their keys."""

    def __call__(self, leaves: Sequence[Any]) -> Any:
        """Run on the leaves of a call."""


@dataclass(frozen=True)
class Differentiated:
    """How the gradients of a program are computed.

    Attributes:
        division: what is saved at a call, and what it is for.
        order: of the gradient that the program is; 0 for a function itself.
        backward: gives the program of the way back.
        gradient: gives the program of the next order, whose calls are recorded in turn.
    """

    division: Division
    order: int
    backward: Callable[[], Run]
    gradient: Callable[[], Run]


def key_of(input: Input) -> Key | None:
    """What an input of a program is known by in the programs of all orders."""
    if isinstance(input, int):
        return ("leaf", input)
    if isinstance(input, Hidden):
        return ("hidden", input.number)
    if isinstance(input, Cotangent):
        return ("gradient", input.order, input.output)
    return None


@dataclass(frozen=True)
class _Call:
    """One call of a program.

    Attributes:
        program: that is called.
        parameters: of it, with ``None`` for each tensor.
        places: the numbers of those that are tensors.
        sizes: its symbolic sizes.
        generators: as they stand before it; ``None`` where it draws no random numbers.
    """

    program: Run
    parameters: Sequence[Any]
    places: Sequence[int]
    sizes: Mapping[str, int]
    generators: Generators | None

    def filled(self, tensors: Mapping[int, torch.Tensor]) -> list[Any]:
        """The parameters, with tensors by their numbers."""
        return [tensors.get(i, parameter) for i, parameter in enumerate(self.parameters)]


def record(program: Run, parameters: Sequence[Any], sizes: Mapping[str, int]) -> Sequence[Any]:
    """Run a program so that gradients flow back through it.

    Args:
        program: to run.
        parameters: of it.
        sizes: its symbolic sizes.

    Returns:
        Its outputs.
    """
    places = [i for i, x in enumerate(parameters) if isinstance(x, torch.Tensor)]
    rest = [None if isinstance(x, torch.Tensor) else x for x in parameters]
    tensors = [parameters[i] for i in places]
    how = program.differentiated
    generators = Generators.now(tensors) if how is not None and how.division.draws else None
    apply: Callable[..., Sequence[Any]] = _Recorded.apply
    return apply(_Call(program, rest, places, sizes, generators), *tensors)


class _Recorded(torch.autograd.Function):
    """A call of a program in torch's graph."""

    @staticmethod
    def forward(call: _Call, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = call.program.launch(call.filled(dict(zip(call.places, tensors))))
        # An input may not be an output as well as saved: a gradient that is passed on is both.
        given = set(map(id, tensors))
        return tuple(x.view_as(x) if id(x) in given else x for x in found)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        call, *tensors = inputs
        how = call.program.differentiated
        through = () if how is None else how.division.differentiable
        ctx.mark_non_differentiable(*(x for i, x in enumerate(output) if i not in through))
        if how is None:
            return
        given = dict(zip(call.places, tensors))
        numbers = [x.number for x in how.division.sources if isinstance(x, Parameter)]
        results = [x.number for x in how.division.sources if isinstance(x, Result)]
        read = sorted({*numbers, *how.division.reads} & given.keys())
        ctx.call, ctx.results = call, results
        # What is written to once this has returned is kept as it was.
        ctx.before = {i: given[i].detach().clone() for i in read if i in how.division.written}
        ctx.read = read = [i for i in read if i not in ctx.before]
        ctx.save_for_backward(*(given[i] for i in read), *(output[i] for i in results))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        call, saved = ctx.call, list(ctx.saved_tensors)
        how = call.program.differentiated
        parameters = call.filled(ctx.before | dict(zip(ctx.read, saved)))
        results = dict(zip(ctx.results, saved[len(ctx.read) :]))
        if torch.is_grad_enabled():
            found = _again(call, how, parameters, grads)
        else:
            found = _back(how, parameters, results, grads)
        by_input = {
            i: None if n is None else found[n]
            for i, n in zip(how.division.inputs, how.division.outputs)
        }
        return (None, *(by_input.get(i) for i in call.places))

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], call: _Call, *tensors: torch.Tensor
    ) -> tuple[tuple[torch.Tensor, ...], tuple[int, ...]]:
        """A call for each element of the batch: programs are compiled for what one of them is."""
        each = [
            record(
                call.program,
                call.filled(
                    {
                        place: x if dim is None else x.select(dim, n)
                        for place, dim, x in zip(call.places, in_dims[1:], tensors)
                    }
                ),
                call.sizes,
            )
            for n in Generators.elements(
                info.batch_size, info.randomness, call.program.draws, tensors
            )
        ]
        if not each:
            return _without_elements(call, in_dims, tensors)
        outputs = tuple(torch.stack(parts) for parts in zip(*each))
        return outputs, (0,) * len(outputs)


def _without_elements(
    call: _Call, in_dims: tuple[Any, ...], tensors: Sequence[torch.Tensor]
) -> tuple[tuple[torch.Tensor, ...], tuple[int, ...]]:
    """The results for a batch of no elements, of the types that those of one element have."""
    ones = {
        place: x if dim is None else x.new_zeros([n for i, n in enumerate(x.shape) if i != dim])
        for place, dim, x in zip(call.places, in_dims[1:], tensors)
    }
    found = record(call.program, call.filled(ones), call.sizes)
    return tuple(x.new_empty((0, *x.shape)) for x in found), (0,) * len(found)


def _back(
    how: Differentiated,
    parameters: Sequence[Any],
    results: Mapping[int, torch.Tensor],
    grads: Sequence[torch.Tensor],
) -> Sequence[Any]:
    """What the way back gives, of what was saved."""
    leaves: list[Any] = []
    for source in how.division.sources:
        if isinstance(source, Parameter):
            leaves.append(parameters[source.number])
        else:
            of = results if isinstance(source, Result) else grads
            leaves.append(of[source.number if isinstance(source, Result) else source.output])
    found: Sequence[Any] = how.backward()(leaves)
    return found


def _again(
    call: _Call, how: Differentiated, parameters: Sequence[Any], grads: Sequence[torch.Tensor]
) -> Sequence[Any]:
    """The same from the start, so that gradients flow back through the way back as well."""
    program = how.gradient()
    keys = map(key_of, call.program.inputs)
    values: dict[Any, Any] = {key: x for key, x in zip(keys, parameters) if key is not None}
    values |= {("gradient", how.order, i): grad for i, grad in enumerate(grads)}
    with contextlib.nullcontext() if call.generators is None else call.generators.again():
        return program.outputs(program.given(values, call.sizes), call.sizes)
