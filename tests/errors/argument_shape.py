"""Another rank than the annotation's."""

import torch

import babytriton as bt


@bt.jit
def f(x: bt.Tensor["n", 4]):  # noqa: F821
    return x * 2


def run():
    f(torch.ones(3, 4, 1))
