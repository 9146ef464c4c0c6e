"""Kernels for the GPU whose rules had other constants, against those that they have.

    python -m benchmarks.gpu_constants [PART ...] [--results FILE] [--jobs N]
    python -m benchmarks.gpu_constants --emulated

Cases, checks and timings are those of benchmarks/gpu.py. A table has for each case how long the
kernels with other constants take, as multiples of ours, and torch.compile's. Those that come out
the same are left out.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

import babytriton as bt
from benchmarks import gpu
from benchmarks.gpu import Case
from benchmarks.measure import check

LARGE_SIZES = ((4096, 1024), (4096, 4096), (16384, 4096))
FEW_LONG = ((7, 1000003), (64, 32768))


@dataclass(frozen=True)
class Constants:
    """Constants of rules in the place of their own.

    Attributes:
        name: as the table shows it.
        values: by "module.NAME", of :mod:`babytriton.passes.gpu`.
    """

    name: str
    values: Mapping[str, Any]

    @contextmanager
    def instead(self) -> Iterator[None]:
        """Inside, rules have these."""
        before: list[tuple[Any, str, Any]] = []
        for place, value in self.values.items():
            module, _, name = place.rpartition(".")
            found = importlib.import_module(f"babytriton.passes.gpu.{module}")
            before.append((found, name, getattr(found, name)))
            setattr(found, name, value)
        try:
            yield
        finally:
            for found, name, value in before:
                setattr(found, name, value)


@dataclass(frozen=True)
class Study:
    """What is tried for some functions.

    Attributes:
        functions: of benchmarks/gpu.py.
        sizes: rows and columns of each.
        tried: other constants.
    """

    functions: Sequence[Callable[..., torch.Tensor]]
    sizes: Sequence[tuple[int, int]]
    tried: Sequence[Constants]

    def cases(self) -> list[Case]:
        """In both lengths of numbers."""
        dtypes = torch.float32, torch.bfloat16
        return [Case(*one) for one in _each(self.functions, self.sizes, dtypes)]


def _each(functions: Any, sizes: Any, dtypes: Any) -> Iterator[tuple[Any, ...]]:
    for fn, (rows, columns), dtype in itertools.product(functions, sizes, dtypes):
        yield fn, rows, columns, dtype


def _combined(**values: Sequence[Any]) -> list[Constants]:
    """All combinations, of which names have two underscores for a point."""
    places = [name.replace("__", ".") for name in values]
    return [
        Constants(
            ", ".join(f"{place.rpartition('.')[2]} {n}" for place, n in zip(places, numbers)),
            dict(zip(places, numbers)),
        )
        for numbers in itertools.product(*values.values())
    ]


STUDIES = (
    Study(
        (gpu.add, gpu.gelu_bias, gpu.swiglu),
        LARGE_SIZES,
        _combined(elementwise__SEVERAL=(1, 2, 4), elementwise__THREADS=(64, 128, 256)),
    ),
    Study(
        (gpu.row_sums, gpu.total, gpu.column_sums, gpu.gemv),
        LARGE_SIZES,
        _combined(streaming__LARGE=(1 << 20, 1 << 25, 1 << 60)),
    ),
    Study(
        (gpu.softmax, gpu.layer_norm, gpu.rms_norm, gpu.cross_entropy, gpu.row_sums),
        ((4096, 1024), (4096, 1003), (16384, 4096)),
        [
            *_combined(rowwise__WEIGHTED=(16, 32), rowwise__BLOCK=(128, 256)),
            *_combined(rowwise__BUSY=(8, 16, 32), rowwise__BRIEF=(4, 8, 16)),
        ],
    ),
    Study(
        (gpu.softmax, gpu.layer_norm, gpu.cross_entropy, gpu.row_sums),
        FEW_LONG,
        _combined(long_rows__VECTORS=(2, 4, 8), long_rows__BLOCKS=(512, 1024, 2048)),
    ),
    Study(
        (gpu.total,),
        (*LARGE_SIZES, (64, 32768)),
        _combined(long_rows__BLOCKS=(264, 528, 1024, 1056), long_rows__THREADS=(256, 512)),
    ),
    Study(
        (gpu.running_sums,),
        ((4096, 1024), (4096, 1003), (64, 32768)),
        _combined(scan__ENOUGH=(32, 64, 128, 256), scan__TURNS=(2, 4)),
    ),
    Study(
        (gpu.column_variances, gpu.column_sums),
        ((4096, 1024), (4096, 1003), (16384, 4096)),
        _combined(tiles__LONG=(8, 16, 32, 64), tiles__BYTES=(1 << 21, 1 << 22)),
    ),
    Study(
        (gpu.transpose,),
        ((4096, 4096), (64, 32768), (4096, 1003)),
        _combined(transposed__ROWS=(4, 8, 16), transposed__PAIR=(4, 8)),
    ),
)


def cases() -> list[Case]:
    """Those of all studies, each once."""
    return list(dict.fromkeys(case for study in STUDIES for case in study.cases()))


def programs(case: Case, target: bt.Target, device: str) -> dict[str, bt.Compiled]:
    """The program of the rules' own constants, and those of others that are not the same."""
    arguments = case.arguments(device)
    found = {"ours": bt.jit(target=target)(case.fn).lower(*arguments).compile()}
    texts = {found["ours"].source("cuda")}
    tried = [one for study in STUDIES if case.fn in study.functions for one in study.tried]
    for constants in tried:
        with constants.instead():
            program = bt.jit(target=target)(case.fn).lower(*arguments).compile()
        if (text := program.source("cuda")) not in texts:
            texts.add(text)
            found[constants.name] = program
    return found


