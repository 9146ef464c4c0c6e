"""Programs that are one kernel, called without a virtual machine: check, allocate, launch.

Of the microsecond that torch takes to add two small tensors, each look at an argument from Python
is a good part. So all properties of all tensors are checked in one call of torch's, and an output
is allocated in another; the code that torch.compile generates does the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._C._dynamo import guards

from babytriton import errors
from babytriton.runtime.interop import ALIGNMENT, readable

_empty_strided_cpu: Callable[..., torch.Tensor] = guards._empty_strided_cpu  # type: ignore[attr-defined]

LARGE = 16 << 20
"""Bytes. Fresh memory of this size costs more than a kernel takes to fill it: the virtual machine,
which keeps memory for its next call, serves a program with such outputs better."""


class DirectLauncher:
    """Runs one kernel on a program's parameters.

    Args:
        kernel: takes its arguments, then the tensors that it writes.
        arguments: the parameters that it takes, by number.
        outputs: the shape and dtype of each tensor that it writes.
        results: the program's outputs, each by the number of a tensor that it writes.
        device: to allocate on.
    """

    def __init__(
        self,
        kernel: Callable[..., Any],
        arguments: Sequence[int],
        outputs: Sequence[tuple[tuple[int, ...], torch.dtype]],
        results: Sequence[int],
        device: torch.device,
    ) -> None:
        self._kernel = kernel
        self._arguments = tuple(arguments)
        self._outputs = [(shape, _strides(shape), dtype) for shape, dtype in outputs]
        self._results = tuple(results)
        self._allocate = _empty_strided_cpu if device.type == "cpu" else _allocator(device)

    def __call__(self, parameters: Sequence[Any]) -> Sequence[Any]:
        """Run the kernel on parameters that it can read, in order, and return the outputs."""
        written = [self._allocate(*output) for output in self._outputs]
        try:
            self._kernel(*[parameters[i] for i in self._arguments], *written)
        except Exception as error:
            raise errors.internal("running", error) from error
        return [written[i] for i in self._results]

    def launch_one(self, order: Sequence[int], count: int) -> Callable[..., Any] | None:
        """A function of a call's arguments that gives the one output; None if there are more.

        Args:
            order: the argument that each parameter of the program is, by number.
            count: how many arguments a call has.
        """
        if len(self._outputs) > 1:
            return None
        kernel, allocate, (output,) = self._kernel, self._allocate, self._outputs
        places = tuple(order[i] for i in self._arguments)

        def in_order(*given: Any) -> Any:
            result = allocate(*output)
            kernel(*given, result)
            return result

        def by_number(*given: Any) -> Any:
            result = allocate(*output)
            kernel(*[given[i] for i in places], result)
            return result

        return in_order if places == tuple(range(count)) else by_number


@dataclass(frozen=True)
class Shortcut:
    """A shorter way to run some calls.

    Attributes:
        admits: whether the arguments of a call, of which there are as many, are those of one.
        run: gives the result for such arguments.
    """

    admits: Callable[..., bool]
    run: Callable[..., Any]


def like(
    given: Sequence[Any], conditions: Sequence[Callable[[], bool]] = ()
) -> Callable[..., bool] | None:
    """Whether arguments are as the given ones, but for the numbers in tensors and other floats.

    None where the given ones are not tensors that kernels can read as they are, and Python values
    that hold no others.

    Args:
        given: the arguments of a call.
        conditions: what else must hold.
    """
    tensors = [i for i, x in enumerate(given) if isinstance(x, torch.Tensor)]
    values = [(i, type(x), x) for i, x in enumerate(given) if i not in tensors]
    if not tensors or any(readable(given[i]) is not given[i] for i in tensors):
        return None
    if any(kind not in _VALUES for _, kind, _ in values):
        return None
    sizes: list[Any] = [list(given[i].shape) for i in tensors]
    strides: list[Any] = [list(given[i].stride()) for i in tensors]
    every = [given[i] for i in tensors]
    check = guards.TensorGuards(
        *every, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides
    ).check
    on_gpu = [i for i in tensors if given[i].is_cuda]
    if not values and not on_gpu and not conditions:
        return check

    def admits(*others: Any) -> bool:
        for i, kind, value in values:
            other = others[i]
            # A float is an argument of the kernel; other values are part of the program.
            if type(other) is not kind or (kind is not float and other != value):
                return False
        aligned = not any(others[i].data_ptr() % ALIGNMENT for i in on_gpu)
        fits = aligned and check(*[others[i] for i in tensors])
        return fits and all(condition() for condition in conditions)

    return admits


_VALUES = (float, int, bool, str, type(None), torch.dtype, torch.device)


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Of a contiguous tensor, in elements."""
    return tuple(math.prod(max(size, 1) for size in shape[i + 1 :]) for i in range(len(shape)))


def _allocator(device: torch.device) -> Callable[..., torch.Tensor]:
    def allocate(
        shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype
    ) -> torch.Tensor:
        return torch.empty_strided(shape, strides, dtype=dtype, device=device)

    return allocate
