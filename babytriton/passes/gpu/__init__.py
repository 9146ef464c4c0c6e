"""Kernels for GPUs: their schedule rules, and how CUDA C++ is written that people read."""
