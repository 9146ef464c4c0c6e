"""A function and a signature -> the Relax program: opens and closes the IRBuilder's frames."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from tvm import relax
from tvm.ir import IRModule
from tvm.relax.script import builder as R
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import ir as I

from babytriton import errors
from babytriton.containers import DictKind, is_named_tuple, sequence
from babytriton.diagnostics import CompileError, Span
from babytriton.frontend import calls, inlining, own_gradients
from babytriton.frontend.callee import function_of, name_of, signature_of
from babytriton.frontend.captures import Guard
from babytriton.frontend.codegen import CodeGenerator
from babytriton.frontend.dimensions import Dimensions, Sizes
from babytriton.frontend.grown import Grown
from babytriton.frontend.parameters import ABSENT
from babytriton.frontend.program import Computed, Input, Program, reader
from babytriton.frontend.scope import Scope
from babytriton.frontend.signature import OF_TORCH, FloatSpec, Leaf, Signature, rebuild
from babytriton.frontend.source import Source
from babytriton.ops.builder import Builder
from babytriton.ops.fallback import Fallback, TorchCall
from babytriton.ops.refusals import Related
from babytriton.ops.results import same
from babytriton.ops.reverse.sweep import sweep
from babytriton.ops.selections.selection import Selection
from babytriton.ops.sizes import SYMBOLIC, is_symbolic, symbolic_in
from babytriton.ops.table import Callee, Op
from babytriton.ops.unseen_writes import Writer
from babytriton.ops.value import NeedsConstant, Scalar, Text, Value
from babytriton.plan import Updates
from babytriton.targets import Target
from babytriton.types import MemoryFormat

if TYPE_CHECKING:
    from babytriton.ops.symbols import Symbols

_CONSTANTS = (bool, int, float, complex, str, bytes, type(None), *OF_TORCH)


@dataclass(frozen=True)
class Output:
    """A leaf of a function's result that a call fills in.

    Attributes:
        index: among the program's outputs.
        is_float: whether it is a Python float and not a tensor.
    """

    index: int
    is_float: bool = False


@dataclass(frozen=True)
class Returned:
    """A leaf of a function's result that is one of the program's inputs, handed back."""

    input: int


@dataclass(frozen=True)
class Selected:
    """A leaf of a function's result that a mask selects: of a size that each call finds out.

    Attributes:
        whole: what is selected from.
        mask: what selects.
        axis: how many dimensions there are before those that it selects from.
    """

    whole: Output | Returned
    mask: Output | Returned
    axis: int

    def of(self, whole: Any, mask: Any) -> Any:
        """The elements that the mask selects."""
        return whole[(*[slice(None)] * self.axis, mask)]


@dataclass(frozen=True)
class Write:
    """An output that is copied into an input after the call: the caller's own tensor changes.

    Attributes:
        input: among the program's inputs.
        index: among its outputs.
        contiguous: whether the function views the input as only a contiguous tensor can be.
    """

    input: int
    index: int
    contiguous: bool


@dataclass(frozen=True)
class Gradient:
    """Where a program has its gradients.

    Attributes:
        inputs: the numbers of the inputs that it gives gradients of.
        outputs: for each of these, the number of the output that is the gradient; ``None`` where
            no result depends on the input.
        results: how many outputs stand before the gradients.
        differentiable: of those, the numbers of the ones that gradients flow through.
        order: 0 for gradients of the function; 1 for those of its gradient; and so on.
        draws: whether the program draws random numbers, or calls what may.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int | None, ...]
    results: int
    differentiable: tuple[int, ...]
    order: int
    draws: bool


