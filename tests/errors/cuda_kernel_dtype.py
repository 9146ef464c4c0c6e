"""A CUDA kernel that takes elements of another type."""

import torch

import babytriton as bt

same = bt.cuda_kernel(
    "__global__ void same(const double* x, float* y) { *y = *x; }",
    name="same",
    grid=1,
    block=3,
    cpu=lambda x: x.clone(),
)


@bt.jit("gpu")
def f(x):
    return same(x)


def run():
    f.lower(torch.ones(3))
