"""Calls of scalar kernels: they write into the caller's tensors, in place or through a copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from babytriton import errors
from babytriton.runtime.dispatch import check_no_gradient, check_target, check_tensor
from babytriton.runtime.executable import Executable
from babytriton.runtime.interop import on_device, readable, write

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
        given = [n for n, x in enumerate(arguments) if isinstance(x, torch.Tensor)]
        for i in self._written:
            others = [(self._names[n], arguments[n]) for n in given if n != i]
            check_target(self._names[i], arguments[i], others, contiguous=False)
        usable = [readable(x) if isinstance(x, torch.Tensor) else x for x in arguments]
        for function, reads in self._calls:
            parameters = [read(usable, own) for read in reads]
            try:
                function(*parameters)
            except Exception as error:
                raise errors.internal("running", error) from error
        for i in self._written:
            with torch.no_grad():
                write(arguments[i], usable[i])
