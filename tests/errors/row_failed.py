"""A row that user code registered raises."""

import torch

import babytriton as bt


def build(site, x):
    raise ValueError(f"no kernel for {x.meta.dtype}")


@bt.jit
def f(x):
    y = x + 1
    return torch.erf(y)


def run():
    f.register(torch.erf, build=build)
    f(torch.ones(8))
