"""Exercise 5: functions of Relax's library inside the function.

``sigmoid`` and ``softmax`` come from ``tvm.relax.op`` here, not from torch. Their names resolve
like any others, and Relax says what shape and dtype they give. They fuse with their neighbours as
torch's own do. Such a function cannot run undecorated, since Relax takes no torch tensors: what it
should give is written once more, in torch.
"""

import torch
from tvm import relax
from tvm.relax.op import sigmoid

import babytriton as bt
from babytriton import Tensor


def add(a: Tensor(shape=(2, 3), dtype="float32"), b: Tensor(shape=(2, 3), dtype="float32")):
    out = a + b
    out = sigmoid(out)  # of Relax
    return out  # noqa: RET504


def attention(q, k, v):
    from tvm.relax.op.nn import softmax

    scores = relax.op.matmul(q, relax.op.permute_dims(k, [0, 2, 1]))
    left, right = relax.op.split(softmax(relax.op.multiply(scores, 0.25), axis=-1) @ v, 2, axis=-1)
    return left * 2, right


on_cpu, on_gpu = bt.jit("cpu")(add), bt.jit("gpu")(add)
print("Relax: an add of torch's, a sigmoid of Relax's")
print(on_cpu.lower().as_text())
compiled = on_gpu.lower().compile()
print("one kernel:", *compiled.kernels)
source = compiled.source()
print(source[source.rindex('extern "C"') :].strip())

a, b = torch.randn(2, 3), torch.randn(2, 3)
torch.testing.assert_close(on_cpu(a, b), torch.sigmoid(a + b))

q, k, v = torch.randn(3, 4, 5, 16).unbind()
left, right = bt.jit("cpu")(attention)(q, k, v)
expected = torch.softmax(q @ k.transpose(1, 2) * 0.25, -1) @ v
torch.testing.assert_close(left, expected[..., :8] * 2)
torch.testing.assert_close(right, expected[..., 8:])
print("both give what torch gives")

try:
    bt.jit("cpu")(lambda q, k: relax.op.matmul(q, k))(q, k)
except bt.CompileError as error:
    print(error)
