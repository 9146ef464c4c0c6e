"""A function of elements that takes a pointer."""

import torch

import babytriton as bt

first = bt.cuda_function(
    "__device__ float first(const float* x) { return x[0]; }", name="first", cpu=lambda x: x
)


@bt.jit("gpu")
def f(x):
    return first(x)


def run():
    f.lower(torch.ones(3))
