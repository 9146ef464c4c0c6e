"""Divisions of what is never negative -> those of processors.

TVM's divisions round down, and processors' towards zero. Whether that is the same TVM asks at such
length that a few divisions within others, by sizes that a call tells, took it minutes; and where it
finds no answer, it adds instructions to every division. Indices tell by their form.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import IRModule, ir, tirx

from babytriton.ops.primfunc import nodes

_OF_PROCESSORS = {tirx.FloorDiv: tirx.Div, tirx.FloorMod: tirx.Mod}

_UPWARDS = (tirx.Add, tirx.Mul, tirx.Min, tirx.FloorDiv, tirx.FloorMod, tirx.Div, tirx.Mod)
"""What gives no negative number of two that are none."""


def towards_zero(mod: IRModule) -> IRModule:
    """Kernels, once their buffers have one dimension, with divisions as processors have them."""
    functions = {
        var: _changed(func) if isinstance(func, tirx.PrimFunc) else func
        for var, func in mod.functions_items()
    }
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def _changed(func: tirx.PrimFunc) -> tirx.PrimFunc:
    if not any(nodes(func.body, kind) for kind in _OF_PROCESSORS):
        return func
    known = _Known(func.body)

    def plain(division: Any) -> ir.Expr:
        # By powers of two TVM shifts, whatever the sign.
        is_shift = isinstance(division.b, tirx.IntImm) and int(division.b).bit_count() == 1
        if is_shift or not known.has_no_sign(division):
            return division
        return _OF_PROCESSORS[type(division)](division.a, division.b)

    maps = [(kind, plain) for kind in _OF_PROCESSORS]
    return func.with_body(tvm_ffi.structural_map(func.body, maps))


class _Known:
    """The variables that are never negative: sizes, steps from 0, threads, and names of such.

    Args:
        body: of a kernel.
    """

    def __init__(self, body: tirx.Stmt) -> None:
        shapes = [
            node.buffer.shape
            for kind in (tirx.DeclBuffer, tirx.AllocBuffer)
            for node in nodes(body, kind)
        ]
        self._variables = set(nodes(shapes, ir.Var))
        for axis in nodes(body, tirx.AttrStmt):
            if axis.attr_key == "thread_extent":
                self._variables.add(axis.node.var)
        for loop in nodes(body, tirx.For):
            if self.has_no_sign(loop.min):
                self._variables.add(loop.loop_var)
        for name in nodes(body, tirx.Bind):
            if self.has_no_sign(name.value):
                self._variables.add(name.var)

    def has_no_sign(self, expr: ir.Expr) -> bool:
        """Whether an integer is surely not negative."""
        if isinstance(expr, tirx.IntImm):
            return int(expr) >= 0
        if isinstance(expr, ir.Var):
            return expr in self._variables
        if isinstance(expr, tirx.Cast):
            return str(expr.ty.dtype).startswith("int") and self.has_no_sign(expr.value)
        if isinstance(expr, tirx.Max):
            return self.has_no_sign(expr.a) or self.has_no_sign(expr.b)
        return isinstance(expr, _UPWARDS) and all(map(self.has_no_sign, (expr.a, expr.b)))
