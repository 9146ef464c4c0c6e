"""An operator with a parameter of a type that operators do not have."""

import babytriton as bt


def scaled(x, options: dict):
    return x * options["scale"]


def run():
    bt.library_op("babytriton_errors::scaled", scaled)
