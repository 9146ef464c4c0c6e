"""Exercise 4: for loops, by recursion and unrolled.

A short loop over a range is written out. A longer one, or one whose end a tensor decides, becomes
a function that calls itself: not once a step, which would end the stack, but for the first half
of the steps and then for the second, so that the depth is the logarithm of their number.
"""

import torch

import babytriton as bt
from babytriton import Tensor


@bt.jit(target="cpu")
def unrolled(a: Tensor(shape=(2, 3), dtype="float32")):
    out = a
    for i in range(4):
        out = out * 0.5 + i
    return out


@bt.jit(target="cpu")
def looped(a: Tensor(shape=(2, 3), dtype="float32")):
    out = a
    for _ in range(1_000_000):
        out = out * 0.5 + 1
    return out


@bt.jit(target="cpu")
def until(a: Tensor(shape=(2, 3), dtype="float32")):
    steps = 0
    while a.abs().max() > 1:
        a = a * 0.5
        steps += 1
    return a, steps


a = torch.tensor([[1.0, -2.0, 3.0], [0.5, 4.0, -1.0]])

print("4 steps, written out and fused:")
print(unrolled.lower().schedule().kernels)
print("\n1,000,000 steps, a function that halves the range:")
print(looped.lower().as_text())
print("while a tensor says so:")
print(until.lower().as_text())

torch.testing.assert_close(unrolled(a), unrolled.fn(a))
torch.testing.assert_close(looped(a), torch.full((2, 3), 2.0))
for scale in (0.1, 1.0, 1e6):
    found, steps = until(a * scale)
    expected, expected_steps = until.fn(a * scale)
    torch.testing.assert_close(found, expected)
    assert steps == expected_steps
print("all give what Python gives; the last loop took", steps, "steps")

compiled = bt.jit(bt.Target("cuda", arch="sm_80"))(until.fn).lower(a).compile()
print("\nThe same for a GPU:")
print(compiled.source())
