"""Lowering by an annotation that leaves a size open."""

import babytriton as bt


@bt.jit
def f(x: bt.Tensor["n", 4]):  # noqa: F821
    return x + 1


def run():
    f.lower()
