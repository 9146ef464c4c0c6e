"""What it takes to compute a value, about."""

from __future__ import annotations

from tvm import ir

from babytriton.ops.primfunc import nodes
from babytriton.passes.blocks import different

FUNCTION = 64
"""Nodes of expressions that take as long as a function of math, or a branch, about."""

_LOAD = 32  # and that take as long as to read a number again, which is in a cache by then


def effort(value: ir.Expr) -> int:
    """How long it takes to compute a value once more, in nodes of expressions."""
    calls, loads = nodes(value, ir.Call), different(nodes(value, ir.TensorLoad))
    return len(nodes(value, ir.Expr)) + FUNCTION * len(calls) + _LOAD * len(loads)
