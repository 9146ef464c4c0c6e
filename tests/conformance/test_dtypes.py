"""Every row of the table on the CPU target, against torch, in all dtypes but the first."""

import pytest

import babytriton as bt
from tests.conformance.sample import Sample, Together
from tests.conformance.samples import SAMPLES

CASES = [
    pytest.param(sample, id=f"{sample.op}-{i}")
    for i, sample in enumerate(SAMPLES)
    if len(sample.dtypes) > 1
]


@pytest.mark.parametrize("sample", CASES)
def test_matches_torch(sample: Sample) -> None:
    together = Together(tuple((sample, dtype) for dtype in sample.dtypes[1:]))
    together.check(bt.jit("cpu")(together.fn)(*together.arguments))
