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
_DIRECTIVE = re.compile(r"^[ \t]*#(?:.*\\\r?\n)*.*\n?", re.M)

# Braces that make no level of their own; and those of names that are outside of them as well.
_OPEN = re.compile(r"(?:\bextern\s+\"C\"|\bnamespace)\s*$")
_NAMING = re.compile(rf"{_OPEN.pattern}|\benum\b[^;{{}}()]*$")

# What has members, which are called by its name.
_SCOPE = re.compile(
    r"(?<!\binline )\bnamespace\s+(\w[\w:]*)\s*$|"
    r"(?<!\benum )\b(?:struct|class|union)\s+(?:\w+\([^()]*\)\s*)*(\w+)[^;{}()]*$"
)
_USING = re.compile(r"\busing\s+(?:namespace\b|\w[\w:]*::\w+\s*;)")

# The name of a macro, its parameters and what it stands for, on a line without others to follow.
_MACRO = re.compile(r"^[ \t]*#[ \t]*(define|undef)[ \t]+(\w+)(\([^()\n]*\))?[ \t]*(.*)$", re.M)

# Words of the language, and of CUDA's types.
_WORDS = re.compile(
    "alignas|auto|bool|char|class|const|constexpr|decltype|delete|double|enum|explicit|extern|"
    "false|float|friend|inline|int|long|mutable|namespace|noexcept|nullptr|private|protected|"
    "public|return|short|signed|sizeof|static|static_assert|static_cast|std|struct|template|true|"
    r"typedef|typename|union|unsigned|using|virtual|void|volatile|size_t|u?int\d*_t|__\w+|"
    r"(?:uchar|char|ushort|short|uint|int|ulong|long|longlong|ulonglong|float|double|half|"
    r"nv_bfloat16|dim)\d?"
)
_KINDS = re.compile(r"\b(?:typename|class|int|bool|unsigned|auto)\s+(\w+)\s*(?=[,>=])")
_NO_NAMES = {"const", "volatile", "unsigned", "signed", "void", "__restrict__", "__restrict"}
_NO_NAMES |= {"float", "double", "int", "long", "short", "char", "bool"}

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
        has_default: whether calls may leave it out.
    """

    type: str
    name: str
    has_default: bool = False


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
        scope: the namespace or class whose name a call of it needs; None without one.
    """

    start: int
    name_at: int
    head: str
    parameters: tuple[Parameter, ...]
    has_body: bool
    depth: int
    scope: str | None = None

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
        return "" if found is None else self.head[: closing(self.head, found.end())].strip()

    @property
    def bounds(self) -> str | None:
        """What it says of the threads of a block, and of the blocks that are to run at once."""
        found = _BOUNDS.search(self.head)
        if found is None:
            return None
        return self.head[found.end() + 1 : closing(self.head, found.end()) - 1].strip()


def read(source: str) -> str:
    """The source with spaces in the place of comments and of texts."""
    return _UNREAD.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), source)


def without_directives(text: str) -> str:
    """A text with spaces in the place of lines for the preprocessor."""
    return _DIRECTIVE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


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
        end = closing(text, match.end())
        after = _ENDING.match(text, end)
        last = text[after.end() if after is not None else end :][:1]
        before = max(text.rfind(sign, 0, match.start()) for sign in ";{}") + 1
        start = _after_directives(text, before, match.start())
        head = text[start : match.start()]
        if last in ("{", ";") and head.strip():
            inside = text[match.end() + 1 : end - 1]
            parameters = tuple(map(_parameter, parts(inside))) if inside.strip() != "void" else ()
            before_it = without_directives(text[:start]) + text[start : match.start()]
            depth = next(reversed([*levels(before_it)]), (0, ""))[0]
            scope = None if _USING.search(text) else _scope(before_it)
            yield Definition(start, match.start(), head, parameters, last == "{", depth, scope)


def blocks(text: str) -> list[str]:
    """What stands before the braces that are open at the end of a text without comments."""
    open_: list[str] = []
    for brace in re.finditer(r"[{}]", text):
        if brace[0] == "}" and open_:
            open_.pop()
        elif brace[0] == "{":
            start = max(text.rfind(sign, 0, brace.start()) for sign in ";{}") + 1
            open_.append(text[start : brace.start()])
    return open_


