"""Where a program computes: its devices, as torch and as Relax name them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from tvm import relax
from tvm.ir import IRModule

from babytriton.diagnostics import Span
from babytriton.ops.refusals import IllTyped, MixedDevices, WrongDevice
from babytriton.ops.table import Callee
from babytriton.ops.value import Scalar, Value
from babytriton.targets import Target, tvm_target

_MOVES: dict[Callee, str] = {torch.Tensor.cpu: "cpu", torch.Tensor.cuda: "cuda"}


class Placement:
    """The devices of one program.

    Args:
        home: the device that the program is called on, where its arguments are.
        target: what the program is compiled for there.
    """

    def __init__(self, home: torch.device, target: Target) -> None:
        self.home = home
        self.block: torch.device | None = None
        """The device of the ``with`` block that the user's code is in."""
        self.span: Span | None = None
        """Where the user's code went to another device."""
        self._target = target
        self._devices = {home: _vdevice(home, target)}

    @property
    def devices(self) -> tuple[torch.device, ...]:
        """All that the program has come across, the home first."""
        return tuple(self._devices)

    def find(self, device: Any) -> torch.device:
        """The device that a program means by a name.

        Raises:
            WrongDevice: there are no kernels for it.
            IllTyped: torch knows no such device.
        """
        try:
            named = torch.device("cuda", device) if type(device) is int else torch.device(device)
        except RuntimeError as error:
            raise IllTyped(str(error)) from error
        if named.type == self.home.type and (named.index or 0) == (self.home.index or 0):
            return self.home
        if named.type not in ("cpu", "cuda"):
            raise WrongDevice(str(device))
        index = None if named.type == "cpu" else named.index or 0
        found = torch.device(named.type, index) if index is not None else torch.device("cpu")
        if found not in self._devices:
            same = found.type == self._target.device_type
            self._devices[found] = _vdevice(found, self._target if same else Target(found.type))
        return found

    def of_call(
        self, fn: Callee, args: tuple[Any, ...], kwargs: dict[str, Any], values: Sequence[Value]
    ) -> torch.device | None:
        """Where a call of the user's runs: where it says, else its block, else its operands.

        Raises:
            MixedDevices: its operands are on several devices.
            WrongDevice: it names a device that there are no kernels for.
        """
        named = kwargs.get("device")
        if fn in _MOVES:
            named = args[1] if len(args) > 1 else named or _MOVES[fn]
        elif fn is torch.Tensor.to and len(args) > 1:
            other = args[1]
            if isinstance(other, (str, torch.device, Value)):
                named = other.device if isinstance(other, Value) else other
        if named is not None:
            return self.find(named)
        if self.block is not None:
            return self.block
        # Python numbers go where the tensors are.
        places = {value.device for value in values if not isinstance(value, Scalar)}
        if len(places) > 1:
            raise MixedDevices(" and ".join(sorted(map(str, places))))
        return next(iter(places), None)

    def vdevice(self, device: torch.device) -> relax.VDevice:
        """A device of the program as Relax names it."""
        return self._devices[device]

    @contextlib.contextmanager
    def within(self, device: torch.device | None) -> Iterator[None]:
        """A block of the user's code that computes on a device, if one is given."""
        around, self.block = self.block, device or self.block
        try:
            yield
        finally:
            self.block = around

    def annotated(self, type: relax.TensorType, device: torch.device) -> relax.TensorType:
        """The type of a tensor that a call leaves on a device."""
        if device == self.home:
            return type
        return relax.TensorType(type.shape, type.dtype, self._devices[device])

    def declared(self, mod: IRModule) -> IRModule:
        """The module, which says what its devices are if there are several."""
        if len(self._devices) > 1:
            mod.update_global_info("vdevice", list(self._devices.values()))
        return mod


def _vdevice(device: torch.device, target: Target) -> relax.VDevice:
    return relax.VDevice(tvm_target(target.resolved(device.index)), device.index or 0, "global")
