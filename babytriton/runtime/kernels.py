"""Calls of scalar kernels: they write into the caller's tensors, in place or through a copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from babytriton import errors, kernel_errors
from babytriton.runtime.executable import Executable
from babytriton.runtime.interop import readable


@dataclass(frozen=True)
class Launch:
    """A function of an executable, and how a call fills its parameters.

    Attributes:
        name: of the function.
        read: gives each parameter, of the arguments and the memory of the kernel's own.
    """

    name: str
    read: tuple[Callable[[Sequence[Any], Sequence[torch.Tensor]], Any], ...]


def run(
    executable: Executable,
    launches: Sequence[Launch],
    arguments: Sequence[Any],
    own: Sequence[torch.Tensor],
    written: Sequence[int],
) -> None:
    """Call a kernel's functions one after the other.

    Args:
        executable: holds the functions.
        launches: in order.
        arguments: tensors and floats of the call.
        own: memory of the kernel's own.
        written: the arguments that are written, by number.
    """
    with torch.no_grad():
        usable = [readable(x) if isinstance(x, torch.Tensor) else x for x in arguments]
        for launch in launches:
            parameters = [read(usable, own) for read in launch.read]
            try:
                executable.vm_executable[launch.name](*parameters)
            except Exception as error:
                raise errors.internal("running", error) from error
        for i in written:
            if usable[i].data_ptr() != arguments[i].data_ptr():
                arguments[i].copy_(usable[i])
            elif not arguments[i].is_inference():
                # Autograd is to know that what it has saved of the tensor is gone.
                torch.autograd.graph.increment_version(arguments[i])


def check_memory(names: Sequence[str], arguments: Sequence[Any], written: Sequence[int]) -> None:
    """Refuse a written tensor that shares elements with another argument, or within itself.

    Args:
        names: what the user calls the arguments.
        arguments: of the call.
        written: those that are written, by number.

    Raises:
        ValueError: one does; the message names it.
    """
    for i in written:
        if torch._debug_has_internal_overlap(arguments[i]) == 1:
            raise kernel_errors.ArgumentOverlap(None, names[i], "itself").error()
        for j, other in enumerate(arguments):
            is_tensor = isinstance(other, torch.Tensor)
            if i != j and is_tensor and _overlap(arguments[i], other):
                raise kernel_errors.ArgumentOverlap(None, names[i], f"`{names[j]}`").error()


def _overlap(left: torch.Tensor, right: torch.Tensor) -> bool:
    if left.untyped_storage().data_ptr() != right.untyped_storage().data_ptr():
        return False
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
