"""Which way a matrix product or a convolution is computed on the CPU."""

from __future__ import annotations

from tvm import ir, s_tir, tirx
from tvm.s_tir.dlight.analysis import SBlockInfo
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target

from babytriton.passes.blocks import (
    inline_cheap,
    is_at_least,
    is_output,
    is_pointwise,
    loads,
    open_kernel,
    same_extents,
    written,
)
from babytriton.passes.contractions import Contraction, contraction, factors
from babytriton.passes.cpu.costs import Costs
from babytriton.passes.cpu.dots import is_of_dots, tile_of_dots
from babytriton.passes.cpu.elementwise import spread
from babytriton.passes.cpu.few_rows import is_of_few_rows, tile_few_rows
from babytriton.passes.cpu.registers import Registers
from babytriton.passes.cpu.tiles import is_matrix_product, tile, tile_sizes
from babytriton.passes.nests import is_point, pointwise_nests, stores_at

# A convolution of fewer products takes longer in tiles than row after row.
TILED = 1 << 14


class Matmul(ScheduleRule):
    """Takes one product summed over an axis: matmul, linear, einsum, convolutions.

    Gives register tiles of results in parallel tasks, and pointwise blocks that follow within
    the tile.
    Stands aside where no axis belongs to one operand alone (a matrix by a vector is a row sum or a
    column sum), and for convolutions of symbolic sizes.
    """

    def apply(self, func: tirx.PrimFunc, target: Target, _: bool) -> s_tir.Schedule | None:
        kernel = open_kernel(func)
        if kernel is None:
            return None
        sch, infos = kernel
        found = [position for position, info in enumerate(infos) if info.is_reduction()]
        if len(found) != 1:
            return None
        product = contraction(sch, infos[found[0]])
        before, after = infos[: found[0]], infos[found[0] + 1 :]
        if product is None or not all(is_pointwise(sch, info) for info in before + after):
            return None
        # Operands are read many times: what makes them is computed once, before. Only where they
        # lie makes no difference.
        before = [info for info in before if not inline_transpose(sch, info, product)]
        product = contraction(sch, product.info)
        if product is None:
            return None
        before = inline_cheap(sch, before, keep_for=[product.info])
        after = inline_cheap(sch, after)
        for nest in pointwise_nests(sch, before):
            spread(sch, nest)
        epilogue, costs = None, Costs.of(target)
        if after and is_read_once(sch, product.info, after[0]):
            epilogue, *after = after
        is_matrix = is_matrix_product(sch, product)
        if not is_matrix and not is_at_least(product.info, TILED):
            row_after_row(sch, product)
            after = [epilogue, *after] if epilogue else after
        elif is_of_dots(sch, product, costs):
            tile_of_dots(sch, product, epilogue, registers(sch, product, target))
        else:
            room = registers(sch, product, target)
            sizes = tile_sizes(sch, product, room, costs)
            if is_matrix and is_of_few_rows(sch, product, sizes[0]):
                tile_few_rows(sch, product, epilogue, sizes)
            elif not tile(sch, product, epilogue, sizes, room.lanes):
                return None
        for nest in pointwise_nests(sch, after):
            spread(sch, nest)
        return sch


def inline_transpose(sch: s_tir.Schedule, info: SBlockInfo, product: Contraction) -> bool:
    """Read what a block only puts in another order where it lies; whether it is such a block.

    Unless that is the other operand: a product of a tensor by itself would be no contraction.
    """
    value = sch.get(info.block_rv).body.value
    is_own = isinstance(value, ir.TensorLoad) and not is_output(sch, info)
    if not is_own or not all(isinstance(index, tirx.Var) for index in value.indices):
        return False
    operands = factors(sch.get(product.info.block_rv).body)
    if operands is None or any(load.source.same_as(value.source) for load in operands):
        return False
    sch.compute_inline(info.block_rv)
    return True


def registers(sch: s_tir.Schedule, product: Contraction, target: Target) -> Registers:
    """The registers that the product's sums are held in."""
    return Registers.of(target, str(sch.get(product.info.block_rv).body.value.ty.dtype))


def is_read_once(sch: s_tir.Schedule, info: SBlockInfo, reader: SBlockInfo) -> bool:
    """Whether `reader` alone needs the sums of a block, each at its own point."""
    if is_output(sch, info) or len(sch.get_consumers(info.block_rv)) != 1:
        return False
    own, other = (sch.get(block.block_rv).iter_vars for block in (info, reader))
    place = [axis.var for axis, it in zip(own, info.iters) if it.kind == "S"]
    sizes = [it.dom for it in info.iters if it.kind == "S"]
    point = [axis.var for axis in other]
    return (
        same_extents(sizes, reader.dom())
        and stores_at(sch, info, place)
        and stores_at(sch, reader, point)
        and all(
            is_point(load.indices, point)
            for load in loads(sch, reader.block_rv, written(sch, info))
        )
    )


def row_after_row(sch: s_tir.Schedule, product: Contraction) -> None:
    """Add up whole rows of results, a multiple of a row of the other operand at a time."""
    block, kinds = product.info.block_rv, product.info.dom_kind()
    loops = sch.get_loops(block)
    reduced = [loop for loop, kind in zip(loops, kinds) if kind == "R"]
    outer = [
        loop
        for axis, (loop, kind) in enumerate(zip(loops, kinds))
        if kind == "S" and axis != product.column
    ]
    sch.reorder(*outer, *reduced, loops[product.column])
    sch.decompose_reduction(block, reduced[0])
