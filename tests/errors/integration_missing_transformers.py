import sys
from unittest import mock

import torch

import babytriton as bt


def run():
    with mock.patch.dict(sys.modules, {"transformers": None}):
        bt.integrations.transformers.optimize(torch.nn.Linear(2, 3))
