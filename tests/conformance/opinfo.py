"""torch's own OpInfo samples, for every row of the table that has an entry.

``python -m tests.conformance.opinfo add sum`` tries some entries and prints what fails.
"""

from __future__ import annotations

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

    def samples(self, dtype: torch.dtype) -> Iterator[Any]:
        """torch's samples in a dtype: all of them, or one, as the dtype asks."""
        if dtype not in self.info.dtypes:
            return
        for i, sample in enumerate(self.info.sample_inputs("cpu", dtype, requires_grad=False)):
            if i and dtype in ONE_SAMPLE:
                return
            yield sample


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


def check(entry: Entry, samples: Sequence[Any]) -> list[Fallback]:
    """Hold samples against torch, many in one program; return what ran through torch."""
    tried = [sample for sample in samples if _expected(entry, [sample]) is not None]
    if str(entry) in PARTLY:
        tried = [sample for sample in tried if not _is_refused(entry, sample)]
    found: list[Fallback] = []
    for start in range(0, len(tried), TOGETHER):
        group = tried[start : start + TOGETHER]
        expected = _expected(entry, group)
        assert expected is not None
        lowered = bt.jit("cpu")(_program(entry.op, group)).lower()
        compiled = lowered.compile()
        SEEDED.manual_seed(0)
        expected.check(compiled())
        found += lowered.fallbacks
    return found


def _is_refused(entry: Entry, sample: Any) -> bool:
    try:
        bt.jit("cpu")(_program(entry.op, [sample])).lower()
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


def _own(sample: Any) -> Any:
    """A sample with tensors of its own: some operators write to them."""
    return sample.transform(lambda x: x.clone() if isinstance(x, torch.Tensor) else x)


def _program(op: Any, samples: list[Any]) -> Callable[[], Any]:
    """A function of no arguments that applies ``op`` to up to ``TOGETHER`` samples."""
    count = len(samples)
    samples = [_own(sample) for sample in samples]

    def one(i: int) -> Any:
        sample = samples[i]
        return op(sample.input, *sample.args, **sample.kwargs)

    def program() -> Any:
        return (
            one(0),
            one(1) if count > 1 else (),
            one(2) if count > 2 else (),
            one(3) if count > 3 else (),
            one(4) if count > 4 else (),
            one(5) if count > 5 else (),
            one(6) if count > 6 else (),
            one(7) if count > 7 else (),
            one(8) if count > 8 else (),
            one(9) if count > 9 else (),
            one(10) if count > 10 else (),
            one(11) if count > 11 else (),
        )

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
        for dtype in ALL_SAMPLES + ONE_SAMPLE:
            for i, sample in enumerate(entry.samples(dtype)):
                tried += 1
                try:
                    for fallback in check(entry, [sample]):
                        key = f"{entry}: {fallback.name}: {fallback.reason}"
                        fallbacks[key] = fallbacks.get(key, 0) + 1
                except Exception as error:
                    failed += 1
                    lines = str(error).strip().splitlines()[:6]
                    shown = "\n    ".join([str(sample)[:300], *lines])
                    print(f"FAILED {entry} {dtype} {i}: {type(error).__name__}\n    {shown}")
    for key, count in fallbacks.items():
        print(f"through torch, {count} times: {key}")
    print(f"{failed} of {tried} failed")
    return failed


if __name__ == "__main__":
    sys.exit(bool(main(sys.argv[1:])))
