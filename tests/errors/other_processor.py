"""A call of a function that is compiled for a processor with more instructions than this one."""

from unittest import mock

import torch

import babytriton as bt
from babytriton import processors


@bt.jit(bt.Target("cpu", arch="x86-64-v4"))
def f(x):
    return x + 1


def run():
    here, other = processors.features("haswell"), processors.features("x86-64-v4")
    found = {name: name in here for name in here | other}
    with mock.patch.object(processors, "_found", return_value=found):
        f(torch.ones(3))
