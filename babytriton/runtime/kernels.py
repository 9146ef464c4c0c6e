"""Calls of scalar kernels: they write into the caller's tensors, in place or through a copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from babytriton import errors
from babytriton.errors import kernels as kernel_errors
from babytriton.runtime.dispatch import check_no_gradient, check_tensor
from babytriton.runtime.executable import Executable
from babytriton.runtime.interop import on_device, readable

Read = Callable[[Sequence[Any], Sequence[torch.Tensor]], Any]
"""Gives a parameter, of a call's arguments and the memory of the kernel's own."""


@dataclass(frozen=True)
class Launch:
    """A function of an executable, and how a call fills its parameters."""

    name: str
    read: tuple[Read, ...]


class KernelLauncher:
    """Runs the functions of one kernel, one after the other.

    Args:
        executable: holds the functions.
        launches: in order.
        names: what the user calls the arguments.
        written: the arguments that are written, by number.
        device: that the kernel runs on.
    """

    def __init__(
        self,
        executable: Executable,
        launches: Sequence[Launch],
        names: Sequence[str],
        written: Sequence[int],
        device: torch.device,
    ) -> None:
        self._calls = [
            (on_device(device, executable.vm_executable[x.name]), x.read) for x in launches
        ]
        self._names = names
        self._written = written
        self._device = device

    def __call__(self, arguments: Sequence[Any], own: Sequence[torch.Tensor]) -> None:
        """Run on arguments of the kernel's types, and memory of its own.

        Raises:
            ValueError: a tensor is on another device, records gradients, or is written and shares
                memory with another.
        """
        for name, argument in zip(self._names, arguments):
            if isinstance(argument, torch.Tensor):
                check_tensor(name, argument, self._device)
                check_no_gradient(name, argument)
        check_memory(self._names, arguments, self._written)
        usable = [readable(x) if isinstance(x, torch.Tensor) else x for x in arguments]
        for function, reads in self._calls:
            parameters = [read(usable, own) for read in reads]
            try:
                function(*parameters)
            except Exception as error:
                raise errors.internal("running", error) from error
        for i in self._written:
            _keep(usable[i], arguments[i])


def _keep(written: torch.Tensor, given: torch.Tensor) -> None:
    """Let the caller's tensor hold what was written, if that was a copy of it."""
    if written.data_ptr() != given.data_ptr():
        with torch.no_grad():
            given.copy_(written)
    elif not given.is_inference():
        # Autograd is to know that what it has saved of the tensor is gone.
        torch.autograd.graph.increment_version(given)


def check_memory(names: Sequence[str], arguments: Sequence[Any], written: Sequence[int]) -> None:
    """Refuse a written tensor that shares elements with another argument, or within itself.

    Args:
        names: what the user calls the arguments.
        arguments: of the call.
        written: those that are written, by number.

    Raises:
        ValueError: one does; the message names it.
    """
    memory = [
        x.untyped_storage().data_ptr() if isinstance(x, torch.Tensor) else None for x in arguments
    ]
    for i in written:
        if torch._debug_has_internal_overlap(arguments[i]) == 1:
            raise kernel_errors.ArgumentOverlap(None, names[i], "itself").error()
        for j, other in enumerate(arguments):
            if i != j and memory[i] == memory[j] and _overlap(arguments[i], other):
                raise kernel_errors.ArgumentOverlap(None, names[i], f"`{names[j]}`").error()


def _overlap(left: torch.Tensor, right: torch.Tensor) -> bool:
    if not left.numel() or not right.numel():
        return False
    return bool(np.shares_memory(_layout(left), _layout(right)))


def _layout(tensor: torch.Tensor) -> Any:
    """An array of the same addresses, for NumPy to compare; nothing is read through it."""
    size = tensor.element_size()
    interface = {
        "version": 3,
        "shape": tuple(tensor.shape),
        "strides": tuple(stride * size for stride in tensor.stride()),
        "typestr": f"|V{size}",
        "data": (tensor.data_ptr(), True),
    }
    return np.asarray(type("Layout", (), {"__array_interface__": interface})())
