"""torch's generators of random numbers: whether a call has drawn from them, and drawing again."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

_RANDOMNESS = (
    "vmap: the function draws random numbers, and randomness is 'error': "
    "pass randomness='same' or randomness='different' to vmap, or draw the numbers outside of it"
)


def may_draw(fn: Callable[..., Any]) -> bool:
    """Whether a callable may draw random numbers: all may but torch's that are marked otherwise."""
    if not isinstance(fn, (types.BuiltinFunctionType, types.MethodDescriptorType)):
        return True
    owner = getattr(fn, "__objclass__", None)
    home = str(getattr(fn, "__module__", None) or getattr(owner, "__module__", ""))
    packet = getattr(torch.ops.aten, fn.__name__, None)
    if packet is None or home.partition(".")[0] != "torch":
        return True
    overloads = [getattr(packet, name) for name in packet.overloads()]
    return any(torch.Tag.nondeterministic_seeded in overload.tags for overload in overloads)


@dataclass(frozen=True)
class Generators:
    """How torch's generators stand at some time.

    Attributes:
        cpu: the state of the CPU's.
        others: that of each GPU's.
    """

    cpu: torch.Tensor
    others: Mapping[torch.device, torch.Tensor]

    @classmethod
    def now(cls, tensors: Sequence[torch.Tensor]) -> Generators:
        """Those of the CPU, and of the GPUs that tensors are on."""
        devices = {tensor.device for tensor in tensors if tensor.is_cuda}
        if devices and torch.cuda.is_current_stream_capturing():
            devices = set()  # a captured graph must not ask
        return cls(torch.get_rng_state(), {x: torch.cuda.get_rng_state(x) for x in devices})

    def have_moved(self) -> bool:
        """Whether any has drawn numbers since."""
        moved = [not torch.equal(self.cpu, torch.get_rng_state())]
        moved += [not torch.equal(x, torch.cuda.get_rng_state(d)) for d, x in self.others.items()]
        return any(moved)

    def restore(self) -> None:
        """Let them draw the numbers that they drew then."""
        torch.set_rng_state(self.cpu)
        for device, state in self.others.items():
            torch.cuda.set_rng_state(state, device)

    @staticmethod
    def elements(
        size: int, randomness: str, draws: bool, tensors: Sequence[torch.Tensor]
    ) -> Iterator[int]:
        """The numbers of a batch's elements, each of which is computed when it comes.

        Args:
            size: of the batch.
            randomness: as ``torch.vmap`` takes it: whether elements draw the same numbers.
            draws: whether they draw any.
            tensors: that they are computed from.

        Raises:
            RuntimeError: they do, and that is an error.
        """
        if draws and randomness == "error":
            raise RuntimeError(_RANDOMNESS)
        before = Generators.now(tensors) if draws and randomness == "same" else None
        for number in range(size):
            if before is not None and number:
                before.restore()
            yield number

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        """Inside, the same numbers are drawn as then; afterwards, those that come next."""
        with torch.random.fork_rng(devices=list(self.others)):
            self.restore()
            yield
