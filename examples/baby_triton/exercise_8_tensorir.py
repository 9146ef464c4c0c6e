"""Exercise 8: TensorIR, not Relax, as what the code generator makes.

Relax says what is computed with whole tensors; loops come later, by a pass. A ``kernel`` is the
same Python one level down: the function says what happens to each element, and the code generator
makes TensorIR of it, loops and blocks and all. The schedule rules are those that Relax's
operators get, too.
"""

import torch

import babytriton as bt
from babytriton import Tensor


@bt.kernel(target="gpu")
def add(
    a: Tensor(shape=(2, 3), dtype="float32"),
    b: Tensor(shape=(2, 3), dtype="float32"),
    out: Tensor(shape=(2, 3), dtype="float32"),
):
    for i, j in bt.grid(2, 3):
        total = a[i, j] + b[i, j]
        out[i, j] = total + a[i, j]


lowered = add.lower()
print("TensorIR, as the function says it:")
print(lowered.as_text())

scheduled = lowered.schedule()
print("scheduled for a GPU:")
print(scheduled.as_text())

print("CUDA:")
source = scheduled.compile().source()
print(source[source.rindex('extern "C"') :].strip())

a, b, out = torch.ones(2, 3), torch.ones(2, 3), torch.empty(2, 3)
bt.kernel("cpu")(add)(a, b, out)
torch.testing.assert_close(out, torch.full((2, 3), 3.0))
print("run on the cpu, equal to torch:")
print(out)
