"""PTX without a CUDA compiler."""

import os

import torch

import babytriton as bt
from babytriton.runtime import toolchain


@bt.jit(bt.Target("cuda", arch="sm_80"))
def f(x):
    return x + 1


def run():
    compiled = f.lower(torch.ones(3)).compile()
    path, found = os.environ["PATH"], toolchain.pip_files
    os.environ["PATH"], toolchain.pip_files = "", lambda pattern: []
    try:
        compiled.source("ptx")
    finally:
        os.environ["PATH"], toolchain.pip_files = path, found
