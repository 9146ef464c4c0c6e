"""A linear layer with its bias and GELU as one operator of torch, with gradients.

The body is plain torch. Its schema is what the annotations say; its gradient is derived from the
body; torch.compile and torch.export see one operator.
"""

import torch
from torch import nn
from torch.nn import functional as F

import babytriton as bt


@bt.library_op("example_operators::linear_gelu")
def linear_gelu(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """GELU of a linear layer: x is (..., n), weight (m, n), bias (m,); the result is (..., m)."""
    if weight.ndim != 2 or x.shape[-1] != weight.shape[1]:
        raise ValueError(f"weight is {tuple(weight.shape)}, and rows of x have {x.shape[-1]}")
    return F.gelu(F.linear(x, weight, bias))


class FeedForward(nn.Module):
    """Two layers of a transformer block."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(linear_gelu(x, self.up.weight, self.up.bias))


layer, x = FeedForward(64, 256), torch.randn(8, 10, 64)
expected = layer.down(F.gelu(layer.up(x)))
torch.testing.assert_close(layer(x), expected)

layer(x).sum().backward()
grads = [p.grad for p in layer.parameters()]
torch.testing.assert_close(grads, list(torch.autograd.grad(expected.sum(), layer.parameters())))
print("result and gradients are torch's; kernels:", *linear_gelu.function.specializations())

compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
torch.testing.assert_close(compiled(x), expected)
rows = torch.export.Dim("rows")
program = torch.export.export(layer, (x,), dynamic_shapes={"x": {0: rows}})
torch.testing.assert_close(program.module()(x[:3]), expected[:3])
operators = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
print("torch.export keeps:", *sorted(operators))

try:
    linear_gelu(x, torch.randn(256, 63))
except bt.CompileError as error:
    print(error)
