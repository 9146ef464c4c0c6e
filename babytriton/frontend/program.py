"""The state shared by all function bodies that are compiled into one program."""

from __future__ import annotations

import ast
import contextlib
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch

from babytriton import errors
from babytriton.diagnostics import CompileError, Diagnostic, Span
from babytriton.frontend.captures import Captures, Place
from babytriton.frontend.dimensions import Dimensions
from babytriton.frontend.grown import Grown
from babytriton.frontend.iteration import Numbered
from babytriton.frontend.known import Known
from babytriton.frontend.scope import Scope
from babytriton.frontend.signature import TensorSpec, records
from babytriton.frontend.snapshots import is_array
from babytriton.frontend.state import State
from babytriton.ops.builder import Builder
from babytriton.ops.fallback import TorchCall
from babytriton.ops.refusals import (
    IllTyped,
    MixedDevices,
    Mutation,
    NeedsData,
    NoGradient,
    Related,
    RowFailed,
    Unavailable,
    UnsupportedDtype,
    WrongDevice,
)
from babytriton.ops.regions import Region
from babytriton.ops.reverse.tape import still
from babytriton.ops.selections.selection import Selection
from babytriton.ops.value import DataDependent, NeedsConstant, Scalar, Value, values_in
from babytriton.types import MemoryFormat, TensorType, find_dtype, of_any_sizes, size_text

MAX_DEPTH = 40
"""Functions inlined into each other; Python's own stack ends a little later."""


@dataclass(frozen=True)
class Hidden:
    """A tensor from outside the function that the program reads at each call.

    Attributes:
        place: where.
        type: of it, with names of sizes.
        number: among those of the program.
        format: how it lies in memory, as a rule; None where it is read as a contiguous tensor.
    """

    place: Place
    type: TensorType
    number: int = 0
    format: MemoryFormat | None = None


@dataclass(frozen=True)
class Computed:
    """A Python number that each call computes from its sizes, which it is given by name."""

    of: Callable[[Mapping[str, int]], Any]


@dataclass(frozen=True)
class Cotangent:
    """The gradient of a result, which the program goes back from.

    Attributes:
        output: the number of the result.
        order: 0 for a result of the function; 1 for a gradient that order 0 leads to; and so on.
    """

    output: int
    order: int = 0


Argument = int | Hidden
Input = Argument | Computed | TorchCall | Cotangent
"""What a parameter of the program gets: the i-th leaf of the call's arguments, a captured
tensor, a number that depends on sizes, the torch call of a fallback, or a gradient."""


def reader(input: Argument) -> Callable[[Sequence[Any]], Any]:
    """How a call reads a tensor or float of the program from the leaves of its arguments."""
    if isinstance(input, Hidden):
        read = input.place.read
        return lambda leaves: read()
    return operator.itemgetter(input)


@dataclass
class LoopNotes:
    """What compiling a loop has shown of it.

    Attributes:
        names: that a step changes.
        ends_early: whether a step may leave it.
        needs_first_step: whether the first step makes what the later ones take over.
    """

    names: list[str] = field(default_factory=list)
    ends_early: bool = False
    needs_first_step: bool = False


@dataclass(frozen=True)
class Mark:
    """A moment of compiling.

    Attributes:
        state: what the functions being compiled could change.
        effects: how much happens outside of tensors when the program runs.
        fallbacks, rows: how many calls of torch and of operators there were.
        draws: how many of them draw random numbers, or may.
    """

    state: State
    effects: int
    fallbacks: int
    rows: int
    draws: int


