"""Kernels for the CPU: their schedule rules, and what makes vector code of them."""
