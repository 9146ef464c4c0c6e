"""A CUDA function that takes more than its call gives."""

import torch

import babytriton as bt

scaled = bt.cuda_function(
    "__device__ float scaled(float x, float k) { return x * k; }", name="scaled", cpu=lambda x: x
)


@bt.jit("gpu")
def f(x):
    return scaled(x)


def run():
    f.lower(torch.ones(3))