def ways_of(case: Case) -> dict[str, Callable[..., Any]]:
    """The ways to compute a case."""
    found: dict[str, Callable[..., Any]] = dict(programs(case, bt.Target("cuda"), "cuda"))
    return {**found, "compile": torch.compile(case.fn, dynamic=False)}


def line(row: gpu.Row) -> str:
    """As a line of the table: the fastest first."""
    ours = row.seconds["ours"]
    others = sorted((s, name) for name, s in row.seconds.items() if name != "ours")
    found = ", ".join(f"{name}: {seconds / ours:.3f}" for seconds, name in others)
    return f"| {row.case.name} | {ours * 1e6:.4g} | {found} |"


def emulated(chosen: Sequence[Case]) -> None:
    """Run the cases on the tests' emulator, and check them."""
    from tests.conformance import gpu as conformance

    for case in chosen:
        arguments = case.arguments("cpu")
        exact = case.fn(*(x.double() if x.is_floating_point() else x for x in arguments))
        found = programs(case, conformance.TARGET, "cpu")
        for name, program in found.items():
            result = conformance.call(program, arguments)
            check(f"{case.name}, {name}", result, exact, case.dtype, exact.abs().sum().item())
        print(f"{case.name}: {', '.join(found)}: right")


def main() -> None:
    given = gpu.options(__doc__, "a file for the table")
    chosen = [
        replace(case, rows=70, columns=33) if given.emulated else case
        for case in cases()
        if not given.parts or any(part in case.name for part in given.parts)
    ]
    if given.emulated:
        from tests.emulator import emulator

        emulator.install()
        emulated(list(dict.fromkeys(chosen)))
        return
    lines = ["| work | ours, us | others, in times of ours |", "|---|---|---|"]
    failed = 0
    for found in gpu.all_measured(chosen, given.jobs, ways_of):
        failed += isinstance(found, str)
        lines.append(found if isinstance(found, str) else line(found))
        print(lines[-1], flush=True)
        if given.results:
            given.results.write_text("\n".join(lines) + "\n")
    if failed:
        raise SystemExit(f"{failed} of {len(chosen)} cases failed")


if __name__ == "__main__":
    main()
