"""Matrix products on tensor cores, with what follows computed before they are stored.

A block of threads computes a tile of results. Tiles of both operands go to shared memory, some
columns of the first and as many rows of the second at a time: while the warps multiply one pair of
these, the next one is on its way into registers. Sums are in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import ir, s_tir, tirx
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target

from babytriton.ops.choice import TENSOR_CORES
from babytriton.ops.cuda_code import defined
from babytriton.passes.blocks import inline_cheap, open_kernel
from babytriton.passes.contractions import has_few_rows
from babytriton.passes.gpu.extents import split
from babytriton.passes.gpu.products import BLOCKS, Product, Result, Stores, points_of, results_of
from babytriton.passes.gpu.staging import (
    BARRIER,
    COLUMNS,
    DEPTH,
    FORMATS,
    ROWS,
    Staged,
    called,
    digit,
    multiply,
)
from babytriton.passes.gpu.writer import Statements
from babytriton.passes.gpu.writing import (
    WARP,
    both,
    each,
    guarded,
    item_bytes,
    kept_whole,
    launched,
    local,
    number,
    store,
    written_out,
)


@dataclass(frozen=True)
class Tile:
    """Results of a thread block.

    Attributes:
        rows, columns: of it.
        down, across: how many warps share them.
    """

    rows: int
    columns: int
    down: int
    across: int

    @property
    def threads(self) -> int:
        """Of the block."""
        return self.down * self.across * WARP

    def blocks(self, rows: int, columns: int) -> int:
        """How many blocks so many results take."""
        return -(-rows // self.rows) * -(-columns // self.columns)


LARGE, SMALL = Tile(128, 128, 2, 4), Tile(64, 64, 2, 2)
"""The results of a thread block: those of a large product, and those of a smaller one."""


class TensorCores(ScheduleRule):
    """Takes matrix products of float16 and bfloat16, also batched, with pointwise blocks after.

    Stands aside for operands of a few rows, and for sizes that a call tells.

    Args:
        float32: whether to take those of float32 too, of which ten bits of a mantissa remain.
    """

    def __init__(self, float32: bool) -> None:
        self._dtypes = [dtype for dtype in FORMATS if float32 or dtype != "float32"]

    def apply(self, func: tirx.PrimFunc, target: Target, _: bool) -> s_tir.Schedule | None:
        kernel = open_kernel(func)
        arch = int("".join(filter(str.isdigit, str(target.attrs.get("arch", "sm_0")))))
        if kernel is None or arch < TENSOR_CORES:
            return None
        sch, infos = kernel
        products = [info for info in infos if info.is_reduction()]
        if any(has_few_rows(sch.get(info.block_rv)) for info in products):
            return None
        # Whatever follows takes less than the product of which it is.
        infos = inline_cheap(sch, infos, repeat_calls=True, keep_for=products)
        if not infos or not infos[0].is_reduction():
            return None
        found = Product.of(sch, infos[0])
        if found is None or not self._multiplies(found):
            return None
        results = results_of(sch, found, infos)
        if results is None:
            return None
        return written_out(sch.mod["main"], [Writer(found, results).kernel()])

    def _multiplies(self, product: Product) -> bool:
        """Whether tensor cores do so with the operands of a product, and load them in vectors."""
        operands = product.left, product.right
        is_float = str(product.sums.ty.dtype) == "float32" and product.left.dtype in self._dtypes
        same = product.left.dtype == product.right.dtype
        return is_float and same and all(each.width for each in operands)


class Writer:
    """Writes the kernel out.

    Args:
        product: what is computed.
        results: what of it is stored.
    """

    def __init__(self, product: Product, results: Sequence[Result]) -> None:
        self._product = product
        lengths = product.left.length, product.right.length
        self._batches = points_of(product.batch)
        is_large = LARGE.blocks(*lengths) * self._batches >= BLOCKS and min(lengths) > SMALL.rows
        self._tile = LARGE if is_large else SMALL
        tile, item = self._tile, item_bytes(product.left.dtype)
        self._step = DEPTH // item  # of an instruction along the reduced axis
        self._down = tile.rows // tile.down // ROWS  # instructions of a warp, one below the other
        self._across = tile.columns // tile.across // COLUMNS
        self._left = Staged("left", product, product.left, tile.rows, tile.threads)
        self._right = Staged("right", product, product.right, tile.columns, tile.threads)
        count = self._down * self._across
        self._sums = local(count * 4, "float32", f"{product.sums.name}_tile")
        self._fragments = (
            local(self._down * 4, "uint32", "left_fragments"),
            local(self._across * 2, "uint32", "right_fragments"),
        )
        self._stores = Stores.of(product, results, 2)
        self._multiply = defined(multiply(FORMATS[product.left.dtype], self._step), "multiply_add")

    def kernel(self) -> tirx.Stmt:
        """A tile of results for each block of threads."""
        blocks = self._tile.blocks(self._product.left.length, self._product.right.length)
        extents = {"blockIdx.x": self._batches * blocks, "threadIdx.x": self._tile.threads}
        return launched(extents, self._thread)

    def _thread(self, ids: dict[str, ir.Expr]) -> Statements:
        thread, tile, block = ids["threadIdx.x"], self._tile, ids["blockIdx.x"]
        batch, *first = self._product.tile(block, tile.rows, tile.columns)
        own = (
            digit(thread, WARP * tile.across, tile.down) * number(self._down * ROWS),
            digit(thread, WARP, tile.across) * number(self._across * COLUMNS),
        )
        left, right = self._left, self._right
        steps = -(-points_of(self._product.depth) // left.depth)

        def fetch(step: ir.Expr) -> Statements:
            return [
                *left.fetched(thread, first[0], step, batch),
                *right.fetched(thread, first[1], step, batch),
            ]

        def keep(step: ir.Expr) -> Statements:
            return [*left.kept(thread, step), *right.kept(thread, step)]

        def advance(step: ir.Expr) -> Statements:
            more = step + number(1) < number(steps) if steps > 1 else None
            after = step + number(1)
            return [
                *(guarded(more, fetch(after)) if steps > 1 else []),
                *each(
                    "part", left.depth // self._step, lambda n: self._products(step, n, thread, own)
                ),
                *(guarded(more, keep(after)) if steps > 1 else []),
                *([BARRIER] if steps > 1 else []),
            ]

        def clear(n: ir.Expr) -> Statements:
            return [store(self._sums, tirx.const(0.0, "float32"), n)]

        places = [self._sums, *self._fragments, *left.places, *right.places]
        size = self._down * self._across * 4
        return [
            *map(tirx.AllocBuffer, places),
            *kept_whole(places),
            *each("sum", size, clear),
            *fetch(number(0)),
            *keep(number(0)),
            BARRIER,
            *each("step", steps, advance, tirx.ForKind.SERIAL),
            *self._stored(thread, [a + b for a, b in zip(first, own)], batch),
        ]

    def _products(
        self, step: ir.Expr, part: ir.Expr, thread: ir.Expr, own: Sequence[ir.Expr]
    ) -> Statements:
        """A warp's products of what is in shared memory, as far as instructions go at once."""
        depth = part * number(self._step)
        left, right = self._fragments

        def row(n: ir.Expr) -> Statements:
            line = own[0] + n * number(ROWS)
            return [self._left.loaded(left, n * number(4), step, line, depth, thread)]

        def column(n: ir.Expr) -> Statements:
            line = own[1] + n * number(2 * COLUMNS)
            return [self._right.loaded(right, n * number(4), step, line, depth, thread)]

        def multiplied(n: ir.Expr, m: ir.Expr) -> Statements:
            sums = (n * number(self._across) + m) * number(4)
            addresses = [(self._sums, sums), (left, n * number(4)), (right, m * number(2))]
            return [called(self._multiply, *addresses)]

        return [
            *each("row", self._down, row),
            *each("pair", self._across // 2, column),
            *each(
                "row",
                self._down,
                lambda n: each("column", self._across, lambda m: multiplied(n, m)),
            ),
        ]

    def _stored(
        self, thread: ir.Expr, own: Sequence[ir.Expr], batch: dict[tirx.Var, ir.Expr]
    ) -> Statements:
        """What a lane stores: two numbers side by side, of two rows of an instruction's results."""
        product = self._product
        left, right = product.left, product.right

        def one(n: ir.Expr, m: ir.Expr, lower: ir.Expr, side: ir.Expr) -> Statements:
            row = own[0] + n * number(ROWS) + lower * number(8) + digit(thread, 4, 8)
            column = own[1] + m * number(COLUMNS) + digit(thread, 1, 4) * number(2) + side
            tests = [
                row < number(left.length) if left.length % self._tile.rows else None,
                column < number(right.length) if right.length % self._tile.columns else None,
            ]
            total = (n * number(self._across) + m) * number(4) + lower * number(2) + side
            at = {**batch, **split(row, left.lines)}
            return guarded(both(*tests), self._stores.of_row(at, column, (self._sums, total)))

        def of_instruction(n: ir.Expr, m: ir.Expr) -> Statements:
            sides = 2 // self._stores.width
            return each(
                "lower", 2, lambda lower: each("side", sides, lambda side: one(n, m, lower, side))
            )

        return each(
            "down",
            self._down,
            lambda n: each("across", self._across, lambda m: of_instruction(n, m)),
        )
