"""Conditions that hold wherever a block is, or nowhere: they are not asked.

What is read of a padded tensor is beyond its border at some places; where a block goes over the
middle of it alone, none of these is among them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import tvm_ffi
from tvm import ir, sym, tirx

from babytriton.ops.primfunc import nodes
from babytriton.passes.gpu.extents import Axis
from babytriton.passes.gpu.writing import number
from babytriton.passes.intrinsics import function_name

_Node = TypeVar("_Node", tirx.BufferStore, ir.Expr)


def without_certain(node: _Node, axes: Sequence[Axis]) -> _Node:
    """A store, or an expression, that asks only what is open.

    Args:
        node: of a block.
        axes: that it goes over, from 0 on.
    """
    analyzer = sym.Analyzer()
    for variable, extent in axes:
        end = number(extent) if isinstance(extent, int) else extent
        analyzer.bind(variable, ir.Range(number(0), end))

    def of_choice(call: ir.Call) -> ir.Expr:
        if function_name(call) != "if_then_else":
            return call
        test, yes, no = call.args
        open_tests = []
        for part in _parts(test):
            if nodes(part, ir.TensorLoad) or nodes(part, ir.Call):
                open_tests.append(part)
            elif analyzer.can_prove(tirx.Not(part)):
                return no
            elif not analyzer.can_prove(part):
                open_tests.append(part)
        return tirx.if_then_else(tirx.all(*open_tests), yes, no) if open_tests else yes

    found: _Node = tvm_ffi.structural_map(node, (ir.Call, of_choice))
    return found


def _parts(test: ir.Expr) -> Iterator[ir.Expr]:
    """What must all hold for a condition to."""
    if isinstance(test, tirx.And):
        yield from _parts(test.a)
        yield from _parts(test.b)
    else:
        yield test
