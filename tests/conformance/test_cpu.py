"""Every row of the table on the CPU target, against torch, in its first dtype."""

import pytest

import babytriton as bt
from tests.conformance.sample import Expected, Sample, layouts
from tests.conformance.samples import SAMPLES

CASES = [pytest.param(sample, id=f"{sample.op}-{i}") for i, sample in enumerate(SAMPLES)]


@pytest.mark.parametrize("sample", CASES)
def test_matches_torch(sample: Sample) -> None:
    compiled = bt.jit("cpu")(sample.fn)
    arguments = sample.arguments(sample.dtypes[0])
    Expected(sample, arguments).check(compiled(*arguments))
    # Another layout is no other program: these calls run what was compiled above.
    for _, moved in layouts(arguments):
        Expected(sample, moved).check(compiled(*moved))
