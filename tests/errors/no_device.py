"""A call for a GPU that is not there."""

import torch

import babytriton as bt
from babytriton.runtime import toolchain


@bt.jit("gpu")
def f(x):
    return x + 1


def run():
    available, version, driver = (
        torch.cuda.is_available,
        torch.version.cuda,
        toolchain.driver_version,
    )
    torch.cuda.is_available, torch.version.cuda = lambda: False, "13.0"
    toolchain.driver_version = lambda: None
    try:
        f(torch.ones(3))
    finally:
        torch.cuda.is_available, torch.version.cuda = available, version
        toolchain.driver_version = driver
