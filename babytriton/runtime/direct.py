"""Programs run without a virtual machine: allocate, launch, and so on.

A program becomes the source of a Python function, as torch.compile's generated code is one: small
kernels take no longer than the lines that call them. The tensors are torch's from first to last.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch._C._dynamo import guards
from torch.utils.dlpack import from_dlpack

from babytriton import errors
from babytriton.ops.fallback import TorchCall
from babytriton.plan import Block, Kind, Launch, Plan
from babytriton.runtime.builtin import builtin
from babytriton.runtime.interop import contiguous_results, on_device, packed
from babytriton.runtime.step_lines import StepLines, indented, listed
from babytriton.types import MemoryFormat

_Allocate = Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor]

# As torch.compile's own code allocates: on the CPU, and on the current GPU. Not in torch's stubs.
_ALLOCATE: dict[str, _Allocate] = {
    "cpu": guards._empty_strided_cpu,  # type: ignore[attr-defined]
    "cuda": guards._empty_strided_cuda,  # type: ignore[attr-defined]
}

_NOTHING: Mapping[str, Any] = {}

LARGE = 16 << 20
"""Bytes. Fresh memory of this size costs more than a kernel takes to fill it: the virtual machine,
which keeps memory for its next call, serves a program better that writes as much, or whose loops
do in each step."""


class DirectLauncher:
    """Runs the steps of a program by a Python function that is made of them.

    Args:
        program: its steps.
        kernel: gives a kernel by its name.
        calls: the calls of torch, by the numbers of the parameters that they are.
        device: to allocate on.
        large: runs the program where it allocates as much; None if it never does.
        formats: how results lie, by their numbers, where that is not as contiguous tensors.
    """

    def __init__(
        self,
        program: Plan,
        kernel: Callable[[str], Callable[..., Any]],
        calls: Mapping[int, TorchCall],
        device: torch.device,
        large: Callable[[Sequence[Any]], Sequence[Any]] | None,
        formats: Mapping[int, MemoryFormat],
    ) -> None:
        self._program = program
        written = {output.name for output in program.allocations}
        self.laid = {n: each for n, each in formats.items() if program.results[n] in written}
        """How results lie, by their numbers, where that is how they are allocated."""
        self._formats = {program.results[n]: format for n, format in self.laid.items()}
        self._device, self._is_on_gpu = device, _is_gpu(device)
        self._is_never_large = large is None
        self._of_any: dict[str, Any] = {}
        """The kernels, of whatever tensors tvm-ffi takes."""
        self._globals: dict[str, Any] = {
            "allocate": _ALLOCATE[device.type],
            "large": large,
            "copy": _copy,
            "copied": _copied,
            "report": _report,
        }
        for step in program.launches:
            name, found = f"kernel_{step.kernel}", kernel(step.kernel)
            self._of_any[name] = found
            self._globals[name] = self._builtin(found, step.kinds)
        for output in program.allocations:
            self._globals[f"dtype_{output.dtype.name}"] = output.dtype.torch
        for name, tensor in program.constants:
            self._globals[name] = from_dlpack(tensor).to(device)
        for number, call in calls.items():
            name = program.parameters[number]
            self._globals[f"call_{name}"] = contiguous_results(call)
            self._globals[name] = packed(call)  # as a virtual machine takes it
        for name, function in program.functions:
            exec("\n".join(self._lines({}).function(name, function)), self._globals)
        lines, outputs = self.lines({})
        self._run = self._defined(program.parameters, [*lines, f"return {listed(outputs)}"])

    def __call__(self, parameters: Sequence[Any]) -> Sequence[Any]:
        """Run the program on parameters that it can read, in order, and return the outputs."""
        outputs: Sequence[Any] = self._run(*parameters)
        return outputs

    @property
    def known(self) -> Mapping[str, Any]:
        """What the lines use besides variables of their own, by name."""
        return self._globals

    def writes_in_place(self, result: int) -> bool:
        """Whether an output, by its number, is a parameter that kernels write to."""
        return self._program.results[result] in self._program.updated

    @cached_property
    def by_address(self) -> frozenset[str]:
        """The parameters of which only kernels read, and these only what lies at their addresses.

        Where a tensor's memory holds what the program takes, the tensor itself will do for them.
        """
        program = self._program
        if program.sizes:
            return frozenset()  # shapes tell them
        others = {name for step in program.all_steps for name in step.kept}
        return frozenset(program.parameters) - others - set(program.results)

    @property
    def parameters(self) -> tuple[str, ...]:
        """The variables that are to hold the program's parameters."""
        return self._program.parameters

    def lines(
        self, shapes: Mapping[str, str], addresses: Mapping[str, str] = _NOTHING
    ) -> tuple[list[str], Sequence[str]]:
        """Python that runs the program, and the variables that it leaves the outputs in.

        Args:
            shapes: for some parameters, a variable that holds the shape.
            addresses: for some, a variable that holds where they lie.
        """
        sizes, results = list(self._sizes(shapes)), self._program.results
        steps = list(self._steps({}, addresses))
        if self._is_never_large:
            return [*sizes, *_reported(steps)], results
        outputs = [f"output{i}" for i in range(len(results))]
        of_large = f"{listed(outputs)} = large({listed(self.parameters)})"
        here = indented([*steps, f"{listed(outputs)} = {listed(results)}"])
        either = [f"if {self._is_large}:", f"    {of_large}", "else:", *here]
        return [*sizes, *_reported(either)], outputs

    def into(self) -> Callable[..., None]:
        """A function of the parameters, and of tensors that the outputs are written to.

        The latter are as kernels write them, one for each output in order. No size may be
        symbolic. All may be tvm-ffi's tensors, where the program does not call torch.
        """
        program = self._program
        places = {name: f"place{i}" for i, name in enumerate(program.results)}
        ours = {x.name: places[x.name] for x in program.allocations if x.name in places}
        # The parameters themselves stay as they are.
        updated = {name: places[name] for name in program.updated}
        copies = [
            line
            for name, place in updated.items()
            for line in (f"copy({place}, {name})", f"{name} = {place}")
        ]
        ours |= updated
        # What no kernel writes: parameters, torch's results, and an output that is there twice.
        others = [
            f"copy(place{i}, {name})"
            for i, name in enumerate(program.results)
            if ours.get(name) != f"place{i}"
        ]
        names = [*program.parameters, *(f"place{i}" for i in range(len(program.results)))]
        return self._defined(
            names, [*copies, *self._steps(ours, None), *others, "return"], self._of_any
        )

    def _defined(
        self, arguments: Sequence[str], lines: Sequence[str], others: Mapping[str, Any] = _NOTHING
    ) -> Callable[..., Any]:
        """A function of some lines, to which others stand for some of what is known."""
        found: dict[str, Any] = {}
        known = {**self._globals, **others} if others else self._globals
        exec("\n    ".join([f"def run({', '.join(arguments)}):", *lines]), known, found)
        return on_device(self._device, found["run"])

    @property
    def _is_large(self) -> str:
        """Whether the program writes as much that the virtual machine is to run it."""
        return f"{self._program.bytes} >= {LARGE}"

    def _sizes(self, shapes: Mapping[str, str]) -> Iterator[str]:
        """Lines that read sizes."""
        known = dict(shapes)
        for name, tensor, axis in self._program.sizes:
            # A look at a tensor's shape makes an object: there is one for each.
            if tensor not in known:
                known[tensor] = f"shape_{tensor}"
                yield f"{known[tensor]} = {tensor}.shape"
            yield f"{name} = {known[tensor]}[{axis}]"

    def _steps(
        self, places: Mapping[str, str], addresses: Mapping[str, str] | None
    ) -> Iterator[str]:
        """Lines that run the steps, and let go of what none after them needs."""
        program = self._program
        lines = self._lines(places, addresses)
        return lines.block(Block(program.steps, program.results))

    def _lines(
        self, places: Mapping[str, str], addresses: Mapping[str, str] | None = _NOTHING
    ) -> StepLines:
        """What writes lines."""
        return StepLines(places, self._formats, addresses, self._is_on_gpu, self._kernel)

    def _kernel(self, step: Launch, told: Sequence[int]) -> str:
        """The name of a kernel that is given numbers for some of its tensors, by their places."""
        name = f"kernel_{step.kernel}"
        if not told:
            return name
        numbers = "_".join(map(str, told))
        kinds = [Kind.INTEGER if n in told else kind for n, kind in enumerate(step.kinds)]
        of_numbers = f"{name}_at_{numbers}"
        if of_numbers not in self._globals:
            self._globals[of_numbers] = self._builtin(self._of_any[name], kinds)
        return of_numbers

    def _builtin(self, kernel: Callable[..., Any], kinds: Sequence[Kind]) -> Callable[..., Any]:
        """A kernel as Python calls it: tensors tell a GPU's which one it is on."""
        if self._is_on_gpu:
            kinds = [Kind.TENSOR if kind == Kind.ADDRESS else kind for kind in kinds]
        function: Callable[..., Any] = builtin(kernel, kinds)
        return function


def _is_gpu(device: torch.device) -> bool:
    return device.type == "cuda"


def _reported(lines: Sequence[str]) -> list[str]:
    """Lines that say whose fault it is if they fail."""
    if not lines:
        return []
    return [
        "try:",
        *indented(lines),
        "except Exception as error:",
        "    report(error)",
        "    raise",
    ]


def _report(error: Exception) -> None:
    # What torch raises, of its own calls or of memory, is the user's.
    if type(error).__module__.startswith("tvm"):
        raise errors.internal("running", error) from error


def _copied(whole: torch.Tensor, address: int, shape: tuple[int, ...]) -> torch.Tensor:
    """A copy of the part of a tensor that begins at an address."""
    begin = (address - whole.data_ptr()) // whole.element_size()
    count = math.prod(shape)
    flat = whole.detach().view(-1)
    return flat[begin : begin + count].view(shape).clone()


def _copy(place: Any, value: Any) -> None:
    target, source = (x if isinstance(x, torch.Tensor) else from_dlpack(x) for x in (place, value))
    target.copy_(source)