@dataclass
class Program:
    """Builder, captures and inputs of one program, and where in the user's code we are."""

    builder: Builder
    dimensions: Dimensions
    known: Mapping[str, Known] = field(default_factory=dict)
    """Of arguments of which more than their types is known, what that is, by paths."""
    inputs: list[Input] = field(default_factory=list)
    parameters: dict[int, Value] = field(default_factory=dict)
    """The tensors among the inputs, by the input's number: the caller's own."""
    differentiable: dict[int, Value] = field(default_factory=dict)
    """Those that gradients are asked of, as they are given."""
    types: list[tuple[Argument, str, TensorType]] = field(default_factory=list)
    """Each of them: what it is, what the user calls it, and its type with names of sizes."""
    trail: list[Span] = field(default_factory=list)
    """The calls that are being inlined, outermost first."""
    callees: list[Any] = field(default_factory=list)
    """The function that each of them calls."""
    names: set[str] = field(default_factory=set)
    scopes: list[Scope] = field(default_factory=list)
    """Of the functions that are being compiled, the innermost last."""
    apart: int = 0
    """Of how many parts, that the run decides on, what is being compiled is a part."""
    deciding: frozenset[str] = frozenset()
    """Arguments of which constants would leave one path of a branch around what is compiled."""
    numbered: Numbered = field(default_factory=Numbered)
    loops: dict[ast.AST, LoopNotes] = field(default_factory=dict)
    """What is known of loops that were compiled before, as the bodies of others are."""
    _named: list[Value] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.captures = Captures(self._hidden)
        self.builder.on_torch_call = self.inputs.append
        self.builder.on_number = self._computed
        self._numbers: dict[str, Any] = {}
        if self.builder.symbols is not None:
            self.builder.symbols.declare = self._size

    def argument(self, index: int, path: str, spec: TensorSpec) -> Value:
        """Declare the tensor that is the ``index``-th leaf of the call's arguments."""
        self.types.append((index, path, spec.type))
        return self._declare(index, path, spec.type, spec.requires_grad, spec.format)

    def cotangent(self, result: Value, output: int, order: int) -> Value:
        """Declare the gradient of a result of the program."""
        found = self.builder.cotangent(self.unique("grad"), result)
        self.inputs.append(Cotangent(output, order))
        return found

    def number(self, index: int, path: str, sample: float) -> Scalar:
        """Declare the float that is the ``index``-th leaf of the call's arguments."""
        self.inputs.append(index)
        return self.builder.float_argument(self.unique(path), path, sample)

    def _hidden(self, place: Place, tensor: torch.Tensor) -> tuple[Value, TensorType]:
        if find_dtype(tensor.dtype) is None or tensor.layout is not torch.strided:
            raise UnsupportedDtype(str(tensor.dtype).removeprefix("torch."))
        type = self.dimensions.captured(place.path, TensorType.of(tensor))
        if type.dims and self.builder.symbols is None:
            raise Related({})
        format = of_any_sizes(MemoryFormat.of(tensor), type)
        number = sum(isinstance(input, Hidden) for input in self.inputs)
        hidden = Hidden(place, type, number, format)
        self.types.append((hidden, place.path, type))
        return self._declare(hidden, place.path, type, records(tensor), format), type

    def _size(self, size: torch.SymInt) -> Any:
        """The input for a size that is computed from others."""
        symbols = self.builder.symbols
        assert symbols is not None
        self.inputs.append(Computed(symbols.function(size)))
        return self.builder.size_argument(self.unique(_spelled(symbols.text(size))))

    def _computed(self, number: torch.SymFloat) -> Scalar:
        """The input for a float that depends on sizes, which is declared once."""
        symbols = self.builder.symbols
        assert symbols is not None
        text = symbols.text(number)
        if text not in self._numbers:
            self.inputs.append(Computed(symbols.function(number)))
            name = self.unique(f"number_{len(self._numbers)}")
            self._numbers[text] = self.builder.float_parameter(name)
        # Read where it is used: the last use may have been in a part that is not always run.
        return self.builder.read_float(self._numbers[text], None, symbols.sample(number))

    def _declare(
        self,
        input: Input,
        path: str,
        type: TensorType,
        gradient: bool,
        format: MemoryFormat | None,
    ) -> Value:
        order = () if format is None else format.order
        value = self.builder.argument(self.unique(path), type, order)
        self.parameters[len(self.inputs)] = value
        if gradient:
            self.builder.tape.follow(value)
            self.differentiable[len(self.inputs)] = still(value)
        if value.storage is not None:
            value.storage.is_callers = True
        self.inputs.append(input)
        return value

    @contextlib.contextmanager
    def part(self) -> Iterator[Region]:
        """Inside, a part of the function is compiled apart from the rest."""
        self.apart += 1
        try:
            with self.builder.regions.part() as region:
                yield region
        finally:
            self.apart -= 1

    @contextlib.contextmanager
    def decided_by(self, arguments: frozenset[str]) -> Iterator[None]:
        """Inside, the paths of a branch are compiled that some arguments decide on."""
        before, self.deciding = self.deciding, self.deciding | arguments
        try:
            yield
        finally:
            self.deciding = before

    def state(self) -> State:
        """What the functions being compiled could change, as it is now."""
        return State.capture(self.scopes, list(self.builder.memory.storages.values()))

    def restore(self, state: State) -> None:
        """Go back to a state, and forget the tensors that were made since."""
        state.restore()
        self.builder.memory.forget(state.memory.keys())

    def mark(self) -> Mark:
        """This moment, for an attempt that may fail."""
        builder = self.builder
        reported = len(builder.fallbacks), len(builder.rows), builder.draws
        return Mark(self.state(), builder.effects, *reported)

    def has_acted(self, since: Mark) -> bool:
        """Whether the program prints or asserts what a second attempt would do again."""
        return self.builder.effects > since.effects

    def undo(self, since: Mark) -> None:
        """Go back to a moment; what was emitted since has no use, and is removed as dead code."""
        self.restore(since.state)
        self.forget(since)

    def forget(self, since: Mark) -> None:
        """Tell nobody of what was called since a moment."""
        builder = self.builder
        del builder.fallbacks[since.fallbacks :], builder.rows[since.rows :]
        builder.draws = since.draws

    def written(self) -> dict[int, Value]:
        """The inputs that the program has written to, by their numbers."""
        return {
            i: value
            for i, value in self.parameters.items()
            if value.storage is not None and value.storage.version is not value.storage.first[1]
        }

    def followed(self) -> tuple[int, ...]:
        """The inputs on whose layouts it depends what the program does, by their numbers."""
        storages = self.builder.memory.followed
        return tuple(i for i, value in self.parameters.items() if value.storage in storages)

    def require_decided(self, span: Span) -> None:
        """Refuse what depends on how a tensor lies, where it lies so on one path only.

        Args:
            span: to point at where it is not known what depends on that.
        """
        for at in self.builder.memory.undecided:
            what = "whether it shows a write to another tensor depends on which path the run takes"
            self.fail(errors.Mutation(at or span, what, "use .clone() for a tensor of its own"))

    def is_parameter(self, value: Value) -> bool:
        """Whether a tensor is the caller's own."""
        return self.input_of(value) is not None

    def input_of(self, value: Value) -> int | None:
        """The number of the input that a tensor is, if it is the caller's own."""
        return next((i for i, known in self.parameters.items() if known is value), None)

    def given_as(self, expr: Any) -> int | None:
        """The number of the input that is an expression before anything is written to it."""
        for i, value in self.parameters.items():
            first = value.made if value.storage is None else value.storage.first[0]
            if first.same_as(expr):
                return i
        return None

    def is_same(self, left: Value, right: Value) -> bool | None:
        """Whether two tensors are one object for the user; None if it depends on what is outside.

        Raises:
            NeedsConstant: it depends on the arguments, and is not known of these.
        """
        if left.meta is right.meta:
            return True
        places = [self.input_of(value) for value in (left, right)]
        inputs = [self.inputs[place] for place in places if place is not None]
        if len(inputs) < 2:
            return False  # the program has made one of them
        if any(isinstance(input, Hidden) for input in inputs):
            return None
        paths = [self.path_of(place) for place in places if place is not None]
        if not all(path in self.known and self.known[path].first for path in paths):
            raise NeedsConstant(frozenset(paths))
        return self.known[paths[0]].first == self.known[paths[1]].first

    def path_of(self, index: int) -> str:
        """What the user calls a tensor among the inputs."""
        input = self.inputs[index]
        return next(path for known, path, _ in self.types if known == input)

    def name_of(self, index: int) -> str:
        """An identifier for an input: what the user calls it, or the gradient that it is."""
        if isinstance(self.inputs[index], Cotangent):
            return "grad"
        return re.sub(r"\W+", "_", self.path_of(index)).strip("_")

    def name_value(self, name: str, value: Value) -> None:
        """Give what a value stands for the user's name of it, unless it has one already."""
        selected = isinstance(value, Selection)
        value = value.whole if isinstance(value, Selection) else value
        if isinstance(value, Scalar) or self.is_parameter(value):
            return
        if any(value is named for named in self._named):
            return
        # What a mask selects from may be a tensor that has a name of its own.
        if not selected or (value.expr in self.builder.bindings and not self.has_name(value.expr)):
            self._named.append(value)
            self.builder.name(name, value.expr)

    def has_name(self, expr: Any) -> bool:
        """Whether the user has a name for an expression of the program."""
        return any(expr.same_as(value.made) for value in self._named)

    def unique(self, path: str) -> str:
        """An identifier for a path such as ``w['bias'][0]`` that no other input has."""
        name = re.sub(r"\W+", "_", path).strip("_") or "input"
        name = f"_{name}" if name[0].isdigit() else name
        candidate, count = name, 1
        while candidate in self.names:
            candidate, count = f"{name}_{count}", count + 1
        self.names.add(candidate)
        return candidate

    @contextlib.contextmanager
    def inside(self, fn: Any, span: Span | None, scope: Scope) -> Iterator[None]:
        """Compile the body of a function that is called at ``span``, if anywhere.

        Raises:
            CompileError: that is too deep.
        """
        if len(self.callees) >= MAX_DEPTH:
            starts = [i for i, callee in enumerate(self.callees) if callee is fn]
            if not starts:
                self.fail(errors.TooDeep(span, fn.__name__, MAX_DEPTH + 1))
            names = [f"`{callee.__name__}`" for callee in self.callees[starts[-1] :]]
            verb = "calls itself" if len(names) == 1 else "call each other"
            found = errors.Recursion(span, f"{_and(names)} {verb}", MAX_DEPTH)
            # Every further round would say the same again.
            raise CompileError(found, tuple(self.trail[: starts[0] + len(names)]))
        trail = tuple(self.trail)
        self.trail += [] if span is None else [span]
        self.callees.append(fn)
        self.scopes.append(scope)
        try:
            yield
        finally:
            self.trail[:] = trail
            self.callees.pop()
            self.scopes.pop()

    def fail(self, diagnostic: Diagnostic) -> NoReturn:
        """Raise a message about the user's code."""
        raise CompileError(diagnostic, tuple(self.trail))

    @contextlib.contextmanager
    def blaming(self, span: Span, what: str, operands: Any) -> Iterator[None]:
        """Turn what goes wrong inside into a message about the expression at ``span``.

        Args:
            span: of the expression.
            what: the name of the function or operator it applies.
            operands: what it is applied to.
        """
        before = self.builder.span
        self.builder.span = span
        try:
            yield
        except (CompileError, NeedsConstant, Related):
            raise
        except IllTyped as error:
            if isinstance(error, NeedsData):
                instead = _AS_TENSOR if any(map(is_array, _listed(operands))) else None
                self.fail(errors.DataDependent.of_call(span, what, instead))
            types = _and([describe(operand) for operand in _listed(operands)])
            why = " ".join(str(error).split()) or "torch refuses them"
            self.fail(errors.OperandsDoNotFit(span, what, types or "these arguments", why))
        except Mutation as error:
            self.fail(errors.Mutation(span, str(error), error.instead))
        except RowFailed as error:
            self.fail(errors.RowFailed(span, error.name, str(error)))
        except Unavailable as error:
            self.fail(errors.Unavailable(span, what, str(error), error.instead))
        except UnsupportedDtype as error:
            self.fail(errors.UnsupportedDtype(span, str(error)))
        except NoGradient as error:
            self.fail(errors.NoGradient(error.span or span, error.name, str(error)))
        except WrongDevice as error:
            self.fail(errors.OtherDevice(span, str(error)))
        except MixedDevices as error:
            self.fail(errors.MixedDevices(span, what, str(error)))
        except DataDependent as error:
            if error.what == "bool":
                self.fail(errors.TensorCondition(span, _and(_described(operands)) or "a tensor"))
            self.fail(errors.DataDependent.of_call(span, error.what, error.instead))
        except RecursionError:
            self.fail(errors.TooDeep(span, what, len(self.trail)))
        finally:
            self.builder.span = before


