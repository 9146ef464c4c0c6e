"""Scheduled functions -> machine code, and the CUDA C++ of it that people read and edit."""

from __future__ import annotations

import linecache
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tvm import relax, tirx
from tvm.error import InternalError
from tvm.ir import IRModule

from babytriton import errors
from babytriton.ops.cuda_definitions import functions, never_launched, read
from babytriton.ops.cuda_sources import Called
from babytriton.passes import lines
from babytriton.passes.gpu.launches import (
    extent_of,
    launches_of,
    numbers_of,
    scalars_of,
    tensors_of,
)
from babytriton.passes.gpu.portable import missing
from babytriton.passes.gpu.streaming import streamed
from babytriton.passes.lowering import LOWERING
from babytriton.passes.updates import IN_PLACE
from babytriton.passes.whole_rows import ROW
from babytriton.plan import KernelLaunch
from babytriton.runtime import cuda, executable
from babytriton.runtime.executable import Executable
from babytriton.runtime.resources import resources
from babytriton.runtime.text import other_kernels
from babytriton.runtime.text.cuda_kernels import Listing, Types, fitted, readable
from babytriton.targets import Target

LANGUAGES = ("metal", "opencl", "webgpu")
"""Targets with a language of their own, which their kernels are shown in."""

_OF_ROW = "copies what lies in one piece: is not launched where others can take it as it lies"

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)

# Stands between TVM's preamble and what a person reads.
_OWN = "// Kernels, and the functions that they call\n\n"

# Stands before what a person has written: a compiler then names lines as they are counted there.
_EDITED = '#line 1 "edited.cu"\n'

# Is defined in TVM's preamble, and hardly in a user's.
_MARK = "#define TVM_ENABLE_L2_PREFETCH"


def build(mod: IRModule, entry: str, target: Target, source: str | None = None) -> Executable:
    """Machine code for scheduled functions.

    Args:
        mod: the functions, and the program that calls them.
        entry: the program's function.
        target: what to compile for.
        source: CUDA C++ in place of ours, with a preamble or without.
    """

    def finish(written: str) -> str:
        if source is not None and _MARK in Listing.of(source).preamble:
            return source
        ours = readable(written, _comments(mod), streamed(mod))
        called = Called.of(ours)
        preamble = Listing.of(ours).preamble
        if source is None:
            kernels = fitted(called.named(ours.removeprefix(preamble)))
            return preamble + _OWN + called.source("") + kernels
        return preamble + _OWN + called.source(source) + _EDITED + source

    return executable.build(mod, entry, target.resolved(), LOWERING, finish)


@contextmanager
def of_source(mod: IRModule, target: Target) -> Iterator[None]:
    """What a kind of GPU has no code for is not in its programs: say so.

    Raises:
        RuntimeError: there is no code for something that a kernel does.
    """
    asked = _asked_for(mod)
    if asked is not None:
        raise errors.NoKernelSource(None, target.kind, asked).error()
    for name in missing(mod, target.kind):
        raise errors.NoKernelSource(None, target.kind, f"it has no {name}").error()
    try:
        yield
    except InternalError as error:
        reason, *_ = str(error).strip().splitlines() or ["TVM does not say why"]
        found = _INTRINSIC.search(str(error))
        reason = f"it has no `{found[1]}`" if found else reason
        raise errors.NoKernelSource(None, target.kind, reason).error() from error


def _asked_for(mod: IRModule) -> str | None:
    """What the host would have to do between the kernels of a program, if anything."""
    functions = [func for func in mod.functions.values() if isinstance(func, relax.Function)]
    if relax.analysis.detect_recursion(mod):  # as loops are, each step of which is a call
        return "a loop calls its kernels at each step, which the host would do"
    blocks = [block for func in functions for block in getattr(func.body, "blocks", ())]
    bindings = [binding for block in blocks for binding in block.bindings]
    if any(isinstance(getattr(x, "value", None), relax.If) for x in bindings):
        return "a condition of the run time chooses between its kernels, which the host would ask"
    return None


_INTRINSIC = re.compile(r'name="tirx\.(\w+)"')


def with_source(mod: IRModule, built: Executable, source: str) -> Executable:
    """The same program with a user's CUDA C++ for its kernels.

    Besides the program's kernels it may have others, which these launch or nobody does.

    Raises:
        TypeError: it is no text.
        ValueError: it does not have the program's kernels, or they cannot be launched as these are.
    """
    if not isinstance(source, str):
        raise TypeError(f"the source must be a text, not {type(source).__name__}")
    # A comment may quote a line of Python that calls what is named like a kernel.
    ours, edited = (Listing.of(_COMMENT.sub("", text)) for text in (built.cuda(), source))
    if not ours.kernels:
        raise errors.NoKernelsToEdit(None, str(built.target)).error()
    launches = launches_of(mod)
    for name in (launch.name for launch in launches if launch.name not in edited.kernels):
        for one in functions(source, name):
            if one.has_body:
                raise errors.OtherHead(None, name, " ".join(one.head.split())).error()
        expected, found = (", ".join(listing.kernels) for listing in (ours, edited))
        raise errors.OtherKernels(None, expected, found or "none").error()
    for launch in launches:
        _require_same_launch(launch, ours, edited)
    return build(mod, built.entry, built.target, source)


