"""Two sizes for one name."""

import torch

import babytriton as bt


@bt.jit
def f(x: bt.Tensor["n", 4], w: bt.Tensor["n"]):  # noqa: F821
    return x * w[:, None]


def run():
    f(torch.ones(3, 4), torch.ones(3))
    f(torch.ones(3, 4), torch.ones(5))
