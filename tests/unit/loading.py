"""What a first call loads, and what it leaves to torch: run by test_calls in a fresh process."""

from __future__ import annotations

import sys

import torch

import babytriton as bt


@bt.jit("cpu")
def gated(x):
    return torch.sigmoid(x * x) * x


x = torch.randn(5, 7)
expected = gated.fn(x)
torch.testing.assert_close(gated(x), expected)
assert "torch._dynamo" not in sys.modules
assert "_dynamo" not in vars(torch)
compiled = torch.compile(gated.fn, backend="eager")
assert torch.equal(compiled(x), expected)
assert "torch._dynamo" in sys.modules
assert torch.empty(2, device="meta").mul(3).shape == (2,)
print("done")
