"""Every row of the table on the CPU target, against torch."""

import pytest
import torch

import babytriton as bt
from tests.conformance.sample import Expected, Sample, layouts
from tests.conformance.samples import SAMPLES

CASES = [
    pytest.param(sample, dtype, id=f"{sample.op}-{i}-{str(dtype).removeprefix('torch.')}")
    for i, sample in enumerate(SAMPLES)
    for dtype in sample.dtypes
]


@pytest.mark.parametrize(("sample", "dtype"), CASES)
def test_matches_torch(sample: Sample, dtype: torch.dtype) -> None:
    compiled = bt.jit("cpu")(sample.fn)
    arguments = sample.arguments(dtype)
    Expected(sample, arguments).check(compiled(*arguments))
    if dtype != sample.dtypes[0]:
        return
    # Another layout is no other program: these calls run what was compiled above.
    for _, moved in layouts(arguments):
        Expected(sample, moved).check(compiled(*moved))
