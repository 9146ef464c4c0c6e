"""torch <-> tvm-ffi: which torch tensors a kernel may read, and torch calls from the graph."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import tvm_ffi
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.autograd import forward_ad
from torch.utils.dlpack import from_dlpack

from babytriton.ops.fallback import TORCH_CALL, TorchCall
from babytriton.types import MemoryFormat

ALIGNMENT = 64
"""Bytes, on a GPU, whose kernels load whole vectors. Those for the CPU read at any address."""

_CONTIGUOUS = MemoryFormat(())
"""Without gaps, whichever the axes."""


def is_readable(tensor: torch.Tensor, format: MemoryFormat | None = None) -> bool:
    """Whether kernels can read what is in memory of a tensor without gradients as it lies."""
    return readable(tensor, format) is tensor


def readable(tensor: torch.Tensor, format: MemoryFormat | None = None) -> torch.Tensor:
    """The tensor, or a copy of it where kernels cannot read it as it lies in memory.

    What it asks for, each call that takes a shortcut asks as well (``attempts.py``).

    Args:
        tensor: what a program reads, as of :func:`in_memory`.
        format: how the tensor lies of which that is; None for a contiguous one.
    """
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    if tensor._is_zerotensor():  # of no memory, as torch's own gradients may be
        tensor = tensor.clone()
    if tensor.requires_grad:
        tensor = tensor.detach()
    aligned = not tensor.is_cuda or tensor.data_ptr() % ALIGNMENT == 0
    format = format or _CONTIGUOUS
    return tensor if aligned and format.is_memory(tensor) else format.copied(tensor)


def in_memory(tensor: torch.Tensor, format: MemoryFormat | None) -> torch.Tensor:
    """What a program reads of a tensor: itself, or what is in its memory, in the order there."""
    return tensor if format is None else format.memory(tensor)


def writable(tensor: torch.Tensor) -> bool:
    """Whether kernels can write to the tensor as it lies in memory."""
    aligned = not tensor.is_cuda or tensor.data_ptr() % ALIGNMENT == 0
    return aligned and tensor.is_contiguous()


def write(target: torch.Tensor, new: torch.Tensor) -> None:
    """Write what a program gives to a tensor, if it was not written there already."""
    are_plain = not (is_wrapped(target) or is_wrapped(new))
    if new is target or (are_plain and new.data_ptr() == target.data_ptr()):
        note_write(target)
    else:
        target.copy_(new)


def note_write(target: torch.Tensor) -> None:
    """Let torch know that a kernel wrote to a tensor, as its own in place do."""
    if not target.is_inference():
        torch.autograd.graph.increment_version(target)


def is_wrapped(value: Any) -> bool:
    """Whether it is a tensor that torch.func differentiates or vectorizes."""
    if not isinstance(value, torch.Tensor):
        return False
    functorch = torch._C._functorch
    return functorch.is_gradtrackingtensor(value) or functorch.is_batchedtensor(value)


def has_tangent(values: Iterable[Any]) -> bool:
    """Whether forward mode asks for derivatives by one of some values."""
    return forward_ad._current_level >= 0 and any(
        isinstance(x, torch.Tensor) and forward_ad.unpack_dual(x).tangent is not None
        for x in values
    )


@contextmanager
def outside_transforms() -> Iterator[None]:
    """Inside, new tensors are plain ones, also where torch.func transforms the caller."""
    if torch._C._functorch.peek_interpreter_stack() is None:
        yield
        return
    with temporarily_clear_interpreter_stack():
        yield


def on_device(device: torch.device, run: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which leaves torch's current GPU as it is: TVM's launches set their own."""
    if device.type != "cuda" or torch.cuda.device_count() < 2:
        return run

    def guarded(*args: Any) -> Any:
        with torch.cuda.device(device):
            return run(*args)

    return guarded


# The streams that virtual machines have run on; their memory is taken from one place, in turns.
_USED: set[torch.cuda.Stream] = set()
_IN_USE = threading.RLock()


