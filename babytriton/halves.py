"""A lowered program with gradients -> the one that runs at the call, and the one that runs back."""

from __future__ import annotations

import keyword
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tvm import ir, relax, tirx

from babytriton.frontend.dimensions import Sizes
from babytriton.frontend.lowering import Lowering, Output
from babytriton.frontend.parameters import Parameters
from babytriton.frontend.program import Computed, Cotangent, Hidden, Input, reader
from babytriton.frontend.signature import FloatSpec, Leaf, Signature, TensorSpec
from babytriton.ops.fallback import TorchCall
from babytriton.ops.primfunc import nodes
from babytriton.passes import gradient
from babytriton.passes.gradient import Parameter, Result
from babytriton.types import Dim, MemoryFormat, TensorType, find_dtype, of_any_sizes


@dataclass(frozen=True)
class Division:
    """How the two halves of a program belong together.

    Attributes:
        inputs: the numbers of the inputs that gradients are of.
        outputs: for each of these, the number of its gradient among the outputs of the way back;
            ``None`` where no result depends on the input.
        needs: for each of these, the numbers of the outputs of the way forward whose gradients it
            is computed from.
        results: how many outputs of the way forward are not there to be saved.
        differentiable: of those, the numbers of the ones that gradients flow through.
        sources: what the way back takes: inputs, outputs of the way forward, and gradients.
        reads: the numbers of the inputs that the gradients are computed from.
        written: the numbers of the inputs that the program writes to.
        draws: whether the program draws random numbers, or may.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int | None, ...]
    needs: tuple[frozenset[int], ...]
    results: int
    differentiable: tuple[int, ...]
    sources: tuple[Parameter | Result | Cotangent, ...]
    reads: frozenset[int]
    written: frozenset[int]
    draws: bool

    @cached_property
    def taken(self) -> frozenset[int]:
        """The numbers of the outputs whose gradients the way back takes."""
        return frozenset(x.output for x in self.sources if isinstance(x, Cotangent))


@dataclass(frozen=True)
class Halves:
    """The way back of a program.

    Attributes:
        division: how it belongs to the way forward.
        back: its program.
        parameters, signature: of that.
    """

    division: Division
    back: Lowering
    parameters: Parameters
    signature: Signature


def of_arguments(program: Lowering) -> Lowering:
    """The program without the gradients of tensors that it captures.

    Args:
        program: one that gives gradients.
    """
    where = program.gradient
    assert where is not None
    pairs = zip(where.inputs, where.outputs)
    kept = [(i, n) for i, n in pairs if not isinstance(program.inputs[i], Hidden)]
    wanted = [*range(where.results), *(n for _, n in kept if n is not None)]
    places = {n: place for place, n in enumerate(wanted)}
    found = replace(
        where,
        inputs=tuple(i for i, _ in kept),
        outputs=tuple(None if n is None else places[n] for _, n in kept),
    )
    return replace(program, mod=with_outputs(program, wanted), gradient=found)


def with_outputs(program: Lowering, numbers: Sequence[int]) -> ir.IRModule:
    """The program's module with only some of its outputs.

    Args:
        program: the whole.
        numbers: of the outputs, in the order they are to have.
    """
    function = program.mod[program.entry]
    fields = function.body.body.fields
    body = relax.SeqExpr(function.body.blocks, relax.Tuple([fields[n] for n in numbers]))
    types = relax.TupleType([function.ret_ty.fields[n] for n in numbers])
    made = relax.Function(function.params, body, types, function.is_pure, function.attrs)
    functions = dict(program.mod.functions_items())
    functions = {var: fn for var, fn in functions.items() if var.name_hint != program.entry}
    functions[ir.GlobalVar(program.entry)] = made
    infos = program.mod.global_infos
    mod = ir.IRModule(functions, attrs=program.mod.attrs, global_infos=infos)
    return relax.transform.DeadCodeElimination([program.entry])(mod)


def divided(program: Lowering, signature: Signature) -> tuple[Lowering, Halves]:
    """The way forward of a program that gives gradients, and its way back.

    Args:
        program: the whole.
        signature: of its calls.
    """
    where = program.gradient
    assert where is not None
    inputs = program.inputs
    last = [isinstance(x, Cotangent) and x.order == where.order for x in inputs]
    grads = [i for i, is_last in enumerate(last) if is_last]
    # Of a function, results and writes name inputs by their numbers.
    kept = 0 if where.order else min(grads, default=len(inputs))
    written = [write.input for write in program.writes]
    recorded = [i for i, x in enumerate(inputs) if isinstance(x, TorchCall) and x.recorded]
    is_again = where.order > 0
    split = gradient.split(
        program.mod, program.entry, grads, kept, where.results, written, is_again, recorded
    )
    own = [inputs[i] for i in split.parameters]
    places = {number: i for i, number in enumerate(split.parameters)}
    forward = replace(
        program,
        mod=split.forward,
        inputs=tuple(own),
        fallbacks=_fallbacks(program, own),
        follows=tuple(places[i] for i in program.follows if i in places),
    )
    back, sources, found = _way_back(program, split, signature)
    wanted = [(places[i], n) for i, n in zip(where.inputs, where.outputs) if i in places]
    numbers = tuple(None if n is None else n - where.results for _, n in wanted)
    needs = _needs(split.backward[gradient.backward_of(program.entry)], sources, back.inputs)
    division = Division(
        tuple(i for i, _ in wanted),
        numbers,
        tuple(frozenset() if n is None else needs[n] for n in numbers),
        where.results,
        where.differentiable,
        tuple(Parameter(places[x.number]) if isinstance(x, Parameter) else x for x in sources),
        frozenset(places[i] for i in split.reads if i in places),
        frozenset(places[i] for i in written),
        where.draws,
    )
    names = tuple(found.names)
    return forward, Halves(division, back, Parameters.named(program.entry, names), found)


def _needs(
    back: relax.Function,
    sources: Sequence[Parameter | Result | Cotangent],
    inputs: Sequence[Input],
) -> list[frozenset[int]]:
    """For each output of a way back, the numbers of the results whose gradients it comes from.

    What a branch or a loop gives comes from all that is used in it.
    """
    found: dict[ir.Var, frozenset[int]] = {}
    for input, param in zip(inputs, back.params):
        source = sources[input] if isinstance(input, int) else None
        if isinstance(source, Cotangent):
            found[param] = frozenset([source.output])

    def of(expr: relax.Expr) -> frozenset[int]:
        return frozenset().union(*(found.get(x, frozenset()) for x in nodes(expr, ir.Var)))

    for block in back.body.blocks:
        for binding in block.bindings:
            found[binding.var] = of(binding.value)
    return [of(field) for field in back.body.body.fields]


def _fallbacks(program: Lowering, inputs: Sequence[Input]) -> tuple[Any, ...]:
    calls = [input.fallback for input in inputs if isinstance(input, TorchCall)]
    return tuple(x for x in program.fallbacks if any(x is call for call in calls))


def _way_back(
    program: Lowering, split: gradient.Split, signature: Signature
) -> tuple[Lowering, list[Parameter | Result | Cotangent], Signature]:
    """The way back, where a call of it finds its arguments, and their signature."""
    device, *_ = program.devices
    entry = gradient.backward_of(program.entry)
    inputs: list[Input] = []
    sources: list[Parameter | Result | Cotangent] = []
    names: list[str] = []
    specs: list[TensorSpec | FloatSpec] = []
    tensors = []
    leaves = signature.leaves()
    order = 0 if program.gradient is None else program.gradient.order
    for source, param in zip(split.sources, split.backward[entry].params):
        given = program.inputs[source.number] if isinstance(source, Parameter) else None
        if isinstance(given, (Computed, TorchCall)):
            inputs.append(given)
            continue
        leaf = len(specs)
        inputs.append(leaf)
        is_last = isinstance(given, Cotangent) and given.order == order
        sources.append(given if isinstance(given, Cotangent) and is_last else source)
        names.append(_unique(param.name, names))
        if isinstance(param.ty, relax.TensorType):
            type = _type_of(param)
            specs.append(TensorSpec(type, device, format=_format_of(given, leaves)))
            if None not in type.shape:
                tensors.append((reader(leaf), names[-1], type))
        else:
            assert isinstance(given, int)
            spec = leaves[given].spec
            assert isinstance(spec, FloatSpec)
            specs.append(spec)
    # What must hold of the sizes of a call held when it was made.
    sizes = program.sizes
    if sizes is not None:
        none = replace(sizes.conditions, each=(), hold=lambda _: True)
        sizes = Sizes(tuple(tensors), none, smallest=0)
    count = len(split.backward[entry].body.body.fields)
    back = replace(
        program,
        mod=split.backward,
        entry=entry,
        inputs=tuple(inputs),
        result=tuple(map(Output, range(count))),
        writes=(),
        guards=(),
        fallbacks=_fallbacks(program, inputs),
        sizes=sizes,
        gradient=None,
        draws=False,
        follows=(),
    )
    return back, sources, Signature(tuple(names), tuple(specs))


def _format_of(given: Input | None, leaves: Sequence[Leaf]) -> MemoryFormat | None:
    """How an input that is saved lies in memory, as a rule; None for all else."""
    spec = leaves[given].spec if isinstance(given, int) else given
    if not isinstance(spec, (TensorSpec, Hidden)):
        return None
    return of_any_sizes(spec.format, spec.type)


def _type_of(param: relax.Var) -> TensorType:
    """The type of a parameter, with names for its symbolic sizes."""
    dtype = find_dtype(str(param.ty.dtype))
    assert dtype is not None
    return TensorType(tuple(map(_size, param.ty.shape)), dtype.torch)


def _size(size: Any) -> Any:
    if isinstance(size, tirx.IntImm):
        return int(size)
    return Dim(str(size.name), 2) if isinstance(size, ir.Var) else None


def _unique(name: str, names: Sequence[str]) -> str:
    """A name for a parameter that no other one has, and that Python lets one have."""
    name = f"{name}_" if keyword.iskeyword(name) else name
    found, count = name, 1
    while found in names:
        found, count = f"{name}_{count}", count + 1
    return found