@dataclass(frozen=True)
class Lowering:
    """A function as a Relax program.

    Attributes:
        mod: holds the program as its one function, ``entry``.
        entry: the name of that function.
        inputs: what each parameter of the program gets.
        result: the function's result with :class:`Output`, :class:`Returned`, :class:`Selected`
            and :class:`Computed` leaves.
        writes: what the function writes into its inputs.
        guards: what must still hold outside the function at a call.
        fallbacks: calls that run through torch.
        rows: the table's rows that built Relax.
        sizes: its symbolic sizes; ``None`` without any.
        devices: that it computes on, the one it is called on first.
        gradient: where it gives gradients; ``None`` if none are asked for.
        draws: whether it draws random numbers, or calls what may.
        follows: the numbers of those inputs on whose layouts it depends what the program does:
            they must be contiguous.
        chooses_formats: whether the function says itself how tensors are to lie in memory.
        formats: of those inputs that the program takes as they lie in memory, by their numbers;
            it takes the contiguous tensors that are there.
    """

    mod: IRModule
    entry: str
    inputs: tuple[Input, ...]
    result: Any
    writes: tuple[Write, ...]
    guards: tuple[Guard, ...]
    fallbacks: tuple[Fallback, ...]
    rows: tuple[Op, ...]
    sizes: Sizes | None
    devices: tuple[torch.device, ...]
    gradient: Gradient | None = None
    draws: bool = False
    follows: tuple[int, ...] = ()
    chooses_formats: bool = False
    formats: Mapping[int, MemoryFormat] = field(default_factory=dict)

    @property
    def updates(self) -> Updates:
        """What it may write to its inputs where they lie.

        Nothing, where gradients are asked for: what they are computed from stays as it is.
        """
        if self.gradient is not None:
            return Updates(self.entry)
        calls = [(i, x) for i, x in enumerate(self.inputs) if isinstance(x, TorchCall)]
        fresh = tuple(i for i, call in calls if call.is_new)
        writers = {i: call.fn.count for i, call in calls if isinstance(call.fn, Writer)}
        return Updates(self.entry, tuple((x.input, x.index) for x in self.writes), fresh, writers)


def lower(
    fn: Callable[..., Any],
    signature: Signature,
    device: torch.device,
    dimensions: Dimensions,
    target: Target,
    table: Mapping[Callee, Op],
    order: int = 0,
) -> Lowering:
    """Compile a Python function to Relax.

    Where gradients of its inputs are asked for, the program gives these as well, of gradients of
    its results that it takes.

    Args:
        fn: a function, a method with the object it is bound to, a module, or another object
            that is called.
        signature: of the arguments it is compiled for.
        device: what the program is called on.
        dimensions: names the symbolic sizes of what it captures, as it did in the signature.
        target: what it is compiled for there.
        table: the row of each torch callable.
        order: 0 for the function; 1 for its gradient as a function of its arguments and of the
            gradients of its results; and so on.

    Raises:
        CompileError: the function cannot be compiled; it points at the user's line.
        Related: symbolic sizes have turned out to be equal, or constant: start over with that.
        NeedsConstant: a float argument must be a constant for it to be compiled.
    """
    source = Source.of(fn)
    symbols = _symbols() if signature.is_symbolic or dimensions.captured_vary else None
    # Gradients that have gradients are computed from the arguments of what torch runs.
    builder = Builder(table, device, target, symbols, signature.autocast, records_torch=not order)
    known = {each.path: each for each in signature.known}
    program = Program(builder, dimensions, known)
    name = name_of(fn) if name_of(fn).isidentifier() else "main"
    entry = name + "_gradient" * order
    outputs: list[relax.Expr] = []
    failure: Exception | None = None
    # An exception must not leave an open frame, so it is raised again once they are closed.
    with IRBuilder() as made, I.ir_module(), R.function():
        R.func_name(program.builder.unique(entry))
        try:
            body, returned = _compiled(program, source, fn, signature)
            result = _outputs(program, body.span(body.returns_at), returned, outputs)
            if symbols is not None:
                symbols.require_unrelated()
            writes = _writes(program, outputs)
            program.require_decided(body.span(body.returns_at))
            if not order:
                _require_own(program)
            back = program.builder.regions.way_back()
            with program.blaming(body.span(body.returns_at), "the gradient", ()), back:
                gradient = _gradient(program, outputs, order)
            if order and gradient is not None:
                result, writes = tuple(map(Output, range(gradient.results))), ()
            if program.builder.regions.used and program.builder.placement.span is not None:
                span = program.builder.placement.span
                program.fail(errors.DevicesInControlFlow(span))
        except Exception as error:
            failure = error
        # The tuple is not bound to a variable: so each output leaves the dataflow block as a
        # variable of its own, and TVM does not make one that equals an input a view of it.
        R.func_ret_value(relax.Tuple([] if failure else outputs))
    if isinstance(failure, (CompileError, NeedsConstant, Related)):
        raise failure
    if failure is not None:
        raise errors.internal("lowering", failure) from failure
    return Lowering(
        _module(made, program, entry),
        entry,
        tuple(program.inputs),
        result,
        writes,
        program.captures.settled(),
        tuple(program.builder.fallbacks),
        tuple(program.builder.rows),
        None if symbols is None else _sizes(program, symbols),
        program.builder.placement.devices,
        gradient,
        program.builder.draws > 0,
        program.followed(),
        program.builder.memory.chooses_formats,
    )


