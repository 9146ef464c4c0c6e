"""The stages of a scalar kernel: lowered, scheduled, compiled. Each knows only the next one."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import astunparse
import torch
from tvm.ir import IRModule

from babytriton import building, errors
from babytriton.arguments import Arguments
from babytriton.errors import kernels as kernel_errors
from babytriton.frontend.captures import Guard
from babytriton.frontend.kernel import lowering
from babytriton.frontend.kernel.program import UNTOUCHED, Fault
from babytriton.frontend.kernel.tensorir import Argument, Slot, Workspace
from babytriton.frontend.parameters import Parameters
from babytriton.frontend.program import Hidden
from babytriton.frontend.signature import Signature, leaves_of
from babytriton.frontend.source import FunctionNode, Source
from babytriton.passes import pipeline
from babytriton.plan import KernelLaunch
from babytriton.runtime import executable
from babytriton.runtime.kernels import KernelLauncher, Launch, Read
from babytriton.runtime.toolchain import require_gpu
from babytriton.sources import KINDS, default_kind, dump
from babytriton.stages import code_generation, device_of, ours, require_runs
from babytriton.targets import Target


@dataclass(frozen=True, repr=False)
class LoweredKernel:
    """A kernel for one signature as TensorIR, before any schedule.

    Attributes:
        parameters: of the function, for binding a call's arguments.
        signature: what it was compiled for.
        target: what it is compiled for.
        lowering: the functions, and how a call fills them.
        node: the function's syntax tree.
    """

    parameters: Parameters
    signature: Signature
    target: Target
    lowering: lowering.Lowering
    node: FunctionNode

    @classmethod
    def of(
        cls,
        fn: types.FunctionType,
        parameters: Parameters,
        signature: Signature,
        target: Target,
        bounds_check: bool,
    ) -> LoweredKernel:
        """Lower a function.

        Raises:
            CompileError: the function cannot be compiled.
        """
        with executable.COMPILE_LOCK:
            found = lowering.lower(fn, signature, bounds_check)
        target = target.resolved(device_of(signature, target).index)
        return cls(parameters, signature, target, found, Source.of(fn).node)

    @property
    def name(self) -> str:
        """Of the function."""
        return self.lowering.name

    @property
    def mod(self) -> IRModule:
        """The functions as TVM holds them."""
        return self.lowering.mod

    def __repr__(self) -> str:
        return f"<LoweredKernel {self.name}({self.signature}) for {self.target}>"

    def ast(self) -> str:
        """The function's syntax tree, a node a line."""
        return str(astunparse.dump(self.node))

    def python(self) -> str:
        """The function as Python, rendered from its syntax tree."""
        return str(astunparse.unparse(self.node)).strip() + "\n"

    def as_text(self) -> str:
        """The TensorIR before any schedule."""
        return str(self.mod.script())

    def schedule(self) -> ScheduledKernel:
        """Give each function its loops."""
        with executable.COMPILE_LOCK, ours("scheduling"):
            return ScheduledKernel(self, pipeline.schedule_kernels(self.mod, self.target))

    def compile(self) -> CompiledKernel:
        """Schedule, and compile to machine code."""
        return self.schedule().compile()


@dataclass(frozen=True, repr=False)
class ScheduledKernel:
    """A kernel as scheduled TensorIR.

    Attributes:
        lowered: the stage before.
        mod: the functions.
    """

    lowered: LoweredKernel
    mod: IRModule

    @property
    def kernels(self) -> tuple[str, ...]:
        """The names of the TensorIR functions, in the order they run."""
        return tuple(step.name for step in self.lowered.lowering.steps)

    def __repr__(self) -> str:
        lowered = self.lowered
        count = len(self.kernels)
        return f"<ScheduledKernel {lowered.name}({lowered.signature}): {count} kernels>"

    def as_text(self) -> str:
        """The scheduled TensorIR."""
        return str(self.mod.script())

    def compile(self) -> CompiledKernel:
        """Compile to machine code; for a GPU that is absent, to source."""
        with code_generation(self.mod, self.lowered.target):
            built = building.build(self.mod, self.lowered.name, self.lowered.target)
        compiled = CompiledKernel(self, built)
        dump(self.lowered.name, compiled)
        return compiled


