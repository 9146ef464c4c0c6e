"""Edited source whose kernel would have to be told how much memory its threads share."""

import torch

import babytriton as bt


@bt.jit(bt.Target("cuda", arch="sm_80"))
def f(x):
    return x + 1


def run():
    compiled = f.lower(torch.ones(5000)).compile()
    before, opening, after = compiled.source().partition("{")
    compiled.with_source(f"{before}{opening} extern __shared__ float kept[];{after}")
