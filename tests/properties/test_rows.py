"""Random loops over rows give what Python gives, also what they leave in their arguments."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings

import babytriton as bt
from babytriton.runtime import direct
from tests.properties.programs import Drawn
from tests.properties.rows import programs

# Of 25 programs each, so that test processes share them.
SHARDS = [0, 1, *(pytest.param(n, marks=pytest.mark.exhaustive) for n in range(2, 8))]


@pytest.mark.parametrize("as_on_gpu", [False, True])
@pytest.mark.parametrize("shard", SHARDS)
def test_random_rows_match_python(
    shard: int, as_on_gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by the lines that a GPU's programs run, whose kernels take addresses here as well."""
    if as_on_gpu:
        monkeypatch.setattr(direct, "_is_gpu", lambda device: True)

    @seed(2 * shard + as_on_gpu)
    @settings(
        max_examples=25,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate,),  # shrinking takes minutes: cut the program shown by hand
    )
    @given(programs())
    def check(program: Drawn) -> None:
        expected_x, found_x = (program.arguments[0].clone() for _ in range(2))
        expected = program.fn(expected_x, program.arguments[1])
        found = bt.jit("cpu")(program.fn)(found_x, program.arguments[1])
        for one, other in zip((*found, found_x), (*expected, expected_x)):
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)

    check()
