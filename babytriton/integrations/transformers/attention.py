"""What the forward of attention layers calls by name: rotary embeddings, and the eager attention.

These are functions of the module that defines the class, which all models share. So the class of
an object gets a forward of the same code, which finds others under their names.
"""

from __future__ import annotations

import functools
import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from babytriton.integrations.transformers.swapping import (
    Compile,
    Method,
    Replacement,
    as_it_is,
    close,
    left_to_torch,
)


@dataclass(frozen=True)
class Call(ABC):
    """A function that attention layers call, and what is called in its place."""

    name: ClassVar[str]
    part: ClassVar[str]

    @abstractmethod
    def build(self, compile: Compile) -> Callable[..., Any]:
        """What to call, with what makes its functions."""

    @abstractmethod
    def computes(self) -> str:
        """What is compiled of it, for the report."""

    @abstractmethod
    def sample(self, module: Any) -> tuple[Sequence[Any], dict[str, Any]]:
        """Arguments to try it with: numbers on the CPU, whatever the module has."""

    def agrees(self, module: nn.Module) -> bool:
        """Whether the function that a module calls is the one that this is written for."""
        arguments, named = self.sample(module)
        theirs = type(module).forward.__globals__[self.name]
        with torch.no_grad():
            expected = theirs(*arguments, **named)
            found = self.build(as_it_is)(*arguments, **named)
        return len(expected) == len(found) and all(map(close, found, expected))


@dataclass(frozen=True)
class Rotary(Call):
    """Rotary position embeddings of queries and keys."""

    name: ClassVar[str] = "apply_rotary_pos_emb"
    part: ClassVar[str] = "rotary"

    def build(self, compile: Compile) -> Callable[..., Any]:
        def rotary(x: Any, cos: Any, sin: Any, dim: int) -> Any:
            cos, sin = cos.unsqueeze(dim), sin.unsqueeze(dim)
            half = x.shape[-1] // 2
            turned = torch.roll(x, half, -1)
            turned = torch.cat((-turned[..., :half], turned[..., half:]), -1)
            return x * cos + turned * sin

        # Of queries there are more heads than of keys: each has a function of its own.
        of_query, of_key = compile(rotary), compile(rotary)

        def apply(q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Any:
            given = cos, sin, unsqueeze_dim
            return _as_in_memory(of_query, q, *given), _as_in_memory(of_key, k, *given)

        return apply

    def computes(self) -> str:
        return "one kernel for queries, one for keys"

    def sample(self, module: Any) -> tuple[Sequence[Any], dict[str, Any]]:
        cos, sin = _numbers(1, 3, 4), _numbers(1, 3, 4).flip(-1)
        return (_numbers(1, 4, 3, 4), _numbers(1, 2, 3, 4), cos, sin), {}


@dataclass(frozen=True)
class Softmax(Call):
    """The eager attention: the softmax of its scores, with their scale and mask.

    Attributes:
        wide: whether it is computed in float32, whatever the scores are.
    """

    name: ClassVar[str] = "eager_attention_forward"
    part: ClassVar[str] = "softmax"
    wide: bool

    def build(self, compile: Compile) -> Callable[..., Any]:
        dtype = torch.float32 if self.wide else None

        @functools.cache  # modules of one class mostly have one scale: it is part of the program
        def scaled(scaling: float) -> tuple[Callable[..., Any], Callable[..., Any]]:
            def softmax(scores: Any, mask: Any) -> Any:
                scores = scores * scaling
                if mask is not None:
                    scores = scores + mask
                return F.softmax(scores, dim=-1, dtype=dtype).to(scores.dtype)

            return softmax, compile(softmax)

        def attend(
            module: Any,
            query: torch.Tensor,
            key: torch.Tensor,
            value: torch.Tensor,
            attention_mask: torch.Tensor | None,
            scaling: float | None = None,
            dropout: float = 0.0,
            **kwargs: Any,
        ) -> Any:
            groups = getattr(module, "num_key_value_groups", 1)
            key, value = _repeated(key, groups), _repeated(value, groups)
            plain, compiled = scaled(query.shape[-1] ** -0.5 if scaling is None else scaling)
            # The one row a head of a decoding step takes torch less time than a call.
            function = plain if query.shape[-2] == 1 else compiled
            weights = function(query @ key.transpose(2, 3), attention_mask)
            weights = F.dropout(weights, dropout, module.training)
            return (weights @ value).transpose(1, 2).contiguous(), weights

        return attend

    def computes(self) -> str:
        return "scale, mask and softmax: one kernel; decoding steps are torch's"

    def sample(self, module: Any) -> tuple[Sequence[Any], dict[str, Any]]:
        heads = 2 * int(getattr(module, "num_key_value_groups", 1))
        query, key, value = _numbers(1, heads, 3, 4), _numbers(1, 2, 5, 4), _numbers(1, 2, 5, 4)
        mask = _numbers(1, 1, 3, 5).round()
        return (module, query, key, value, mask), {"scaling": 0.3, "dropout": 0.0}


@dataclass(frozen=True)
class Attention(Replacement):
    """Replaces functions that the forward of attention layers calls.

    Attributes:
        calls: what is replaced.
        sizes: of heads: for each there are functions of their own, so that only lengths and
            batches vary in one.
    """

    calls: tuple[Call, ...]
    sizes: tuple[int, ...]

    def method(self, original: type[nn.Module]) -> Method:
        forward: Any = original.forward
        ours = {call.name: call.build(self.compile) for call in self.calls}
        found = types.FunctionType(
            forward.__code__, forward.__globals__ | ours, forward.__name__, forward.__defaults__
        )
        found.__kwdefaults__ = forward.__kwdefaults__

        @functools.wraps(forward)
        def chosen(self: Any, *args: Any, **kwargs: Any) -> Any:
            return (forward if left_to_torch() else found)(self, *args, **kwargs)

        return chosen

    def lines(self) -> Sequence[tuple[str, str]]:
        return [(call.part, call.computes()) for call in self.calls]

    def agrees(self, module: nn.Module) -> bool:
        return all(call.agrees(module) for call in self.calls)


def calls_of(kind: type[nn.Module], name: str) -> bool:
    """Whether the forward of a class calls a function of its module by this name, and no others'.

    One that is wrapped, or knows names of an enclosing function, cannot be given others.
    """
    forward = kind.forward
    plain = isinstance(forward, types.FunctionType) and not forward.__closure__
    return plain and name in forward.__code__.co_names and name in forward.__globals__


def _as_in_memory(
    rotary: Callable[..., Any], x: torch.Tensor, cos: Any, sin: Any, dim: int
) -> torch.Tensor:
    """Rotated heads, which stand beside each other in memory where they come from one product."""
    turned = x.transpose(1, 2)
    if dim == 1 and turned.is_contiguous():
        result: torch.Tensor = rotary(turned, cos, sin, 2).transpose(1, 2)
        return result
    found: torch.Tensor = rotary(x, cos, sin, dim)
    return found


def _repeated(x: torch.Tensor, groups: int) -> torch.Tensor:
    """Each head as often as queries share it."""
    if groups == 1:
        return x
    batch, heads, *rest = x.shape
    return x[:, :, None].expand(batch, heads, groups, *rest).reshape(batch, heads * groups, *rest)


def _numbers(*shape: int) -> torch.Tensor:
    count = torch.Size(shape).numel()
    return torch.linspace(-2, 3, count, dtype=torch.float64).sin().view(shape)
