"""What rules see of a kernel once they have put cheap values in the place of what reads them."""

from __future__ import annotations

from collections.abc import Sequence

import tvm_ffi
from tvm import ir, s_tir, sym, tirx

from babytriton.ops.primfunc import nodes
from babytriton.passes.blocks import element
from babytriton.passes.rows import stores_points

_MOST = 8  # nodes of an expression that is put elsewhere, such as a part, or its opposite


def inlined(blocks: Sequence[s_tir.SBlock]) -> list[s_tir.SBlock]:
    """The blocks, in order, without those whose cheap values others compute where they read them.

    What else becomes of these values is not looked at: a rule that is given the kernel does that.
    """
    values: dict[tirx.Var, s_tir.SBlock] = {}
    found: list[s_tir.SBlock] = []
    for number, block in enumerate(blocks):
        block = _computing(block, values)
        read = {region.source for other in blocks[number + 1 :] for region in other.reads}
        if _is_cheap(block) and block.body.buffer in read:
            values[block.body.buffer] = block
        else:
            found.append(block)
    return found


def _is_cheap(block: s_tir.SBlock) -> bool:
    if not stores_points(block) or nodes(block.body.value, ir.Call):
        return False
    value = block.body.value
    places = [index for load in nodes(value, ir.TensorLoad) for index in load.indices]
    count = len(nodes(value, ir.Expr)) - sum(len(nodes(index, ir.Expr)) for index in places)
    return count <= _MOST


def _computing(block: s_tir.SBlock, values: dict[tirx.Var, s_tir.SBlock]) -> s_tir.SBlock:
    """A block with values in the place of what it reads of them."""
    if not any(region.source in values for region in block.reads):
        return block
    analyzer = sym.Analyzer()
    for axis in block.iter_vars:
        analyzer.bind(axis.var, axis.dom)

    def computed(load: ir.TensorLoad) -> ir.Expr:
        other = values.get(load.source)
        if other is None:
            return load
        at = dict(zip([axis.var for axis in other.iter_vars], load.indices))
        value = tvm_ffi.structural_map(other.body.value, (ir.Var, lambda var: at.get(var, var)))
        return tvm_ffi.structural_map(value, (ir.TensorLoad, simplified))

    def simplified(load: ir.TensorLoad) -> ir.TensorLoad:
        return tirx.BufferLoad(load.source, [analyzer.simplify(i) for i in load.indices])

    body = tvm_ffi.structural_map(block.body, (ir.TensorLoad, computed))
    reads = [element(load.source, load.indices) for load in nodes(body, ir.TensorLoad)]
    return s_tir.SBlock(
        block.iter_vars, reads, block.writes, block.name_hint, body, block.init, span=block.span
    )
