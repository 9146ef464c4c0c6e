"""A long chain of functions, none of which calls itself."""

import torch

import babytriton as bt


def after(inner):
    def step(x):
        return inner(x) + 1

    return step


chain = torch.exp
for _ in range(50):
    chain = after(chain)


@bt.jit
def f(x):
    return chain(x)


def run():
    f(torch.ones(3))
