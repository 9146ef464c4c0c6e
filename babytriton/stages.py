"""The stages of a function: Lowered, Scheduled, Compiled. Each knows only the next one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import astunparse
import torch
from tvm.ir import IRModule

from babytriton import building, errors, halves, memory_formats
from babytriton.arguments import Arguments
from babytriton.diagnostics import CompileError
from babytriton.frontend import lowering
from babytriton.frontend.callee import name_of
from babytriton.frontend.captures import Guard
from babytriton.frontend.dimensions import Dimensions
from babytriton.frontend.parameters import Parameters
from babytriton.frontend.signature import Signature, TensorSpec, leaves_of
from babytriton.frontend.source import FunctionNode, Source
from babytriton.halves import Halves
from babytriton.ops import autocast
from babytriton.ops.fallback import Fallback
from babytriton.ops.refusals import Related
from babytriton.ops.table import Callee, Op
from babytriton.passes import lines, pipeline
from babytriton.passes.bindings import in_order_of_calls
from babytriton.plan import KernelLaunch
from babytriton.recording import Differentiated
from babytriton.running import Runner
from babytriton.runtime import executable, interop
from babytriton.runtime.toolchain import require_gpu
from babytriton.shortcuts import Moment, Shortcut, Shortened, shortcut
from babytriton.sources import KINDS, default_kind, dump
from babytriton.targets import Target


class Kernel(str):
    """The name of a TensorIR function of a program.

    Attributes:
        lines: of the user's, that the function computes: texts "file:line".
    """

    __slots__ = ("lines",)
    lines: tuple[str, ...]


def kernels_of(mod: IRModule) -> tuple[Kernel, ...]:
    """The TensorIR functions of a program, in the order in which it calls them."""
    found = []
    for name, func in in_order_of_calls(mod).items():
        found.append(kernel := Kernel(name))
        kernel.lines = lines.of_kernel(func)
    return tuple(found)


@dataclass(frozen=True, repr=False)
class Lowered:
    """A function for one signature as Relax.

    Attributes:
        name: of the function.
        parameters: of the function, for binding a call's arguments.
        signature: what it was compiled for.
        target: what it is compiled for.
        lowering: the Relax program and how a call fills it.
        node: the function's syntax tree.
        again: lowers the function's gradient of an order, for the same signature.
        order: of what gradient of the function this is; 0 for the function itself.
        halves: what this leaves for the way back, where it is only the way forward.
    """

    name: str
    parameters: Parameters
    signature: Signature
    target: Target
    lowering: lowering.Lowering
    node: FunctionNode
    again: Callable[[int], Lowered] | None = None
    order: int = 0
    halves: Halves | None = None

    @classmethod
    def of(
        cls,
        fn: Callable[..., Any],
        parameters: Parameters,
        signature: Signature,
        target: Target,
        dimensions: Dimensions,
        table: Mapping[Callee, Op],
        order: int = 0,
    ) -> Lowered:
        """Lower a function, or its gradient, with the given row for each torch callable.

        Raises:
            CompileError: the function cannot be compiled.
            NeedsConstant: a float argument must be a constant for it to be compiled.
            Related: symbolic sizes have turned out to be equal, or constant.
        """
        with executable.COMPILE_LOCK, interop.outside_transforms():
            node = Source.of(fn).node
            device = device_of(signature, target)
            target = target.resolved(device.index)
            found = lowering.lower(fn, signature, device, dimensions, target, table, order)

        def again(order: int) -> Lowered:
            fresh = dimensions.restarted({})
            try:
                return cls.of(fn, parameters, signature, target, fresh, table, order)
            except Related as found:
                raise errors.NoGradientOfSizes(None, name_of(fn), str(found)).error() from None

        return cls(name_of(fn), parameters, signature, target, found, node, again, order)

    @property
    def mod(self) -> IRModule:
        """The program as TVM holds it."""
        return self.lowering.mod

    @property
    def fallbacks(self) -> tuple[Fallback, ...]:
        """The calls that run through torch from inside the graph, and why."""
        return self.lowering.fallbacks

    def __repr__(self) -> str:
        return f"<Lowered {self.name}({self.signature}) for {self.target}>"

    def ast(self) -> str:
        """The function's syntax tree, a node a line."""
        return str(astunparse.dump(self.node))

    def python(self) -> str:
        """The function as Python, rendered from its syntax tree."""
        return str(astunparse.unparse(self.node)).strip() + "\n"

    def as_text(self) -> str:
        """The program as Relax, before any pass."""
        return str(self.mod.script())

    def gradient(self) -> Lowered:
        """The function's gradient, as a function of its arguments and of those of its results.

        It is what torch's autograd runs where a gradient is to have a gradient.

        Raises:
            ValueError: no argument and no captured tensor requires grad.
        """
        if self.lowering.gradient is None or self.again is None:
            raise errors.NothingRequiresGrad(None, self.name).error()
        return self.again(self.order + 1)

    @cached_property
    def forward(self) -> Lowered:
        """What runs at a call: all of it, or what is not left for the way back."""
        if self.lowering.gradient is None or self.halves is not None:
            return self
        with executable.COMPILE_LOCK, ours("dividing the gradient"):
            forward, found = halves.divided(self.lowering, self.signature)
        return replace(self, lowering=forward, halves=found)

    @property
    def backward(self) -> Lowered:
        """What runs on the way back: of what is saved, the gradients of what requires grad.

        Raises:
            ValueError: no argument and no captured tensor requires grad.
        """
        found = self.forward.halves
        if found is None:
            raise errors.NothingRequiresGrad(None, self.name).error()
        name = f"{self.name}_backward"
        return Lowered(name, found.parameters, found.signature, self.target, found.back, self.node)

    def schedule(self) -> Scheduled:
        """Fuse operators into TensorIR functions and give each its loops."""
        forward = self.forward
        with executable.COMPILE_LOCK, ours("scheduling"):
            program = memory_formats.as_given(forward.lowering, forward.signature)
            wanted = memory_formats.wanted_orders(program)
            mod = pipeline.fuse_and_schedule(program.mod, self.target, program.updates, wanted)
            program = memory_formats.as_scheduled(program, mod)
        return Scheduled(replace(forward, lowering=program), mod)

    def compile(self) -> Compiled:
        """Schedule, and compile to machine code."""
        return self.schedule().compile()


