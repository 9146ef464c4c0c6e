"""An operator without a namespace."""

import babytriton as bt


def double(x):
    return x * 2


def run():
    bt.library_op("double", double)
