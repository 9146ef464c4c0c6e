"""A size without a number, where none may be symbolic."""

import babytriton as bt


@bt.jit(dynamic=False)
def f(x: bt.Tensor["n", 4]):  # noqa: F821
    return x * 2


def run():
    f.lower()
