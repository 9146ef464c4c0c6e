"""Operands of matrix products on their way from memory to the tensor cores.

What a warp's lanes hold of them, and of the results, is laid down in NVIDIA's "Parallel Thread
Execution ISA", 9.7.15.5, at `ldmatrix` and at `mma.m16n8k16`.
"""

from __future__ import annotations

from tvm import ir, sym, tirx

from babytriton.ops.cuda_code import defined
from babytriton.passes.gpu.extents import split
from babytriton.passes.gpu.products import Operand, Product, at_point, points_of
from babytriton.passes.gpu.writer import Statements
from babytriton.passes.gpu.writing import (
    VECTOR,
    both,
    copy_vector,
    each,
    item_bytes,
    load,
    local,
    number,
    shared,
    store,
)
from babytriton.passes.nests import offset

# Bytes of a line of a tile along the reduced axis; and between two lines, so that the lines of a
# matrix lie in different banks.
LINE = 64
GAP = 16

FORMATS = {"float16": "f16", "bfloat16": "bf16", "float32": "tf32"}
"""What tensor cores multiply, by the dtype of the operands."""

ROWS, COLUMNS, DEPTH = 16, 8, 32
"""Rows and columns of an instruction's results, and bytes of its operands along the sum."""


class Staged:
    """An operand on its way from memory to the warps.

    Args:
        name: of what holds it.
        product: whose operand it is.
        operand: that.
        lines: of a tile.
        threads: that share the way.
    """

    def __init__(
        self, name: str, product: Product, operand: Operand, lines: int, threads: int
    ) -> None:
        self._product, self._operand, self._lines = product, operand, lines
        self._threads = threads
        item = item_bytes(operand.dtype)
        self.depth = LINE // item
        self._unit = VECTOR // item
        # Matrices of 16-bit numbers can be turned over on their way to the warps.
        self._is_across = not operand.is_along and item == 2
        inner = lines if self._is_across else self.depth
        self._pitch = inner + GAP // item
        self._size = (self.depth if self._is_across else lines) * self._pitch
        self._shared = shared(2 * self._size, operand.dtype, f"{name}_shared")
        self._vectors = lines * self.depth // threads // operand.width
        self._staged = local(self._vectors * operand.width, operand.dtype, f"{name}_next")
        suffix = "_transposed" if self._is_across else ""
        self._load = defined(_load_matrices(suffix), f"load_matrices{suffix}")
        self._round = defined(_TO_TF32, "to_tf32") if operand.dtype == "float32" else None

    @property
    def places(self) -> list[tirx.Var]:
        """What holds it."""
        return [self._shared, self._staged]

    def _place(self, thread: ir.Expr, n: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
        """The line and the depth of a thread's vector in a tile."""
        operand = self._operand
        vector = n * number(self._threads) + thread
        inner = (self.depth if operand.is_along else self._lines) // operand.width
        outer = tirx.floordiv(vector, number(inner))
        along = tirx.floormod(vector, number(inner)) * number(operand.width)
        return (outer, along) if operand.is_along else (along, outer)

    def fetched(
        self, thread: ir.Expr, first: ir.Expr, step: ir.Expr, batch: dict[tirx.Var, ir.Expr]
    ) -> Statements:
        """A tile, from memory to registers; zeros for what is not there."""
        operand, axes = self._operand, self._product.depth
        width, depth = operand.width, points_of(axes)

        def one(n: ir.Expr) -> Statements:
            line, along = self._place(thread, n)
            line, along = first + line, step * number(self.depth) + along
            at = {**batch, **split(line, operand.lines), **split(along, axes)}
            source = operand.number.source
            place = offset(source, list(operand.number.indices))
            place = sym.Analyzer().simplify(at_point(place, at))
            is_there = both(
                line < number(operand.length) if operand.length % self._lines else None,
                along < number(depth) if depth % self.depth else None,
            )
            own = n * number(width)
            copied = copy_vector(width, (self._staged, own), (source, place))
            if is_there is None:
                return copied
            zero = tirx.const(0.0, operand.dtype)
            empty = each("lane", width, lambda lane: [store(self._staged, zero, own + lane)])
            return [tirx.IfThenElse(is_there, copied[0], empty[0])]

        return each("vector", self._vectors, one)

    def kept(self, thread: ir.Expr, step: ir.Expr) -> Statements:
        """The tile, from registers to shared memory."""
        width, base = self._operand.width, self._base(step)

        def one(n: ir.Expr) -> Statements:
            line, along = self._place(thread, n)
            own = n * number(width)

            def rounded(lane: ir.Expr) -> Statements:
                value = load(self._staged, own + lane)
                value = tirx.call_pure_extern("float32", self._round, value)
                return [store(self._staged, value, own + lane)]

            def scattered(lane: ir.Expr) -> Statements:
                place = base + (line + lane) * number(self._pitch) + along
                return [store(self._shared, load(self._staged, own + lane), place)]

            done = [] if self._round is None else each("lane", width, rounded)
            if not self._operand.is_along and not self._is_across:
                return [*done, *each("lane", width, scattered)]
            outer, inner = (along, line) if self._is_across else (line, along)
            place = base + outer * number(self._pitch) + inner
            return [*done, *copy_vector(width, (self._shared, place), (self._staged, own))]

        return each("vector", self._vectors, one)

    def _base(self, step: ir.Expr) -> ir.Expr:
        """Where the tile of a step begins."""
        return tirx.floormod(step, number(2)) * number(self._size)

    def loaded(
        self,
        to: tirx.Var,
        place: ir.Expr,
        step: ir.Expr,
        line: ir.Expr,
        depth: ir.Expr,
        thread: ir.Expr,
    ) -> tirx.Stmt:
        """Four matrices, from shared memory to a warp's registers.

        Of the first operand, one below the other first; of the second, one beside the other.

        Args:
            to, place: the registers, of which four are filled from a place on.
            step: whose tile it is.
            line, depth: of the first number.
            thread: whose registers they are.
        """
        within, second, third = (digit(thread, *place) for place in ((1, 8), (8, 2), (16, 2)))
        is_left = self._operand is self._product.left
        down, along = (second, third) if is_left else (third, second)
        if self._is_across:
            source = (depth + along * number(8) + within) * number(self._pitch)
            source += line + down * number(8)
        else:
            source = (line + down * number(8) + within) * number(self._pitch)
            source += depth + along * number(self._unit)
        return called(self._load, (to, place), (self._shared, self._base(step) + source))


def digit(index: ir.Expr, value: int, count: int) -> ir.Expr:
    """A digit of a number, of which there are so many, and one of which is so much."""
    return tirx.floormod(tirx.floordiv(index, number(value)), number(count))


BARRIER = tirx.Evaluate(tirx.call_intrin("int32", "tirx.tvm_storage_sync", "shared"))


def called(name: str, *places: tuple[tirx.Var, ir.Expr]) -> tirx.Stmt:
    """A call of a device function with addresses."""
    addresses = [tirx.address_of(tirx.BufferLoad(buffer, [place])) for buffer, place in places]
    return tirx.Evaluate(tirx.call_extern("void", name, *addresses))


def _load_matrices(suffix: str) -> str:
    kind = ".trans" if suffix else ""
    what = ", and turns each over" if suffix else ""
    return f"""\
// Loads four matrices of eight lines of 16 bytes{what}. Each lane has the address of a line.
static __device__ __forceinline__ void load_matrices{suffix}(unsigned* to, const void* line) {{
  asm volatile("ldmatrix.sync.aligned.m8n8.x4{kind}.shared.b16 {{%0, %1, %2, %3}}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "l"(__cvta_generic_to_shared(line)));
}}"""


def multiply(kind: str, depth: int) -> str:
    return f"""\
// Adds the product of {ROWS}x{depth} and {depth}x{COLUMNS} numbers to {ROWS}x{COLUMNS} sums.
static __device__ __forceinline__ void multiply_add(float* sums, const unsigned* left,
                                                    const unsigned* right) {{
  asm volatile("mma.sync.aligned.m{ROWS}n{COLUMNS}k{depth}.row.col.f32.{kind}.{kind}.f32 "
               "{{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, {{%0, %1, %2, %3}};"
               : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
               : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]),
                 "r"(right[0]), "r"(right[1]));
}}"""


_TO_TF32 = """\
// Rounds to the ten bits of a mantissa that tensor cores take of a float.
static __device__ __forceinline__ float to_tf32(float number) {
  unsigned rounded;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(number));
  return __uint_as_float(rounded);
}"""
