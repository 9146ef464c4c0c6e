"""Messages as data: a span in the user's file, a diagnostic that shows it, its exception.

Standard library only, so that any layer may use it.
"""

from __future__ import annotations

import itertools
import linecache
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Span:
    """A stretch of a source file: lines count from 1, columns from 0, in characters."""

    path: str
    line: int
    column: int
    end_line: int
    end_column: int

    def text(self) -> str:
        """The first line of the file that the span covers, without its line break."""
        return linecache.getline(self.path, self.line).rstrip("\n")


@dataclass(frozen=True)
class Diagnostic:
    """One message: subclasses give the code and the wording, instances the facts.

    ``title``, ``label``, ``note`` and ``hint`` are format strings over the instance's fields.
    """

    span: Span | None

    code: ClassVar[str]
    title: ClassVar[str]
    label: ClassVar[str]
    note: ClassVar[str] = ""
    hint: ClassVar[str] = ""

    def render(self) -> str:
        """The message as a person reads it, with the line of source and a caret below it."""
        facts = {name: getattr(self, name) for name in self.__dataclass_fields__}
        title = self.title.format_map(facts)
        label = self.label.format_map(facts)
        below = {"note": self.note.format_map(facts), "help": self.hint.format_map(facts)}
        after = [f"{kind}: {text}" for kind, text in below.items() if text]
        lines = [f"error[{self.code}]: {title}"]
        if self.span is None:
            lines.append(f"  = {label}")
            lines += [f"  = {text}" for text in after]
            return "\n".join(lines)
        span, source = self.span, self.span.text()
        number = str(span.line)
        margin = " " * len(number)
        lines.append(f"{margin}--> {span.path}:{span.line}:{span.column + 1}")
        if source.strip():
            end = span.end_column if span.end_line == span.line else len(source)
            carets = "^" * max(1, end - span.column)
            # Tabs are kept in the margin below, so that the carets stand where the eye expects.
            lead = "".join("\t" if c == "\t" else " " for c in source[: span.column])
            lines += [f"{margin} |", f"{number} | {source}", f"{margin} | {lead}{carets} {label}"]
        else:
            lines.append(f"{margin} = {label}")
        lines += [f"{margin} = {text}" for text in after]
        return "\n".join(lines)


class CompileError(Exception):
    """A function could not be compiled; the message points at the user's own line."""

    def __init__(self, diagnostic: Diagnostic, trail: tuple[Span, ...] = ()) -> None:
        self.diagnostic = diagnostic
        self.trail = trail
        """The calls that led there through inlined functions, outermost first."""
        super().__init__(self.render())

    def render(self) -> str:
        """The diagnostic, followed by the calls that led to it."""
        lines = [self.diagnostic.render()]
        for span, times in _runs(tuple(reversed(self.trail))):
            again = f" ({times} times)" if times > 1 else ""
            place = f"{span.path}:{span.line}"
            lines.append(f"  = note: called from {place}{again}: {span.text().strip()}")
        return "\n".join(lines)


def _runs(spans: tuple[Span, ...]) -> list[tuple[Span, int]]:
    """Each span with how often it comes in a row."""
    return [(span, len(list(group))) for span, group in itertools.groupby(spans)]
