"""What a first call loads, and what it leaves to torch: run by test_calls in a fresh process."""

from __future__ import annotations

import importlib.util
import sys

import torch

import babytriton as bt
from babytriton.ops import deferred


@bt.jit("cpu")
def gated(x):
    return torch.sigmoid(x * x) * x


with deferred.unneeded():
    import sympy as kept

    basic = kept.Basic
    assert importlib.util.find_spec("sympy") is not None
    assert not isinstance(3, (str, basic))

x = torch.randn(5, 7)
expected = gated.fn(x)
found = gated(x)
for name in ("torch._dynamo", "sympy", "torch.fx.experimental.symbolic_shapes"):
    assert name not in sys.modules, name
assert "_dynamo" not in vars(torch)
assert not hasattr(torch.fx.experimental, "symbolic_shapes")
torch.testing.assert_close(found, expected)
compiled = torch.compile(gated.fn, backend="eager")
assert torch.equal(compiled(x), expected)
assert "torch._dynamo" in sys.modules
assert torch.empty(2, device="meta").mul(3).shape == (2,)


@bt.jit("cpu", dynamic=True)
def of_any_size(x):
    return torch.cat([x, x * 2])


for n in (3, 5):
    torch.testing.assert_close(of_any_size(x[:n]), of_any_size.fn(x[:n]))
import sympy  # noqa: E402
from torch.fx.experimental.symbolic_shapes import ShapeEnv, guard_or_false  # noqa: E402

assert isinstance(sympy.Symbol("n"), sympy.Basic)
assert guard_or_false(True)
assert ShapeEnv() is not None

# What was kept from before is the same as what is loaded now.
assert isinstance(sympy.Symbol("n"), basic)


class Own(basic):
    """As another library's."""


assert issubclass(Own, sympy.Basic)
assert issubclass(Own, basic)
kept.noted = True
assert sympy.noted
assert set(dir(kept)) == set(dir(sympy))
print("done")
