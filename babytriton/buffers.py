"""Programs of frameworks that allocate: what they take, what they give, and calls of them.

Such a framework has to know the types of results before anything runs, keeps what the way back
needs of the way forward, and gives each call the memory that results are to be written to.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from tvm import relax, tirx

from babytriton import errors, halves
from babytriton.frontend.lowering import Output, Returned, Selected
from babytriton.frontend.program import Cotangent, Hidden
from babytriton.frontend.signature import leaves_of
from babytriton.passes.gradient import Parameter, Result
from babytriton.recording import Key, key_of
from babytriton.running import Runner
from babytriton.runtime import interop
from babytriton.runtime.dispatch import fill
from babytriton.stages import Compiled, Lowered
from babytriton.targets import Target
from babytriton.types import TensorType, find_dtype

callback = interop.callback

Reader = Callable[[], Any]


@dataclass(frozen=True, eq=False)
class Program:
    """A lowered program, whose calls read and write memory of the caller's.

    Attributes:
        lowered: the program, without a part that is left for the way back.
        own: for the keys of some inputs, what gives their values: these it reads by itself.
        records: whether it was lowered where gradients are recorded.
    """

    lowered: Lowered
    own: Mapping[Key, Reader]
    records: bool

    @classmethod
    def of(cls, lowered: Lowered, own: Mapping[Key, Reader], records: bool) -> Program:
        """The program of a stage, where captured tensors are read as they are at each call."""
        places = [x for x in lowered.lowering.inputs if isinstance(x, Hidden)]
        captured: dict[Key, Reader] = {("hidden", x.number): x.place.read for x in places}
        return cls(lowered, {**own, **captured}, records)

    @cached_property
    def operands(self) -> tuple[tuple[Key, TensorType], ...]:
        """The key and the type of each tensor that a call gives, in order."""
        program = self.lowered.lowering
        pairs = zip(program.inputs, program.mod[program.entry].params)
        keyed = [(key_of(input), param) for input, param in pairs]
        return tuple((key, _type(x.ty)) for key, x in keyed if key and key not in self.own)

    @cached_property
    def results(self) -> tuple[TensorType, ...]:
        """The type of each output."""
        program = self.lowered.lowering
        return tuple(map(_type, program.mod[program.entry].ret_ty.fields))

    def filled(self, outputs: Sequence[Any], input: Callable[[Key, Reader | None], Any]) -> Any:
        """What the function returns, with outputs and inputs in their places.

        Args:
            outputs: one for each of the program's.
            input: gives an input by its key, and by what reads it where it is not an operand.
        """
        leaf = partial(self._leaf, outputs, input)
        return fill(self.lowered.lowering.result, leaf, (Output, Returned, Selected))

    def _leaf(
        self,
        outputs: Sequence[Any],
        input: Callable[[Key, Reader | None], Any],
        place: Output | Returned | Selected,
    ) -> Any:
        if isinstance(place, Output):
            return outputs[place.index]
        if isinstance(place, Selected):
            whole, mask = (self._leaf(outputs, input, x) for x in (place.whole, place.mask))
            return place.of(whole, mask)
        key = key_of(self.lowered.lowering.inputs[place.input])
        assert key is not None
        return input(key, self.own.get(key))

    @property
    def is_pure(self) -> bool:
        """Whether a call can be left out, or be made twice."""
        program = self.lowered.lowering
        return bool(program.mod[program.entry].is_pure) and not program.draws

    @property
    def is_current(self) -> bool:
        """Whether what it was compiled for outside the function still holds."""
        return self._changed() is None

    def require_current(self) -> None:
        """Refuse to run when what it was compiled for has changed.

        Raises:
            ValueError: something that the function captures is another; the message names it.
        """
        path = self._changed()
        if path is not None:
            raise errors.CapturedChanged(None, path, self.lowered.name).error()

    def _changed(self) -> str | None:
        if not self.lowered.lowering.guards:
            return None
        with torch.set_grad_enabled(self.records):
            guards = self.lowered.lowering.guards
            return next((guard.place.path for guard in guards if not guard()), None)

    def require_unwritten(self) -> None:
        """Refuse a program that writes to its inputs, for callers whose arrays never change.

        Raises:
            ValueError: it writes to an argument or to a captured tensor; the message names it.
        """
        program, leaves = self.lowered.lowering, self.lowered.signature.leaves()
        for write in program.writes:
            input = program.inputs[write.input]
            path = input.place.path if isinstance(input, Hidden) else ""
            path = leaves[input].path if isinstance(input, int) else path
            raise errors.WrittenArray(None, path, self.lowered.name).error()

    def digest(self, constants: str) -> int:
        """A number of 60 bits that programs share if they are equal but for what they capture.

        Args:
            constants: a text for the values it has of its own.
        """
        lowered = self.lowered
        parts = (lowered.as_text(), str(lowered.signature), str(lowered.target), constants)
        return int(hashlib.sha256("\n".join(parts).encode()).hexdigest()[:15], 16)

    def with_outputs(self, numbers: Sequence[int]) -> Program:
        """The program with only some of its outputs.

        Args:
            numbers: of these, in order.
        """
        program = self.lowered.lowering
        lowering = replace(program, mod=halves.with_outputs(program, numbers))
        return replace(self, lowered=replace(self.lowered, lowering=lowering))

    @cached_property
    def compiled(self) -> Compiled:
        """Machine code for it."""
        return self.lowered.compile()

    def prepare(self) -> None:
        """Make what runs it, which says what is missing.

        Raises:
            RuntimeError: what a GPU takes is missing.
        """
        _ = self._runner, self._direct

    def run(self, *tensors: Any) -> None:
        """Run it on memory of the caller's.

        Tensors may have further dimensions before those of their types, each of the size of a
        batch, or of size 1 where there is one element for the whole batch. It runs for each
        element of the batch.

        Args:
            tensors: of tvm-ffi, in memory of their own: one for each operand, and then one for each
                output, which is written to. Of a narrower dtype, it takes what fits of the output;
                ``uint32`` with a last dimension of 2 holds the halves of elements.

        Raises:
            ValueError: something that the function captures has changed.
            RuntimeError: it runs on another device.
        """
        self.require_current()
        direct = self._direct
        if direct is not None and len(tensors[-1].shape) == len(self.results[-1].shape):
            direct(*tensors)
            return
        given = interop.views(tensors)
        device = given[0].device
        if device.index:
            name, instead = self.lowered.name, "move the arrays to the first device"
            why = f"it is compiled for {device.type}:0"
            raise errors.OtherPlatform(None, name, str(device), why, instead).error()
        places = given[len(self.operands) :]
        extra = places[0].ndim - len(self.results[0].shape)
        extra -= places[0].dtype == torch.uint32
        batch = places[0].shape[:extra]
        with torch.no_grad(), interop.on_callers_stream(device):
            for index in itertools.product(*map(range, batch)):
                self._run_one([x[_at(index, x)] for x in given])

    def _run_one(self, tensors: Sequence[torch.Tensor]) -> None:
        """Run it for one element of a batch."""
        values: dict[Key, Any] = {
            key: _as(x, type.dtype) for x, (key, type) in zip(tensors, self.operands)
        }
        values |= {key: read() for key, read in self.own.items()}
        places, written = [], []
        for x, type in zip(tensors[len(self.operands) :], self.results):
            place = _bits(x, type.dtype)
            is_same = place.dtype == type.dtype
            places.append(place)
            written.append(place if is_same else place.new_empty(place.shape, dtype=type.dtype))
        self._runner.launch_into(self._runner.given(values, {}), written)
        for place, found in zip(places, written):
            if found is not place:
                place.copy_(found)

    @cached_property
    def _runner(self) -> Runner:
        return self.compiled.runner

    @cached_property
    def _direct(self) -> Callable[..., None] | None:
        """What runs it on tensors as they come, where it reads and writes nothing else.

        Torch's tensors take longer to make than a small kernel to run; a GPU needs them, whose
        memory for what lies between kernels is torch's.
        """
        types = [*(type for _, type in self.operands), *self.results]
        wide = any(type.dtype.itemsize == 8 for type in types)  # theirs may be narrower
        run, numbers = self._runner.into, {key: read() for key, read in self.own.items()}
        all_numbers = all(isinstance(number, float) for number in numbers.values())
        keys = list(map(key_of, self.lowered.lowering.inputs))
        calls = None in keys
        if run is None or wide or calls or not all_numbers or self.compiled.target.kind != "cpu":
            return None
        if not numbers:
            return run
        count, operands = len(self.operands), [key for key, _ in self.operands]
        places = [numbers[key] if key in numbers else operands.index(key) for key in keys if key]

        def direct(*given: Any) -> None:
            parameters = [x if isinstance(x, float) else given[x] for x in places]
            run(*parameters, *given[count:])

        return direct


@dataclass(frozen=True)
class Saved:
    """A tensor that the way forward gives beside the results, or a result, by its number."""

    number: int


@dataclass(frozen=True, eq=False)
class Differentiable:
    """A program with gradients, as two.

    Attributes:
        whole: the program, as it was lowered.
        own: values of some inputs, which are the same for all orders.
    """

    whole: Lowered
    own: Mapping[Key, Reader]

    @cached_property
    def _pruned(self) -> Lowered:
        program = halves.of_arguments(self.whole.lowering)
        return replace(self.whole, lowering=program).forward

    @property
    def _division(self) -> halves.Division:
        found = self._pruned.halves
        assert found is not None
        return found.division

    @cached_property
    def forward(self) -> Program:
        """What runs at a call: results, and after these what the way back needs."""
        return Program.of(self._pruned, self.own, True)

    @property
    def results(self) -> int:
        """How many outputs of the way forward are results; the others are saved."""
        return self._division.results

    @cached_property
    def sources(self) -> tuple[Key | Saved | Cotangent, ...]:
        """What each operand of the way back is: an input, an output, or a result's gradient."""
        own = self._backward_own
        return tuple(
            found
            for i, found in enumerate(map(self._source, self._division.sources))
            if ("leaf", i) not in own
        )

    @cached_property
    def backward(self) -> Program:
        """What runs on the way back."""
        return Program.of(self._pruned.backward, self._backward_own, True)

    @cached_property
    def gradients(self) -> dict[Key, int | None]:
        """For each input that is differentiated, the output of the way back that is its gradient.

        ``None`` where no result depends on the input.
        """
        division, inputs = self._division, self._pruned.lowering.inputs
        pairs = zip(division.inputs, division.outputs)
        return {key: n for i, n in pairs if (key := key_of(inputs[i])) is not None}

    @property
    def differentiable(self) -> tuple[int, ...]:
        """The numbers of the results that gradients flow through."""
        return self._division.differentiable

    @cached_property
    def next(self) -> Differentiable:
        """The gradient of this, with gradients of its own.

        Raises:
            ValueError: it may draw random numbers, which this would draw anew.
        """
        if self._division.draws:
            raise errors.RandomGradient(None, self.whole.name).error()
        with torch.enable_grad():
            return Differentiable(self.whole.gradient(), self.own)

    @cached_property
    def next_results(self) -> dict[Key, int]:
        """The result of the next order that is the gradient of an input."""
        program = self.whole.lowering
        assert program.gradient is not None
        pairs = zip(program.gradient.inputs, program.gradient.outputs)
        keyed = [(key_of(program.inputs[i]), n) for i, n in pairs if n is not None]
        first = program.gradient.results
        return {key: n - first for key, n in keyed if key is not None}

    @property
    def order(self) -> int:
        """0 for a function, 1 for its gradient, and so on."""
        return self.whole.order

    @cached_property
    def _backward_own(self) -> dict[Key, Reader]:
        sources = [self._source(x) for x in self._division.sources]
        known = self.forward.own
        return {("leaf", i): known[x] for i, x in enumerate(sources) if x in known}

    def _source(self, source: Parameter | Result | Cotangent) -> Any:
        if isinstance(source, Result):
            return Saved(source.number)
        if isinstance(source, Parameter):
            return key_of(self._pruned.lowering.inputs[source.number])
        return source