@dataclass(frozen=True, repr=False)
class Scheduled:
    """A function as fused and scheduled TensorIR.

    Attributes:
        lowered: the stage before.
        mod: a Relax program that calls TensorIR functions.
    """

    lowered: Lowered
    mod: IRModule

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The TensorIR functions, by their names; each knows the lines that it covers."""
        return kernels_of(self.mod)

    def __repr__(self) -> str:
        lowered = self.lowered
        return f"<Scheduled {lowered.name}({lowered.signature}): {len(self.kernels)} kernels>"

    def as_text(self) -> str:
        """The scheduled TensorIR, and the Relax program that calls it."""
        return str(self.mod.script())

    def compile(self) -> Compiled:
        """Compile to machine code; for a GPU that is absent, to source."""
        target = self.lowered.target
        if not target.runs:
            for call in self.lowered.fallbacks:
                why = f"`{call.name}` would run through torch: {call.reason}"
                raise errors.NoKernelSource(None, target.kind, why).error()
        with code_generation(self.mod, target):
            built = building.build(self.mod, self.lowered.lowering.entry, target)
        compiled = Compiled(self, built)
        dump(self.lowered.name, compiled)
        return compiled


@dataclass(frozen=True, repr=False, eq=False)
class Compiled:
    """A function that can be called, with arguments of the one signature it was compiled for.

    Attributes:
        scheduled: the stage before.
        executable: the machine code.
    """

    scheduled: Scheduled
    executable: executable.Executable

    @property
    def signature(self) -> Signature:
        """What it was compiled for."""
        return self.scheduled.lowered.signature

    @property
    def fallbacks(self) -> tuple[Fallback, ...]:
        """The calls that run through torch from inside the graph, and why."""
        return self.scheduled.lowered.fallbacks

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The TensorIR functions, by their names; each knows the lines that it covers."""
        return self.scheduled.kernels

    @cached_property
    def backward(self) -> Compiled:
        """What runs on the way back: of what was saved, the gradients of what requires grad.

        It is compiled when it is first asked for; its signature says what is saved.

        Raises:
            ValueError: no argument and no captured tensor requires grad.
        """
        return self.scheduled.lowered.backward.compile()

    @cached_property
    def _way_back(self) -> Shortened:
        backward = self.backward
        return Shortened(lambda leaves, _: backward.run(leaves), backward.shortcut)

    def _run_back(self, leaves: Sequence[Any]) -> Sequence[Any]:
        found: Sequence[Any] = self._way_back(leaves)
        return found

    @cached_property
    def _gradient(self) -> Compiled:
        """The gradient of this, with a gradient of its own."""
        again = self.scheduled.lowered.again
        assert again is not None
        return again(self.scheduled.lowered.order + 1).compile()

    @property
    def guards(self) -> tuple[Guard, ...]:
        """What must still hold outside the function for this to be its program."""
        return self.scheduled.lowered.lowering.guards

    @property
    def written(self) -> tuple[str, ...]:
        """The arguments that a call writes to."""
        program, leaves = self.scheduled.lowered.lowering, self.signature.leaves()
        inputs = [program.inputs[write.input] for write in program.writes]
        return tuple(leaves[input].path for input in inputs if isinstance(input, int))

    def fits(self, leaves: Sequence[Any]) -> bool:
        """Whether this is the program for a call whose key it was found by.

        Args:
            leaves: the tensors and floats of the call.
        """
        if not all(guard() for guard in self.guards):
            return False
        sizes = self.scheduled.lowered.lowering.sizes
        return sizes is None or sizes.of(leaves) is not None

    def __deepcopy__(self, memo: dict[int, Any]) -> Compiled:
        return self  # nothing of it changes, and machine code cannot be copied

    def __reduce__(self) -> Any:
        raise TypeError("machine code cannot be pickled: pickle the function, and compile there")

    def __repr__(self) -> str:
        target = self.executable.target
        return f"<Compiled {self.scheduled.lowered.name}({self.signature}) for {target}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run on arguments of the signature it was compiled for.

        Raises:
            TypeError, ValueError: an argument does not fit; the message names it.
        """
        return self._calls(args, kwargs)

    @cached_property
    def _calls(self) -> Shortened:
        return Shortened(self._call, self.shortcut)

    def _call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run a call of which nothing is known."""
        lowered = self.scheduled.lowered
        names, static = lowered.parameters.names, self.signature.static
        arguments = Arguments(names, lowered.parameters.bind(args, kwargs))
        given = Signature.of(names, arguments.values, static)
        if given.autocast != self.signature.autocast:
            then, now = (autocast.text(x.autocast) for x in (self.signature, given))
            raise errors.OtherAutocast(None, lowered.name, then, now).error()
        self.signature.require(given)
        for guard in self.guards:
            if not guard():
                raise errors.CapturedChanged(None, guard.place.path, lowered.name).error()
        arguments.require_own(self.written)
        leaves = leaves_of(arguments.values, static, names)
        if lowered.lowering.sizes is not None:
            lowered.lowering.sizes.require(leaves)
        return self.run(leaves)

    def run(self, leaves: Sequence[Any]) -> Any:
        """Run on the tensors and floats of a call that is known to fit the signature."""
        return self.runner(leaves)

    @cached_property
    def launches(self) -> tuple[KernelLaunch, ...]:
        """How the GPU's kernels are launched, and what registers and memory they take.

        Raises:
            RuntimeError: CUDA's compiler refuses the source.
        """
        return building.launches(self.scheduled.mod, self.executable, _cuda_arch(self.target))

    def with_source(self, cuda: str) -> Compiled:
        """The same program with other code for its kernels, launched and checked as this one.

        Args:
            cuda: CUDA C++ that defines kernels of the same names and parameters, such as an edited
                ``source("cuda")``.

        Raises:
            ValueError: it defines others, or the program has none.
            RuntimeError: CUDA's compiler refuses it.
        """
        built = building.with_source(self.scheduled.mod, self.executable, cuda)
        return Compiled(self.scheduled, built)

    @property
    def target(self) -> Target:
        """What it was compiled for."""
        return self.executable.target

    @property
    def source_kinds(self) -> tuple[str, ...]:
        """The kinds of source that there are."""
        # Those for the GPU hold those for the CPU.
        types = {device.type for device in self.scheduled.lowered.lowering.devices}
        return KINDS["cuda" if "cuda" in types else self.target.kind]

    def source(self, kind: str | None = None, *, full: bool = False) -> str:
        """The function at one of its stages.

        Args:
            kind: ``"ast"``, ``"python"``, ``"relax"``, ``"tir"``, ``"llvm"`` or ``"asm"``; for a
                GPU also ``"cuda"``, ``"ptx"`` and ``"sass"``; for other targets their own. By
                default ``"cuda"`` on a GPU and ``"llvm"`` on the CPU.
            full: of CUDA, also what stands before the kernels.

        Raises:
            ValueError: there is no such kind for this target.
            RuntimeError: a tool that makes it is missing; the message names its package.
        """
        target, known = self.executable.target, self.source_kinds
        kind = kind or default_kind(target)
        if kind not in known:
            raise errors.UnknownSource(None, kind, target.kind, ", ".join(known)).error()
        makers: dict[str, Callable[[], str]] = {
            "ast": self.scheduled.lowered.ast,
            "python": self.scheduled.lowered.python,
            "relax": self.scheduled.lowered.as_text,
            "tir": self.scheduled.as_text,
        }
        mod, arch = self.scheduled.mod, _cuda_arch(target)
        makers |= building.sources(mod, self.executable, arch, full=full)
        return makers[kind]()

    def shortcut(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], moment: Moment | None = None
    ) -> Shortcut | None:
        """What runs calls like one that it is the program for: see :mod:`babytriton.shortcuts`."""
        return shortcut(self.runner, self.scheduled.lowered.parameters, args, kwargs, moment)

    @cached_property
    def runner(self) -> Runner:
        """What runs the program, of what each call fills its parameters with.

        Raises:
            RuntimeError: it is for source alone, or what a GPU takes is missing.
        """
        scheduled, lowered = self.scheduled, self.scheduled.lowered
        require_runs(lowered.name, self.target)
        for device in lowered.lowering.devices:
            if device.type == "cuda":
                require_gpu(lowered.name, _cuda_arch(self.target, device.index), device.index)
        program = lowered.lowering
        runner = Runner(program, self.signature, scheduled.mod, self.executable)
        if lowered.halves is not None:
            halves, order = lowered.halves.division, lowered.order
            runner.differentiated = Differentiated(
                halves, order, runner.places, self._run_back, lambda: self._gradient.runner
            )
        return runner


