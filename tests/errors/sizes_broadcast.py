"""Operands whose named sizes do not fit."""

import babytriton as bt


@bt.jit
def f(x: bt.Tensor["n", 4], y: bt.Tensor["m", 4]):  # noqa: F821
    return x + y


def run():
    f.lower()
