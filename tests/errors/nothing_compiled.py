"""Asking for source before there is any."""

import babytriton as bt


@bt.jit
def f(x):
    return x + 1


def run():
    f.source()
