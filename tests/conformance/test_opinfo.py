"""torch's own samples for every row of the table that has an OpInfo entry."""

from __future__ import annotations

import pytest

from tests.conformance.opinfo import (
    EXCLUDED,
    PARTLY,
    Entry,
    check,
    entries,
)

# Entries with hundreds of samples are tested in parts, which test processes share.
PARTS = {
    "cdist": 3,
    "logspace.tensor_overload": 4,
    "nn.functional.gaussian_nll_loss": 6,
    "nn.functional.max_pool1d": 12,
    "nn.functional.max_pool2d": 18,
    "nn.functional.max_pool3d": 6,
    "nn.functional.multi_head_attention_forward": 12,
    "searchsorted": 3,
}

TRIED = [entry for entry in entries() if str(entry) not in EXCLUDED]

CASES = [
    pytest.param(entry, part, id=f"{entry}-{part}")
    for entry in TRIED
    for part in range(PARTS.get(str(entry), 1))
]


@pytest.mark.parametrize("entry", TRIED, ids=str)
def test_torchs_first_sample(entry: Entry) -> None:
    check(entry, entry.first_samples(1))


@pytest.mark.exhaustive
@pytest.mark.parametrize(("entry", "part"), CASES)
def test_torchs_samples(entry: Entry, part: int) -> None:
    check(entry, list(entry.samples()), part, PARTS.get(str(entry), 1))


def test_every_exclusion_is_an_entry_with_a_reason() -> None:
    names = {str(entry) for entry in entries()}
    assert set(EXCLUDED) | set(PARTLY) <= names
    assert all([*EXCLUDED.values(), *PARTLY.values()])
