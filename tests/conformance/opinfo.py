"""torch's own OpInfo samples, for every row of the table that has an entry.

``python -m tests.conformance.opinfo add sum`` tries some entries and prints what fails.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db

import babytriton as bt
from babytriton.errors import DataDependent, Mutation
from babytriton.ops import ROWS, TABLE
from babytriton.ops.fallback import Fallback
from babytriton.types import find_dtype
from tests.conformance.sample import Expected, Sample, flatten

_SEEDED = "torch's entry seeds the generator in a `with` statement, which is not compiled"
_UNDEFINED = "its values are undefined"
EXCLUDED: dict[str, str] = {
    "nn.functional.dropout": _SEEDED,
    "nn.functional.dropout2d": _SEEDED,
    "nn.functional.dropout3d": _SEEDED,
    "nn.functional.alpha_dropout": _SEEDED,
    "nn.functional.feature_alpha_dropout.with_train": _SEEDED,
    "nn.functional.feature_alpha_dropout.without_train": _SEEDED,
    "nn.functional.rrelu": _SEEDED,
    "empty": _UNDEFINED,
    "empty_like": _UNDEFINED,
    "tensor_split": "its sections are tensors, so its shapes depend on their numbers",
}
"""Entries that are not tried at all, each with its reason."""

PARTLY: dict[str, str] = {
    "__getitem__": "a mask selects as many elements as it has true ones",
    "nn.functional.one_hot": "without num_classes, the largest index gives their number",
    "repeat_interleave": "a tensor of repeats gives the length",
}
"""Entries some of whose samples must be refused, for this reason; the others are tried."""

SMALLER: dict[str, str] = {
    "nn.functional.multi_head_attention_forward": (
        "its scores are of the order of 1e5: a softmax makes first digits of what is rounded there"
    ),
}
"""Entries whose numbers are taken a tenth as large, each with its reason."""

SEEDED = torch.default_generator
"""Seeded alone: ``torch.manual_seed`` writes down a stack trace for each device to come."""

TOGETHER = 12
"""Samples compiled as one program: most of the time for one goes into what all share."""

ALL_SAMPLES = (torch.float32, torch.float64)
ONE_SAMPLE = (torch.float16, torch.bfloat16, torch.int64)


@dataclass(frozen=True)
class Entry:
    """An OpInfo entry, and the row of the table it tries."""

    info: Any
    row: str

    def __str__(self) -> str:
        variant = self.info.variant_test_name
        return f"{self.info.name}.{variant}" if variant else str(self.info.name)

    @property
    def op(self) -> Any:
        """What is called: the callable of the entry's name where torch's is a wrapper of it."""
        named: Any = torch
        for part in self.info.name.split("."):
            named = getattr(named, part, None)
        return named if self.info.op not in TABLE and named in TABLE else self.info.op

    def samples(self) -> Iterator[Any]:
        """torch's samples: all of them in some dtypes, the first in others."""
        for dtype in (*ALL_SAMPLES, *ONE_SAMPLE):
            if dtype in self.info.dtypes:
                samples = self.info.sample_inputs("cpu", dtype, requires_grad=False)
                samples = map(_smaller, samples) if str(self) in SMALLER else samples
                yield from itertools.islice(samples, None if dtype in ALL_SAMPLES else 1)

    def first_samples(self, count: int) -> list[Any]:
        """Some of torch's samples, in the first dtype that there are any for."""
        return list(itertools.islice(self.samples(), count))


def entries() -> list[Entry]:
    """The entries that a row of the table answers to, in torch's order."""
    names = {row.name for row in ROWS}
    found = []
    for info in op_db:
        row = TABLE.get(info.op)
        module, _, name = info.name.rpartition(".")
        if row is not None:
            found.append(Entry(info, row.name))
        elif module in ("", "nn.functional", "linalg", "special") and name in names:
            found.append(Entry(info, name))
    return found


def check(entry: Entry, samples: Sequence[Any], part: int = 0, parts: int = 1) -> list[Fallback]:
    """Hold samples against torch, many in one program; return what ran through torch.

    Args:
        entry: that the samples are of.
        samples: torch's.
        part: which of them to hold, of as many parts as there are.
        parts: how many.
    """
    groups = _alike(samples)[part::parts]
    groups = [[x for x in group if _expected(entry, [x]) is not None] for group in groups]
    if str(entry) in PARTLY:
        groups = [[x for x in group if not _is_refused(entry, x)] for group in groups]
    groups = [group for group in groups if group]
    found: list[Fallback] = []
    for start in range(0, len(groups), TOGETHER):
        found += _check_together(entry, groups[start : start + TOGETHER])
    return found


