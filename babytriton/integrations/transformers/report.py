"""What was replaced in a model, and what was left and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Entry:
    """Modules of one class that were treated alike.

    Attributes:
        module: the name of their class.
        part: the switch of ``optimize`` that they belong to; ``"model"`` for models as a whole.
        replaced: whether something of them was.
        text: what is compiled of them, or why they were left.
    """

    module: str
    part: str
    replaced: bool
    text: str


@dataclass
class Report:
    """What became of the modules of a model: prints as a table.

    Attributes:
        counts: how many modules there are of each entry, in the order in which they were found.
    """

    counts: Counter[Entry] = field(default_factory=Counter)

    @property
    def replaced(self) -> dict[str, int]:
        """How many modules have something replaced, by the switch that it belongs to."""
        found: Counter[str] = Counter()
        for entry, count in self.counts.items():
            if entry.replaced:
                found[entry.part] += count
        return dict(found)

    @property
    def left(self) -> tuple[Entry, ...]:
        """What was not replaced, each with the reason."""
        return tuple(entry for entry in self.counts if not entry.replaced)

    def __str__(self) -> str:
        rows = [("module", "count", "part", ""), *self._rows()]
        widths = [max(map(len, column)) for column in zip(*rows)]
        lines = [
            f"{module:{widths[0]}}  {count:>{widths[1]}}  {part:{widths[2]}}  {text}".rstrip()
            for module, count, part, text in rows
        ]
        return "\n".join(lines)

    def _rows(self) -> Iterator[tuple[str, str, str, str]]:
        for entry in sorted(self.counts, key=lambda entry: (not entry.replaced, entry.part)):
            text = entry.text if entry.replaced else f"left: {entry.text}"
            yield entry.module, str(self.counts[entry]), entry.part, text
