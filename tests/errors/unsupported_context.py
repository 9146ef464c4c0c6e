"""A context manager that would have to run with the program."""

import torch

import babytriton as bt


@bt.jit
def f(x):
    with torch.no_grad(), torch.profiler.profile():
        return x @ x


def run():
    f(torch.ones(3, 3))
