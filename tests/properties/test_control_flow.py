"""Random programs with branches, loops and writes give what Python gives, whoever runs them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings

import babytriton as bt
from tests.machines import by_machine
from tests.properties.control_flow import programs
from tests.properties.programs import Drawn

# Of 25 programs each, so that test processes share them.
SHARDS = [0, 1, *(pytest.param(n, marks=pytest.mark.exhaustive) for n in (2, 3))]


@pytest.mark.parametrize("shard", SHARDS)
def test_random_control_flow_matches_python(shard: int) -> None:
    @seed(shard)
    @settings(
        max_examples=25,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate,),  # shrinking takes minutes: cut the program shown by hand
    )
    @given(programs())
    def check(program: Drawn) -> None:
        expected = program.fn(*program.arguments)
        compiled = bt.jit("cpu")(program.fn)
        found = compiled(*program.arguments)
        again = by_machine(compiled._specializations.newest)(*program.arguments)
        for each in (found, again):
            assert each[2] == expected[2]
            torch.testing.assert_close(each[:2], expected[:2], rtol=1e-6, atol=1e-6)
            torch.testing.assert_close(each[3], expected[3], rtol=1e-6, atol=1e-6)

    check()