def _cuda_arch(target: Target, index: int | None = None) -> str:
    """What a program's kernels for the GPU are compiled for, wherever it is called."""
    return (target if target.kind == "cuda" else Target("cuda")).resolved(index).arch or ""


def target_of(signature: Signature) -> Target:
    """The target for the device that the tensor arguments are on; without any, torch's default."""
    for leaf in signature.leaves():
        if isinstance(leaf.spec, TensorSpec) and leaf.spec.device.type != "meta":
            return Target(leaf.spec.device.type)
    default = torch.get_default_device().type
    return Target(default if default == "cuda" else "cpu")


def device_of(signature: Signature, target: Target) -> torch.device:
    """The device to run on: that of the arguments, if it is one of the target's kind."""
    specs = [leaf.spec for leaf in signature.leaves()]
    devices = [spec.device for spec in specs if isinstance(spec, TensorSpec)]
    if not devices:
        devices.append(torch.get_default_device())
    ours = [device for device in devices if device.type == target.device_type]
    return ours[0] if ours else torch.device(target.device_type)


@contextmanager
def code_generation(mod: IRModule, target: Target) -> Iterator[None]:
    """Whose fault it is if code for a target cannot be generated."""
    reported = nullcontext() if target.runs else building.of_source(mod, target)
    with ours("code generation"), reported:
        yield


def require_runs(name: str, target: Target) -> None:
    """Refuse to run what is compiled for its source alone.

    Raises:
        RuntimeError: it is for a GPU without CUDA, or for a processor that has more instructions.
    """
    if not target.runs:
        raise errors.SourceOnly(None, name, target.kind).error()
    if target.missing:
        missing = ", ".join(target.missing)
        raise errors.OtherProcessor(None, name, str(target.arch), missing).error()


@contextmanager
def ours(stage: str) -> Iterator[None]:
    """Whatever fails inside is not the user's: say so, in words that are not TVM's."""
    try:
        yield
    except CompileError:
        raise
    except Exception as error:
        raise errors.internal(stage, error) from error
