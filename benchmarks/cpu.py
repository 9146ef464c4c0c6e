"""Kernels on the CPU against other ways to compute the same: how many times longer these take.

    python -m benchmarks.cpu [--results FOLDER] [PART OF A NAME ...]

Each result is checked against torch in float64 before it is timed. All ways are timed in turns in
one process, and medians are compared: below 1.00 we are the slower. JAX, Numba and Warp are
measured where they are installed; `make bench` installs them.
"""

from __future__ import annotations

import argparse
import platform
import statistics
from argparse import RawDescriptionHelpFormatter as RawDescription
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from importlib import metadata
from pathlib import Path

import torch

import babytriton as bt
from benchmarks import peers
from benchmarks.cases import CASES, PAIRS, PRODUCTS, Case
from benchmarks.measure import Timing, Way, beside, check, in_turns

PEERS = ("eager", "compile", "jax", "numba", "warp")
MEANS = {"eager": 3.0, "compile": 2.0, "jax": 1.5, "numba": 1.2}
"""What is asked for of the geometric mean over all cases."""
LEAST = 0.95
"""What is asked for of every case, against eager."""
BESIDE = 1.05
"""How many times as long calls may take in turns with another library's as with their own."""


@dataclass(frozen=True)
class Row:
    """A case and what was measured."""

    case: Case
    timing: Timing

    def ratio(self, peer: str) -> float | None:
        return self.timing.ratio(peer)

    def missed(self, peer: str) -> bool:
        """Whether the case falls short of what is asked for."""
        asked = self.case.targets.get(peer, LEAST if peer == "eager" else None)
        ratio = self.ratio(peer)
        return ratio is not None and asked is not None and ratio < asked

    def cells(self) -> list[str]:
        """As a line of the table."""
        cells = [self.case.name, f"{self.timing.seconds['ours'] * 1e6:.4g}"]
        for peer in PEERS:
            ratio, asked = self.ratio(peer), self.case.targets.get(peer)
            text = "" if ratio is None else f"{ratio:.2f}"
            text += "" if ratio is None or asked is None else f" ({asked:.2f})"
            cells.append(f"**{text}**" if self.missed(peer) else text)
        return cells


def require_right(case: Case, ways: Mapping[str, Way]) -> None:
    """Refuse to time what gives other results than torch in float64."""
    arguments = case.arguments()
    exact = case.fn(*(x.double() if x.is_floating_point() else x for x in arguments))
    for name, way in ways.items():
        check(f"{case.name}, {name}", way(), exact, case.dtype, case.magnitude())


def measured(case: Case, others: Sequence[str]) -> Row:
    """A case timed against others, once all results are right."""
    torch.compiler.reset()
    arguments = case.arguments()
    ways = {"ours": Way(bt.jit("cpu")(case.fn), arguments), "eager": Way(case.fn, arguments)}
    if "compile" in others:
        ways["compile"] = Way(torch.compile(case.fn, dynamic=False), arguments)
    for name, way in peers.ways(case, arguments).items():
        if name in others:
            ways[name] = Way(way)
    require_right(case, ways)
    return Row(case, in_turns(ways))


@dataclass(frozen=True)
class Pair:
    """A function and one of torch's that are called in turns, and how much longer each takes so.

    What a call finds in the caches depends on how long ago the last one was, and on what was read
    and written meanwhile. So ours is also called in turns with ours of the same as torch's, after
    which nothing is done until torch's would be done; and torch's with torch's of the same as ours.

    Attributes:
        name: of both.
        ours: how many times as long ours takes beside torch's, and beside ours.
        torchs: how many times as long torch's takes beside ours, and beside torch's.
    """

    name: str
    ours: Sequence[float]
    torchs: Sequence[float]

    def cells(self) -> list[str]:
        """As a line of the table."""
        return [self.name, *_compared(*self.ours), *_compared(*self.torchs)]


def _compared(mixed: float, own: float) -> list[str]:
    text = f"{mixed:.2f}"
    return [f"**{text}**" if mixed > BESIDE * max(own, 1.0) else text, f"{own:.2f}"]


def in_pairs() -> list[Pair]:
    """Functions that threads share, each beside one of torch's on other tensors."""
    found = []
    for case, other in PAIRS:
        arguments, others = case.arguments(), tuple(x.clone() for x in other.arguments())
        ours, eager = Way(bt.jit("cpu")(case.fn), arguments), Way(case.fn, arguments)
        same, theirs = Way(bt.jit("cpu")(other.fn), others), Way(other.fn, others)
        require_right(case, {"ours": ours, "eager": eager})
        require_right(other, {"ours": same, "eager": theirs})
        as_long = same.lasting(theirs.seconds(theirs.calls()))
        found.append(
            Pair(
                f"{case.name}, {other.name}",
                beside(ours, (theirs, as_long)),
                beside(theirs, (ours, eager)),
            )
        )
    return found