def _symbols() -> Symbols:
    # Imported where it is needed, as it imports a good part of torch's compiler.
    from babytriton.ops.symbols import Symbols

    return Symbols()


def _sizes(program: Program, symbols: Symbols) -> Sizes:
    """Where a call finds the sizes of a program."""
    tensors = [(reader(input), path, type) for input, path, type in program.types]
    return Sizes(tuple(tensors), symbols.conditions(), program.dimensions.related)


def _module(builder: IRBuilder, program: Program, entry: str) -> IRModule:
    """The finished module; whether the program is pure is known only now."""
    mod = program.builder.placement.declared(builder.get())
    if program.builder.effects:
        fn = mod[entry]
        mod[entry] = relax.Function(fn.params, fn.body, fn.ret_ty, is_pure=False, attrs=fn.attrs)
    return mod


def _compiled(
    program: Program, source: Source, fn: Callable[..., Any], signature: Signature
) -> tuple[CodeGenerator, Any]:
    """The generator of the function's own body, and what the function returns."""
    leaves = iter([_declare(program, i, leaf) for i, leaf in enumerate(signature.leaves())])
    values = [rebuild(spec, lambda: next(leaves)) for spec in signature.specs]
    names = dict(zip(signature.names, values))
    for value in values:
        if isinstance(value, (list, dict, tuple)):
            program.captures.keep(value)
    for path, value in signature.objects().items():
        program.captures.name_argument(value, path)
    function = function_of(fn)
    if isinstance(fn, types.MethodType) and fn.__func__ is function:
        code = function.__code__
        if code.co_argcount:
            first = code.co_varnames[0]
            names = {first: fn.__self__, **names}
            program.captures.name(fn.__self__, first)
        else:  # it is one of any arguments that the function takes
            rest = code.co_varnames[code.co_kwonlyargcount]
            names[rest] = (fn.__self__, *names[rest])
            program.captures.name(fn.__self__, "self")
    scope = Scope(names, fn=function)
    program.scopes.append(scope)
    body = CodeGenerator(program, source, scope)
    names = {name: value for name, value in names.items() if value is not ABSENT}
    given = inspect.BoundArguments(signature_of(function), names)
    if isinstance(fn, types.FunctionType) and inlining.has_row(body, fn):
        return body, calls.call(body, source.node, fn, given.args, given.kwargs)
    if isinstance(fn, (types.FunctionType, types.MethodType)):
        args, kwargs = given.args, given.kwargs
        found = own_gradients.noted(body, source.node, function, args, kwargs, body.run)
        return body, found
    # A module or another object: compiled as a call of it, hooks and held arguments included.
    program.captures.name(fn, "self")
    given = inspect.BoundArguments(signature_of(fn), names)
    return body, calls.call(body, source.node, fn, given.args, given.kwargs)


def _declare(program: Program, index: int, leaf: Leaf) -> Value:
    if isinstance(leaf.spec, FloatSpec):
        return program.number(index, leaf.path, leaf.spec.sample)
    return program.argument(index, leaf.path, leaf.spec)


def _require_own(program: Program) -> None:
    """Refuse to write into inputs that gradients flow through."""
    for index, value in program.written().items():
        assert value.storage is not None
        is_followed = program.builder.tape.find(value.storage.expr) is not None
        if index in program.differentiable or is_followed:
            raise errors.WrittenRequiresGrad(None, program.path_of(index)).error()