def after_other_streams(
    devices: Sequence[torch.device], run: Callable[..., Any]
) -> Callable[..., Any]:
    """A virtual machine's function, which waits for what others do on other streams of its GPUs.

    Their memory knows no streams: what is free again may still be in use on the stream that it was
    given to. torch's own allocator, which other programs have, needs no waiting.
    """

    def ordered(*args: Any) -> Any:
        with _IN_USE:
            for device in devices:
                current = torch.cuda.current_stream(device)
                _USED.add(current)
                for other in _USED:
                    if other != current and other.device == current.device:
                        current.wait_stream(other)
            return run(*args)

    return ordered


def contiguous_results(call: TorchCall) -> Callable[[Sequence[Any]], list[torch.Tensor]]:
    """A fallback as a function of its sizes and tensors, whose results kernels can read."""
    return lambda given: [readable(result) for result in call(given)]


class Caller:
    """Who calls a virtual machine.

    Args:
        parameters: of the call.

    Attributes:
        tensors: among these, by how they lie in memory.
        error: what torch has raised meanwhile.
    """

    def __init__(self, parameters: Iterable[Any]) -> None:
        self.tensors = {_lying(x): x for x in parameters if isinstance(x, torch.Tensor)}
        self.error: Exception | None = None


class _Running(threading.local):
    """The call of a virtual machine that runs in this thread."""

    def __init__(self) -> None:
        self.caller = Caller(())


_RUNNING = _Running()


@contextmanager
def called_with(parameters: Iterable[Any]) -> Iterator[Caller]:
    """Inside, torch is given the tensors of a virtual machine's caller themselves."""
    before, _RUNNING.caller = _RUNNING.caller, Caller(parameters)
    try:
        yield _RUNNING.caller
    finally:
        _RUNNING.caller = before


def packed(call: TorchCall) -> Any:
    """A fallback as the function object that a virtual machine calls.

    The machine has other uses for the memory of what it computes, once no operator of the program
    reads that; and what it returns is for the user to write to, unseen by torch. So results share
    no memory with what it has computed, and a graph that torch records has copies of both.
    """
    function = contiguous_results(call)

    def run(*arguments: Any) -> Any:
        caller = _RUNNING.caller
        given, machines = [], set()
        for x in arguments:
            if not isinstance(x, int):
                tensor = from_dlpack(x)
                x = caller.tensors.get(_lying(tensor))
                if x is None:
                    x = tensor.clone() if call.recorded else tensor
                    machines.add(_memory(x))
            given.append(x)
        try:
            found = function(given)
        except Exception as error:
            caller.error = error  # TVM tells of its text alone
            raise
        if call.recorded:
            *found, keeper = found
            found = [*(x.clone() for x in found), keeper]
        elif not call.is_new:
            found = [x.clone() if _memory(x) in machines else x for x in found]
        return tvm_ffi.convert(found)

    return tvm_ffi.convert(run)


def _lying(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def callback(function: Callable[..., None]) -> Any:
    """A Python function for others to call through tvm-ffi; tensors come as tvm-ffi's."""
    return tvm_ffi.convert(function)


def views(tensors: Sequence[Any]) -> list[torch.Tensor]:
    """Tensors of tvm-ffi as torch's, of the same memory."""
    return [from_dlpack(tensor) for tensor in tensors]


@contextmanager
def on_callers_stream(device: torch.device) -> Iterator[None]:
    """Inside, torch and our kernels use the stream of a GPU that tvm-ffi was told of."""
    if device.type != "cuda":
        yield
        return
    stream = tvm_ffi.get_raw_stream(tvm_ffi.device("cuda", device.index))
    external = torch.cuda.ExternalStream(stream, device)
    with torch.cuda.device(device), torch.cuda.stream(external):
        yield


def _torch_call(function: Any, *arguments: Any) -> Any:
    return function(*arguments)


tvm_ffi.register_global_func(TORCH_CALL, _torch_call, override=True)
