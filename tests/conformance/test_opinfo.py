"""torch's own samples for every row of the table that has an OpInfo entry."""

from __future__ import annotations

import pytest
import torch

from tests.conformance.opinfo import (
    ALL_SAMPLES,
    EXCLUDED,
    ONE_SAMPLE,
    PARTLY,
    Entry,
    check,
    entries,
)

# Entries with about a thousand samples are tested in parts, which test processes share.
PARTS = {
    "nn.functional.max_pool1d": 6,
    "nn.functional.max_pool2d": 12,
    "nn.functional.max_pool3d": 6,
    "logspace.tensor_overload": 4,
}

CASES = [
    pytest.param(entry, dtype, part, id=f"{entry}-{str(dtype).removeprefix('torch.')}-{part}")
    for entry in entries()
    if str(entry) not in EXCLUDED
    for dtype in ALL_SAMPLES + ONE_SAMPLE
    if dtype in entry.info.dtypes
    for part in range(PARTS.get(str(entry), 1) if dtype in ALL_SAMPLES else 1)
]


@pytest.mark.parametrize(("entry", "dtype", "part"), CASES)
def test_torchs_samples(entry: Entry, dtype: torch.dtype, part: int) -> None:
    parts = PARTS.get(str(entry), 1) if dtype in ALL_SAMPLES else 1
    check(entry, list(entry.samples(dtype))[part::parts])


def test_every_exclusion_is_an_entry_with_a_reason() -> None:
    names = {str(entry) for entry in entries()}
    assert set(EXCLUDED) | set(PARTLY) <= names
    assert all([*EXCLUDED.values(), *PARTLY.values()])
