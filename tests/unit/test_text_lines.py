"""Long statements of C on several lines."""

from __future__ import annotations

import pytest

from babytriton.runtime.text.lines import within

CASES = {
    "  a = b + c;": "  a = b + c;",
    "  value = first_of_all * second + third * fourth;": (
        "  value = first_of_all * second\n      + third * fourth;"
    ),
    "  place[index] = call(first, second) ? third : fourth;": (
        "  place[index] = call(first, second)\n      ? third : fourth;"
    ),
    "  *(float4*)(x + thread * 4) = *(float4*)(y + thread);": (
        "  *(float4*)(x + thread * 4) =\n      *(float4*)(y + thread);"
    ),
    "  if (first_condition && second_one || third) {": (
        "  if (first_condition && second_one\n      || third) {"
    ),
    "  a_name_that_is_longer_than_a_line_may_be_here();": (
        "  a_name_that_is_longer_than_a_line_may_be_here();"
    ),
    "// a comment that is longer than a line, and stays as is": (
        "// a comment that is longer than a line, and stays as is"
    ),
}


@pytest.mark.parametrize("line", CASES)
def test_lines(line: str) -> None:
    found = within(line, 40)
    assert found == CASES[line]
    assert "".join(found.split()) == "".join(line.split())
