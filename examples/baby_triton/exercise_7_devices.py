"""Exercise 7: one function, two devices.

``with bt.device(...)`` says where a block computes. Each kernel is scheduled and compiled for its
device; a value that is needed on the other one is copied there, once. It is one function still,
and one call. All this works without a GPU; only the call at the end needs one.
"""

import torch

import babytriton as bt
from babytriton import Tensor


@bt.jit("cpu")
def add(x: Tensor(shape=(2, 3), dtype="float32"), y: Tensor(shape=(2, 3), dtype="float32")):
    with bt.device("cpu"):
        total = x + y
    with bt.device("gpu"):
        out = total + x
    return out  # noqa: RET504


lowered = add.lower()
print("Relax: two transfers")
print(lowered.as_text())

scheduled = lowered.schedule()
print("TensorIR: a kernel for each device,", *scheduled.kernels)
compiled = scheduled.compile()

print("for the CPU, LLVM IR:")
lines = compiled.source("llvm").splitlines()
print(next(line for line in lines if "define" in line and scheduled.kernels[0] in line))
print("for the GPU, CUDA:")
source = compiled.source("cuda")
print(source[source.rindex('extern "C"') :].strip())


# The same with both blocks on one device: nothing is copied, and the two adds are one kernel.
@bt.jit("cpu")
def add_on_cpu(x, y):
    with bt.device("cpu"):
        total = x + y
    with bt.device("cpu"):
        out = total + x
    return out  # noqa: RET504


x, y = torch.ones(2, 3), torch.ones(2, 3)
result = add_on_cpu(x, y)
torch.testing.assert_close(result, x + y + x)
print("on the CPU alone:", *add_on_cpu.lower(x, y).schedule().kernels)
print(result)

if torch.cuda.is_available():
    out = add(x, y)
    print("on both:", out)
    torch.testing.assert_close(out.cpu(), x + y + x)
else:
    print("no GPU here: compiled, not run")
