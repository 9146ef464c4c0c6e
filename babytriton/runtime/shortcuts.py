"""Shorter ways to run the calls that are like one before.

Of the microsecond that torch takes to add two small tensors, each look at an argument from Python
is a good part. So all properties of all tensors are checked in one call of torch's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._C._dynamo import guards

from babytriton.runtime.interop import ALIGNMENT, is_wrapped, readable
from babytriton.types import Dim, Size


@dataclass(frozen=True)
class Shortcut:
    """A shorter way to run some calls.

    Attributes:
        admits: whether the arguments of a call, of which there are as many, are those of one.
        run: gives the result for such arguments.
    """

    admits: Callable[..., bool]
    run: Callable[..., Any]


@dataclass(frozen=True)
class Sizes:
    """What a program with symbolic sizes asks of a call's.

    Attributes:
        shapes: of the tensors that have such sizes, by argument.
        smallest: that a symbolic size may be.
        hold: whether conditions hold of the sizes by name; None without any.
    """

    shapes: Mapping[int, tuple[Size, ...]]
    smallest: int
    hold: Callable[[Mapping[str, int]], bool] | None

    def places(self) -> dict[str, tuple[int, int]]:
        """The argument and the dimension that tell each size."""
        found: dict[str, tuple[int, int]] = {}
        for argument, shape in self.shapes.items():
            for axis, size in enumerate(shape):
                if isinstance(size, Dim):
                    found.setdefault(size.name, (argument, axis))
        return found


def like(
    given: Sequence[Any],
    conditions: Sequence[Callable[[], bool]] = (),
    symbolic: Sizes | None = None,
) -> Callable[..., bool] | None:
    """Whether arguments are as the given ones, but for the numbers in tensors and other floats.

    None where the given ones are not tensors that kernels can read as they are, and Python values
    that hold no others, or where torch.func transforms the call.

    Args:
        given: the arguments of a call.
        conditions: what else must hold.
        symbolic: what is asked of those sizes that may be others.
    """
    first = {id(x): i for i, x in reversed([*enumerate(given)]) if isinstance(x, torch.Tensor)}
    # torch's guards refuse a tensor that is there twice.
    again = {i: n for i, x in enumerate(given) if (n := first.get(id(x), i)) != i}
    tensors = sorted(first.values())
    every = [given[i] for i in tensors]
    others = {*tensors, *again}
    values = [(i, type(x), x) for i, x in enumerate(given) if i not in others]
    if any(tensor.requires_grad for tensor in every):
        if torch.is_grad_enabled():
            return None
        # torch's guards do not ask whether gradients are wanted.
        conditions = (*conditions, lambda: not torch.is_grad_enabled())
    plain = [tensor.detach() for tensor in every]
    if not tensors or any(map(is_wrapped, every)) or any(readable(x) is not x for x in plain):
        return None
    if any(kind not in _VALUES for _, kind, _ in values):
        return None
    vary = symbolic.shapes if symbolic is not None else {}
    sizes: list[Any] = [_fixed(vary.get(i, given[i].shape)) for i in tensors]
    # Strides follow from sizes where a tensor is contiguous, which is asked apart.
    strides: list[Any] = [
        [None] * given[i].ndim if i in vary else list(given[i].stride()) for i in tensors
    ]
    check = guards.TensorGuards(
        *every, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides
    ).check
    on_gpu = [i for i in tensors if given[i].is_cuda]
    if not (values or on_gpu or conditions or vary or again):
        return check
    known: dict[str, Any] = {"check": check}
    tests = []
    for i, kind, value in values:
        known |= {f"type_{i}": kind, f"value_{i}": value}
        tests.append(f"type(x{i}) is type_{i}")
        # A float is an argument of the kernel; other values are part of the program.
        if kind is not float:
            tests.append(f"x{i} == value_{i}")
    tests += [f"x{i} is x{n}" for i, n in again.items()]
    tests.append(f"check({', '.join(f'x{i}' for i in tensors)})")
    tests += [f"x{i}.data_ptr() % {ALIGNMENT} == 0" for i in on_gpu]
    if symbolic is not None:
        known["hold"] = symbolic.hold
        tests += [f"x{i}.is_contiguous()" for i in vary if i not in again]
        tests += _sizes_fit(symbolic)
    for number, condition in enumerate(conditions):
        known[f"condition_{number}"] = condition
        tests.append(f"condition_{number}()")
    # A call of Python's for each argument would take longer than a small kernel.
    arguments = ", ".join(f"x{i}" for i in range(len(given)))
    exec(f"def admits({arguments}):\n    return {' and '.join(tests)}", known)
    admits: Callable[..., bool] = known["admits"]
    return admits


def _fixed(shape: Sequence[Size]) -> list[int | None]:
    return [None if isinstance(size, Dim) else int(size) for size in shape]


def _sizes_fit(symbolic: Sizes) -> list[str]:
    """Tests of whether the sizes of a call's tensors go together, in order."""
    places = symbolic.places()
    tests = []
    for argument, shape in symbolic.shapes.items():
        # A look at a tensor's shape makes an object: there is one for each.
        tests.append(f"(shape_{argument} := x{argument}.shape)")
        for axis, size in enumerate(shape):
            if isinstance(size, Dim):
                here, known = f"shape_{argument}[{axis}]", _place(*places[size.name])
                smallest = f"{here} >= {symbolic.smallest}"
                tests.append(smallest if known == here else f"{here} == {known}")
    if symbolic.hold is not None:
        named = ", ".join(f"{name!r}: {_place(*place)}" for name, place in places.items())
        tests.append(f"hold({{{named}}})")
    return tests


def _place(argument: int, axis: int) -> str:
    return f"shape_{argument}[{axis}]"


_VALUES = (float, int, bool, str, type(None), torch.dtype, torch.device)
