"""Calls of a compiled program: its inputs read, its kernels run, its result put together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import torch
from tvm.ir import IRModule

from babytriton import errors
from babytriton.frontend.lowering import Lowering, Output, Returned, Selected
from babytriton.frontend.program import Computed, Cotangent, Hidden, Input, reader
from babytriton.frontend.signature import Signature, TensorSpec
from babytriton.ops.fallback import TorchCall
from babytriton.passes.orders import formats_of_results
from babytriton.passes.steps import steps_of
from babytriton.plan import Plan
from babytriton.recording import Differentiated, key_of, record
from babytriton.runtime import interop
from babytriton.runtime.direct import LARGE, DirectLauncher
from babytriton.runtime.dispatch import Launcher, check_layout, check_target, check_tensor, fill
from babytriton.runtime.executable import Executable
from babytriton.types import MemoryFormat


class Runner:
    """Takes the leaves of a call to the program's parameters, and its outputs to the result.

    Args:
        program: how a call fills it.
        signature: of its calls.
        mod: its scheduled kernels.
        built: its machine code.
    """

    def __init__(
        self, program: Lowering, signature: Signature, mod: IRModule, built: Executable
    ) -> None:
        self.program, self.signature = program, signature
        self._device, *_ = program.devices
        self.differentiated: Differentiated | None = None
        """What torch's autograd is to know of calls, where gradients are asked for."""
        self._mod, self._built = mod, built
        formats = formats_of_results(mod, program.entry)
        self._launcher = _launcher(program, mod, built, formats)
        laid = {} if self.direct is None else self.direct.laid
        self.formats = {n: format for n, format in formats.items() if n not in laid}
        """How the outputs lie of which what is in memory is given, by their numbers."""
        self._result = program.result
        self._writes = program.writes
        paths = [leaf.path for leaf in signature.leaves()]
        self._inputs = [_input(input, paths) for input in program.inputs]
        self._sizes = program.sizes

    def __call__(self, leaves: Sequence[Any]) -> Any:
        sizes = None if self._sizes is None else self._sizes.of(leaves)
        parameters = [
            read.of(sizes or {}) if isinstance(read, Computed) else read(leaves)
            for _, read in self._inputs
        ]
        outputs = self.outputs(parameters, sizes or {})
        self._write(parameters, outputs)
        return filled(self._result, parameters, outputs, sizes or {})

    def read(self, leaves: Sequence[Any]) -> list[tuple[str, Any]]:
        """What a call gives each input, and what the user calls that; None for computed ones."""
        return [
            (path, None if isinstance(read, Computed) else read(leaves))
            for path, read in self._inputs
        ]

    def compute(self, values: Sequence[Any], sizes: Mapping[str, int]) -> Sequence[Any]:
        """Run the program on values for its inputs: its outputs, and what it writes is written."""
        parameters = [
            read.of(sizes) if isinstance(read, Computed) else value
            for (_, read), value in zip(self._inputs, values)
        ]
        outputs = self.outputs(parameters, sizes)
        self._write(parameters, outputs)
        return outputs

    def result(
        self, values: Sequence[Any], outputs: Sequence[Any], sizes: Mapping[str, int]
    ) -> Any:
        """The function's result, of values for the program's inputs and of its outputs."""
        return filled(self._result, values, outputs, sizes)

    def _write(self, parameters: Sequence[Any], outputs: Sequence[Any]) -> None:
        for write in self._writes:
            interop.write(parameters[write.input], outputs[write.index])

    @property
    def entry(self) -> str:
        """What the user calls the function."""
        return self.program.entry

    @property
    def inputs(self) -> Sequence[Input]:
        """What each parameter of the program gets."""
        return self.program.inputs

    @cached_property
    def places(self) -> Sequence[int]:
        """The numbers of the parameters that are tensors."""
        specs = [leaf.spec for leaf in self.signature.leaves()]
        return [
            i
            for i, input in enumerate(self.inputs)
            if isinstance(input, (Hidden, Cotangent))
            or (isinstance(input, int) and isinstance(specs[input], TensorSpec))
        ]

    @property
    def draws(self) -> bool:
        """Whether the program draws random numbers, or calls what may."""
        return self.program.draws

    def given(self, values: Mapping[Any, Any], sizes: Mapping[str, int]) -> list[Any]:
        """The parameters of the program, of values by what they are.

        Args:
            values: a tensor or a number for the key of each input that is one.
            sizes: the symbolic sizes of the call.
        """
        keys = [key_of(input) for input in self.inputs]
        return [
            read.of(sizes)
            if isinstance(read, Computed)
            else read(())
            if key is None
            else values[key]
            for key, (_, read) in zip(keys, self._inputs)
        ]

    def outputs(self, parameters: Sequence[Any], sizes: Mapping[str, int]) -> Sequence[Any]:
        """Run the program; torch's autograd takes note where gradients are asked for.

        Raises:
            RuntimeError: derivatives are asked for in forward mode.
        """
        if interop.has_tangent(parameters):
            raise errors.ForwardMode(None, self.entry).error()
        if self.differentiated is None and not any(map(interop.is_wrapped, parameters)):
            return self.launch(parameters)
        return record(self, self._launch_apart, parameters, sizes)

    def launch(self, parameters: Sequence[Any]) -> Sequence[Any]:
        """Run the program on tensors that are checked first; it may write to them."""
        return self._turned(self._launcher(self._checked(parameters)))

    def _launch_apart(self, parameters: Sequence[Any]) -> Sequence[Any]:
        """Run the program on tensors that stay as they are."""
        return self._turned(self._launcher(self._apart(self._checked(parameters))))

    def _launch_readable(self, parameters: Sequence[Any]) -> Sequence[Any]:
        """Run the program on tensors that kernels can read, but for how they lie."""
        return self._turned(self._launcher(self._stored(parameters)))

    def _stored(self, parameters: Sequence[Any]) -> list[Any]:
        """Parameters as the program takes them: what is in the memory of some."""
        found = list(parameters)
        for i, format in self.program.formats.items():
            if not self.is_by_address(i):
                found[i] = format.memory(found[i].detach())
        return found

    def is_by_address(self, number: int) -> bool:
        """Whether a tensor will do for a parameter where its memory holds what that is to be."""
        return self.direct is not None and self.names[number] in self.direct.by_address

    def _turned(self, outputs: Sequence[Any]) -> Sequence[Any]:
        """The results of what the program gives of them: what is in memory."""
        if not self.formats:
            return outputs
        found = list(outputs)
        for i, format in self.formats.items():
            found[i] = format.turned(found[i])
        return found

    def _apart(self, read: Sequence[Any]) -> list[Any]:
        """Parameters with copies of those that the program writes to where they lie."""
        updated = {parameter for parameter, _ in self.program.updates.pairs}
        return [x.clone() if i in updated else x for i, x in enumerate(read)]

    def unchecked(self, parameters: Sequence[Any], sizes: Mapping[str, int]) -> Sequence[Any]:
        """Run the program outside torch.func, on parameters that kernels can read.

        Where gradients are asked for these are tensors as they lie, and so are the outputs;
        otherwise both are what is in their memory.
        """
        if self.differentiated is None:
            return self._launcher(parameters)
        return record(self, self._launch_readable, parameters, sizes)

    @property
    def direct(self) -> DirectLauncher | None:
        """What runs the program without a virtual machine; None where one is needed."""
        return self._launcher if isinstance(self._launcher, DirectLauncher) else None

    @property
    def names(self) -> tuple[str, ...]:
        """A variable for each parameter of the program."""
        if self.direct is not None:
            return self.direct.parameters
        return tuple(f"x{i}" for i in range(len(self.inputs)))

    def launch_into(self, parameters: Sequence[Any], places: Sequence[torch.Tensor]) -> None:
        """Run the program on tensors that are checked first, and write its outputs to others.

        Args:
            parameters: of the program, none of whose sizes is symbolic.
            places: a tensor of its type for each output; none shares memory with a parameter.
        """
        read = self._checked(parameters)
        if self.into is None:
            for place, output in zip(places, self._turned(self._launcher(self._apart(read)))):
                place.copy_(output)
            return
        written = [x if interop.writable(x) else x.new_empty(x.shape) for x in places]
        self.into(*read, *written)
        for place, output in zip(places, written):
            if output is not place:
                place.copy_(output)

    @cached_property
    def into(self) -> Callable[..., None] | None:
        """The program as a function of parameters and places.

        None where it has branches or loops, and where it takes or gives what is in the memory of
        tensors.
        """
        steps = _steps(self.program, self._mod)
        if steps is None or not steps.is_straight or self.program.formats or self.formats:
            return None
        return _direct(self.program, steps, self._built, None, {}).into()

    def _checked(self, parameters: Sequence[Any]) -> list[Any]:
        """Parameters that kernels can read."""
        for (path, _), parameter in zip(self._inputs, parameters):
            if isinstance(parameter, torch.Tensor):
                check_tensor(path, parameter, self._device)
        for number in self.program.follows:
            check_layout(self._inputs[number][0], parameters[number])
        if self._writes:
            self._check_writes(parameters)
        found = list(parameters)
        for i, x in enumerate(parameters):
            if isinstance(x, torch.Tensor):
                format = self.program.formats.get(i)
                found[i] = interop.readable(interop.in_memory(x, format), format)
        return found

    def _check_writes(self, parameters: Sequence[Any]) -> None:
        """Refuse tensors that the program would not write to as torch does."""
        for write in self._writes:
            path, target = self._inputs[write.input][0], parameters[write.input]
            others = [
                (other, parameter)
                for i, ((other, _), parameter) in enumerate(zip(self._inputs, parameters))
                if i != write.input and isinstance(parameter, torch.Tensor)
            ]
            check_target(path, target, others, write.contiguous)


