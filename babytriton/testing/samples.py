"""Samples: the arguments of a call, and the variations of them that kernels get wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from babytriton.ops.trees import leaves_in, map_leaves


@dataclass(frozen=True)
class Sample:
    """The arguments of one call.

    Attributes:
        args, kwargs: of the call; tensors may be nested in tuples, lists and dicts.
        name: what it is called in tables; by default the types of its tensors.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""

    def __post_init__(self) -> None:
        if not self.name:
            shapes = ["x".join(map(str, x.shape)) or "scalar" for x in self.tensors()]
            dtypes = dict.fromkeys(str(x.dtype).removeprefix("torch.") for x in self.tensors())
            object.__setattr__(self, "name", " ".join([*shapes, *dtypes]) or "no tensors")

    @classmethod
    def of(cls, given: Any) -> Sample:
        """A sample as it is, arguments as a tuple or list, or the one argument."""
        if isinstance(given, Sample):
            return given
        return cls(tuple(given) if isinstance(given, (tuple, list)) else (given,))

    def tensors(self) -> list[torch.Tensor]:
        """Those among the arguments."""
        return leaves_in((self.args, dict(self.kwargs)), torch.Tensor)

    @property
    def dtype(self) -> torch.dtype | None:
        """Of the first tensor of floats; ``None`` if there is none."""
        floats = [x.dtype for x in self.tensors() if x.is_floating_point()]
        return floats[0] if floats else None

    def each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Sample:
        """The same with other tensors."""
        args, kwargs = map_leaves((self.args, dict(self.kwargs)), torch.Tensor, change)
        return Sample(args, kwargs, self.name)

    def to(self, dtype: torch.dtype) -> Sample:
        """The same in another dtype, where tensors are of the sample's own."""
        return self.each(lambda x: x.detach().to(dtype if x.dtype == self.dtype else x.dtype))

    def copied(self, *, requires_grad: bool = False) -> Sample:
        """The same in memory of its own that lies in the same order.

        Args:
            requires_grad: whether gradients are asked of the tensors of floats.
        """

        def copy(x: torch.Tensor) -> torch.Tensor:
            return laid_out_like(x).requires_grad_(requires_grad and x.is_floating_point())

        return self.each(copy)


def laid_out_like(x: torch.Tensor) -> torch.Tensor:
    """A copy of a tensor with its strides and its offset."""
    extent = 1 + sum((n - 1) * abs(s) for n, s in zip(x.shape, x.stride())) if x.numel() else 0
    memory = torch.zeros(x.storage_offset() + extent, dtype=x.dtype, device=x.device)
    copy = memory.as_strided(x.shape, x.stride(), x.storage_offset())
    if 0 in x.stride():  # each number of its own, where an expanded tensor has one many times
        return x.detach().clone()
    return copy.copy_(x.detach())


def layouts(sample: Sample) -> Iterator[tuple[str, Sample]]:
    """The same numbers in other memory."""
    yield "transposed memory", sample.each(_transposed)
    yield "every other element of memory", sample.each(_strided)
    yield "memory at an odd address", sample.each(_offset)


def _transposed(x: torch.Tensor) -> torch.Tensor:
    back = tuple(reversed(range(x.ndim)))
    return x.detach().permute(back).contiguous().permute(back)


def _strided(x: torch.Tensor) -> torch.Tensor:
    if not x.ndim:
        return x.detach().clone()
    wide = torch.zeros((*x.shape[:-1], 2 * x.shape[-1]), dtype=x.dtype, device=x.device)
    wide[..., ::2] = x.detach()
    return wide[..., ::2]


def _offset(x: torch.Tensor) -> torch.Tensor:
    memory = torch.zeros(x.numel() + 1, dtype=x.dtype, device=x.device)
    memory[1:] = x.detach().reshape(-1)
    return memory[1:].view(x.shape)


def sizes(sample: Sample) -> Iterator[tuple[str, Sample]]:
    """Other sizes: equal ones stay equal, so that most functions take them as well."""
    every = sorted({n for x in sample.tensors() for n in x.shape if n > 1})
    odd = {n: n - 1 - n % 2 if n > 3 else n for n in every}
    if any(n != m for n, m in odd.items()):
        yield "odd sizes", _resized(sample, odd)
    for n in every:
        yield f"1 instead of {n}", _resized(sample, {m: 1 if m == n else m for m in every})


def _resized(sample: Sample, to: Mapping[int, int]) -> Sample:
    """A sample with other sizes, of numbers drawn from those it has."""
    generator = torch.Generator().manual_seed(0)

    def resized(x: torch.Tensor) -> torch.Tensor:
        shape, drawn = [to.get(n, n) for n in x.shape], x.detach().clone()
        if shape != list(x.shape) and x.numel():
            count = torch.Size(shape).numel()
            chosen = torch.randint(x.numel(), (count,), generator=generator).to(x.device)
            drawn = drawn.reshape(-1)[chosen].reshape(shape)
        if x.is_floating_point() or x.dtype == torch.bool or not x.numel():
            return drawn
        # Integers are mostly places in a dimension, which may have become smaller.
        beyond = [m for n, m in to.items() if n > int(x.max())]
        return drawn.clamp(max=min(beyond) - 1) if beyond else drawn

    return sample.each(resized)


def samples_of(given: Iterable[Any]) -> list[Sample]:
    """Samples of what a user lists.

    Raises:
        TypeError: it is no list.
        ValueError: it is empty.
    """
    if isinstance(given, (torch.Tensor, Sample)) or not isinstance(given, Iterable):
        raise TypeError(f"samples must be a list of arguments, not {type(given).__name__}")
    found = [Sample.of(x) for x in given]
    if not found:
        raise ValueError("samples must not be empty")
    return found