def _gradient(program: Program, outputs: list[relax.Expr], order: int) -> Gradient | None:
    """Emit the gradients, as further outputs; for a higher order they replace the others."""
    builder = program.builder
    wanted = dict(program.differentiable)
    if not wanted:
        return None
    draws = builder.draws > 0  # a gradient draws no numbers of its own
    for level in range(order + 1):
        results = [(i, builder.tape.find(expr)) for i, expr in enumerate(outputs)]
        followed = [(i, value) for i, value in results if value is not None]
        cotangents = {}
        for i, value in followed:
            number = len(program.inputs)
            cotangents[number] = program.cotangent(value, i, level)
        last = level == order
        for value in () if last else cotangents.values():
            builder.tape.follow(value)
        steps = list(builder.tape.steps)
        with builder.tape.paused() if last else nullcontext():
            given = [(outputs[i], grad) for (i, _), grad in zip(followed, cotangents.values())]
            found = sweep(builder, steps, given)
        grads = {i: found.get(value.made) for i, value in wanted.items()}
        _name_gradients(program, grads, [*cotangents.values(), *wanted.values()])
        if not last:
            outputs[:] = [grad.expr for grad in grads.values() if grad is not None]
            wanted |= cotangents
    number = len(outputs)
    outputs += [grad.expr for grad in grads.values() if grad is not None]
    numbers = iter(range(number, len(outputs)))
    places = tuple(None if grad is None else next(numbers) for grad in grads.values())
    through = tuple(i for i, _ in followed)
    return Gradient(tuple(wanted), places, number, through, order, draws)


def _name_gradients(
    program: Program, grads: Mapping[int, Value | None], inputs: Sequence[Value]
) -> None:
    """Call gradients after what they are of."""
    named = {value.made for value in inputs}
    for i, grad in grads.items():
        if grad is not None and isinstance(grad.made, relax.Var) and grad.made not in named:
            named.add(grad.made)
            program.builder.name(f"grad_{program.name_of(i)}", grad.expr)


def _writes(program: Program, outputs: list[relax.Expr]) -> tuple[Write, ...]:
    """What the program wrote into its inputs, as further outputs."""
    found = []
    for index, value in program.written().items():
        assert value.storage is not None
        new = value.storage.expr
        if isinstance(new, relax.Var) and not program.has_name(new):
            program.builder.name(f"{program.name_of(index)}_new", new)
        found.append(Write(index, len(outputs), value.storage.viewed_flat))
        outputs.append(new)
    return tuple(found)


def _outputs(program: Program, span: Span, returned: Any, outputs: list[relax.Expr]) -> Any:
    """The result's structure, and the program's outputs in the order of its leaves."""
    seen: dict[int, Output | Returned] = {}
    written = program.written()

    def leaf(value: Value) -> Output | Returned:
        if id(value) not in seen:
            input = program.input_of(value)
            if input is not None:
                seen[id(value)] = Returned(input)
            else:
                seen[id(value)] = Output(len(outputs), isinstance(value, Scalar))
                outputs.append(value.expr)
        return seen[id(value)]

    def part(value: Value) -> Output | Returned:
        number = program.given_as(value.expr)
        if number is None:
            return leaf(value)
        if number not in written:
            return Returned(number)
        outputs.append(program.builder.emit_te("copy", same, value.expr))
        return Output(len(outputs) - 1)

    def structure(item: Any) -> Any:
        if isinstance(item, Grown):
            with program.blaming(span, "return", ()):
                item = item.kind(item)
        if isinstance(item, Selection):
            return Selected(part(item.whole), part(item.mask), item.axis)
        if isinstance(item, Value):
            return leaf(item)
        if isinstance(item, Text):
            with program.blaming(span, "return", (item,)):
                item.refuse()
        if type(item) in (list, tuple) or is_named_tuple(item):
            items = [structure(part) for part in item]
            return sequence(type(item), items)
        if isinstance(item, torch.Size) and symbolic_in(item):
            assert program.builder.symbols is not None
            numbers = [program.builder.symbols.function(n) for n in item if is_symbolic(n)]
            return Computed(partial(_shape, tuple(item), numbers))
        if isinstance(item, tuple):
            return sequence(type(item), [structure(part) for part in item])
        if isinstance(item, dict):
            parts = {key: structure(part) for key, part in dict.items(item)}
            return DictKind.of(item).make(parts)
        if isinstance(item, SYMBOLIC):
            assert program.builder.symbols is not None
            return Computed(program.builder.symbols.function(item))
        if isinstance(item, _CONSTANTS):
            return item
        raise CompileError(errors.UnsupportedResult(span, f"an instance of {type(item).__name__}"))

    return structure(returned)


def _shape(
    model: Sequence[Any],
    numbers: Sequence[Callable[[Mapping[str, int]], Any]],
    sizes: Mapping[str, int],
) -> torch.Size:
    """A shape at a call, with the symbolic sizes of its model computed."""
    found = iter([number(sizes) for number in numbers])
    return torch.Size(next(found) if is_symbolic(size) else size for size in model)
