"""Random programs give what torch gives, whoever runs them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, seed, settings

import babytriton as bt
from tests.machines import by_machine
from tests.properties.programs import Drawn, programs, resized

# Of 125 programs each, so that test processes share them.
SHARDS = [0, 1, *(pytest.param(n, marks=pytest.mark.exhaustive) for n in (2, 3))]


@pytest.mark.parametrize("shard", SHARDS)
def test_random_programs_match_torch(shard: int) -> None:
    @seed(shard)
    @settings(
        max_examples=125,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(programs())
    def check(program: Drawn) -> None:
        expected = program.fn(*program.arguments)
        compiled = bt.jit("cpu")(program.fn)
        found = compiled(*program.arguments)
        assert len(found) == len(expected)
        for ours, theirs in zip(found, expected):
            assert ours.shape == theirs.shape
            assert ours.dtype == theirs.dtype
            torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
        again = by_machine(compiled._specializations.newest)(*program.arguments)
        torch.testing.assert_close(again, found, rtol=0, atol=0, equal_nan=True)

    check()


@pytest.mark.parametrize("shard", SHARDS[:3])
def test_random_programs_match_torch_at_other_sizes(shard: int) -> None:
    @seed(shard)
    @settings(
        max_examples=15,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(programs())
    def check(program: Drawn) -> None:
        compiled = bt.jit("cpu", dynamic=True)(program.fn)
        for arguments in (program.arguments, resized(program, 1), resized(program, 4)):
            try:
                expected = program.fn(*arguments)
            except Exception:  # torch takes the program only for sizes such as the first ones
                continue
            found = compiled(*arguments)
            for ours, theirs in zip(found, expected, strict=True):
                assert ours.shape == theirs.shape
                assert ours.dtype == theirs.dtype
                torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6, equal_nan=True)

    check()
