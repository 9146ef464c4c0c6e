"""Statements of C on lines that are not too long."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from babytriton.runtime.text.expressions import BINARY

# What a line may be broken before, and after.
_BEFORE = re.compile(rf" ({'|'.join(map(re.escape, [*BINARY, '?', ':']))}) ")
_COMMA, _ASSIGNED = re.compile(r"(?<=,) "), re.compile(r"(?<= [-+*/]=) |(?<= =) ")

_FURTHER = "    "
"""What stands before the rest of a statement, besides what stands before its beginning."""


def within(line: str, width: int) -> str:
    """A line, or several of at most so many letters where it can be broken.

    It is broken outside as many parentheses as can be, and where operators bind least.

    Args:
        line: a statement, or the head of a loop or a condition.
        width: in letters.
    """
    indent = line[: len(line) - len(line.lstrip())]
    lines: list[str] = []
    rest = line
    while len(rest) > width and rest.rstrip().endswith((";", "{")):
        places = [each for each in _breaks(rest) if len(indent + _FURTHER) < each.place <= width]
        if not places:
            break
        place = min(places, key=lambda each: (each.depth, each.binds, -each.place)).place
        lines.append(rest[:place])
        rest = indent + _FURTHER + rest[place + 1 :]
    return "\n".join([*lines, rest])


class _Break(NamedTuple):
    """A space that a line may be broken at: how many parentheses are open there, and what binds."""

    place: int
    depth: int
    binds: int


def _breaks(line: str) -> Iterator[_Break]:
    places = {match.start(): BINARY.get(match[1], 0) for match in _BEFORE.finditer(line)}
    places |= {match.start(): 0 for match in _COMMA.finditer(line)}
    # No better than the last sum: what is assigned may not fit on the next line either.
    places |= {match.start(): BINARY["+"] for match in _ASSIGNED.finditer(line)}
    depth = 0
    for place, letter in enumerate(line):
        if letter in "([":
            depth += 1
        elif letter in ")]":
            depth -= 1
        elif place in places:
            yield _Break(place, depth, places[place])
