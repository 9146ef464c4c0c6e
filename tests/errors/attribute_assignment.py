"""A module that counts its calls in an attribute."""

import torch

import babytriton as bt


class Counted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x * self.calls


def run():
    bt.jit(Counted())(torch.ones(3))
