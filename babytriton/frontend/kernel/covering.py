"""Blocks that write a part of a tensor, as blocks that give every element of it.

In place, what is not written stays. A function that returns a new tensor must say so of each
element, and can then fuse with what is around it.
"""

from __future__ import annotations

from tvm import ir, sym, tirx
from tvm_ffi import structural_map

from babytriton.frontend.kernel.blocks import Block
from babytriton.frontend.kernel.program import Assign, Loop, has, index, replaced_in, variables


def covering(block: Block) -> Block:
    """The block over all elements of the tensor it writes; itself where that is not possible.

    It is, where each loop moves along one dimension, one step at a time.
    """
    if not block.is_regular or block.reduced:
        return block
    [store] = block.body
    assert isinstance(store, Assign)
    found = _places(block, store)
    if found is None:
        return block
    loops, moved, inside = [], [], []
    for dim, (loop, size) in enumerate(zip(found, store.buffer.shape)):
        over = Loop(tirx.Var(f"{store.buffer.name}{dim}", "int64"), size, ())
        first, count = index(0), index(1)
        if loop is None:
            first = store.indices[dim]
        else:
            first = sym.Analyzer().simplify(store.indices[dim] - loop.var)
            count = loop.extent
            moved.append((loop.var, over.var - first))
        if int(first) > 0:
            inside.append(tirx.GE(over.var, first))
        if int(first) + int(count) < int(size):
            inside.append(tirx.LT(over.var, index(int(first) + int(count))))
        loops.append(over)
    if not inside:
        return block
    place = tuple(loop.var for loop in loops)
    condition = inside[0]
    for other in inside[1:]:
        condition = tirx.And(condition, other)
    value = _simplified(replaced_in(store.value, moved))
    value = tirx.if_then_else(condition, value, tirx.BufferLoad(store.buffer, list(place)))
    return Block(tuple(loops), (Assign(store.buffer, place, value),))


def _places(block: Block, store: Assign) -> list[Loop | None] | None:
    """For each dimension the loop that moves along it, if one does and by single steps."""
    found: list[Loop | None] = []
    for expr in store.indices:
        used = [loop for loop in block.spatial if has(variables(expr), loop.var)]
        if not used and isinstance(expr, tirx.IntImm):
            found.append(None)
            continue
        if len(used) != 1:
            return None
        rest = sym.Analyzer().simplify(expr - used[0].var)
        if not isinstance(rest, tirx.IntImm):
            return None
        found.append(used[0])
    loops = [loop for loop in found if loop is not None]
    return found if sorted(map(id, loops)) == sorted(map(id, block.spatial)) else None


def _simplified(expr: ir.Expr) -> ir.Expr:
    """An expression with the indices of its loads simplified."""
    analyzer = sym.Analyzer()

    def load(node: ir.Expr) -> ir.Expr:
        return tirx.BufferLoad(node.source, [analyzer.simplify(x) for x in node.indices])

    return structural_map(expr, (ir.TensorLoad, load))
