"""A number where a CUDA kernel takes a pointer."""

import torch

import babytriton as bt

sum_of = bt.cuda_kernel(
    "__global__ void sum_of(const float* x, const float* k, float* y) { *y = *x + *k; }",
    name="sum_of",
    grid=1,
    block=3,
    cpu=lambda x, k: x + k,
)


@bt.jit("gpu")
def f(x):
    return sum_of(x, 2.0)


def run():
    f.lower(torch.ones(3))
