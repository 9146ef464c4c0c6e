"""CUDA source for a program that was compiled for the CPU."""

import torch

import babytriton as bt


@bt.jit(bt.Target("cpu", arch="x86-64"))
def f(x):
    return x + 1


def run():
    f.lower(torch.ones(3)).compile().with_source("")
