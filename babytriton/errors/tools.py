"""Messages about devices, tools, and sources of kernels."""

from __future__ import annotations

from dataclasses import dataclass

from babytriton.errors.calling import CallDiagnostic


@dataclass(frozen=True)
class NoDevice(CallDiagnostic):
    code = "BT201"
    title = "no GPU to run `{function}` on"
    label = "{found}"
    hint = "{install}"
    exception = RuntimeError
    function: str
    found: str
    install: str


@dataclass(frozen=True)
class UnknownSource(CallDiagnostic):
    code = "BT202"
    title = "no source of kind {kind!r}"
    label = "a function for {target} has {known}"
    exception = ValueError
    kind: str
    target: str
    known: str


@dataclass(frozen=True)
class NoKernelsToEdit(CallDiagnostic):
    code = "BT206"
    title = "there is no CUDA source to edit"
    label = "the program was compiled for {target}"
    hint = "compile it for a GPU, whether one is present or not"
    exception = ValueError
    target: str


@dataclass(frozen=True)
class OtherKernels(CallDiagnostic):
    code = "BT207"
    title = "the source does not define the program's kernels"
    label = "it takes {expected}, and the source defines {found}"
    hint = "edit what source() gives: change the bodies, and keep names and parameters"
    exception = ValueError
    expected: str
    found: str


@dataclass(frozen=True)
class OtherHead(CallDiagnostic):
    code = "BT216"
    title = "the source does not define `{kernel}` as a kernel that is found by its name"
    label = "it has `{found} {kernel}(`"
    hint = 'write `extern "C" __global__ void {kernel}(`, with __launch_bounds__ before the name'
    exception = ValueError
    kernel: str
    found: str


@dataclass(frozen=True)
class OtherParameters(CallDiagnostic):
    code = "BT212"
    title = "`{kernel}` has other parameters in the source"
    label = "it is launched with ({expected}), and the source has ({found})"
    hint = "edit what source() gives: change the bodies, and keep parameters as they are"
    exception = ValueError
    kernel: str
    expected: str
    found: str


@dataclass(frozen=True)
class FewThreads(CallDiagnostic):
    code = "BT213"
    title = "`{kernel}` is launched with more threads than the source allows"
    label = "a block has {threads}, and the source's __launch_bounds__ allow {most}"
    exception = ValueError
    kernel: str
    threads: int
    most: int


@dataclass(frozen=True)
class NotInSource(CallDiagnostic):
    code = "BT208"
    title = "the source does not define `{name}`"
    label = "it should have a {kind} of that name{where}"
    exception = ValueError
    name: str
    kind: str
    where: str = ""


@dataclass(frozen=True)
class NoSuchLaunch(CallDiagnostic):
    code = "BT215"
    title = "`{name}` cannot be launched"
    label = "{why}"
    exception = ValueError
    name: str
    why: str


@dataclass(frozen=True)
class MissingTool(CallDiagnostic):
    code = "BT203"
    title = "{tool} was not found"
    label = "it is needed for {purpose}"
    hint = "pip install {package}"
    exception = RuntimeError
    tool: str
    purpose: str
    package: str


@dataclass(frozen=True)
class ToolFailed(CallDiagnostic):
    code = "BT204"
    title = "{tool} failed"
    label = "{output}"
    exception = RuntimeError
    tool: str
    output: str


@dataclass(frozen=True)
class UnknownArch(CallDiagnostic):
    code = "BT209"
    title = "{tool} does not compile for {arch}"
    label = "it knows {known}"
    hint = "name one of these, as in Target('cuda', arch='sm_80'), or install another {package}"
    exception = RuntimeError
    tool: str
    arch: str
    known: str
    package: str


@dataclass(frozen=True)
class SourceOnly(CallDiagnostic):
    code = "BT210"
    title = "`{function}` is compiled for {kind}, which is not run from here"
    label = "{kind} targets give the source of kernels, for programs of your own"
    hint = 'compile for "cpu" or "cuda" to call it'
    exception = RuntimeError
    function: str
    kind: str


@dataclass(frozen=True)
class OtherProcessor(CallDiagnostic):
    code = "BT214"
    title = "`{function}` is compiled for {arch}, which is not run on this processor"
    label = "that has no {missing}"
    hint = 'compile for "cpu" to call it; its source can be read here as well'
    exception = RuntimeError
    function: str
    arch: str
    missing: str


@dataclass(frozen=True)
class NoKernelSource(CallDiagnostic):
    code = "BT211"
    title = "no {kind} source for these kernels"
    label = "{reason}"
    hint = "compute it otherwise, or in another dtype; docs/gpu.md says what each target has"
    exception = RuntimeError
    kind: str
    reason: str


@dataclass(frozen=True)
class NothingCompiled(CallDiagnostic):
    code = "BT205"
    title = "`{function}` was not compiled yet"
    label = "there is nothing to show"
    hint = "call it first, or give example arguments: {function}.source(x)"
    exception = RuntimeError
    function: str
