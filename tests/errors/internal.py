"""A failure that is not the user's: it says so, and shows no traceback of TVM's."""

import torch

import babytriton as bt
from babytriton.passes import pipeline


@bt.jit("cpu")
def f(x):
    return x + 1


def run():
    backend_of, pipeline.backend_of = pipeline.backend_of, {}.__getitem__
    try:
        f(torch.ones(3))
    finally:
        pipeline.backend_of = backend_of
