"""A number that the parameter of a CUDA function does not hold."""

import torch

import babytriton as bt

clipped = bt.cuda_function(
    "__device__ float clipped(float x, signed char limit) { return x > limit ? limit : x; }",
    name="clipped",
    cpu=lambda x, limit: x.clamp(max=limit),
)


@bt.jit("gpu")
def f(x):
    return clipped(x, 300)


def run():
    f.lower(torch.ones(3))
