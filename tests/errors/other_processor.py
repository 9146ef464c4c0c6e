"""A call of a function that is compiled for a processor with more instructions than this one."""

from unittest import mock

import torch

import babytriton as bt
from babytriton import targets


@bt.jit(bt.Target("cpu", arch="x86-64-v4"))
def f(x):
    return x + 1


def run():
    with mock.patch.object(targets, "_present_arch", return_value="haswell"):
        f(torch.ones(3))
