"""A NumPy array of what torch has no dtype for."""

import numpy as np

import babytriton as bt


@bt.jit
def f(x):
    return x["a"] + 1


def run():
    f({"a": np.array(["one", "two"])})
