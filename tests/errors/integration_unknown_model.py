import sys
import types
import warnings
from unittest import mock

import torch

import babytriton as bt


class Classifier(torch.nn.Sequential):
    pass


def run():
    transformers = types.ModuleType("transformers")
    with mock.patch.dict(sys.modules, {"transformers": transformers}), warnings.catch_warnings():
        warnings.simplefilter("error")
        bt.integrations.transformers.optimize(Classifier(torch.nn.Linear(2, 3)))
