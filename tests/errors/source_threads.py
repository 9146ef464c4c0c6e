"""Edited source whose kernel is compiled for fewer threads than it is launched with."""

import torch

import babytriton as bt


@bt.jit(bt.Target("cuda", arch="sm_80"))
def f(x):
    return x + 1


def run():
    compiled = f.lower(torch.ones(5000)).compile()
    compiled.with_source(
        compiled.source().replace("__launch_bounds__(128)", "__launch_bounds__(64)")
    )
