"""An operator that is to write a result into a parameter it does not have."""

import babytriton as bt


def halved(x):
    return x / 2


def run():
    bt.library_op("babytriton_errors::halved", halved, inplace=["out"])
