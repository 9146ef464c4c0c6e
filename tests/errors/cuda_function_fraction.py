"""A fraction for a parameter of whole numbers of a CUDA function."""

import torch

import babytriton as bt

clipped = bt.cuda_function(
    "__device__ float clipped(float x, int limit) { return x > limit ? limit : x; }",
    name="clipped",
    cpu=lambda x, limit: x.clamp(max=limit),
)


def f(x):
    return clipped(x, 4.5)


def run():
    bt.jit("gpu")(f).lower(torch.ones(3))