@dataclass(frozen=True, repr=False)
class CompiledKernel:
    """A kernel that can be called, with arguments of the one signature it was compiled for.

    Attributes:
        scheduled: the stage before.
        executable: the machine code.
    """

    scheduled: ScheduledKernel
    executable: executable.Executable

    @property
    def signature(self) -> Signature:
        """What it was compiled for."""
        return self.scheduled.lowered.signature

    @property
    def kernels(self) -> tuple[str, ...]:
        """The names of the TensorIR functions, in the order they run."""
        return self.scheduled.kernels

    @property
    def guards(self) -> tuple[Guard, ...]:
        """What must still hold outside the function for this to be its code."""
        return self.scheduled.lowered.lowering.guards

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledKernel:
        return self  # nothing of it changes, and machine code cannot be copied

    def __reduce__(self) -> Any:
        raise TypeError("machine code cannot be pickled: pickle the function, and compile there")

    def __repr__(self) -> str:
        name, target = self.scheduled.lowered.name, self.executable.target
        return f"<CompiledKernel {name}({self.signature}) for {target}>"

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Run on arguments of the signature it was compiled for.

        Raises:
            TypeError, ValueError: an argument does not fit; the message names it.
            IndexError, ZeroDivisionError: as :meth:`run`.
        """
        lowered = self.scheduled.lowered
        names, static = lowered.parameters.names, self.signature.static
        given = Arguments(names, lowered.parameters.bind(args, kwargs))
        self.signature.require(Signature.of(names, given.values, static))
        for guard in self.guards:
            if not guard():
                raise errors.CapturedChanged(None, guard.place.path, lowered.name).error()
        given.require_own(self.written)
        self.run(leaves_of(given.values, static, names))

    def run(self, leaves: Sequence[Any]) -> None:
        """Run on the tensors and floats of a call that is known to fit the signature.

        Raises:
            IndexError: an index is out of range, and was checked.
            ZeroDivisionError: an integer is divided by zero.
            ValueError: a tensor that is written shares memory with another.
        """
        lowered = self.scheduled.lowered
        require_runs(lowered.name, self.target)
        if lowered.target.device_type == "cuda":
            require_gpu(lowered.name, self.target.arch or "", self._device.index)
        found, device = lowered.lowering, self._device
        arguments = [x.place.read() if isinstance(x, Hidden) else leaves[x] for x in found.inputs]
        own = [torch.empty(t.sizes, dtype=t.dtype, device=device) for t in found.workspaces]
        if found.faults:
            shape = (len(found.faults),)
            own.append(torch.full(shape, UNTOUCHED, dtype=torch.int64, device=device))
        self._launcher(arguments, own)
        if found.faults:
            raise_first(found.faults, own[-1].tolist())

    @property
    def target(self) -> Target:
        """What it was compiled for."""
        return self.executable.target

    @property
    def source_kinds(self) -> tuple[str, ...]:
        """The kinds of source that there are."""
        return tuple(kind for kind in KINDS[self.target.kind] if kind != "relax")

    @cached_property
    def launches(self) -> tuple[KernelLaunch, ...]:
        """How the GPU's kernels are launched, and what registers and memory they take.

        Raises:
            RuntimeError: CUDA's compiler refuses the source.
        """
        arch = self.executable.target.arch or ""
        return building.launches(self.scheduled.mod, self.executable, arch)

    def with_source(self, cuda: str) -> CompiledKernel:
        """The same kernel with other code, launched and checked as this one.

        Args:
            cuda: CUDA C++ that defines kernels of the same names and parameters, such as an edited
                ``source("cuda")``.

        Raises:
            ValueError: it defines others, or the target is no GPU.
            RuntimeError: CUDA's compiler refuses it.
        """
        built = building.with_source(self.scheduled.mod, self.executable, cuda)
        return CompiledKernel(self.scheduled, built)

    def source(self, kind: str | None = None, *, full: bool = False) -> str:
        """The kernel at one of its stages.

        Args:
            kind: ``"ast"``, ``"python"``, ``"tir"``, ``"llvm"`` or ``"asm"``; for a GPU also
                ``"cuda"``, ``"ptx"`` and ``"sass"``; for other targets their own. By default
                ``"cuda"`` on a GPU and ``"llvm"`` on the CPU.
            full: of CUDA, also what stands before the kernels.

        Raises:
            ValueError: there is no such kind for this target.
            RuntimeError: a tool that makes it is missing; the message names its package.
        """
        target = self.executable.target
        kind = kind or default_kind(target)
        makers: dict[str, Callable[[], str]] = {
            "ast": self.scheduled.lowered.ast,
            "python": self.scheduled.lowered.python,
            "tir": self.scheduled.as_text,
        }
        mod, arch = self.scheduled.mod, target.arch or ""
        makers |= building.sources(mod, self.executable, arch, full=full)
        if kind not in makers or kind not in self.source_kinds:
            known = ", ".join(self.source_kinds)
            raise errors.UnknownSource(None, kind, target.kind, known).error()
        return makers[kind]()

    @cached_property
    def _device(self) -> torch.device:
        return device_of(self.signature, self.scheduled.lowered.target)

    @cached_property
    def _launcher(self) -> KernelLauncher:
        names, written = self._names, self.scheduled.lowered.lowering.written
        with executable.COMPILE_LOCK:
            return KernelLauncher(self.executable, self.steps, names, written, self._device)

    @property
    def written(self) -> tuple[str, ...]:
        """The names of the tensors that it writes to."""
        return tuple(self._names[n] for n in sorted(self.scheduled.lowered.lowering.written))

    @cached_property
    def _names(self) -> list[str]:
        """What the user calls each input."""
        paths = [leaf.path for leaf in self.signature.leaves()]
        inputs = self.scheduled.lowered.lowering.inputs
        return [x.place.path if isinstance(x, Hidden) else paths[x] for x in inputs]

    @cached_property
    def steps(self) -> list[Launch]:
        """The functions in the order they run, and how a call fills their parameters."""
        steps = self.scheduled.lowered.lowering.steps
        return [Launch(step.name, tuple(map(_reader, step.slots))) for step in steps]


def _reader(slot: Slot) -> Read:
    """How a call finds what a parameter is."""
    if isinstance(slot, Argument):
        argument = slot.index
        return lambda arguments, own: arguments[argument]
    place = slot.index if isinstance(slot, Workspace) else -1
    return lambda arguments, own: own[place]


def raise_first(faults: Sequence[Fault], found: Sequence[int]) -> None:
    """Raise what Python would have raised at the first place that failed."""
    for fault, value in zip(faults, found):
        if value == UNTOUCHED:
            continue
        if not fault.what:
            raise kernel_errors.KernelDivision(fault.span).error()
        where = (value, fault.dim, fault.what, fault.size)
        raise kernel_errors.KernelIndex(fault.span, *where).error()
