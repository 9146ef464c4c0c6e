"""A kernel and a signature -> its TensorIR functions."""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from tvm import tirx
from tvm.ir import IRModule

from babytriton import errors
from babytriton.diagnostics import CompileError, Span
from babytriton.errors import kernels as kernel_errors
from babytriton.frontend.callee import function_of
from babytriton.frontend.captures import Captures, Guard, Place
from babytriton.frontend.kernel.frames import Frame, names_of
from babytriton.frontend.kernel.generator import Generator
from babytriton.frontend.kernel.program import Fault, Program, buffer
from babytriton.frontend.kernel.scalars import Number, ScalarType
from babytriton.frontend.kernel.tensorir import Argument, Step, Steps, steps_of
from babytriton.frontend.kernel.tensors import Tensor
from babytriton.frontend.program import Hidden
from babytriton.frontend.scope import Scope
from babytriton.frontend.signature import Signature, TensorSpec, rebuild
from babytriton.frontend.source import Source
from babytriton.types import TensorType


@dataclass(frozen=True)
class Lowering:
    """A kernel as TensorIR functions.

    Attributes:
        name: of the function.
        steps: the functions, in the order they run, and what each is called on.
        workspaces: the types of the memory that they pass values on in.
        inputs: what each argument of the kernel is: a leaf of the call, or a captured tensor.
        types: of the arguments; ``None`` for a float.
        written: the arguments that are written, by number.
        faults: what may fail, by the place in the tensor of failures that says so.
        guards: what must still hold outside the function at a call.
        program: the kernel as statements.
    """

    name: str
    steps: tuple[Step, ...]
    workspaces: tuple[TensorType, ...]
    inputs: tuple[int | Hidden, ...]
    types: tuple[TensorType | None, ...]
    written: tuple[int, ...]
    faults: tuple[Fault, ...]
    guards: tuple[Guard, ...]
    program: Program

    @property
    def mod(self) -> IRModule:
        """The functions as a module."""
        return IRModule({step.name: step.function for step in self.steps})


@dataclass(frozen=True)
class Definition:
    """A kernel as its author defined it: what a call from other compiled code is made of.

    Attributes:
        fn: the plain Python function.
        checks: whether indices are checked when it runs.
    """

    fn: types.FunctionType
    checks: bool


def lower(
    fn: types.FunctionType, signature: Signature, checks: bool, trail: tuple[Span, ...] = ()
) -> Lowering:
    """Compile a Python function that reads and writes elements to TensorIR.

    Args:
        fn: the function.
        signature: of the arguments it is compiled for.
        checks: whether indices are checked when it runs.
        trail: the calls that lead to it, for messages.

    Raises:
        CompileError: the function cannot be compiled; it points at the user's line.
    """
    try:
        body = _settled(fn, signature, checks, trail)
        return body.lowering(steps_of(body.program))
    except CompileError:
        raise
    except Exception as error:  # RecursionError among them
        raise errors.internal("lowering", error) from error


def _settled(
    fn: types.FunctionType, signature: Signature, checks: bool, trail: tuple[Span, ...]
) -> _Body:
    """The body of a kernel, once the types of its locals are known.

    They grow with what is assigned to them, a few times at most.
    """
    known: dict[tuple[Any, ...], ScalarType] = {}
    faults = 0
    while True:
        before = dict(known), faults
        body = _Body(fn, signature, known, checks, faults, trail)
        faults = len(body.program.faults)
        if (known, faults) == before:
            return body


class _Body:
    """The statements of a kernel, for the types of its locals as far as they are known."""

    def __init__(
        self,
        fn: types.FunctionType,
        signature: Signature,
        known: dict[tuple[Any, ...], ScalarType],
        checks: bool,
        faults: int,
        trail: tuple[Span, ...],
    ) -> None:
        self.inputs: list[int | Hidden] = []
        self.types: list[TensorType | None] = []
        self.arguments: list[tirx.Var] = []
        self._names: set[str] = set()
        captures = Captures(self._hidden)
        source = Source.of(fn)
        leaves = self._declared(signature)
        values = [rebuild(spec, lambda: next(leaves)) for spec in signature.specs]
        names = dict(zip(signature.names, values))
        own = names_of(source.node)
        frame = Frame(source, Scope(dict(names), fn=function_of(fn)), (), own, set(names))
        fault = buffer("fault", TensorType((max(1, faults),), torch.int64))
        generator = Generator(frame, captures, known, checks, fault)
        generator.trail.extend(trail)
        generator.enter(names)
        if generator.run() is not None:
            raise CompileError(kernel_errors.KernelReturns(generator.span(source.node)), trail)
        self.captures = captures
        arguments, found = tuple(self.arguments), tuple(generator.faults)
        self.program = Program(fn.__name__, arguments, tuple(generator.out), found, fault)

    def _declared(self, signature: Signature) -> Iterator[Any]:
        for i, leaf in enumerate(signature.leaves()):
            type = leaf.spec.type if isinstance(leaf.spec, TensorSpec) else None
            yield self._declare(i, leaf.path, type)

    def _hidden(self, place: Place, tensor: torch.Tensor) -> tuple[Tensor, TensorType]:
        type = TensorType.of(tensor)
        found = self._declare(Hidden(place, type), place.path, type)
        assert isinstance(found, Tensor)
        return found, type

    def _declare(self, input: int | Hidden, path: str, type: TensorType | None) -> Tensor | Number:
        name = "".join(c if c.isalnum() else "_" for c in path).strip("_") or "input"
        while name in self._names:
            name += "_"
        self._names.add(name)
        self.inputs.append(input)
        self.types.append(type)
        if type is None:
            number = tirx.Var(name, "float64")
            self.arguments.append(number)
            return Number(number, ScalarType(torch.float64))
        found = buffer(name, type)
        self.arguments.append(found)
        return Tensor(path, found, type.dtype, type.sizes)

    def lowering(self, steps: Steps) -> Lowering:
        """What was found, with the functions of its statements."""
        slots = [step.slots[i] for step in steps.steps for i in step.written]
        written = {slot.index for slot in slots if isinstance(slot, Argument)}
        return Lowering(
            self.program.name,
            steps.steps,
            steps.workspaces,
            tuple(self.inputs),
            tuple(self.types),
            tuple(sorted(written)),
            self.program.faults,
            self.captures.settled(),
            self.program,
        )
