"""How much of the table becomes kernels, and that what does not says why."""

from __future__ import annotations

import pytest

import babytriton as bt
from babytriton.ops import ROWS
from tests.conformance.sample import Sample
from tests.conformance.samples import SAMPLES


@pytest.fixture(scope="module")
def lowered() -> list[tuple[Sample, bt.Lowered]]:
    return [
        (sample, bt.jit("cpu")(sample.fn).lower(*sample.arguments(sample.dtypes[0])))
        for sample in SAMPLES
    ]


def test_rows_build_or_say_why(
    lowered: list[tuple[Sample, bt.Lowered]], capsys: pytest.CaptureFixture[str]
) -> None:
    built = {row.name for _, stage in lowered for row in stage.lowering.rows}
    through_torch = {row.name: row.why for row in ROWS if row.why is not None}
    partly = {sample.op for sample, stage in lowered if stage.fallbacks and sample.op in built}
    callables = sum(len(row.calls) for row in ROWS)
    with capsys.disabled():
        print(
            f"\n{len(ROWS)} rows ({callables} callables): {len(built)} build in Relax, "
            f"{len(through_torch)} run through torch, {len(partly)} do either; "
            f"{sum(bool(stage.fallbacks) for _, stage in lowered)} of {len(lowered)} samples "
            "call torch"
        )
    inlined = {row.name for row in ROWS if row.inlined}
    assert {row.name for row in ROWS} == built | set(through_torch) | inlined


def test_fallbacks_have_reasons_of_their_own(lowered: list[tuple[Sample, bt.Lowered]]) -> None:
    for sample, stage in lowered:
        for fallback in stage.fallbacks:
            assert fallback.reason != "not in the operator table", (sample.op, fallback.name)
            assert fallback.span is not None


def test_the_table_is_large_enough() -> None:
    assert len(ROWS) >= 180
