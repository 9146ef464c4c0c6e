"""Loops as kernels: where each step works on elements for themselves, threads run all steps."""

from babytriton.passes.recurrences.program import loops_in_kernels

__all__ = ["loops_in_kernels"]