_AS_TENSOR = "NumPy would compute this, of its array: make that a tensor, torch.as_tensor(array)"


def _spelled(text: str) -> str:
    """An expression such as ``n - 1`` with names for its operators, to become an identifier."""
    words = {"-": "minus", "+": "plus", "*": "times", "//": "over", "/": "over", "%": "mod"}
    return re.sub(r"//|[-+*/%]", lambda found: f" {words[found[0]]} ", text)


def describe(value: Any) -> str:
    """A value as a message names it: ``f32[8, 4]``, or Python's own representation."""
    if isinstance(value, Scalar):
        return value.kind.__name__
    if isinstance(value, Selection):
        return f"{TensorType.of(value.meta)} where a mask is true"
    if isinstance(value, Value):
        return str(TensorType.of(value.meta))
    if type(value) in (list, tuple) or (isinstance(value, Grown) and value.head is None):
        items = ", ".join(map(describe, value))
        text = f"[{items}]" if isinstance(value, list) else f"({items})"
        return text if len(text) <= 40 else f"a {type(value).__name__} of {len(value)} items"
    text = size_text(value) if isinstance(value, torch.SymInt) else repr(value)
    return text if len(text) <= 40 else type(value).__name__


def _listed(operands: Any) -> list[Any]:
    """The operands of a call one by one, whether or not it has keywords."""
    if not operands:
        return []
    keywords = operands[1] if len(operands) == 2 and isinstance(operands[1], dict) else {}
    positional = operands[0] if isinstance(operands[0], tuple) and keywords is operands[1] else None
    return [*(operands if positional is None else positional), *keywords.values()]


def _described(operands: Any) -> list[str]:
    return [describe(value) for value in values_in(operands)]


def _and(parts: list[str]) -> str:
    return " and ".join(parts) if len(parts) < 3 else ", ".join(parts[:-1]) + f" and {parts[-1]}"
