"""Step 12: the same function for a GPU.

A GPU needs to know which thread computes what. That is scheduling: the first rule that fits a
kernel binds its loops to ``blockIdx.x`` and ``threadIdx.x``. CUDA C++ follows from it. All this
works without a GPU; only the call at the end needs one.
"""

import torch

import babytriton as bt
from babytriton import Tensor


@bt.jit(target="gpu")
def add(a: Tensor(shape=(2, 3), dtype="float32"), b: Tensor(shape=(2, 3), dtype="float32")):
    return a + b


scheduled = add.lower().schedule()
print("scheduled TensorIR:")
print(scheduled.as_text())

print("CUDA:")
source = scheduled.compile().source()
print(source[source.rindex('extern "C"') :].strip())

if torch.cuda.is_available():
    a = Tensor(shape=(2, 3), dtype="float32")
    b = Tensor(shape=(2, 3), dtype="float32")
    a.data = torch.ones(size=(2, 3), dtype=torch.float32, device="cuda")
    b.data = torch.ones(size=(2, 3), dtype=torch.float32, device="cuda")
    print(add(a, b))
else:
    print("no GPU here: compiled, not run")
