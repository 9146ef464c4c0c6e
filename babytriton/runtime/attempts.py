"""Functions, written as Python source, that run a call if it is like one before.

Of the microsecond that torch takes to add two small tensors, each look at an argument from Python
is a good part. So all properties of all tensors are checked in one call of torch's, and what is
known when the function is written is not looked at again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch._C._dynamo import guards
from torch.autograd import forward_ad

from babytriton.runtime.interop import ALIGNMENT, in_memory, is_readable, is_wrapped, on_device
from babytriton.types import Dim, MemoryFormat, Size

MISSED = object()
"""What an attempt gives for a call that is not like the one it was written at."""


class NoShortcut(Exception):
    """Calls like this one are looked at each time."""


class Attempt:
    """Writes a function of a call's ``args`` and ``kwargs``: it gives the result, or ``MISSED``.

    Args:
        arguments: a variable for each argument by position.
        named: likewise by name, in the order of the call.
    """

    def __init__(self, arguments: Sequence[str], named: Mapping[str, str]) -> None:
        self._known: dict[str, Any] = {"missed": MISSED}
        self._lines: list[str] = []
        self._tests: list[str] = []
        self.require(f"len(args) == {len(arguments)}")
        self.require(f"tuple(kwargs) == {tuple(named)}" if named else "not kwargs")
        for variables, values in ((arguments, "args"), (tuple(named.values()), "kwargs.values()")):
            if variables:
                self.write(f"{', '.join(variables)}, = {values}")
        self._places: dict[str, str] = {}
        self._memory: dict[str, str] = {}
        """For tensors that were looked at there, a variable for what is in memory."""
        self._are_named = False
        self.shapes: dict[str, str] = {}
        """For a tensor's variable, that for its shape; for those that have one."""
        self.addresses: dict[str, str] = {}
        """The same for where it lies, which kernels of a GPU are told."""

    def know(self, name: str, value: Any) -> str:
        """A variable for a value that is the same at every call."""
        found = f"{name}_{len(self._known)}"
        self._known[found] = value
        return found

    def share(self, known: Mapping[str, Any]) -> None:
        """Let lines use values that are the same at every call, by names of their own."""
        taken = known.keys() & self._known.keys()
        assert not taken, taken
        self._known |= known

    def require(self, *tests: str) -> None:
        """Miss the calls for which one of the conditions, as Python writes them, is false."""
        self._tests += tests

    def write(self, *lines: str) -> None:
        """Add lines, which run if all holds that was required before."""
        if self._tests:
            self._lines += [f"if not ({' and '.join(self._tests)}):", "    return missed"]
            self._tests = []
        self._lines += lines

    def require_outside(self, reads: Mapping[str, str], tests: Sequence[str]) -> None:
        """Read what is outside the function; where that fails, the call is missed.

        Args:
            reads: what gives the value of a variable, as Python writes it.
            tests: what must be true, likewise.
        """
        lines = [f"{name} = {read}" for name, read in reads.items()]
        if tests:
            lines += [f"if not ({' and '.join(tests)}):", "    return missed"]
        if lines:
            indented = [f"    {line}" for line in lines]
            self.write("try:", *indented, "except Exception:", "    return missed")

    def require_tensors(
        self,
        given: Mapping[str, torch.Tensor],
        shapes: Mapping[str, Sequence[Size]],
        formats: Mapping[str, MemoryFormat],
    ) -> set[str]:
        """Require tensors that are as the given ones, but for their numbers.

        Args:
            given: by their variables.
            shapes: of those that have symbolic sizes.
            formats: of those of which kernels read what is in memory.

        Returns:
            Those that kernels cannot read as they are.

        Raises:
            NoShortcut: torch.func transforms one of them, or there may be derivatives in forward
                mode.
        """
        first: dict[int, str] = {}
        for name, tensor in given.items():
            first.setdefault(id(tensor), name)
        # torch's guards refuse a tensor that is there twice.
        again = {name: first[id(x)] for name, x in given.items() if first[id(x)] != name}
        names = [name for name in given if name not in again]
        every = [given[name] for name in names]
        if any(map(is_wrapped, every)) or forward_ad._current_level >= 0:
            raise NoShortcut
        unreadable = {
            name
            for name, tensor in given.items()
            if not is_readable(in_memory(tensor.detach(), formats.get(name)), formats.get(name))
        }
        sizes: list[Any] = [_fixed(shapes.get(name, given[name].shape)) for name in names]
        # Strides follow from sizes where memory is contiguous, which is asked apart.
        strides: list[Any] = [
            [None] * given[name].ndim if name in shapes else list(given[name].stride())
            for name in names
        ]
        self.require(*(f"{name} is {other}" for name, other in again.items()))
        if every:
            made = guards.TensorGuards(
                *every, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides
            )
            self.require(f"{self.know('check', made.check)}({', '.join(names)})")
            # Of forward mode these know nothing.
            self.require(f"{self.know('forward_mode', forward_ad)}._current_level < 0")
        if any(tensor.requires_grad for tensor in every):
            # torch's guards do not ask whether gradients are wanted.
            enabled = f"{self.know('enabled', torch.is_grad_enabled)}()"
            self.require(enabled if torch.is_grad_enabled() else f"not {enabled}")
        plain = [name for name in names if name not in unreadable]
        on_gpu = [name for name in plain if _is_on_gpu(given[name])]
        if on_gpu:
            own = {name: f"address_of_{name}" for name in on_gpu}
            self.write(*(f"{address} = {name}.data_ptr()" for name, address in own.items()))
            self.require(f"({' | '.join(own.values())}) % {ALIGNMENT} == 0")
            self.addresses |= own
        for name in unreadable & shapes.keys():
            # They are copied, whatever their strides; others have programs of their own.
            lies = MemoryFormat.of if name in formats else _lies
            lying = self.know("lying", lies(given[name]))
            self.require(f"{self.know('lies', lies)}({name}) == {lying}")
        for name in plain:
            if name not in shapes:
                continue
            format = formats.get(name)
            if format is not None:
                self._memory[name] = memory = f"memory_of_{name}"
                self.write(f"{memory} = {name}.permute({format.order})")
            if format is not None and format.gaps:
                self.require(f"{self.know('is_memory', format.is_memory)}({memory})")
            else:
                self.require(f"{self._memory.get(name, name)}.is_contiguous()")
        return unreadable

    def memory(self, name: str, format: MemoryFormat | None) -> str:
        """An expression for what is in a tensor's memory, in the order there."""
        if format is None:
            return name
        if name in self._memory:
            return self._memory[name]
        if format.repeated:
            return f"{self.know('memory', format.memory)}({name})"
        return f"{name}.permute({format.order})"

    def require_sizes(self, shapes: Mapping[str, Sequence[Size]], smallest: int) -> None:
        """Require sizes that go together.

        Args:
            shapes: of the tensors that have symbolic ones.
            smallest: that such a size may be.
        """
        for name, shape in shapes.items():
            # A look at a tensor's shape makes an object: there is one for each.
            self.shapes[name] = variable = f"shape_{name}"
            self.write(f"{variable} = {name}.shape")
            for axis, size in enumerate(shape):
                if isinstance(size, Dim):
                    here = f"{variable}[{axis}]"
                    place = self._places.setdefault(size.name, here)
                    self.require(f"{here} >= {smallest}" if place == here else f"{here} == {place}")

    def sizes(self) -> str:
        """A variable for the symbolic sizes by their names."""
        if not self._are_named:
            each = [f"{name!r}: {place}" for name, place in self._places.items()]
            self.write(f"sizes = {{{', '.join(each)}}}")
            self._are_named = True
        return "sizes"

    def require_apart(
        self, written: Collection[str], others: Iterable[str], given: Mapping[str, torch.Tensor]
    ) -> None:
        """Require that tensors share no memory with others, nor with each other.

        Args:
            written: their variables.
            others: of the others.
            given: tensors that are as those of each call, but for numbers and symbolic sizes.
        """
        spans = [(name, name in written) for name in dict.fromkeys((*written, *others))]
        if len(spans) == 2:
            start, other = (f"{name}.data_ptr()" for name, _ in spans)
            reach, others_reach = (self._reach(name, given[name]) for name, _ in spans)
            self.require(f"({start} >= {other} + {others_reach} or {other} >= {start} + {reach})")
        elif spans:
            each = [f"({n}.data_ptr(), {self._reach(n, given[n])}, {own})" for n, own in spans]
            self.require(f"{self.know('are_apart', _are_apart)}([{', '.join(each)}])")

    def _reach(self, name: str, tensor: torch.Tensor) -> str:
        """How many bytes lie from a tensor's first element to the end of its last."""
        if name not in self.shapes:
            return str(_reach(tensor))
        format = MemoryFormat.of(tensor)
        has_gaps = format is not None and format.gaps
        return f"{self.know('reach', _reach)}({name})" if has_gaps else f"{name}.nbytes"

    def function(self, result: str, device: torch.device) -> Callable[..., Any]:
        """What was written.

        Args:
            result: an expression for the call's result.
            device: that the function computes on.
        """
        self.write(f"return {result}")
        source = "\n    ".join(["def attempt(args, kwargs):", *self._lines])
        exec(source, self._known)
        return on_device(device, self._known["attempt"])


def _is_on_gpu(tensor: torch.Tensor) -> bool:
    return tensor.is_cuda


def _reach(tensor: torch.Tensor) -> int:
    """How many bytes lie from a tensor's first element to the end of its last."""
    if tensor.numel() == 0:
        return 0
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride()))
    return (last + 1) * tensor.element_size()


def _lies(tensor: torch.Tensor) -> Any:
    """How a tensor lies that is copied: of what it is part matters no more."""
    format = MemoryFormat.of(tensor)
    return format and (format.order, format.repeated, tuple(axis for axis, _ in format.gaps))


def _are_apart(spans: Iterable[tuple[int, int, bool]]) -> bool:
    """Whether those that are written to share no memory with any other.

    Args:
        spans: for each tensor, where it starts, how many bytes it takes, and whether it is written.
    """
    end = end_of_written = 0
    for start, count, is_written in sorted(spans):
        if count and start < (end if is_written else end_of_written):
            return False
        end = max(end, start + count)
        if is_written:
            end_of_written = max(end_of_written, start + count)
    return True


def _fixed(shape: Sequence[Size | None]) -> list[int | None]:
    return [size if isinstance(size, int) else None for size in shape]
