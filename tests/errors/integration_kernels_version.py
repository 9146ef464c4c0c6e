import sys
import types
from unittest import mock

import babytriton as bt


def run():
    found = types.ModuleType("transformers.utils.import_utils")
    found.is_kernels_available = lambda: False
    found.KERNELS_MIN_VERSION, found.KERNELS_MAX_VERSION = "0.18.2", "0.19.0"
    kernels = types.ModuleType("kernels")
    kernels.__version__ = "0.17.2"
    modules = {"transformers.utils.import_utils": found, "kernels": kernels}
    with mock.patch.dict(sys.modules, modules):
        bt.integrations.transformers.register_kernels()
