"""Every row under autocast: the dtypes that torch gives, on the CPU."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import babytriton as bt
from babytriton.ops.trees import leaves_in
from tests.conformance.sample import Sample
from tests.conformance.samples import SAMPLES

CASES = [sample for sample in SAMPLES if torch.float32 in sample.dtypes]
FAMILIES = {op: list(samples) for op, samples in itertools.groupby(CASES, lambda x: x.op[0])}


def _dtypes(sample: Sample) -> tuple[list[str], list[str]]:
    """Those of the program's results, and of torch's."""
    lowered = bt.jit("cpu")(sample.fn).lower(*sample.arguments(torch.float32))
    types = lowered.mod[lowered.lowering.entry].ret_ty.fields
    expected: Any = leaves_in(sample.fn(*sample.arguments(torch.float32)), torch.Tensor)
    return [str(x.dtype) for x in types], [str(x.dtype).removeprefix("torch.") for x in expected]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("letter", sorted(FAMILIES))
def test_dtypes(letter: str, dtype: torch.dtype) -> None:
    wrong = []
    with torch.autocast("cpu", dtype=dtype):
        for sample in FAMILIES[letter]:
            ours, expected = _dtypes(sample)
            if ours != expected:
                wrong.append((sample.op, ours, expected))
    assert not wrong
