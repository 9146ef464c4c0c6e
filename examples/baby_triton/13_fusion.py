"""Step 13: two adds become one kernel.

In Relax there are two operators. ``FuseOps`` groups what can be computed in one go and ``FuseTIR``
makes one TensorIR function of the group: the sum in the middle is never stored. One kernel is
launched instead of two.
"""

import torch

import babytriton as bt
from babytriton import Tensor


@bt.jit
def add(a: Tensor(shape=(2, 3), dtype="float32"), b: Tensor(shape=(2, 3), dtype="float32")):
    out = a + b
    return out + a


lowered = bt.jit("gpu")(add).lower()
print("Relax: two adds")
print(lowered.as_text())

scheduled = lowered.schedule()
print("TensorIR: one kernel,", *scheduled.kernels)
print(scheduled.as_text())

print("CUDA:")
source = scheduled.compile().source()
print(source[source.rindex('extern "C"') :].strip())

device = "cuda" if torch.cuda.is_available() else "cpu"
a = torch.ones(2, 3, device=device)
b = torch.ones(2, 3, device=device)
result = add(a, b)
torch.testing.assert_close(result, add.fn(a, b))
print(f"run on the {device}, equal to torch:")
print(result)
