"""Divisions of what is never negative -> those of processors.

TVM's divisions round down, and processors' towards zero. Whether that is the same TVM asks at such
length that a few divisions within others, by sizes that a call tells, took it minutes; and where it
finds no answer, it adds instructions to every division. Here it is told by form: by what is made of
sizes and steps. Casts that may wrap are hidden by then (`indices.py`).
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import IRModule, ir, tirx

from babytriton.ops.primfunc import nodes, with_kernels
from babytriton.passes.statements import is_natural

_OF_PROCESSORS = {tirx.FloorDiv: tirx.Div, tirx.FloorMod: tirx.Mod}


def towards_zero(mod: IRModule) -> IRModule:
    """Kernels, once their buffers have one dimension, with divisions as processors have them."""
    return with_kernels(mod, _changed)


def _changed(func: tirx.PrimFunc) -> tirx.PrimFunc:
    if not any(nodes(func.body, kind) for kind in _OF_PROCESSORS):
        return func
    naturals = _naturals(func.body)

    def plain(division: Any) -> ir.Expr:
        # By powers of two TVM shifts, whatever the sign.
        is_shift = isinstance(division.b, tirx.IntImm) and int(division.b).bit_count() == 1
        if is_shift or not is_natural(division, naturals):
            return division
        return _OF_PROCESSORS[type(division)](division.a, division.b)

    maps = [(kind, plain) for kind in _OF_PROCESSORS]
    return func.with_body(tvm_ffi.structural_map(func.body, maps))


def _naturals(body: tirx.Stmt) -> set[tirx.Var]:
    """The variables that are never negative: sizes, steps from 0, threads, and names of such."""
    buffers = [
        node.buffer for kind in (tirx.DeclBuffer, tirx.AllocBuffer) for node in nodes(body, kind)
    ]
    found = {size for buffer in buffers for extent in buffer.shape for size in _sizes(extent)}
    for axis in nodes(body, tirx.AttrStmt):
        if axis.attr_key == "thread_extent":
            found.add(axis.node.var)
    for loop in nodes(body, tirx.For):
        if is_natural(loop.min, found):
            found.add(loop.loop_var)
    for name in nodes(body, tirx.Bind):
        if is_natural(name.value, found):
            found.add(name.var)
    return found


def _sizes(extent: ir.Expr) -> list[tirx.Var]:
    """The sizes that an extent is a product of; none where it is more than that."""
    parts = nodes(extent, ir.Expr)
    is_product = all(isinstance(part, (tirx.Mul, ir.Var, tirx.IntImm)) for part in parts)
    return [part for part in parts if isinstance(part, ir.Var)] if is_product else []
