"""Another dtype than the annotation's."""

import torch

import babytriton as bt


@bt.jit
def f(x: bt.Tensor[(3,), "float16"]):  # noqa: F821
    return x + 1


def run():
    f(torch.ones(3))
