"""RMSNorm as an operator of torch: its gradient written by hand, and in place with a residual.

https://arxiv.org/abs/1910.07467 has the formula; its gradient with respect to x is
``inverse * (g - y * mean(g * y))`` with ``y = x * inverse`` and ``g = grad * weight``.
"""

import torch

import babytriton as bt


@bt.library_op("example_operators::rms_norm")
def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """Each row of x, (..., n), over its root mean square, times weight, (n,)."""
    wide = x.float()
    inverse = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * inverse).to(x.dtype) * weight


@rms_norm.backward
def rms_norm_backward(grad, result, x, weight, eps):
    wide, grad = x.float(), grad.float()
    inverse = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    y, g = wide * inverse, grad * weight.float()
    grad_x = inverse * (g - y * (g * y).mean(-1, keepdim=True))
    return grad_x, grad * y.to(x.dtype)  # summed over the rows by who asks


@bt.library_op("example_operators::add_rms_norm", inplace=["x", "residual"])
def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """What a transformer block begins with: RMSNorm of a sum, and the sum."""
    total = x + residual
    return rms_norm(total, weight, eps), total


x = torch.randn(6, 256, requires_grad=True)
weight = torch.rand(256, requires_grad=True)
rms_norm(x, weight).square().sum().backward()
expected = torch.autograd.grad(rms_norm.fn(x, weight).square().sum(), (x, weight))
torch.testing.assert_close((x.grad, weight.grad), expected)
gradient = rms_norm.function.lower(x, weight).compile().backward
print("the gradient written by hand is autograd's; kernels:", *gradient.kernels)

with torch.no_grad():
    hidden, residual = torch.randn(6, 256), torch.randn(6, 256)
    expected = add_rms_norm.fn(hidden, residual, weight)
    add_rms_norm.inplace(hidden, residual, weight)
torch.testing.assert_close((hidden, residual), expected)
kernels = add_rms_norm.function.lower(hidden, residual, weight.detach()).schedule().kernels
print("in place gives the same; kernels:", *kernels)

print(bt.testing.check(rms_norm, [(x.detach(), weight.detach())]))