def table_of_pairs(pairs: Sequence[Pair]) -> list[str]:
    """The pairs as Markdown; nothing where there are none."""
    if not pairs:
        return []
    head = "| called in turns | ours beside torch's | ours | torch's beside ours | torch's |"
    lines = [head, "|---|---|---|---|---|"]
    return lines + [f"| {' | '.join(pair.cells())} |" for pair in pairs]


def mean(rows: Iterable[Row], peer: str) -> float | None:
    """The geometric mean of the ratios; None where a peer was not measured."""
    ratios = [ratio for row in rows if (ratio := row.ratio(peer)) is not None]
    return statistics.geometric_mean(ratios) if ratios else None


def table(rows: Sequence[Row]) -> list[str]:
    """The rows as Markdown."""
    lines = [f"| work | ours, us | {' | '.join(PEERS)} |", "|---|---|" + "---|" * len(PEERS)]
    return lines + [f"| {' | '.join(row.cells())} |" for row in rows]


def summary(rows: Sequence[Row], products: Sequence[Row]) -> list[str]:
    """What the whole suite comes to, and how many cases fall short."""
    lines = [f"{len(rows)} cases. Geometric means (in brackets: asked for):", ""]
    for peer in PEERS:
        found, asked = mean(rows, peer), MEANS.get(peer)
        if found is not None:
            lines.append(f"- {peer} {found:.2f}" + (f" ({asked:.2f})" if asked else ""))
    worst = min(rows, key=lambda row: row.ratio("eager") or 0)
    lines += ["", f"Least against eager: {worst.case.name}, {worst.ratio('eager'):.2f}."]
    short = [row.case.name for row in rows if any(row.missed(peer) for peer in PEERS)]
    lines.append(f"Short of what is asked for: {', '.join(short) or 'none'}.")
    if products:
        worst = min(products, key=lambda row: row.ratio("eager") or 0)
        below = sum(row.missed("eager") for row in products)
        lines.append(
            f"{len(products)} matrix products against eager: mean {mean(products, 'eager'):.2f}, "
            f"least {worst.ratio('eager'):.2f} ({worst.case.size}), {below} below {LEAST}."
        )
    return lines


def plot(rows: Sequence[Row], file: Path) -> None:
    """Ratios as bars, on a logarithmic scale."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = [peer for peer in PEERS if any(row.ratio(peer) for row in rows)]
    figure, axes = pyplot.subplots(figsize=(9, 0.32 * len(rows) + 1.5))
    height = 0.8 / len(shown)
    for number, peer in enumerate(shown):
        places = [n + number * height for n, row in enumerate(rows) if row.ratio(peer)]
        axes.barh(places, [r for row in rows if (r := row.ratio(peer))], height, label=peer)
    axes.set_xscale("log")
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_yticks([n + 0.4 - height / 2 for n in range(len(rows))], [r.case.name for r in rows])
    axes.invert_yaxis()
    axes.set_xlabel("times as long as babytriton")
    axes.legend()
    figure.tight_layout()
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def processor() -> str:
    """Its name, as the system gives it."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def versions() -> str:
    """Of what is compared."""
    found = [f"torch {torch.__version__}"]
    for name in ("jax", "numba", "warp-lang"):
        with suppress(metadata.PackageNotFoundError):
            found.append(f"{name} {metadata.version(name)}")
    return ", ".join(found)


def _chosen(cases: Sequence[Case], parts: Sequence[str]) -> list[Case]:
    """Those with one of the parts in their names; all if there are none."""
    return [case for case in cases if not parts or any(part in case.name for part in parts)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=RawDescription)
    parser.add_argument("parts", nargs="*", help="only cases with one of these in their names")
    parser.add_argument("--results", type=Path, help="a folder for the table and the plot")
    given = parser.parse_args()
    chosen, sweep = _chosen(CASES, given.parts), _chosen(PRODUCTS, given.parts)
    threads = torch.get_num_threads()
    print(f"{processor()}, {threads} threads, {date.today()}; {versions()}\n")
    rows = []
    for case in chosen:
        rows.append(measured(case, PEERS))
        print("\n".join(table(rows) if len(rows) == 1 else table(rows)[-1:]), flush=True)
    products = [measured(case, ("eager",)) for case in sweep]
    pairs = [] if given.parts else in_pairs()
    if rows:
        print("", *summary(rows, products), "", *table_of_pairs(pairs), sep="\n")
    elif products:
        print(*table(products), sep="\n")
    if given.results and rows:
        given.results.mkdir(parents=True, exist_ok=True)
        head = [
            f"# {processor()}, {threads} threads",
            "",
            f"{date.today()}; {versions()}. Times as",
        ]
        head[-1] += " long as ours; in brackets what is asked for, in bold what falls short of it."
        text = [*head, "", *table(rows), "", *summary(rows, products)]
        if products:
            text += ["", *table(products), "", *table_of_pairs(pairs)]
        (given.results / "cpu.md").write_text("\n".join(text) + "\n")
        plot(rows, given.results / "cpu.png")


if __name__ == "__main__":
    main()
