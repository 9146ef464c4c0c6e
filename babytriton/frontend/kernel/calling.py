"""Calls of scalar kernels from a compiled function: each of their functions, part of the program.

What a kernel writes into is a tensor of the program, whose contents are others from then on.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from babytriton import errors
from babytriton.frontend.kernel.covering import covering
from babytriton.frontend.kernel.lowering import Definition, Lowering, lower
from babytriton.frontend.kernel.tensorir import Argument, Workspace, steps_of
from babytriton.frontend.parameters import Parameters
from babytriton.frontend.program import Hidden
from babytriton.frontend.signature import Signature
from babytriton.ops.tensorir import call_prim_func
from babytriton.ops.value import Scalar, Value, constant_needed, map_values, values_in
from babytriton.tensor import Tensor

if TYPE_CHECKING:
    from babytriton.frontend.codegen import CodeGenerator


def call(
    at: CodeGenerator,
    node: ast.AST,
    kernel: Callable[..., None],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    """Compile a call of a kernel.

    Args:
        at: the function that calls it.
        node: the call.
        kernel: has the attribute ``__babytriton_kernel__``.
        args: of the call; tensors are values of the program.
        kwargs: likewise.
    """
    # An attribute that marks kernels; functions have none of that name to a type checker.
    definition: Definition = kernel.__babytriton_kernel__  # type: ignore[attr-defined]
    name = definition.fn.__name__
    parameters = Parameters.of(definition.fn)
    try:
        values = parameters.bind(args, kwargs)
    except TypeError as error:
        at.fail(errors.WrongArguments(at.span(node), name, str(error).splitlines()[-1].strip(" =")))
    with at.program.blaming(at.span(node), name, (args, kwargs)):
        specs = [map_values(value, _spec) for value in values]
    try:
        signature = Signature.of(parameters.names, specs)
    except TypeError as error:
        at.fail(errors.WrongArguments(at.span(node), name, str(error).splitlines()[-1].strip(" =")))
    trail = (*at.program.trail, at.span(node))
    lowering = lower(definition.fn, signature, definition.checks, trail)
    at.program.captures.guards += lowering.guards
    leaves = list(_leaves(values))
    inputs = [_input(at, x) if isinstance(x, Hidden) else leaves[x] for x in lowering.inputs]
    written = [inputs[i] for i in lowering.written]
    for value in written:
        if sum(value is other for other in inputs) > 1:
            why = "a tensor that it writes into is given twice"
            instead = "give it a tensor of its own, such as a clone"
            at.fail(errors.Unavailable(at.span(node), name, why, instead))
    with at.program.blaming(at.span(node), name, (args, kwargs)):
        if lowering.faults:
            made = _run(at, kernel, lowering, values, written)
        else:
            made = _emit(at, name, lowering, inputs)
        at.program.builder.note_unknown(name, inputs, made)
        for value, contents in zip(written, made):
            at.program.builder.call(torch.Tensor.copy_, (value, contents), {})


def _emit(at: CodeGenerator, name: str, lowering: Lowering, inputs: list[Any]) -> list[Value]:
    """The kernel's functions, one after the other; what the written tensors then hold."""
    builder = at.program.builder
    held: dict[Argument | Workspace, Any] = {Argument(i): x for i, x in enumerate(inputs)}
    for step in steps_of(lowering.program, covering).steps:
        arguments: list[Any] = []
        for i, slot in enumerate(step.slots):
            assert isinstance(slot, (Argument, Workspace))
            arguments.append(None if i in step.overwritten else held.get(slot))
        made = call_prim_func(builder, step.name, step.function, arguments, step.written)
        for i, value in zip(step.written, made):
            slot = step.slots[i]
            assert isinstance(slot, (Argument, Workspace))
            held[slot] = value
    return [held[Argument(i)] for i in lowering.written]


def _run(
    at: CodeGenerator,
    kernel: Callable[..., None],
    lowering: Lowering,
    values: Any,
    written: list[Value],
) -> list[Value]:
    """The kernel as a call from inside the graph, since it may have to raise."""
    given = values_in(values)
    places = [next(i for i, x in enumerate(given) if x is value) for value in written]

    def run(*tensors: Any) -> tuple[torch.Tensor, ...]:
        copies = [tensors[place].clone() for place in places]
        if not any(copy.is_meta for copy in copies):
            named = dict(zip(places, copies))
            arguments = iter([named.get(i, x) for i, x in enumerate(tensors)])
            kernel(*map_values(values, lambda _: next(arguments)))
        return tuple(copies)

    run.__name__ = lowering.name
    return list(at.program.builder.call(run, tuple(given), {}))


def _spec(value: Value) -> Any:
    """What stands for a value of the program in the kernel's signature."""
    if isinstance(value, Scalar):
        if value.kind is not float:
            raise constant_needed(value.kind.__name__, [value])
        return value.sample
    return Tensor(tuple(value.meta.shape), value.meta.dtype)


def _leaves(tree: Any) -> Iterator[Any]:
    """The tensors and floats of the arguments, in the order of :meth:`Signature.leaves`."""
    if isinstance(tree, (Value, float)):
        yield tree
    elif isinstance(tree, dict):
        for item in tree.values():
            yield from _leaves(item)
    elif isinstance(tree, (tuple, list)):
        for item in tree:
            yield from _leaves(item)


def _input(at: CodeGenerator, hidden: Hidden) -> Any:
    return at.program.captures.lift(hidden.place, hidden.place.read())
