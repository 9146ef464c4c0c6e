"""Exercise 3: if and else, and where the dataflow blocks are.

A condition on a tensor is known only at run time, so both branches are compiled. Each becomes a
function of its own, as TVM fuses inside functions; an If in Relax calls one of them. What both
branches bind is one variable again after the If: the symbol table keeps a copy for each branch.
"""

import torch

import babytriton as bt
from babytriton import Tensor


@bt.jit(target="cpu")
def choose(a: Tensor(shape=(2, 3), dtype="float32"), b: Tensor(shape=(2, 3), dtype="float32")):
    out = a + b
    if out.sum() > 0:
        out = out * 2 + a
    else:
        out = out - b * 3
    return out


@bt.jit(target="cpu")
def without_else(a: Tensor(shape=(2, 3), dtype="float32")):
    if a.sum() > 0:
        a = a + 1
    return a


@bt.jit(target="cpu")
def scoped(a: Tensor(shape=(2, 3), dtype="float32")):
    if a.sum() > 0:
        out = a * 2
    return out


lowered = choose.lower()
print("before the passes: an If, and no dataflow block yet")
print(lowered.as_text())
scheduled = lowered.schedule()
print("after the passes: dataflow blocks before the If and in its branches; an If ends a block")
print(scheduled.as_text())
print("kernels:", scheduled.kernels)

a = torch.tensor([[1.0, -2.0, 3.0], [0.5, 4.0, -1.0]])
for b in (a, -2 * a):
    torch.testing.assert_close(choose(a, b), choose.fn(a, b))
for x in (a, -a):
    torch.testing.assert_close(without_else(x), without_else.fn(x))
print("every branch gives what Python gives")

print("\nA name that only one branch binds:")
try:
    scoped(a)
except bt.CompileError as error:
    print(error)

compiled = bt.jit(bt.Target("cuda", arch="sm_80"))(choose.fn).lower(a, a).compile()
print("\nThe same for a GPU, a kernel a branch:")
print(compiled.source())
