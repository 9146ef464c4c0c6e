"""A tensor whose elements the parameter of a CUDA function may not hold."""

import torch

import babytriton as bt

next_one = bt.cuda_function(
    "__device__ int next_one(int n) { return n + 1; }", name="next_one", cpu=lambda n: n + 1
)


@bt.jit("gpu")
def f(n):
    return next_one(n)


def run():
    f.lower(torch.arange(3))
