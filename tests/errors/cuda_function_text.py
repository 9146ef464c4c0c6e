"""A text as the argument of a CUDA function."""

import torch

import babytriton as bt

scaled = bt.cuda_function(
    "__device__ float scaled(float x, float k) { return x * k; }",
    name="scaled",
    cpu=lambda x, k: x * k,
)


@bt.jit("gpu")
def f(x):
    return scaled(x, "2")


def run():
    f.lower(torch.ones(3))
