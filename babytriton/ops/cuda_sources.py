"""The CUDA C++ of users that a program's kernels call, from several sources in one text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from babytriton.ops.cuda_code import CODES, device_function, kernel_as_function
from babytriton.ops.cuda_definitions import (
    closing,
    functions,
    levels,
    macros,
    parts,
    read,
    without_directives,
    words,
)
from babytriton.ops.cuda_definitions import names as defined_names
from babytriton.ops.cuda_parameters import Numbers, cast

_CALLED = re.compile(r"\b\w+__[0-9a-f]{16}(?=\()")

_INCLUDE = re.compile(r"[ \t]*#[ \t]*include\b")
_DIRECTIVE = re.compile(r"[ \t]*#[ \t]*(\w*)")

# Of what is defined there, C++ makes no longer names than it does of other functions.
_LINKAGE = re.compile(r"\bextern\s+\"C\"(?=\s*(?:[^;{}()]*?(\w+)\s*\([^;{}]*)?([;{]))")

# Functions of CUDA's that have overloads for several types, to which users add some.
_OVERLOADED = re.compile(
    r"(?:min|max|abs|fabs|fma|fmin|fmax|fmod|sqrt|rsqrt|exp|log|sin|cos|tan|tanh|pow|floor|ceil|"
    r"round|trunc)f?"
)


@dataclass(frozen=True)
class Called:
    """The code that a program's kernels call.

    Attributes:
        names: what each is called in the program: as the user calls it, from the level of the file
            where a variable has the name, and in a namespace where others define the same.
        sources: each source of them once, which ends with its macros; by the names in the program
            of what is called in it.
    """

    names: Mapping[str, str]
    sources: Mapping[tuple[str, ...], str]

    @classmethod
    def of(cls, ours: str) -> Called:
        """That which our text, of kernels and what stands before them, calls."""
        called = [own for own in dict.fromkeys(_CALLED.findall(ours)) if own in CODES]
        plain = re.sub(r"//.*", "", ours)
        taken, functions_of_ours = set(re.findall(r"\w+", plain)), _calls(plain)
        texts: dict[str, str] = {}
        for own in called:
            code = CODES[own]
            text = texts.setdefault(code.source, code.source.strip())
            if code.definition.is_kernel:
                texts[code.source] = kernel_as_function(text, code.name)
        names: dict[str, str] = {}
        sources: dict[tuple[str, ...], str] = {}
        every = {source: words(text) for source, text in texts.items()}
        for source, text in texts.items():
            of_it = [own for own in called if CODES[own].source == source]
            own_names = {*defined_names(text), *(CODES[own].name for own in of_it)}
            others = [every[other] for other in texts if other != source]
            scope = ""
            if own_names & functions_of_ours or any(every[source] & other for other in others):
                scope = _free(f"of_{CODES[of_it[0]].name}", taken)
            for own in of_it:
                name = CODES[own].name
                names[own] = f"{scope}::{name}" if scope or name in taken else name
            if scope:
                text = _in_namespace(text, scope, every[source] | own_names)
            others_words = taken.union(*(_read_macros(other) for other in texts if other != source))
            sources[tuple(names[own] for own in of_it)] = _with_ended_macros(text, others_words)
        return cls(names, sources)

    def source(self, kernels: str = "") -> str:
        """The code, to stand before the kernels; none that their text has itself, or calls not."""
        found = [
            source
            for names, source in self.sources.items()
            if not kernels or any(_is_missing(kernels, name) for name in names)
        ]
        return "".join(f"{source}\n\n" for source in found)

    def named(self, kernels: str) -> str:
        """Our text of kernels with the program's names, and with the bounds of the user's."""
        for own, name in self.names.items():
            code = CODES[own]
            if code.bounds:
                head = r"__launch_bounds__\(\d+\)( \w+\([^{]*\{(?:(?!__global__)[\s\S])*?\b"
                put = f"__launch_bounds__({', '.join(map(str, code.bounds))})"
                kernels = re.sub(rf"{head}{own}\()", rf"{put}\1", kernels)
            casts = [cast(x) for x in code.parameters] if code.definition.is_kernel else []
            kernels = _with_casts(kernels, own, casts) if any(casts) else kernels
            kernels = re.sub(rf"\b{own}\b", name, kernels)
        return kernels


def _calls(text: str) -> set[str]:
    """The functions that a text defines or calls."""
    return set(re.findall(r"(?<![\w.:])(\w+)\(", text))


def _read_macros(source: str) -> set[str]:
    """The words of a source that may be macros of others': those that it defines are its own."""
    return set(re.findall(r"[A-Za-z_]\w*", read(source))) - {*macros(source)}


