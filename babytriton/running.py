"""Calls of a compiled program: its inputs read, its kernels run, its result put together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from tvm.ir import IRModule

from babytriton.frontend.captures import Guard
from babytriton.frontend.lowering import Lowering, Output, Returned
from babytriton.frontend.program import Computed, Cotangent, Hidden, Input, reader
from babytriton.frontend.signature import ConstSpec, Signature
from babytriton.ops.fallback import TorchCall
from babytriton.passes.straight_line import straight_line
from babytriton.recording import Differentiated, key_of, record
from babytriton.runtime import interop
from babytriton.runtime.direct import LARGE, DirectLauncher
from babytriton.runtime.dispatch import Launcher, check_target, check_tensor, fill
from babytriton.runtime.executable import Executable
from babytriton.runtime.shortcuts import Shortcut, like


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
        self._program, self._signature = program, signature
        self._device, *_ = program.devices
        self.differentiated: Differentiated | None = None
        """What torch's autograd is to know of calls, where gradients are asked for."""
        self._launcher = _launcher(program, mod, built)
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
        for write in self._writes:
            parameters[write.input].copy_(outputs[write.index])
        return filled(self._result, parameters, outputs, sizes or {})

    @property
    def inputs(self) -> Sequence[Input]:
        """What each parameter of the program gets."""
        return self._program.inputs

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
        """Run the program; torch's autograd takes note where gradients are asked for."""
        if self.differentiated is None and not any(map(interop.is_wrapped, parameters)):
            return self.launch(parameters)
        return record(self, parameters, sizes)

    def launch(self, parameters: Sequence[Any]) -> Sequence[Any]:
        """Run the program on tensors that are checked first."""
        for (path, _), parameter in zip(self._inputs, parameters):
            if isinstance(parameter, torch.Tensor):
                check_tensor(path, parameter, self._device)
        if self._writes:
            self._check_writes(parameters)
        read = [interop.readable(x) if isinstance(x, torch.Tensor) else x for x in parameters]
        return self._launcher(read)

    def shortcut(self, arguments: Sequence[Any], guards: Sequence[Guard]) -> Shortcut | None:
        """A shorter way to run calls whose arguments are like these.

        Args:
            arguments: of a call, in the order of the function's parameters.
            guards: what must still hold outside the function.
        """
        if self._writes or self._sizes is not None or self.differentiated is not None:
            return None
        fixed = [isinstance(spec, ConstSpec) for spec in self._signature.specs]
        if any(isinstance(x, float) and is_fixed for x, is_fixed in zip(arguments, fixed)):
            return None
        leaves = [i for i, x in enumerate(arguments) if isinstance(x, (torch.Tensor, float))]
        inputs = list(enumerate(self._program.inputs))
        order = {i: leaves[input] for i, input in inputs if isinstance(input, int)}
        calls = {i: interop.packed(input) for i, input in inputs if isinstance(input, TorchCall)}
        admits = like(arguments, guards)
        if admits is None or len(order) + len(calls) < len(inputs):
            return None
        if isinstance(self._launcher, DirectLauncher) and self._result == Output(0):
            return Shortcut(admits, self._launcher.of_arguments(order, len(arguments)))

        def run(*given: Any) -> Any:
            parameters = calls | {i: given[argument] for i, argument in order.items()}
            outputs = self._launcher([parameters[i] for i in range(len(parameters))])
            return filled(self._result, parameters, outputs, {})

        return Shortcut(admits, run)

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

    def leaf(place: Output | Returned | Computed) -> Any:
        if isinstance(place, Returned):
            return parameters[place.input]
        if isinstance(place, Computed):
            return place.of(sizes)
        output = outputs[place.index]
        return output.item() if place.is_float else output

    return fill(result, leaf, (Output, Returned, Computed))


def _launcher(program: Lowering, mod: IRModule, built: Executable) -> Launcher | DirectLauncher:
    """What runs the program: without branches it needs no virtual machine."""
    machine = Launcher(built, program.devices)
    device, *others = program.devices
    steps = None if others else straight_line(mod, program.entry)
    if steps is None:
        return machine
    calls = {i: input for i, input in enumerate(program.inputs) if isinstance(input, TorchCall)}
    on_cpu = device.type == "cpu"
    if on_cpu and (steps.known_bytes or 0) >= LARGE:
        return machine
    large = machine if on_cpu and steps.known_bytes is None else None
    return DirectLauncher(steps, built.kernel, calls, device, large)


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