def _scope(text: str) -> str | None:
    """The namespace or class that the end of a text stands in, by its name."""
    found = filter(None, map(_SCOPE.search, blocks(text)))
    return next((scope[1] or scope[2] for scope in found), None)


@dataclass(frozen=True)
class Macro:
    """What a preprocessor puts in the place of a name.

    Attributes:
        is_called: whether it has parameters.
        text: that it stands for.
    """

    is_called: bool
    text: str


def macros(source: str) -> dict[str, Macro]:
    """The macros that a source defines or takes back, by their names."""
    text = re.sub(r"\\\r?\n", " ", read(source))
    found: dict[str, Macro] = {}
    for match in _MACRO.finditer(text):
        kind, name, parameters, value = match.groups()
        if name not in found or kind == "define":
            found[name] = Macro(parameters is not None, value)
    return found


def words(source: str) -> set[str]:
    """All that may be a name of something at the level of a source's file, and other words."""
    text = _DIRECTIVE.sub("\n", read(source))
    kept = "".join(sign for depth, sign in levels(text, _NAMING, 400) if depth == 0)
    flat = re.sub(r"\((?:[^()]|\([^()]*\))*\)", "()", kept)
    found = set(re.findall(r"[A-Za-z_]\w*", flat))
    for name, macro in macros(source).items():
        if name in found:
            made = [macro.text, *re.findall(rf"\b{name}\s*\(([^()]*)\)", kept)]
            found |= {*re.findall(r"[A-Za-z_]\w*", " ".join(made))}
    kinds = {
        name
        for head in re.findall(r"\btemplate\s*<[^{};()]*", kept)
        for name in _KINDS.findall(head)
    }
    return {word for word in found - kinds if not _WORDS.fullmatch(word)}


def names(source: str) -> set[str]:
    """What a source defines at the level of its file, as far as that is told without a compiler."""
    text = _DIRECTIVE.sub("\n", read(source))
    kept = "".join(sign for depth, sign in levels(text) if depth == 0)
    flat = re.sub(r"\((?:[^()]|\([^()]*\))*\)", "()", kept)
    found = {*_FUNCTION.findall(kept)}
    found.update(name for pattern in _OTHERS for name in pattern.findall(flat))
    return {name for name in found if not name.startswith("__")}


def levels(
    text: str, no_level: re.Pattern[str] = _OPEN, within: int = 40
) -> Iterator[tuple[int, str]]:
    """Each sign of a text, with how many braces it stands in; braces are outside of themselves.

    Args:
        text: without comments.
        no_level: what stands before braces that do not count.
        within: so many signs.
    """
    open_: list[bool] = []
    for place, sign in enumerate(text):
        if sign == "}" and open_ and not open_.pop():
            continue
        depth = sum(open_)
        if sign == "{":
            open_.append(no_level.search(text, max(0, place - within), place) is None)
            if not open_[-1]:
                continue
        yield depth, sign


def _after_directives(text: str, start: int, end: int) -> int:
    """The end of the last line for the preprocessor between two places, or the first of these."""
    return max((start + line.end() for line in _DIRECTIVE.finditer(text[start:end])), default=start)


def closing(text: str, start: int) -> int:
    """The place behind what closes the bracket at a place; the text's end if nothing does."""
    opening, closing = text[start], _PAIRS[text[start]]
    depth = 0
    for place in range(start, len(text)):
        depth += (text[place] == opening) - (text[place] == closing)
        if depth == 0:
            return place + 1
    return len(text)


def parts(text: str) -> Iterator[str]:
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
    plain, default, _ = text.partition("=")
    found = re.fullmatch(r"(.*?)(\w+)\s*((?:\[[^\]]*\]\s*)*)", plain.strip(), re.S)
    if found is None or not found[1].strip() or found[2] in _NO_NAMES:
        return Parameter(plain.strip(), "", default != "")
    return Parameter(f"{found[1].strip()}{'*' if found[3] else ''}", found[2], default != "")
