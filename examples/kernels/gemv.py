"""A matrix times a vector, in half precision: the sum is a reduction.

``total`` starts anew in each row, so rows run in parallel. The inner loop adds up to one number:
it is scheduled as torch.sum is, in vector lanes on the CPU, by a whole thread block on a GPU.
Called from a compiled function, the kernel is one of its kernels.
"""

import torch

import babytriton as bt


@bt.kernel
def gemv(matrix, vector, out):
    n, m = matrix.shape
    for i in range(n):
        total = 0.0
        for j in range(m):
            total += matrix[i, j].float() * vector[j].float()
        out[i] = total


@bt.jit
def layer(matrix, vector, bias):
    out = torch.empty_like(bias)
    gemv(matrix, vector, out)
    return torch.relu(out + bias)


device = "cuda" if torch.cuda.is_available() else "cpu"
matrix = torch.randn(300, 512, device=device).half()
vector = torch.randn(512, device=device).half()
bias = torch.randn(300, device=device).half()

out = torch.empty_like(bias)
gemv(matrix, vector, out)
torch.testing.assert_close(out, (matrix.double() @ vector.double()).half())
rules = [
    str(f.attrs["babytriton.rule"])
    for f in gemv.lower(matrix, vector, out).schedule().mod.functions.values()
]
print("gemv equals torch; scheduled by:", *rules)

expected = torch.relu(out + bias)
torch.testing.assert_close(layer(matrix, vector, bias), expected)
print("in a compiled function:", *layer.lower(matrix, vector, bias).schedule().kernels)
