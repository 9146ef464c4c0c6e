"""Integers for a function that torch has for floats alone, which meta tensors do not tell."""

import torch

import babytriton as bt


@bt.jit("cpu")
def probabilities(scores):
    return torch.softmax(scores, -1)


def run():
    probabilities(torch.arange(12).view(3, 4))
