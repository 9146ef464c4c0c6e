"""What CUDA C++ of a user's defines, as far as its text tells without a compiler."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

# Comments, and texts; but not the name of a language.
_UNREAD = re.compile(r"""//[^\n]*|/\*.*?\*/|"(?!C")(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""", re.S)

_PAIRS = {"(": ")", "[": "]", "{": "}", "<": ">"}

# What may stand between a function's parameters and its body.
_ENDING = re.compile(r"\s*(?:(?:const|noexcept)\b\s*(?:\([^(){};]*\)\s*)?|->[^;{}]*)*")

_BOUNDS = re.compile(r"__launch_bounds__\s*(?=\()")

# Lines for the preprocessor, with those that continue them.
_DIRECTIVE = re.compile(r"^[ \t]*#(?:.*\\\n)*.*\n?", re.M)

# Braces that make no level of their own.
_OPEN = re.compile(r"(?:\bextern\s+\"C\"|\bnamespace)\s*$")

# At the level of a file: functions; and types, and what has a value, of a text without parameters.
_FUNCTION = re.compile(r"(\w+)\s*\((?:[^(){};]|\([^()]*\))*\)[^;{}()]*\{\}")
_OTHERS = (
    re.compile(
        r"\b(?:struct|class|union|enum)\s+(?:class\s+)?(?:\w+\(\)\s*)*(\w+)\s*(?::[^;{]*)?\{"
    ),
    re.compile(r"\btypedef\b[^;]*?(\w+)\s*;"),
    re.compile(r"\busing\s+(\w+)\s*="),
    re.compile(
        r"\b(?:__constant__|__device__|constexpr|const|static)\b[^;(){}=]*?"
        r"(\w+)\s*(?:\[[^\]]*\]\s*)*(?:=|;|\{\})"
    ),
)


# What a launch would have to tell a GPU, and does not.
_NOT_LAUNCHED = {
    "shared memory of a size that launches tell": (
        r"\bextern\b[^;{}]*\b__shared__|\b__shared__\s+extern\b",
        "give the array a size",
    ),
    "clusters of thread blocks": (r"\b__cluster_dims__\b", "launch it without"),
}


@dataclass(frozen=True)
class Parameter:
    """Of a function.

    Attributes:
        type: as it stands there.
        name: that; empty where it has none.
    """

    type: str
    name: str


@dataclass(frozen=True)
class Definition:
    """A function, or that there is one.

    Attributes:
        start: where its text begins in the source.
        name_at: where its name does.
        head: what stands before the name, without comments.
        parameters: of it.
        has_body: whether it is defined there.
        depth: how many braces it stands in, but for those of a linkage or without a name.
    """

    start: int
    name_at: int
    head: str
    parameters: tuple[Parameter, ...]
    has_body: bool
    depth: int

    @property
    def is_kernel(self) -> bool:
        """Whether a host launches it."""
        return re.search(r"\b__global__\b", self.head) is not None

    @property
    def is_of_device(self) -> bool:
        """Whether kernels call it."""
        return re.search(r"\b__device__\b", self.head) is not None

    @property
    def template(self) -> str:
        """What makes it one of several, with what these differ in."""
        found = re.match(r"\s*template\s*(?=<)", self.head)
        return "" if found is None else self.head[: _closing(self.head, found.end())].strip()

    @property
    def bounds(self) -> str | None:
        """What it says of the threads of a block, and of the blocks that are to run at once."""
        found = _BOUNDS.search(self.head)
        if found is None:
            return None
        return self.head[found.end() + 1 : _closing(self.head, found.end()) - 1].strip()


def read(source: str) -> str:
    """The source with spaces in the place of comments and of texts."""
    return _UNREAD.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), source)


def never_launched(text: str) -> str | None:
    """Why a kernel of a text, without comments, would be launched wrongly, if it would."""
    for what, (pattern, instead) in _NOT_LAUNCHED.items():
        if re.search(pattern, text):
            return f"its source has {what}: {instead}"
    return None


def functions(source: str, name: str) -> Iterator[Definition]:
    """The functions of a name that a source defines or declares, in order."""
    text = read(source)
    for match in re.finditer(rf"(?<![\w.:>]){re.escape(name)}\s*(?=\()", text):
        end = _closing(text, match.end())
        after = _ENDING.match(text, end)
        last = text[after.end() if after is not None else end :][:1]
        before = max(text.rfind(sign, 0, match.start()) for sign in ";{}") + 1
        start = _after_directives(text, before, match.start())
        head = text[start : match.start()]
        if last in ("{", ";") and head.strip():
            inside = text[match.end() + 1 : end - 1]
            parameters = tuple(map(_parameter, _parts(inside)))
            depth = next(reversed([*_levels(text[: match.start()])]), (0, ""))[0]
            yield Definition(start, match.start(), head, parameters, last == "{", depth)


def names(source: str) -> set[str]:
    """What a source defines at the level of its file, as far as that is told without a compiler."""
    text = _DIRECTIVE.sub("\n", read(source))
    kept = "".join(sign for depth, sign in _levels(text) if depth == 0)
    flat = re.sub(r"\((?:[^()]|\([^()]*\))*\)", "()", kept)
    found = {*_FUNCTION.findall(kept)}
    found.update(name for pattern in _OTHERS for name in pattern.findall(flat))
    return {name for name in found if not name.startswith("__")}


def _levels(text: str) -> Iterator[tuple[int, str]]:
    """Each sign of a text, with how many braces it stands in; braces are outside of themselves."""
    open_: list[bool] = []
    for place, sign in enumerate(text):
        if sign == "}" and open_ and not open_.pop():
            continue
        depth = sum(open_)
        if sign == "{":
            open_.append(_OPEN.search(text, max(0, place - 40), place) is None)
            if not open_[-1]:
                continue
        yield depth, sign


def _after_directives(text: str, start: int, end: int) -> int:
    """The end of the last line for the preprocessor between two places, or the first of these."""
    return max((start + line.end() for line in _DIRECTIVE.finditer(text[start:end])), default=start)


def _closing(text: str, start: int) -> int:
    """The place behind what closes the bracket at a place; the text's end if nothing does."""
    opening, closing = text[start], _PAIRS[text[start]]
    depth = 0
    for place in range(start, len(text)):
        depth += (text[place] == opening) - (text[place] == closing)
        if depth == 0:
            return place + 1
    return len(text)


def _parts(text: str) -> Iterator[str]:
    """What commas separate that stand in no brackets."""
    depth, start = 0, 0
    for place, sign in enumerate(text):
        depth += (sign in _PAIRS) - (sign in _PAIRS.values())
        if sign == "," and depth == 0:
            yield text[start:place]
            start = place + 1
    if text[start:].strip():
        yield text[start:]


def _parameter(text: str) -> Parameter:
    plain = text.split("=")[0].strip()
    found = re.fullmatch(r"(.*?)(\w+)\s*((?:\[[^\]]*\]\s*)*)", plain, re.S)
    if found is None or not found[1].strip():
        return Parameter(plain, "")
    return Parameter(f"{found[1].strip()}{'*' if found[3] else ''}", found[2])
