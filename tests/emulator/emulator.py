"""TVM's generated CUDA source, run on the CPU.

``install()`` puts a stand-in for NVIDIA's driver and runtime under TVM. To TVM there is then one
CUDA device; it compiles kernels by a callback, which builds them with g++ against ``cuda_shim.h``.
What runs is the source that nvcc would get, under the block and thread structure it was written
for, with barriers, shuffles and shared memory, and with checks no GPU makes: uninitialised memory
reads as NaN, and registers as no usual number; an access outside a buffer and a divergent barrier
fail the launch with a message, and `thread_order` shows a missing barrier as a wrong result.

On a machine with a real GPU nothing is installed, and the same tests run on it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch.utils.dlpack import from_dlpack

Order = Literal["fixed", "reversed", "shuffled"]
ORDERS: tuple[Order, ...] = ("fixed", "reversed", "shuffled")
Index = tuple[int, int, int]

SOURCES = Path(__file__).parent
HEADERS = ("device.h", "cuda_shim.h", "cuda_half.h", "cuda_ptx.h", "cuda_wmma.h")
DRIVER = ("scheduler.h", "scheduler.cc", "memory.cc", "fake_cuda.cc", "fake_cudart.cc")

# What TVM's preamble includes. cuda_shim.h has already declared it all.
CUDA_HEADERS = ("cuda.h", "cuda_fp16.h", "cuda_bf16.h", "mma.h", "math_constants.h")

IMAGE_PREFIX = b"\x7fEMULATED:"  # fake_cuda.cc reads the path that follows


class EmulatorError(RuntimeError):
    """The emulator cannot be installed, or a kernel cannot be built or launched."""


def available_gpu() -> Literal["real", "emulated"] | None:
    """Which GPU tests of generated CUDA can run on, or None where there is neither."""
    if torch.cuda.is_available():
        return "real"
    return "emulated" if missing() is None else None


def missing() -> str | None:
    """Why the emulator cannot run here, as a reason to skip a test, or None if it can."""
    if sys.platform != "linux":
        return "the CUDA emulator needs Linux"
    if shutil.which("g++") is None:
        return "the CUDA emulator needs g++"
    if torch.version.cuda is not None:
        # torch has loaded the real libcudart.so.13, and a process holds one library of a name.
        return "the CUDA emulator needs a torch built without CUDA, or a real GPU"
    return None


def install() -> None:
    """Make ``tvm.cuda(0)`` the emulator, unless there is a real GPU. May be called repeatedly."""
    if available_gpu() != "real":
        _install()


@functools.cache
def _install() -> None:
    if reason := missing():
        raise EmulatorError(reason)
    # TVM's CUDA runtime finds its two libraries by name, among those the process already has.
    _driver()
    _runtime()
    imported_before = "tvm" in sys.modules
    import tvm
    import tvm_ffi

    if imported_before:
        # It looked for its CUDA runtime, found no driver and went on without.
        runtime = Path(tvm.__file__).parent / "lib" / "libtvm_runtime_cuda.so"
        ctypes.CDLL(str(runtime), mode=ctypes.RTLD_GLOBAL)
    tvm_ffi.register_global_func("tvm_callback_cuda_compile", compile_kernels, override=True)
    tvm_ffi.register_global_func(ALLOCATE, _allocate, override=True)
    tvm_ffi.register_global_func(FREE, _free, override=True)
    if not tvm.cuda(0).exist:
        raise EmulatorError("TVM does not see the emulated device")


# What functions get memory from between their kernels: babytriton's names, which is not imported
# before the emulator is there.
ALLOCATE, FREE = "babytriton.allocate_on_gpu", "babytriton.free_on_gpu"


def _allocate(device: int, size: int) -> int:
    pointer = ctypes.c_void_p()
    _runtime().cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(size))
    return pointer.value or 0


def _free(address: int) -> None:
    _runtime().cudaFree(ctypes.c_void_p(address))


@contextlib.contextmanager
def thread_order(order: Order, seed: int = 0, lockstep: bool = True) -> Iterator[None]:
    """Run blocks and threads in this order: a correct kernel gives the same result in each.

    Threads run one at a time until they must wait for others. ``fixed`` and ``reversed`` go by
    the threads' numbers; ``shuffled`` draws another order after each barrier. Kernels need no
    rebuild. A real GPU has its own order: there, nothing changes.

    TVM's reductions over types narrower than 32 bits leave out the barriers within a warp. That
    works where lanes go in lockstep, which hardware does there, and CUDA no longer promises;
    ``lockstep=False`` shows what the source alone guarantees.
    """
    if available_gpu() == "real":
        yield
        return
    set_order = _driver().emulator_set_order
    set_order(ORDERS.index(order), seed, lockstep)
    try:
        yield
    finally:
        set_order(ORDERS.index("fixed"), 0, True)


def launches() -> int:
    """How many kernels the emulator has been asked to launch in this process."""
    return int(_driver().emulator_launches())


def run(
    executable: Any, entry: str, args: Sequence[torch.Tensor | float | int]
) -> list[torch.Tensor]:
    """Call a built Relax function on the CUDA device; all tensors it returns, tuples flattened.

    `args` are CPU tensors, copied to the device as they lie; numbers pass through.
    """
    import tvm

    device = tvm.cuda(0)
    result = _machine(executable)[entry](*(_to_device(arg, device) for arg in args))
    return list(_to_host(result))


@functools.lru_cache(maxsize=1)  # of what is called several times in a row
def _machine(executable: Any) -> Any:
    import tvm
    from tvm import relax

    # The pooled allocator rounds sizes up, and would hide a write past the end of a buffer.
    return relax.VirtualMachine(executable, tvm.cuda(0), memory_cfg="naive")


def _to_device(arg: torch.Tensor | float | int, device: Any) -> Any:
    import tvm

    if not isinstance(arg, torch.Tensor):
        return arg
    # What lies from the first element to the last: a copy is aligned as TVM requires, which a view
    # into a tensor may not be, and ends where the tensor does.
    host = torch.empty_strided(arg.shape, arg.stride(), dtype=arg.dtype).copy_(arg.detach())
    memory = torch.empty(0, dtype=arg.dtype).set_(host.untyped_storage())
    copy = tvm.runtime.from_dlpack(memory).copyto(device)
    # With other strides than the tensor's: kernels have them as constants.
    return copy._create_view(arg.shape)


def _to_host(result: Any) -> Iterator[torch.Tensor]:
    import tvm

    if isinstance(result, torch.Tensor):
        yield result.cpu()
    elif isinstance(result, tvm.runtime.Tensor):
        yield from_dlpack(result.copyto(tvm.cpu()))
    else:
        for element in result:
            yield from _to_host(element)


# ---- Building ----------------------------------------------------------------------------------


@functools.cache
def _flags() -> tuple[str, ...]:
    # Kernels reinterpret memory freely; a float operation must round where CUDA's does.
    flags = ["-O1", "-std=c++17", "-w", "-fPIC", "-fno-strict-aliasing", "-ffp-contract=off"]
    flags += ["-fno-exceptions", "-fno-rtti", "-fvisibility=hidden", "-fwrapv"]
    # A GPU refuses a vector that does not begin at a multiple of its size; so a trap does here.
    flags += ["-fsanitize=alignment", "-fsanitize-undefined-trap-on-error"]
    flags.append("-fstack-clash-protection")  # a large frame must not step over the guard page
    if platform.machine() == "x86_64" and " f16c" in Path("/proc/cpuinfo").read_text():
        flags.append("-mf16c")  # else each conversion of a half calls a function
    # What a thread reads before it has written it is no zero that the stack happens to hold.
    written = "-ftrivial-auto-var-init=pattern"
    if not subprocess.run(
        ["g++", written, "-E", "-x", "c++", os.devnull], capture_output=True, check=False
    ).returncode:  # since version 12
        flags.append(written)
    return tuple(flags)


@functools.cache
def _build() -> Path:
    """The folder with both libraries and the precompiled header, built at the first use."""
    digest = hashlib.sha256(repr(_flags()).encode())
    for name in HEADERS + DRIVER:
        digest.update(SOURCES.joinpath(name).read_bytes())
    digest.update(subprocess.check_output(["g++", "--version"]))
    cache = Path(tempfile.gettempdir()) / f"babytriton-emulator-{os.getuid()}"
    folder = cache / digest.hexdigest()[:16]
    if folder.exists():
        return folder
    cache.mkdir(mode=0o700, exist_ok=True)
    # Renamed when complete: of workers that start together, one wins and the others use its.
    draft = Path(tempfile.mkdtemp(prefix="draft-", dir=cache))
    try:
        for name in HEADERS + DRIVER:
            shutil.copy(SOURCES / name, draft)
        for name in CUDA_HEADERS:
            draft.joinpath(name).touch()
        draft.joinpath("kernels").mkdir()
        _build_libraries(draft)
        _gxx(*_flags(), "-x", "c++-header", "cuda_shim.h", "-o", "cuda_shim.h.gch", cwd=draft)
        with contextlib.suppress(OSError):
            draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


def _build_libraries(folder: Path) -> None:
    # Fortified longjmp refuses to change stacks, which is what fibers do.
    flags = ("-O2", "-std=c++17", "-w", "-shared", "-fPIC", "-U_FORTIFY_SOURCE")
    driver = ("scheduler.cc", "memory.cc", "fake_cuda.cc")
    soname = "-Wl,-soname,libcuda.so.1"
    _gxx(*flags, soname, *driver, "-o", "libcuda.so.1", "-ldl", cwd=folder)
    # The real runtime has versioned symbols, and the loader compares versions.
    folder.joinpath("versions.map").write_text("libcudart.so.13 { global: *; };\n")
    soname = "-Wl,-soname,libcudart.so.13,--version-script=versions.map"
    runtime = ("fake_cudart.cc", "-o", "libcudart.so.13", "-L.", "-l:libcuda.so.1")
    _gxx(*flags, soname, *runtime, cwd=folder)


def _gxx(*arguments: str, cwd: Path) -> None:
    done = subprocess.run(["g++", *arguments], cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        raise EmulatorError(f"g++ failed:\n{done.stderr}")


@functools.cache
def _driver() -> ctypes.CDLL:
    library = ctypes.CDLL(str(_build() / "libcuda.so.1"), mode=ctypes.RTLD_GLOBAL)
    library.emulator_launches.restype = ctypes.c_ulonglong
    library.emulator_set_order.argtypes = [ctypes.c_int, ctypes.c_uint, ctypes.c_int]
    return library


@functools.cache
def _runtime() -> ctypes.CDLL:
    return ctypes.CDLL(str(_build() / "libcudart.so.13"), mode=ctypes.RTLD_GLOBAL)


DYNAMIC_SHARED = re.compile(r"extern __shared__ (?:__align__\(\d+\) )?([\w ]+?) (\w+)\[\];")
# One step of a reduction within a warp: `w_16_0` is the sum of two lanes.
WARP_STEP = re.compile(r"^ *(\(\(volatile [\w ]+\*\)\w+\)\[.*\] = w_[\d_]+;)$", re.MULTILINE)
# An instruction of PTX: the text, and operands behind their constraints.
INSTRUCTION = re.compile(
    r'\basm(?: volatile)?\(\s*((?:"[^"]*"\s*)+):(.*?)\);$', re.DOTALL | re.MULTILINE
)
OPERAND = re.compile(r'"[=+]*\w"\s*\(')
KERNEL = re.compile(
    r"((?:(?:extern\s+\"C\"|__global__\b|void\b|"
    r"__launch_bounds__\s*\((?:[^()]|\([^()]*\))*\))\s*)+)(\w+)\s*\([^)]*\)\s*\{"
)
BOUND = re.compile(r"__launch_bounds__\s*\(\s*(\d+)\s*[,)]")
LANGUAGE = re.compile(r"extern\s+\"C\"")


REPORTED_AS = "kernel.cu"


def translate(source: str) -> str:
    """CUDA source as C++ for g++, in which each line keeps its number."""
    # Sized at launch: a pointer to memory of the scheduler takes its place.
    source = DYNAMIC_SHARED.sub(r"\1* const \2 = (\1*)emulator_dynamic_shared;", source)
    source = INSTRUCTION.sub(_as_call, source)
    source = WARP_STEP.sub(r"emulator_converge(__LINE__); \1 emulator_converge(__LINE__);", source)
    pieces = [f'#line 1 "{REPORTED_AS}"\n']
    exports = []
    end = 0
    for kernel in KERNEL.finditer(source):
        head, name = kernel.groups()
        in_block = re.search(rf"{LANGUAGE.pattern}\s*\{{", source[: kernel.start()])
        if "__global__" not in head or not (in_block or LANGUAGE.search(head)):
            continue
        bound = BOUND.search(head)
        line, after = source.count("\n", 0, end) + 1, _end_of_body(source, kernel.end())
        # Each kernel's shared memory, and that of the functions before it, in a section of its own:
        # the size of one is the limit's.
        pieces += [
            f'\n#undef EMULATOR_SHARED_SECTION\n#define EMULATOR_SHARED_SECTION "shared_{name}"\n',
            f"#line {line}\n",
            source[end:after],
        ]
        exports.append(f"EMULATOR_EXPORT({name}, {bound[1] if bound else 0})\n")
        end = after
    return "".join([*pieces, source[end:], "\n", *exports])


def _end_of_body(source: str, start: int) -> int:
    """Where the braces end that have been opened right before a place."""
    depth = 1
    for brace in re.compile("[{}]").finditer(source, start):
        depth += 1 if brace.group() == "{" else -1
        if depth == 0:
            return brace.end()
    return len(source)


def _as_call(instruction: re.Match[str]) -> str:
    """An instruction as a call of what emulates it (cuda_ptx.h), on as many lines."""
    text, rest = instruction.groups()
    name = re.sub(r"\W", "_", text.strip().removeprefix('"').split()[0])
    operands = []
    while found := OPERAND.search(rest):
        rest = rest[found.end() :]
        depth, end = 1, 0
        while depth:
            depth += {"(": 1, ")": -1}.get(rest[end], 0)
            end += 1
        operands.append(rest[: end - 1])
        rest = rest[end:]
    return f"ptx_{name}({', '.join(operands)});" + "\n" * instruction[0].count("\n")


def compile_kernels(source: str) -> bytes:
    """Build CUDA source into an image the emulator loads. TVM calls this in place of nvcc."""
    folder = _build()
    text = translate(source)
    digest = hashlib.sha256(text.encode()).hexdigest()[:24]
    built = folder / "kernels" / f"{digest}.so"
    image = IMAGE_PREFIX + os.fsencode(built) + b"\0"
    if built.exists():
        return image
    with tempfile.TemporaryDirectory(dir=folder / "kernels") as draft:
        Path(draft, REPORTED_AS).write_text(source)  # g++ quotes the lines it complains about
        # Undefined names are the emulator's and libm's, which the process has loaded: the linker
        # need not look for them, which halves its time.
        command = ["g++", "-include", str(folder / "cuda_shim.h"), f"-I{folder}", *_flags()]
        command += ["-shared", "-nostdlib", "-x", "c++", "-", "-x", "none", "-lgcc"]
        command += ["-o", "kernel.so"]
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, cwd=draft, env=_english()
        )
        if done.returncode:
            raise EmulatorError(f"g++ refuses the CUDA source:\n{_first_lines(done.stderr)}")
        Path(draft, "kernel.so").rename(built)
    return image


def _english() -> dict[str, str]:
    return {**os.environ, "LC_ALL": "C"}


def _first_lines(errors: str) -> str:
    return "\n".join(errors.splitlines()[:40])


# ---- Hand-written kernels ----------------------------------------------------------------------


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("dynamic_shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    )


class Kernel:
    """One kernel of some CUDA source, launched without TVM."""

    def __init__(self, source: str, name: str = "kernel") -> None:
        self.driver = _driver()
        self.module = ctypes.c_void_p()
        self.function = ctypes.c_void_p()
        image = compile_kernels(source)
        self._check(self.driver.cuModuleLoadData(ctypes.byref(self.module), image))
        self._check(
            self.driver.cuModuleGetFunction(ctypes.byref(self.function), self.module, name.encode())
        )

    def __call__(
        self,
        *args: torch.Tensor | ctypes._SimpleCData[Any],
        grid: Index = (1, 1, 1),
        block: Index = (32, 1, 1),
        dynamic_shared: int = 0,
    ) -> None:
        """Launch with CPU tensors, copied to device memory and back, and ctypes numbers."""
        runtime = _runtime()
        buffers: list[tuple[torch.Tensor, ctypes.c_void_p]] = []
        values: list[Any] = []
        for arg in args:
            if isinstance(arg, torch.Tensor):
                pointer = ctypes.c_void_p()
                runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(arg.nbytes))
                ctypes.memmove(pointer, arg.data_ptr(), arg.nbytes)
                buffers.append((arg, pointer))
                values.append(pointer)
            else:
                values.append(arg)
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        config = LaunchConfig(grid, block, dynamic_shared)
        status = self.driver.cuLaunchKernelEx(ctypes.byref(config), self.function, pointers, None)
        for tensor, pointer in buffers:
            ctypes.memmove(tensor.data_ptr(), pointer, tensor.nbytes)
            runtime.cudaFree(pointer)
        self._check(status)

    def allow_dynamic_shared(self, size: int) -> None:
        """Raise the 48 KiB that a kernel may use unless its host code asks for more."""
        max_dynamic_shared_size = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self._check(self.driver.cuFuncSetAttribute(self.function, max_dynamic_shared_size, size))

    def _check(self, status: int) -> None:
        if status:
            message = ctypes.c_char_p()
            self.driver.cuGetErrorName(status, ctypes.byref(message))
            raise EmulatorError((message.value or b"").decode())