def _is_missing(kernels: str, called: str) -> bool:
    """Whether a text calls a function, and does not define it."""
    scope, _, name = called.rpartition("::")
    text = read(kernels)
    if scope:
        is_called = re.search(rf"\b{called}\s*\(", text) is not None
        return is_called and re.search(rf"\bnamespace\s+{scope}\b", text) is None
    is_called = re.search(rf"\b{name}\s*\(", text) is not None
    return is_called and device_function(kernels, name) is None


def _free(name: str, taken: set[str]) -> str:
    """A name, numbered if it is taken; it is then."""
    found, number = name, 1
    while found in taken:
        number += 1
        found = f"{name}_{number}"
    taken.add(found)
    return found


def _with_casts(kernels: str, own: str, casts: Iterable[str | None]) -> str:
    """A text whose calls of a kernel pass addresses as the types of its parameters."""
    for call in reversed([*re.finditer(rf"\b{own}(?=\()", kernels)]):
        end = closing(kernels, call.end())
        args = [arg.strip() for arg in parts(kernels[call.end() + 1 : end - 1])]
        passed = [
            f"({type}){arg}" if type and arg.startswith("&") else arg
            for arg, type in zip(args, casts)
        ]
        kernels = f"{kernels[: call.end()]}({', '.join(passed)}){kernels[end:]}"
    return kernels


def _with_ended_macros(source: str, others: set[str]) -> str:
    """A source whose macros end with it, but for those that are defined before it.

    Args:
        source: any.
        others: words that may be macros of others', so that these are looked for.
    """
    before, after = [], []
    for name in macros(source):
        if name in others:
            kept = f"{name}_is_of_others"
            before += [f"#ifdef {name}", f"#define {kept}", "#endif"]
            after += [f"#ifndef {kept}", f"#undef {name}", "#endif", f"#undef {kept}"]
        else:
            after.append(f"#undef {name}")
    return "\n".join([*before, source, *after])


def _in_namespace(source: str, scope: str, own: set[str]) -> str:
    """A source in a namespace; what it includes is outside of that."""
    source = _with_linkage(source)
    pattern = "|".join(map(re.escape, sorted(own, key=len, reverse=True)))
    source = re.sub(rf"(?<![\w>:])::(?=\s*(?:{pattern})\b)", f"::{scope}::", source)
    opening = [f"namespace {scope} {{", *_overloads(source)]
    start, found = _first_code(source), []
    for n, (line, is_outside) in enumerate(_lines(source)):
        if n == start:
            found += opening
        if n >= start and is_outside and _INCLUDE.match(line):
            found += ["}", line, opening[0]]
        else:
            found.append(line)
    return "\n".join([*found, f"}}  // namespace {scope}"])


def _lines(source: str) -> Iterator[tuple[str, bool]]:
    """Each line, and whether it begins outside of all braces."""
    signs = [*levels(without_directives(read(source))), (0, "\n")]
    depth = iter([0, *(depth for depth, sign in signs if sign == "\n")])
    for line in source.split("\n"):
        yield line, next(depth, 0) == 0


def _first_code(source: str) -> int:
    """The first line that is code, or that a condition of the preprocessor begins at before it."""
    text = read(source)
    start = depth = 0
    for n, (line, code) in enumerate(zip(text.split("\n"), without_directives(text).split("\n"))):
        if code.strip():
            return start if depth else n
        directive = _DIRECTIVE.match(line)
        word = directive[1] if directive is not None else ""
        if word.startswith("if"):
            start = n if depth == 0 else start
            depth += 1
        depth -= word == "endif"
    return start


def _overloads(source: str) -> Iterator[str]:
    """What lets a source that has a function for a type of its own call CUDA's for others."""
    for name in sorted(filter(_OVERLOADED.fullmatch, defined_names(source))):
        types = [x.type for one in functions(source, name) for x in one.parameters]
        numbers = [Numbers.of(type) for type in types]
        if any(each is None or each.lanes > 1 for each in numbers):
            yield f"using ::{name};"


def _with_linkage(source: str) -> str:
    """A source whose functions are those of its namespace: in C there is one of a name."""
    text, own = read(source), defined_names(source)
    for match in reversed([*_LINKAGE.finditer(text)]):
        if match[2] == "{" or match[1] in own:
            linkage = source[match.start() : match.end()].replace('"C"', '"C++"')
            source = source[: match.start()] + linkage + source[match.end() :]
    return source
