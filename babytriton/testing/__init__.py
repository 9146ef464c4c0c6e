"""Checks and timings of compiled functions and operators, for those who write them."""

from babytriton.testing.checking import Checked, check
from babytriton.testing.samples import Sample
from babytriton.testing.timing import Timings, bench, do_bench

__all__ = ["Checked", "Sample", "Timings", "bench", "check", "do_bench"]
