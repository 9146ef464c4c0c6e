"""Layers of one tensor: norms, the activations of MLPs, and linear layers on decoding steps."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from babytriton.integrations import require
from babytriton.integrations.transformers.swapping import (
    Compile,
    Method,
    Replacement,
    as_it_is,
    close,
    left_to_torch,
)
from babytriton.ops import autocast

FEW_ROWS = {torch.float16: 4, torch.bfloat16: 4, torch.float32: 2}
"""How many rows a product with a matrix of weights may have for our kernel to be the faster one."""


@dataclass(frozen=True)
class Layer(Replacement):
    """Replaces the forward of layers that take one tensor.

    Attributes:
        size: of the last dimension of the tensor that is computed on: for each size there are
            functions of their own, so that only lengths and batches vary in one.
    """

    part: ClassVar[str]
    size: int

    @abstractmethod
    def build(self, compile: Compile) -> Method:
        """The forward of a module and a tensor, with what makes its functions."""

    @abstractmethod
    def computes(self) -> str:
        """What is compiled of it, for the report."""

    def inputs(self, module: Any) -> int:
        """The size of the last dimension of the tensor that a module takes."""
        return self.size

    def lines(self) -> Sequence[tuple[str, str]]:
        return [(self.part, self.computes())]

    def method(self, original: type[nn.Module]) -> Method:
        compiled = self.build(self.compile)

        def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
            if len(args) != 1 or kwargs or left_to_torch():
                return original.forward(self, *args, **kwargs)
            return compiled(self, *args)

        return forward

    def agrees(self, module: nn.Module) -> bool:
        weight = next(module.parameters())
        count = self.inputs(module)
        x = torch.linspace(-2, 3, 2 * count, device=weight.device).to(weight.dtype)
        x = x.view(1, 2, count)
        with torch.no_grad():
            expected = type(module).forward(module, x)
            found = self.build(as_it_is)(module, x)
        return close(found, expected)


@dataclass(frozen=True)
class RMSNorm(Layer):
    """Root mean square norms, with the rounding that transformers gives them.

    Attributes:
        eps: what is added to the mean square.
        role: the name of the module: heads are as many in each norm of one name.
    """

    part: ClassVar[str] = "norms"
    eps: float
    role: str

    def build(self, compile: Compile) -> Method:
        eps = self.eps

        def rms_norm(x: Any, weight: Any) -> Any:
            wide = x.to(torch.float32)
            wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
            return weight * wide.to(x.dtype)

        function = compile(rms_norm)
        return lambda module, x: function(x, module.weight)

    def computes(self) -> str:
        return "one kernel"


@dataclass(frozen=True)
class LayerNorm(Layer):
    """Layer norms along the last dimension.

    Attributes:
        eps: what is added to the variance.
    """

    part: ClassVar[str] = "norms"
    eps: float

    def build(self, compile: Compile) -> Method:
        size, eps = self.size, self.eps

        def layer_norm(x: Any, weight: Any, bias: Any) -> Any:
            return F.layer_norm(x, (size,), weight, bias, eps)

        function = compile(layer_norm)
        return lambda module, x: function(x, module.weight, module.bias)

    def computes(self) -> str:
        return "one kernel"


@dataclass(frozen=True)
class GatedMLP(Layer):
    """MLPs with a gate, such as SwiGLU: what stands between their linear layers.

    Attributes:
        activation: of the gate, as transformers calls it.
    """

    part: ClassVar[str] = "mlp"
    activation: str

    def build(self, compile: Compile) -> Method:
        activate = activation(self.activation)

        def gated(gate: Any, up: Any) -> Any:
            return activate(gate) * up

        function = compile(gated)
        # The linear layers are called as modules: they may have hooks, or adapters in their place.
        return lambda module, x: module.down_proj(function(module.gate_proj(x), module.up_proj(x)))

    def computes(self) -> str:
        return f"{self.activation} and product: one kernel"

    def inputs(self, module: Any) -> int:
        found: int = module.gate_proj.in_features
        return found


@dataclass(frozen=True)
class Intermediate(Layer):
    """The first half of MLPs without a gate: a linear layer and its activation.

    Attributes:
        activation: as transformers calls it.
    """

    part: ClassVar[str] = "mlp"
    activation: str

    def build(self, compile: Compile) -> Method:
        activate = activation(self.activation)

        def activated(x: Any) -> Any:
            return activate(x)

        function = compile(activated)
        return lambda module, x: function(module.dense(x))

    def computes(self) -> str:
        return f"{self.activation}: one kernel"

    def inputs(self, module: Any) -> int:
        found: int = module.dense.in_features
        return found


@dataclass(frozen=True)
class Linear(Layer):
    """Linear layers: a few rows, as decoding steps have, are products of a matrix and vectors.

    Attributes:
        outputs: the size of the last dimension of the result.
    """

    part: ClassVar[str] = "linear"
    outputs: int

    def build(self, compile: Compile) -> Method:
        size = self.size

        def linear(x: Any, weight: Any, bias: Any) -> Any:
            return F.linear(x, weight, bias)

        # Each shape of so few rows is worth a program of its own.
        function = compile(linear, dynamic=False)

        def forward(module: Any, x: torch.Tensor) -> Any:
            few = 0 < x.numel() <= FEW_ROWS.get(x.dtype, 0) * size
            # Under autocast, torch casts weights once for all calls.
            if few and not (torch.is_grad_enabled() or autocast.state()):
                return function(x, module.weight, module.bias)
            return F.linear(x, module.weight, module.bias)

        return forward

    def computes(self) -> str:
        half, single = FEW_ROWS[torch.float16], FEW_ROWS[torch.float32]
        return f"one kernel for up to {half} rows of half precision, {single} of float32"


def activation(name: str) -> Callable[..., Any]:
    """The activation that transformers has under a name.

    Raises:
        KeyError: there is none.
    """
    table = require("transformers.activations", "this activation", "transformers").ACT2FN
    found: Callable[..., Any] = table[name]
    return found
