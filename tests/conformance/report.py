"""Runs the samples of some rows and prints what fails: ``python -m tests.conformance.report add``.

A quick way to try rows while writing them; the tests proper are test_cpu.py and test_gpu.py.
"""

import sys
import time

import babytriton as bt
from tests.conformance.sample import Expected
from tests.conformance.samples import SAMPLES


def main(names: list[str]) -> int:
    """Try every sample whose row is named, or all of them; return how many failed."""
    failed = tried = 0
    start = time.perf_counter()
    for i, sample in enumerate(SAMPLES):
        if names and sample.op not in names:
            continue
        for dtype in sample.dtypes:
            tried += 1
            compiled = bt.jit("cpu")(sample.fn)
            arguments = sample.arguments(dtype)
            try:
                lowered = compiled.lower(*arguments)
                Expected(sample, arguments).check(lowered.compile()(*arguments))
                for fallback in lowered.fallbacks:
                    print(f"through torch: {sample.op} sample {i} {dtype}: {fallback}")
            except Exception as error:
                failed += 1
                text = str(error).strip().splitlines()
                shown = "\n    ".join(text[:6])
                print(f"FAILED {sample.op} sample {i} {dtype}: {type(error).__name__}\n    {shown}")
    print(f"{failed} of {tried} failed, {time.perf_counter() - start:.1f} s")
    return failed


if __name__ == "__main__":
    sys.exit(bool(main(sys.argv[1:])))