def target_on(name: str, target: Target | None, platform: str) -> Target:
    """The target of a function, on a platform that another framework has chosen.

    Args:
        name: of the function.
        target: its own; ``None`` for that of the platform.
        platform: ``"cpu"`` or ``"cuda"``.

    Raises:
        RuntimeError: its own is for another platform.
    """
    found = target or Target(platform)
    if found.device_type != platform:
        why = f"it is compiled for {found.kind}"
        instead = f"move the arrays to a {found.kind} device, or jit without a target"
        raise errors.OtherPlatform(None, name, platform, why, instead).error()
    return found


def leaves(lowered: Lowered, values: Sequence[Any]) -> list[Any]:
    """The tensors and floats among the values of a function's parameters, as inputs number them.

    Args:
        lowered: the function, for such values.
        values: of its parameters, in order.
    """
    return leaves_of(values, lowered.signature.static, lowered.parameters.names)


def _type(type: Any) -> TensorType:
    assert isinstance(type, relax.TensorType)
    assert type.shape is not None
    assert all(isinstance(n, tirx.IntImm) for n in type.shape)
    dtype = find_dtype(str(type.dtype))
    assert dtype is not None
    return TensorType(tuple(int(n) for n in type.shape), dtype.torch)


def _bits(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The tensor; where its words are the halves of elements, as these."""
    return tensor.view(dtype).squeeze(-1) if tensor.dtype == torch.uint32 else tensor


def _at(index: Sequence[int], tensor: torch.Tensor) -> tuple[int, ...]:
    """The place of an element of a batch, in a tensor that may have one for all."""
    return tuple(min(i, n - 1) for i, n in zip(index, tensor.shape))


def _as(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return tensor if tensor.dtype == dtype else _bits(tensor, dtype).to(dtype)