def _require_same_launch(launch: KernelLaunch, ours: Listing, edited: Listing) -> None:
    name = launch.name
    expected, found = ours.parameters(name), edited.parameters(name)
    places = {parameter: n for n, (_, parameter) in enumerate(expected)}
    # Other names are the user's to choose, but not those of other parameters.
    is_same = len(expected) == len(found) and all(
        theirs == own and places.get(parameter, n) == n
        for n, ((own, _), (theirs, parameter)) in enumerate(zip(expected, found))
    )
    if not is_same:
        texts = (", ".join(map(" ".join, each)) for each in (expected, found))
        raise errors.OtherParameters(None, name, next(texts), next(texts) or "none").error()
    why = never_launched(read(edited.preamble + edited.kernels[name]))
    if why is not None:
        raise errors.NoSuchLaunch(None, name, why).error()
    most = edited.threads(name)
    threads = math.prod(size for size in launch.block if isinstance(size, int))
    if most is not None and most < threads:
        raise errors.FewThreads(None, name, threads, most).error()


def sources(
    mod: IRModule, built: Executable, arch: str, *, full: bool
) -> dict[str, Callable[[], str]]:
    """What shows the code that was made, by its kind.

    Args:
        mod: the scheduled functions.
        built: from them.
        arch: of the GPU that PTX and SASS are for.
        full: of CUDA, also what stands before the kernels.
    """
    return {
        "cuda": lambda: cuda_source(built, full=full),
        "ptx": lambda: cuda.ptx(built.cuda(), arch),
        "sass": lambda: cuda.sass(built.cuda(), arch),
        "llvm": lambda: llvm_source(mod, built),
        "asm": built.asm,
        **dict.fromkeys(
            LANGUAGES, lambda: other_kernels.in_language(built.portable(), _comments(mod))
        ),
    }


def cuda_source(built: Executable, *, full: bool) -> str:
    """The kernels with the functions that they call, or all that is compiled."""
    source = built.cuda()
    own = source.partition(_OWN.strip())[2]
    return source if full or not own else own.replace(_EDITED, "").strip()


def portable_source(mod: IRModule, built: Executable) -> str:
    """The kernels for a GPU without CUDA, in the language of its kind."""
    return other_kernels.in_language(built.portable(), _comments(mod))


def llvm_source(mod: IRModule, built: Executable) -> str:
    """The LLVM IR of all kernels; for AMD headed by what they compute."""
    source = built.llvm()
    return other_kernels.for_amd(source, _comments(mod)) if built.target.kind == "rocm" else source


def launches(mod: IRModule, built: Executable, arch: str) -> tuple[KernelLaunch, ...]:
    """How the program's kernels are launched; what they take, where a compiler can tell."""
    source = built.cuda()
    taken = resources(cuda.cubin(source, arch)) if source and cuda.has_compiler() else {}
    found = []
    for launch in launches_of(mod):
        if launch.name in taken:
            own = taken[launch.name]
            launch = replace(
                launch, registers=own.registers, spilled=own.spilled, shared=own.shared
            )
        found.append(launch)
    return tuple(found)


def _comments(mod: IRModule) -> dict[str, list[str | Types]]:
    """What heads each kernel: the lines it computes, what it is given, and its launch."""
    functions = {var.name_hint: func for var, func in mod.functions_items()}
    tensors, scalars, numbers = tensors_of(mod), scalars_of(mod), numbers_of(mod)
    return {
        launch.name: [
            *map(_line, lines.of_kernel(functions[launch.function])),
            *([_OF_ROW] if ROW in functions[launch.function].attrs else []),
            Types(
                (
                    *_parameters(functions[launch.function], tensors[launch.name]),
                    *((number.name, str(number.ty.dtype)) for number in scalars[launch.name]),
                )
            ),
            *(f"{name} = {value}" for name, value in numbers[launch.name].items()),
            f"grid {_sizes(launch.grid)}, block {_sizes(launch.block)}",
        ]
        for launch in launches_of(mod)
    }


def _line(place: str) -> str:
    """A line of the user's by its file's name and number, as it stands there."""
    path, _, number = place.rpartition(":")
    return f"{Path(path).name}:{number}  {linecache.getline(path, int(number)).strip()}".rstrip()


def _parameters(func: tirx.PrimFunc, tensors: Sequence[tirx.Var]) -> Iterator[tuple[str, str]]:
    places = map(int, func.attrs.get(IN_PLACE, ())) if func.attrs else ()
    updated = {func.params[place] for place in places}
    for tensor in tensors:
        shape = ", ".join(str(extent_of(size)) for size in tensor.ty.shape)
        note = " in place" if tensor in updated else ""
        yield tensor.name, f"{tensor.ty.dtype}[{shape}]{note}"


def _sizes(sizes: Sequence[int | str]) -> str:
    return " x ".join(map(str, sizes))
