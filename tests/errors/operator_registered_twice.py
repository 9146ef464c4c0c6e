"""Two operators of one name."""

import babytriton as bt


def double(x):
    return x * 2


def run():
    bt.library_op("babytriton_errors::double", double)
    bt.library_op("babytriton_errors::double", double)
