"""A call: check what changes from call to call, launch, and put the result together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from babytriton import errors
from babytriton.containers import DictKind, sequence
from babytriton.ops.layout import Layout
from babytriton.runtime.executable import FORGET, Executable, virtual_machine
from babytriton.runtime.interop import after_other_streams, called_with, on_device
from babytriton.runtime.overlap import overlap


class Launcher:
    """Runs one executable, with one virtual machine a thread.

    Args:
        executable: what to run.
        devices: that the program computes on, the one it is called on first.
    """

    def __init__(self, executable: Executable, devices: Sequence[torch.device]) -> None:
        self._executable = executable
        self._devices = devices
        self._thread = threading.local()

    def __call__(self, parameters: Sequence[Any]) -> Sequence[Any]:
        """Run the program on parameters that it can read, in order, and return its outputs."""
        if not hasattr(self._thread, "function"):
            machine = virtual_machine(self._executable, self._devices)
            gpus = [device for device in self._devices if device.type == "cuda"]
            function = machine[self._executable.entry]
            if gpus:
                function = after_other_streams(gpus, on_device(gpus[0], function))
            self._thread.function, self._thread.forget = function, machine[FORGET]
        with called_with(parameters) as caller:
            try:
                outputs = self._thread.function(*parameters)
            except Exception as error:
                # What torch raises from inside the graph is the user's; TVM's errors are ours.
                if caller.error is not None:
                    raise caller.error from None
                if type(error).__module__.startswith("tvm"):
                    raise errors.internal("running", error) from error
                raise
        # As a list: each look into TVM's own array makes a tensor object anew. Without a torch
        # tensor among the arguments, the outputs come as TVM's tensors.
        found = [x if isinstance(x, torch.Tensor) else from_dlpack(x) for x in outputs]
        self._thread.forget()
        return found


def check_tensor(name: str, tensor: torch.Tensor, device: torch.device) -> None:
    """Refuse a tensor that has the right type and still cannot be computed on.

    Args:
        name: what the user calls it.
        tensor: given at the call.
        device: that the program runs on.

    Raises:
        ValueError: it has no data of its own, or is on another device.
    """
    if tensor.is_meta:
        raise errors.ArgumentMeta(None, name).error()
    kind = _without_memory(tensor)
    if kind == "a DTensor":
        raise errors.CapturedDTensor(None, name).error()
    if kind is not None:
        instead = "call with plain tensors, outside torch.func's transforms and fake modes"
        raise errors.ArgumentMeta(None, name, kind, instead).error()
    if tensor.device != device and (device.index is not None or tensor.device.type != device.type):
        raise errors.ArgumentDevice(None, name, str(device), str(tensor.device)).error()


def check_no_gradient(name: str, tensor: torch.Tensor) -> None:
    """Refuse a tensor whose gradient would be lost.

    Args:
        name: what the user calls it.
        tensor: given at the call.

    Raises:
        ValueError: it records gradients.
    """
    if tensor.requires_grad and torch.is_grad_enabled():
        raise errors.ArgumentRequiresGrad(None, name).error()


def _without_memory(tensor: torch.Tensor) -> str | None:
    """What a tensor is that stands for others, or for none; None for one that has numbers."""
    if type(tensor).__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl:
        return f"a {type(tensor).__name__}"
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return "a tensor that torch.func transforms"
    if torch._C._functorch.is_legacy_batchedtensor(tensor):
        return "a batch of gradients (is_grads_batched)"
    if torch._is_functional_tensor(tensor):
        return "a functional tensor"
    return None


def check_layout(name: str, tensor: torch.Tensor) -> None:
    """Refuse a tensor that is not contiguous, where the program depends on how tensors lie.

    Args:
        name: what the user calls it.
        tensor: given at the call.

    Raises:
        ValueError: it is not contiguous.
    """
    if not tensor.is_contiguous():
        raise errors.LayoutMatters(None, name, str(tuple(tensor.stride()))).error()


def check_target(
    name: str,
    target: torch.Tensor,
    others: Sequence[tuple[str, torch.Tensor]],
    contiguous: bool,
) -> None:
    """Refuse a tensor that the program writes to, and would not write to as torch does.

    Args:
        name: what the user calls it.
        target: given at the call.
        others: the call's other tensors, and what the user calls them.
        contiguous: whether the program takes it to be contiguous.

    Raises:
        ValueError: another tensor shares its memory, several of its elements do, or it is not
            contiguous.
        RuntimeError: torch refuses it: it is of inference mode, outside of that.
    """
    if target.is_inference() and not torch.is_inference_mode_enabled():
        target.as_strided((0,), (1,)).zero_()  # torch's own words, and nothing is written
    for other, tensor in others:
        if overlap(target, tensor):
            raise errors.SharedMemory(None, name, other).error()
    strides = tuple(target.stride())
    if target.numel() and not Layout.of(target).is_injective:
        raise errors.SharedElements(None, name, str(tuple(target.shape)), str(strides)).error()
    if contiguous and not target.is_contiguous():
        raise errors.NotContiguous(None, name, str(strides)).error()


def fill(structure: Any, leaf: Callable[[Any], Any], kinds: tuple[type, ...]) -> Any:
    """A result's structure with ``leaf`` applied to the placeholders of the given kinds."""
    if isinstance(structure, kinds):
        return leaf(structure)
    if isinstance(structure, (list, tuple)):
        items = [fill(item, leaf, kinds) for item in structure]
        return items if isinstance(structure, list) else sequence(type(structure), items)
    if isinstance(structure, dict):
        filled = {key: fill(item, leaf, kinds) for key, item in structure.items()}
        return DictKind.of(structure).make(filled)
    return structure
