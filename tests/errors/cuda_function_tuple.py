"""A CUDA function whose `cpu` gives several tensors."""

import torch

import babytriton as bt

scaled = bt.cuda_function(
    "__device__ float scaled(float x) { return x * 2; }", name="scaled", cpu=lambda x: (x, x)
)


@bt.jit("gpu")
def f(x):
    return scaled(x)


def run():
    f.lower(torch.ones(3))
