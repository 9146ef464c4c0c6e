"""Layers for the package ``kernels``, by which transformers lets others compute its layers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from babytriton import errors
from babytriton.integrations import require
from babytriton.integrations.transformers.attention import Attention, Rotary
from babytriton.integrations.transformers.layers import RMSNorm
from babytriton.integrations.transformers.swapping import as_it_is, left_to_torch

DEVICES = ("cpu", "cuda")


def register_kernels() -> Mapping[str, Mapping[str, Any]]:
    """Offer our layers to ``kernels``, for its ``kernelize`` to put into models.

    They are for the CPU and for CUDA, inference and training.

    Returns:
        What was registered, as ``kernels.register_kernel_mapping`` and ``use_kernel_mapping`` take
        it: by the name of the layer and the device.

    Raises:
        ImportError: kernels is not installed, or transformers does not work with its version.
    """
    kernels = require("kernels", "bt.integrations.transformers.register_kernels", "kernels")
    what = "bt.integrations.transformers.register_kernels"
    found = require("transformers.utils.import_utils", what, "transformers")
    if not found.is_kernels_available():
        least = getattr(found, "KERNELS_MIN_VERSION", "?")
        below = getattr(found, "KERNELS_MAX_VERSION", "")
        wanted = f">={least}" + (f",<{below}" if below else "")
        raise errors.KernelsVersion(None, kernels.__version__, wanted).error()
    mapping = kernel_mapping()
    kernels.register_kernel_mapping(mapping)
    return mapping


def kernel_mapping() -> dict[str, dict[str, Offer]]:
    """Our layers by the names that transformers has for them, and by device."""
    return {
        name: dict.fromkeys(DEVICES, Offer(layer))
        for name, layer in (("RMSNorm", RMSNormKernel), ("rotary_pos_emb", RotaryKernel))
    }


@dataclass(frozen=True)
class Offer:
    """A layer in the place of a repository that would have to be loaded.

    Attributes:
        layer: the class whose forward is taken.
    """

    layer: type[nn.Module]

    def load(self) -> type[nn.Module]:
        """The layer."""
        return self.layer


class RMSNormKernel(nn.Module):
    """The forward of modules that have a ``weight`` and a ``variance_epsilon``."""

    can_torch_compile: ClassVar[bool] = True
    has_backward: ClassVar[bool] = True

    weight: torch.Tensor
    variance_epsilon: float

    def forward(self, hidden_states: torch.Tensor) -> Any:
        # The heads of attention have one dimension more: their number is not to vary.
        norm = RMSNorm(None, self.weight.shape[0], self.variance_epsilon, f"{hidden_states.ndim}")
        return _function(norm, left_to_torch())(self, hidden_states)


class RotaryKernel(nn.Module):
    """Rotary position embeddings of queries and keys."""

    can_torch_compile: ClassVar[bool] = True
    has_backward: ClassVar[bool] = True

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, cos: Any, sin: Any, unsqueeze_dim: int = 1
    ) -> Any:
        sizes = q.shape[1], k.shape[1], q.shape[-1]
        apply = _function(Attention(None, (Rotary(),), sizes), left_to_torch())
        return apply(q, k, cos, sin, unsqueeze_dim)


@functools.cache
def _function(replacement: RMSNorm | Attention, plain: bool) -> Callable[..., Any]:
    """What a layer calls, compiled or not: its sizes have a function of their own."""
    computed = replacement if isinstance(replacement, RMSNorm) else replacement.calls[0]
    return computed.build(as_it_is if plain else replacement.compile)