def filled(
    result: Any,
    parameters: Sequence[Any] | Mapping[int, Any],
    outputs: Sequence[Any],
    sizes: Mapping[str, int],
) -> Any:
    """The result of a call, with its tensors and numbers in their places."""

    # No function that calls itself inside here: it would keep the tensors until they are collected.
    leaf = partial(_leaf, parameters, outputs, sizes)
    return fill(result, leaf, (Output, Returned, Selected, Computed))


def _leaf(
    parameters: Sequence[Any] | Mapping[int, Any],
    outputs: Sequence[Any],
    sizes: Mapping[str, int],
    place: Output | Returned | Selected | Computed,
) -> Any:
    if isinstance(place, Returned):
        return parameters[place.input]
    if isinstance(place, Selected):
        whole, mask = (_leaf(parameters, outputs, sizes, x) for x in (place.whole, place.mask))
        return place.of(whole, mask)
    if isinstance(place, Computed):
        return place.of(sizes)
    output = outputs[place.index]
    return output.item() if place.is_float else output


def _launcher(
    program: Lowering, mod: IRModule, built: Executable, formats: Mapping[int, MemoryFormat]
) -> Launcher | DirectLauncher:
    """What runs the program: mostly Python that is made of it, else a virtual machine."""
    machine = Launcher(built, program.devices)
    steps = _steps(program, mod)
    if steps is None:
        return machine
    on_cpu = program.devices[0].type == "cpu"
    if on_cpu and (steps.known_bytes or 0) >= LARGE:
        return machine
    large = machine if on_cpu and steps.known_bytes is None else None
    return _direct(program, steps, built, large, {} if steps.sizes else formats)


def _steps(program: Lowering, mod: IRModule) -> Plan | None:
    """The steps of the program; None where it is for several devices, or has none."""
    return steps_of(mod, program.entry) if len(program.devices) == 1 else None


def _direct(
    program: Lowering,
    steps: Plan,
    built: Executable,
    large: Launcher | None,
    formats: Mapping[int, MemoryFormat],
) -> DirectLauncher:
    calls = {i: input for i, input in enumerate(program.inputs) if isinstance(input, TorchCall)}
    with interop.outside_transforms():  # what is constant is no transform's
        return DirectLauncher(steps, built.kernel, calls, program.devices[0], large, formats)


def _input(
    input: Input, paths: Sequence[str]
) -> tuple[str, Callable[[Sequence[Any]], Any] | Computed]:
    """What the user calls an input of the program, and how a call reads it."""
    if isinstance(input, Computed):
        return "", input
    if isinstance(input, Cotangent):
        return "", lambda leaves: leaves[0]
    if isinstance(input, TorchCall):
        function = interop.packed(input)
        return "", lambda leaves: function
    path = input.place.path if isinstance(input, Hidden) else paths[input]
    return path, reader(input)
