"""Set-up shared by all tests: the emulated GPU, thread counts, golden files."""

from __future__ import annotations

import gc
import logging

import pytest
import torch

from tests.emulator import emulator

# The emulator stands in for CUDA's libraries, which TVM looks for when it is imported.
if emulator.available_gpu() == "emulated":
    emulator.install()

torch.set_num_threads(1)
logging.getLogger("torch").setLevel(logging.ERROR)

# What torch and TVM made when they were imported stays: looking through it at each collection of
# garbage takes a sixth of the time.
gc.collect()
gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite expected outputs")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether expected outputs are to be rewritten."""
    return bool(request.config.getoption("--update-golden"))
