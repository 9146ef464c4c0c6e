"""A numpy array where a tensor is meant."""

import numpy as np

import babytriton as bt


@bt.jit
def f(x):
    return x["a"] + 1


def run():
    f({"a": np.ones(3)})
