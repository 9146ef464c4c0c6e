"""A read-only array that is written to."""

import numpy as np

import babytriton as bt


@bt.jit
def f(x):
    x.add_(1)


def run():
    x = np.ones(3)
    x.flags.writeable = False
    f(x)