def _check_together(entry: Entry, groups: list[list[Any]]) -> list[Fallback]:
    """Compile one program for the first sample of each group, and run it on all of them."""
    captured = [_own(group[0]) for group in groups]
    lowered = bt.jit("cpu")(_program(entry.op, captured)).lower()
    compiled = lowered.compile()
    for turn in range(max(map(len, groups))):
        # A group that is through goes round again.
        samples = [group[turn % len(group)] for group in groups]
        expected = _expected(entry, samples)
        assert expected is not None
        for mine, given in zip(captured, samples):
            for target, source in zip(_tensors(mine), _tensors(given), strict=True):
                target.copy_(source)
        SEEDED.manual_seed(0)
        expected.check(compiled())
    return lowered.fallbacks


def _alike(samples: Sequence[Any]) -> list[list[Any]]:
    """The samples in groups that differ in no more than the numbers and strides of tensors."""
    groups: dict[str, list[Any]] = {}
    for sample in samples:
        described = sample.transform(
            lambda x: (x.shape, x.dtype) if isinstance(x, torch.Tensor) else x
        )
        key = repr((described.input, described.args, described.kwargs))
        groups.setdefault(key, []).append(sample)
    return list(groups.values())


def _tensors(sample: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    sample.transform(lambda x: found.append(x) if isinstance(x, torch.Tensor) else x)
    return found


def _is_refused(entry: Entry, sample: Any) -> bool:
    try:
        bt.jit("cpu")(_program(entry.op, [_own(sample)])).lower()
    except bt.CompileError as error:
        return isinstance(error.diagnostic, (DataDependent, Mutation))
    return False


def _expected(entry: Entry, samples: list[Any]) -> Expected | None:
    """torch's results for some samples; ``None`` where torch refuses them, or they are complex."""

    def run(*arguments: Any) -> Any:
        SEEDED.manual_seed(0)  # Some operators draw random numbers, through torch here as there.
        return [
            entry.op(input, *args, **dict(zip(sample.kwargs, values)))
            for sample, (input, args, values) in zip(samples, arguments)
        ]

    samples = [_own(sample) for sample in samples]
    # The tensors are arguments, so that Expected can widen them to judge by.
    arguments = tuple((s.input, tuple(s.args), tuple(s.kwargs.values())) for s in samples)
    try:
        expected = Expected(Sample(entry.row, run, ()), arguments)
    except Exception:  # some samples are there to be refused
        return None
    leaves = [leaf for leaf in flatten(expected.leaves) if isinstance(leaf, torch.Tensor)]
    return expected if all(find_dtype(leaf.dtype) for leaf in leaves) else None


def _smaller(sample: Any) -> Any:
    return sample.transform(
        lambda x: x / 10 if isinstance(x, torch.Tensor) and x.is_floating_point() else x
    )


def _own(sample: Any) -> Any:
    """A sample with tensors of its own: some operators write to them."""
    return sample.transform(lambda x: x.clone() if isinstance(x, torch.Tensor) else x)


def _program(op: Any, samples: list[Any]) -> Callable[[], Any]:
    """A function of no arguments that applies ``op`` to some samples, whose tensors it captures."""

    def one(sample: Any) -> Any:
        return op(sample.input, *sample.args, **sample.kwargs)

    def program() -> Any:
        return [one(samples[i]) for i in range(len(samples))]

    return program


def main(names: list[str]) -> int:
    """Try the named entries or rows, or all; return how many samples failed."""
    failed = tried = 0
    fallbacks: dict[str, int] = {}
    for entry in entries():
        if names and str(entry) not in names and entry.row not in names:
            continue
        if str(entry) in EXCLUDED:
            continue
        for i, sample in enumerate(entry.samples()):
            tried += 1
            try:
                for fallback in check(entry, [sample]):
                    key = f"{entry}: {fallback.name}: {fallback.reason}"
                    fallbacks[key] = fallbacks.get(key, 0) + 1
            except Exception as error:
                failed += 1
                lines = str(error).strip().splitlines()[:6]
                shown = "\n    ".join([str(sample)[:300], *lines])
                print(f"FAILED {entry} {i}: {type(error).__name__}\n    {shown}")
    for key, count in fallbacks.items():
        print(f"through torch, {count} times: {key}")
    print(f"{failed} of {tried} failed")
    return failed


if __name__ == "__main__":
    sys.exit(bool(main(sys.argv[1:])))
