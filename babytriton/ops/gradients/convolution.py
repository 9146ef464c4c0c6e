"""Gradients of convolutions: by our own where these are small, and otherwise by torch's library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F

from babytriton.ops.choice import is_large_convolution
from babytriton.ops.sizes import each, symbolic_in

CONVOLVE = {1: torch.conv1d, 2: torch.conv2d, 3: torch.conv3d}
TRANSPOSED = {1: torch.conv_transpose1d, 2: torch.conv_transpose2d, 3: torch.conv_transpose3d}


@dataclass(frozen=True)
class _Form:
    """How a convolution is made: the parameters that torch's callables share, a size a dimension.

    Attributes:
        added: to the sizes of the result of a transposed convolution.
    """

    transposed: bool
    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    added: Sequence[int]
    groups: int

    @property
    def rank(self) -> int:
        return len(self.stride)

    @property
    def parameters(self) -> dict[str, Any]:
        """Of a convolution of the other kind, as keywords."""
        return {
            "stride": self.stride,
            "padding": self.padding,
            "dilation": self.dilation,
            "groups": self.groups,
        }


def convolution(rank: int) -> Callable[..., Any]:
    """The rule of a convolution over as many dimensions."""

    def rule(
        grad: Any,
        result: Any,
        input: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Any:
        """Of a convolution."""
        apart = each(dilation, rank)
        around, behind = [0] * rank, [0] * rank
        if padding == "same":
            whole = [d * (k - 1) for d, k in zip(apart, weight.shape[2:])]
            # An odd total goes behind, as in torch.
            around, behind = [n // 2 for n in whole], [n % 2 for n in whole]
        elif padding != "valid":
            around = each(padding, rank)
        form = _Form(False, each(stride, rank), around, apart, [0] * rank, groups)
        return _gradients(form, grad, input, weight, behind)

    return rule


def transposed_convolution(rank: int) -> Callable[..., Any]:
    """The rule of a transposed convolution over as many dimensions."""

    def rule(
        grad: Any,
        result: Any,
        input: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
    ) -> Any:
        """Of a transposed convolution."""
        steps, around, apart = (each(x, rank) for x in (stride, padding, dilation))
        form = _Form(True, steps, around, apart, each(output_padding, rank), groups)
        return _gradients(form, grad, input, weight, [0] * rank)

    return rule


def _gradients(form: _Form, grad: Any, input: Any, weight: Any, behind: Sequence[int]) -> Any:
    """The gradients of the input, the weight and the bias.

    Args:
        form: of the convolution.
        grad: of its result.
        input: to it, with or without a batch dimension.
        weight: of it.
        behind: how many more zeros it takes behind the input's numbers than before them.
    """
    rank, sizes = form.rank, input.shape[-form.rank :]
    of_bias = grad.sum([d for d in range(grad.ndim) if d != grad.ndim - rank - 1])
    has_batch = input.ndim == rank + 2
    if not has_batch:
        grad, input = grad.unsqueeze(0), input.unsqueeze(0)
    if any(behind):
        input = F.pad(input, [n for more in reversed(behind) for n in (0, more)])
    known = not symbolic_in([grad.shape, input.shape, weight.shape])
    own = known and not is_large_convolution(grad.shape, weight.shape)
    if known and 0 in (*grad.shape, *input.shape):
        of_input, of_weight = torch.zeros_like(input), torch.zeros_like(weight)
    elif own:
        of_input = _of_input(form, grad, input, weight)
        of_weight = _of_weight(form, grad, input, weight)
    else:
        of_input = _by_library(form, grad, input, weight, 0)
        of_weight = _by_library(form, grad, input, weight, 1)
    for dim, n in zip(range(2, rank + 2), sizes):
        if behind[dim - 2]:
            of_input = of_input.narrow(dim, 0, n)
    return of_input if has_batch else of_input.squeeze(0), of_weight, of_bias


def _by_library(form: _Form, grad: Any, input: Any, weight: Any, number: int) -> Any:
    """One gradient at a time: what nothing asks for is not computed."""
    wanted = [n == number for n in range(3)]
    args = (grad, input, weight, None, form.stride, form.padding, form.dilation)
    rest = (form.transposed, form.added, form.groups, wanted)
    return input.emitter.call(_LIBRARY[number], (*args, *rest), {})


@dataclass(frozen=True)
class _OfConvolution:
    """torch's own gradient of a convolution, of one of its arguments.

    Attributes:
        number: of the argument.
        why: torch runs it.
    """

    number: int
    why: str = "torch's library is faster for a convolution of this size"
    __name__ = "gradient_of_convolution"

    def __call__(self, *args: Any) -> Any:
        return torch.ops.aten.convolution_backward(*args)[self.number]


_LIBRARY = [_OfConvolution(number) for number in range(2)]


def _of_input(form: _Form, grad: Any, input: Any, weight: Any) -> Any:
    """A convolution of the other kind."""
    if form.transposed:
        found = CONVOLVE[form.rank](grad, weight, **form.parameters)
    else:
        reached = [
            (y - 1) * s - 2 * p + d * (k - 1) + 1
            for y, s, p, d, k in zip(
                grad.shape[2:], form.stride, form.padding, form.dilation, weight.shape[2:]
            )
        ]
        # The stride may pass by the last numbers.
        left = [n - m for n, m in zip(input.shape[2:], reached)]
        found = TRANSPOSED[form.rank](grad, weight, output_padding=left, **form.parameters)
    return _cut(found, input.shape)


def _of_weight(form: _Form, grad: Any, input: Any, weight: Any) -> Any:
    """A convolution of the input by the gradient, with channels for batches: strides and
    dilations change places."""
    large, small = (grad, input) if form.transposed else (input, grad)
    groups = form.groups
    batch, channels, *sizes = large.shape
    if groups > 1:
        large = large.reshape(batch, groups, channels // groups, *sizes).transpose(0, 1)
        large = large.reshape(groups * batch, channels // groups, *sizes)
    swapped = replace(form, stride=form.dilation, dilation=form.stride)
    found = CONVOLVE[form.rank](large.transpose(0, 1), small.transpose(0, 1), **swapped.parameters)
    return _cut(found.transpose(0, 1), weight.shape)


def _cut(found: Any, shape: Sequence[int]) -> Any:
    """The first numbers in each dimension, as many as there are to be."""
    for dim, n in enumerate(shape):
        if found.shape[dim] != n:
            found = found.narrow(dim, 0, n)
    return found
