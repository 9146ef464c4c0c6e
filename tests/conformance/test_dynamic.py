"""One sample of every row with all of its sizes symbolic, on the CPU, against torch."""

from __future__ import annotations

import pytest

import babytriton as bt
from tests.conformance.sample import Expected, Sample
from tests.conformance.samples import SAMPLES

FIRST = {sample.op: sample for sample in reversed(SAMPLES)}


@pytest.mark.parametrize("sample", FIRST.values(), ids=lambda sample: sample.op)
def test_matches_torch(sample: Sample) -> None:
    compiled = bt.jit("cpu", dynamic=True)(sample.fn)
    arguments = sample.arguments(sample.dtypes[0])
    Expected(sample, arguments).check(compiled(*arguments))
