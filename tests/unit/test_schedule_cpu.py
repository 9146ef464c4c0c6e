"""CPU rules: values against torch, which rule takes what, and the loops it gives."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F
import tvm
from tvm import relax, te, tirx

import babytriton as bt
from babytriton.passes.cpu import caches
from babytriton.passes.cpu.costs import Costs
from babytriton.passes.cpu.registers import Registers
from babytriton.passes.lowering import LOWERING
from tests.unit.kernels import CPU, as_one, check_cpu, on_cpu, rules_of, run_cpu, running_sum

op = relax.op
F32 = "float32"
SIZES = [(1, 1), (3, 7), (5, 1000), (40, 1003)]


def assembly(mod: tvm.IRModule) -> str:
    return tvm.compile(mod, target=CPU, tir_pipeline=LOWERING).mod.imports[0].inspect_source("asm")


def has_vectors(mod: tvm.IRModule, operation: str) -> bool:
    """Whether the machine code has the packed operation, on registers of 256 bits or more."""
    return bool(re.search(rf"\bv?{operation}\w*\s.*%[yz]mm", assembly(mod)))


def test_vectors_are_loaded_whole_beside_elements_from_a_tensors_places() -> None:
    def loss(x, t):
        return F.cross_entropy(x, t, reduction="none")

    x, t = torch.randn(64, 256), torch.arange(64)
    compiled = bt.jit("cpu")(loss).lower(x, t).compile()
    torch.testing.assert_close(compiled(x, t), loss(x, t))
    assert "masked.gather" not in compiled.source("llvm")
    assert "<64 x i64>" not in compiled.source("llvm")


@pytest.mark.parametrize("shape", [(9, 33), (8, 1), (4, 16), (4095, 100), (3, 5, 130), (11, 7)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int32])
def test_running_sums_side_by_side(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    def running(x):
        return x.cumsum(-1), x.cumprod(-1)

    x = (1 + torch.randn(shape) / 30).to(dtype)
    scheduled = bt.jit("cpu")(running).lower(x).schedule()
    functions = [f for f in scheduled.mod.functions.values() if isinstance(f, tirx.PrimFunc)]
    rules = {str(f.attrs["babytriton.rule"]) for f in functions}
    assert {"Scan"} <= rules <= {"Scan", "Elementwise"}
    for ours, theirs in zip(scheduled.compile()(x), running(x)):
        within = 4e-3 if dtype == torch.float16 else 1e-6
        torch.testing.assert_close(ours, theirs, rtol=within, atol=within)


class TestElementwise:
    @pytest.mark.parametrize("shape", SIZES)
    def test_chain(self, shape):
        def build(bb, a, b, c):
            y = bb.emit(op.add(bb.emit(op.multiply(a, b)), c))
            return bb.emit(op.nn.relu(y))

        mod = check_cpu(build, lambda a, b, c: (a * b + c).relu(), *[(shape, F32)] * 3)
        assert rules_of(mod) == ["Elementwise"]

    @pytest.mark.skipif(
        not torch.backends.cpu.get_cpu_capability().startswith("AVX"), reason="no AVX here"
    )
    @pytest.mark.parametrize("shape", [(1000, 1003), (1000, 1000), (64, 1001)])
    def test_machine_code_is_vectorized(self, shape):
        def build(bb, a, b, c):
            return bb.emit(op.add(bb.emit(op.multiply(a, b)), c))

        mod = on_cpu(build, *[(shape, F32)] * 3)
        assert "T.parallel" in mod.script()
        assert has_vectors(mod, "(fmadd|mulps)")

    def test_small_is_not_parallel(self):
        mod = on_cpu(lambda bb, a: bb.emit(op.exp(a)), ((8, 8), F32))
        assert "T.parallel" not in mod.script()

    def test_broadcast_keeps_rows_apart(self):
        def build(bb, a, b):
            return bb.emit(op.add(a, b))

        mod = check_cpu(build, torch.add, ((300, 1003), F32), ((1003,), F32))
        # One flat loop would divide by 1003 at each element.
        assert "// T.int64(1003)" not in mod.script()
        assert "T.parallel(T.int64(300))" in mod.script()

    def test_few_long_rows_are_cut(self):
        mod = check_cpu(
            lambda bb, a, b: bb.emit(op.add(a, b)), torch.add, ((3, 40003), F32), ((40003,), F32)
        )
        assert "T.parallel(T.int64(63))" in mod.script()

    def test_value_read_often_is_computed_once(self):
        def build(bb, x):
            for _ in range(30):
                x = bb.emit(op.add(bb.emit(op.multiply(x, x)), bb.emit(op.sin(x))))
            return x

        def reference(x):
            for _ in range(30):
                x = x * x + x.sin()
            return x

        mod = on_cpu(build, ((33,), F32))
        assert mod.script().count("T.sin") == 30
        x = torch.rand(33) * 0.01
        torch.testing.assert_close(run_cpu(mod, [x])[0].double(), reference(x.double()))

    def test_several_results(self):
        def pair(x):
            y = te.compute(x.shape, lambda i: te.exp(x[i]), "y")
            z = te.compute(x.shape, lambda i: y[i] * y[i] + y[i], "z")
            return [y, z]

        def build(bb, x):
            both = as_one(bb, pair, x)
            return bb.emit(relax.TupleGetItem(both, 0)), bb.emit(relax.TupleGetItem(both, 1))

        mod = check_cpu(build, lambda x: (x.exp(), x.exp() ** 2 + x.exp()), ((40001,), F32))
        assert rules_of(mod) == ["Elementwise"]
        assert mod.script().count("T.exp") == 1

    def test_scalar(self):
        mod = check_cpu(lambda bb, a, b: bb.emit(op.add(a, b)), torch.add, ((), F32), ((), F32))
        assert rules_of(mod) == ["Elementwise"]

    def test_booleans_and_where(self):
        def build(bb, c, a, b):
            return bb.emit(op.where(c, a, b)), bb.emit(op.greater(a, b))

        check_cpu(
            build,
            lambda c, a, b: (torch.where(c, a, b), a > b),
            ((33, 1003), "bool"),
            ((33, 1003), F32),
            ((33, 1003), F32),
        )

    def test_concat_and_gather(self):
        def build(bb, a, b, i):
            joined = bb.emit(op.concat([bb.emit(op.exp(a)), b], axis=1))
            return bb.emit(op.take(joined, i, axis=0, mode="clip"))

        check_cpu(
            build,
            lambda a, b, i: torch.cat([a.exp(), b], 1)[i],
            ((9, 31), F32),
            ((9, 5), F32),
            ((6,), "int64"),
        )

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int32", "int64", "int8"])
    def test_types(self, dtype):
        mod = check_cpu(
            lambda bb, a, b: bb.emit(op.add(a, b)),
            torch.add,
            *[((3, 1003), dtype)] * 2,
            within=1e-2,
        )
        assert rules_of(mod) == ["Elementwise"]

    def test_nan_and_inf_survive(self):
        mod = on_cpu(lambda bb, a: bb.emit(op.add(bb.emit(op.multiply(a, a)), a)), ((64,), F32))
        x = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0] * 16)
        torch.testing.assert_close(run_cpu(mod, [x])[0], x * x + x, equal_nan=True)

    def test_symbolic_sizes(self):
        n = tirx.Var("n", "int64")
        mod = on_cpu(lambda bb, a, b: bb.emit(op.add(a, b)), ((n, 7), F32), ((7,), F32))
        assert rules_of(mod) == ["Elementwise"]
        x, y = torch.randn(5, 7), torch.randn(7)
        torch.testing.assert_close(run_cpu(mod, [x, y])[0], x + y)


def softmax(bb, x):
    return bb.emit(op.nn.softmax(x, axis=-1))


def layer_norm(bb, x, w, b):
    return bb.emit(op.nn.layer_norm(x, w, b, axes=[-1]))


ROWS = [(1, 300), (3, 7), (37, 1003), (33, 1000), (64, 128), (2, 3, 5, 64)]


class TestRowwise:
    @pytest.mark.parametrize("shape", ROWS)
    def test_softmax(self, shape):
        mod = check_cpu(softmax, lambda x: x.softmax(-1), (shape, F32))
        assert rules_of(mod) == ["Rowwise"]

    @pytest.mark.parametrize("shape", ROWS)
    def test_layer_norm(self, shape):
        n = shape[-1]
        mod = check_cpu(
            layer_norm,
            lambda x, w, b: F.layer_norm(x, (n,), w, b),
            (shape, F32),
            ((n,), F32),
            ((n,), F32),
            within=1e-3,
        )
        assert rules_of(mod) == ["Rowwise"]

    @pytest.mark.parametrize("shape", [(37, 1003), (64, 1024)])
    @pytest.mark.parametrize("keepdims", [False, True])
    def test_single_reductions(self, shape, keepdims):
        for reduce, reference in (
            (op.sum, torch.sum),
            (op.max, torch.amax),
            (op.variance, lambda x, d, k: x.var(d, unbiased=False, keepdim=k)),
        ):
            mod = check_cpu(
                lambda bb, x, f=reduce: bb.emit(f(x, axis=[-1], keepdims=keepdims)),
                lambda x, f=reference: f(x, -1, keepdims),
                (shape, F32),
                within=1e-4,
            )
            assert rules_of(mod) == ["Rowwise"]

    def test_rows_in_parallel_sums_in_lanes(self):
        script = on_cpu(softmax, ((256, 1024), F32)).script()
        assert script.count("T.parallel") == 1
        assert "T.vectorized(T.int64(64))" in script

    @pytest.mark.parametrize("shape", [(3, 2, 40001), (5, 7, 3, 1003)])
    def test_rows_of_several_axes_have_lanes(self, shape):
        mod = check_cpu(lambda bb, x: bb.emit(op.sum(x, -1)), lambda x: x.sum(-1), (shape, F32))
        assert "_lanes" in mod.script()

    def test_whole_of_several_axes_is_loaded_in_vectors(self):
        x = torch.randn(999, 1003)
        compiled = bt.jit("cpu")(lambda x: x.mean()).lower(x).compile()
        torch.testing.assert_close(compiled(x), x.double().mean().float(), rtol=1e-5, atol=1e-6)
        assert "insertelement" not in compiled.source("llvm").partition("__tvm_parallel")[2]

    def test_row_of_prime_length_has_lanes_and_a_rest(self):
        script = on_cpu(softmax, ((64, 1009), F32)).script()
        assert "T.vectorized(T.int64(64))" in script
        assert "T.vectorized(T.int64(8))" in script

    def test_argmax(self):
        mod = check_cpu(
            lambda bb, x: bb.emit(op.argmax(x, axis=-1)), lambda x: x.argmax(-1), ((40, 1000), F32)
        )
        assert rules_of(mod) == ["Rowwise"]

    def test_several_results(self):
        def both(x):
            n, m = x.shape
            k = te.reduce_axis((0, m), "k")
            r = te.reduce_axis((0, m), "r")
            y = te.compute((n, m), lambda i, j: te.exp(x[i, j]), "y")
            s = te.compute((n,), lambda i: te.sum(y[i, k], k), "s")
            t = te.compute((n,), lambda i: te.max(x[i, r], r), "t")
            return [y, s, t]

        def build(bb, x):
            results = as_one(bb, both, x)
            return tuple(bb.emit(relax.TupleGetItem(results, i)) for i in range(3))

        mod = check_cpu(
            build, lambda x: (x.exp(), x.exp().sum(-1), x.amax(-1)), ((33, 256), F32), within=1e-4
        )
        assert rules_of(mod) == ["Rowwise"]

    def test_row_that_needs_another_stands_aside(self):
        def products(x):
            n, m = x.shape
            k = te.reduce_axis((0, m), "k")
            s = te.compute((n,), lambda i: te.sum(x[i, k], k), "s")
            return te.compute((n, n), lambda i, j: s[i] * s[j], "o")

        mod = check_cpu(
            lambda bb, x: as_one(bb, products, x),
            lambda x: torch.outer(x.sum(-1), x.sum(-1)),
            ((17, 40), F32),
            within=1e-4,
        )
        assert rules_of(mod) != ["Rowwise"]

    def test_same_sum_every_time(self):
        mod = on_cpu(lambda bb, x: bb.emit(op.sum(x, axis=[-1])), ((64, 1003), F32))
        x = torch.randn(64, 1003)
        first = run_cpu(mod, [x])[0]
        assert all(torch.equal(first, run_cpu(mod, [x])[0]) for _ in range(3))


class TestReduction:
    @pytest.mark.parametrize(
        ("shape", "axis"),
        [((100, 1003), 0), ((64, 1024), 0), ((3, 7), 0), ((8, 51, 25), 1), ((5000, 4), 0)],
    )
    def test_columns(self, shape, axis):
        for reduce, reference in ((op.sum, torch.sum), (op.max, torch.amax)):
            mod = check_cpu(
                lambda bb, x, y, f=reduce: bb.emit(f(bb.emit(op.multiply(x, y)), axis=[axis])),
                lambda x, y, f=reference: f(x * y, axis),
                (shape, F32),
                (shape, F32),
                within=1e-4,
            )
            assert rules_of(mod) == ["Reduction"]

    @pytest.mark.parametrize("shape", [(256, 1024), (200, 203), (40009,)])
    def test_whole(self, shape):
        def build(bb, x):
            return bb.emit(op.sqrt(bb.emit(op.sum(bb.emit(op.multiply(x, x))))))

        mod = check_cpu(build, lambda x: (x * x).sum().sqrt(), (shape, F32), within=1e-4)
        assert "Reduction" in rules_of(mod)

    def test_whole_in_fixed_pieces(self):
        script = on_cpu(lambda bb, x: bb.emit(op.sum(x)), ((256, 1024), F32)).script()
        assert "T.parallel(T.int64(64))" in script
        assert "T.vectorized(T.int64(64))" in script

    def test_softmax_of_columns_and_of_everything(self):
        for shape in ((50, 33), (40000,)):
            mod = check_cpu(
                lambda bb, x: bb.emit(op.nn.softmax(x, axis=0)),
                lambda x: x.softmax(0),
                (shape, F32),
            )
            assert rules_of(mod) == ["Reduction"]


def matmul(bb, a, b):
    return bb.emit(op.matmul(a, b))


class TestMatmul:
    @pytest.mark.parametrize(
        ("m", "k", "n"), [(64, 32, 64), (33, 17, 29), (2, 5, 3), (9, 64, 100), (128, 96, 1)]
    )
    def test_sizes(self, m, k, n):
        mod = check_cpu(matmul, torch.matmul, ((m, k), F32), ((k, n), F32), within=1e-4)
        assert rules_of(mod) == ["Matmul" if n > 1 else "Rowwise"]

    @pytest.mark.parametrize("dtype", [F32, "float64", "float16"])
    @pytest.mark.parametrize(("m", "k"), [(42, 1024), (28, 2048), (30, 1024), (29, 33)])
    def test_rows_that_are_copied_by_tiles(self, m, k, dtype, monkeypatch):
        monkeypatch.setattr(caches, "ways", lambda: 4)

        def build(bb, a, b):
            return bb.emit(op.matmul(a, b, out_dtype=F32 if dtype == "float16" else dtype))

        types = ((m, k), dtype), ((k, 200), dtype)
        mod = check_cpu(build, torch.matmul, *types, within=1e-3)
        assert rules_of(mod) == ["Matmul"]

    def test_rows_of_one_set_of_the_cache_are_copied(self, monkeypatch):
        monkeypatch.setattr(caches, "ways", lambda: 4)

        def copies(k, n):
            return on_cpu(matmul, ((42, k), F32), ((k, n), F32)).script().count("alloc_buffer")

        two_tiles = 2 * Registers.of(CPU, F32).columns
        assert copies(4096, 224) == copies(4128, 224) + 1 == copies(4096, two_tiles) + 1

    def test_few_rows_and_small_operands_are_read_where_they_lie(self):
        def copies(m, k, n):
            return on_cpu(matmul, ((m, k), F32), ((k, n), F32)).script().count("alloc_buffer")

        assert copies(5, 1000, 1000) == copies(96, 100, 200) == copies(600, 1000, 1000) - 1 == 0

    @pytest.mark.parametrize("dtype", [F32, "float64"])
    @pytest.mark.parametrize("width", [*range(1, 36), 63, 67, 100, 127, 128, 131])
    @pytest.mark.parametrize(("height", "depth"), [(3, 500), (37, 100), (37, 2100)])
    def test_edges(self, height, depth, width, dtype):
        types = ((height, depth), dtype), ((depth, width), dtype)
        check_cpu(matmul, torch.matmul, *types, within=1e-3)

    @pytest.mark.parametrize("arch", ["haswell", "icelake-server", "znver5"])
    @pytest.mark.parametrize("width", [33, 512, 513, 515])
    def test_sums_stay_in_registers(self, arch, width):
        def product(a, b):
            return a @ b

        a, b = torch.randn(512, 512), torch.randn(512, width)
        code = bt.jit(bt.Target("cpu", arch=arch))(product).lower(a, b).compile().source("asm")
        assert not re.findall(r"vmov\w+\s+%[yz]mm\d+, \d*\(%rsp\)", code)

    @pytest.mark.parametrize(
        ("left", "right"),
        [
            ((1, 64, 96), (96, 64)),
            ((1, 63, 96), (96, 61)),
            ((6, 1, 200), (200, 300)),
            ((1, 5, 200), (200, 4096)),
            ((3, 1, 40, 64), (64, 70)),
            ((2, 1, 40, 64), (1, 1, 64, 70)),
            ((1, 4, 40, 64), (1, 4, 64, 40)),
        ],
    )
    @pytest.mark.parametrize("is_last", [True, False])
    def test_axes_of_one_element(self, left, right, is_last):
        def build(bb, a, b):
            product = matmul(bb, a, b)
            return product if is_last else bb.emit(op.nn.relu(product))

        def reference(a, b):
            return a @ b if is_last else (a @ b).relu()

        mod = check_cpu(build, reference, (left, F32), (right, F32), within=1e-3)
        assert rules_of(mod) == ["Matmul"]

    @pytest.mark.parametrize(
        ("height", "depth", "width", "ahead"),
        [(2, 512, 4096, 32), (17, 300, 2048, 30), (22, 300, 2048, 30), (40, 512, 4096, 32)],
    )
    @pytest.mark.parametrize("dtype", [F32, "float64"])
    def test_few_rows(self, height, depth, width, ahead, dtype):
        def build(bb, a, b, c):
            return bb.emit(op.nn.relu(bb.emit(op.add(bb.emit(op.matmul(a, b)), c))))

        types = ((height, depth), dtype), ((depth, width), dtype), ((width,), dtype)
        mod = check_cpu(build, lambda a, b, c: (a @ b + c).relu(), *types, within=1e-3)
        # So many rows of the operand at a time, for one tile beside the other, without a copy.
        loops = rf"in range\(T.int64\({ahead}\)\):\s+for .*\s+for .*\s+sums\[.*\] = T.fma\("
        are_few = height <= 4 * Registers.of(CPU, dtype).rows
        assert bool(re.search(loops, mod.script())) == are_few
        assert ("_global" in mod.script()) != are_few
        check_cpu(matmul, torch.matmul, *types[:2], within=1e-3)

    @pytest.mark.parametrize("batch", [(), (3,)])
    @pytest.mark.parametrize("width", [8, 13, 31, 37, 60])
    @pytest.mark.parametrize(("height", "depth"), [(3, 500), (37, 100), (37, 2100)])
    def test_edges_with_what_follows(self, height, depth, width, batch):
        def build(bb, a, b, c, d):
            return bb.emit(op.multiply(bb.emit(op.add(matmul(bb, a, b), c)), d))

        types = ((*batch, height, depth), F32), ((*batch, depth, width), F32)
        after = ((width,), F32), ((*batch, height, width), F32)
        mod = check_cpu(
            build,
            lambda a, b, c, d: (a @ b + c) * d,
            *types,
            *after,
            within=1e-3,
        )
        assert rules_of(mod) == ["Matmul"]

    @pytest.mark.parametrize("size", [64, 67])
    def test_epilogue_within_the_tile(self, size):
        def build(bb, a, b, c):
            return bb.emit(op.nn.relu(bb.emit(op.add(matmul(bb, a, b), c))))

        mod = check_cpu(
            build,
            lambda a, b, c: (a @ b + c).relu(),
            *[((size, size), F32)] * 2,
            ((size,), F32),
            within=1e-4,
        )
        assert rules_of(mod) == ["Matmul"]
        assert "alloc_buffer" not in mod.script()  # No whole product lies anywhere.

    def test_result_also_wanted_itself(self):
        def both(a, b):
            k = te.reduce_axis((0, a.shape[1]), "k")
            shape = (a.shape[0], b.shape[1])
            y = te.compute(shape, lambda i, j: te.sum(a[i, k] * b[k, j], k), "y")
            return [y, te.compute(shape, lambda i, j: y[i, j] + 1.0, "z")]

        def build(bb, a, b):
            results = as_one(bb, both, a, b)
            return tuple(bb.emit(relax.TupleGetItem(results, i)) for i in range(2))

        for n in (64, 37):
            mod = check_cpu(
                build, lambda a, b: (a @ b, a @ b + 1), *[((n, n), F32)] * 2, within=1e-4
            )
            assert rules_of(mod) == ["Matmul"]

    def test_batched_and_transposed(self):
        for equation, left, right in (
            ("bij,bjk->bik", (3, 33, 20), (3, 20, 40)),
            ("bij,bkj->bik", (3, 10, 12), (3, 7, 12)),
            ("ij,kj->ik", (20, 30), (40, 30)),
            ("bhid,bhjd->bhij", (2, 3, 9, 8), (2, 3, 11, 8)),
        ):
            mod = check_cpu(
                lambda bb, a, b, e=equation: bb.emit(op.einsum((a, b), e)),
                lambda a, b, e=equation: torch.einsum(e, a, b),
                (left, F32),
                (right, F32),
                within=1e-4,
            )
            assert rules_of(mod) == ["Matmul"]

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
    def test_halves_sum_up_in_float32(self, dtype):
        def build(bb, a, b):
            return bb.emit(op.matmul(a, b, out_dtype=F32))

        mod = check_cpu(build, torch.matmul, *[((64, 64), dtype)] * 2, within=1e-4)
        assert rules_of(mod) == ["Matmul"]

    @pytest.mark.parametrize("size", [14, 13, 17])
    def test_convolution(self, size):
        def build(bb, x, w):
            return bb.emit(op.nn.relu(bb.emit(op.nn.conv2d(x, w, padding=1))))

        mod = check_cpu(
            build,
            lambda x, w: F.conv2d(x, w, padding=1).relu(),
            ((2, 8, size, size), F32),
            ((16, 8, 3, 3), F32),
            within=1e-4,
        )
        assert rules_of(mod) == ["Matmul"]

    def test_tile_is_unrolled_and_vectorized(self):
        script = on_cpu(matmul, ((64, 64), F32), ((64, 64), F32)).script()
        registers = Registers.of(CPU, "float32")
        tiles = {rows: -(-64 // rows) for rows in range(registers.rows, 0, -1)}
        rows = min(tiles, key=lambda rows: tiles[rows] * rows * Costs.of(CPU).waiting(rows))
        assert f"T.unroll(T.int64({rows}))" in script
        assert f"T.vectorized(T.int64({registers.columns}))" in script
        assert "T.parallel" in script

    def test_vectors_are_sums(self):
        assert rules_of(on_cpu(matmul, ((1, 64), F32), ((64, 40), F32))) == ["Reduction"]
        check_cpu(matmul, torch.matmul, ((1, 64), F32), ((64, 40), F32), within=1e-4)


class TestParallel:
    @pytest.mark.parametrize("rows", [1, 40])
    def test_scan(self, rows):
        mod = check_cpu(running_sum(rows, 33), lambda x: x.cumsum(-1), ((rows, 33), F32))
        assert rules_of(mod) == ["Parallel"]
        assert ("T.parallel" in mod.script()) == (rows > 1)

    def test_pooling_and_grouped_convolution(self):
        def build(bb, x, w):
            y = bb.emit(op.nn.conv2d(x, w, padding=1, strides=2, groups=2))
            return bb.emit(op.nn.max_pool2d(y, (3, 3), padding=(1, 1)))

        check_cpu(
            build,
            lambda x, w: F.max_pool2d(F.conv2d(x, w, padding=1, stride=2, groups=2), 3, 1, 1),
            ((2, 8, 13, 11), F32),
            ((16, 4, 3, 3), F32),
            within=1e-4,
        )

    def test_argmax_of_columns(self):
        mod = check_cpu(
            lambda bb, x: bb.emit(op.argmax(x, axis=0)), lambda x: x.argmax(0), ((1000, 33), F32)
        )
        assert rules_of(mod) == ["Parallel"]
        assert "T.parallel" in mod.script()

    def test_group_norm(self):
        check_cpu(
            lambda bb, x, w, b: bb.emit(
                op.nn.group_norm(x, w, b, num_groups=4, channel_axis=1, axes=[2, 3])
            ),
            lambda x, w, b: F.group_norm(x, 4, w, b),
            ((3, 32, 4, 4), F32),
            ((32,), F32),
            ((32,), F32),
            within=1e-4,
        )


class TestPreciseMath:
    @pytest.mark.parametrize("name", ["tanh", "atanh", "sinh", "cosh", "exp", "erf", "log2"])
    @pytest.mark.parametrize("dtype", [F32, "float64", "float16", "bfloat16"])
    def test_functions(self, name, dtype):
        function = getattr(tirx, name)

        def build(bb, x):
            return as_one(bb, lambda x: te.compute(x.shape, lambda i: function(x[i]), "y"), x)

        mod = on_cpu(build, ((64,), dtype))
        tiny = torch.logspace(-4, -0.01, 60, dtype=torch.float64)
        x = torch.cat([tiny, torch.tensor([0.0, -0.0, float("nan"), -0.3])]).to(
            getattr(torch, dtype)
        )
        want = getattr(torch, name)(x.double()).to(x.dtype)
        got = run_cpu(mod, [x])[0]
        epsilon = torch.finfo(x.dtype).eps
        torch.testing.assert_close(
            got.double(), want.double(), rtol=4 * epsilon, atol=0, equal_nan=True
        )
        assert torch.equal(got[60:62].signbit(), want[60:62].signbit())

    def test_fmod(self):
        def build(bb, x, y):
            return as_one(
                bb, lambda x, y: te.compute(x.shape, lambda i: tirx.fmod(x[i], y[i]), "z"), x, y
            )

        check_cpu(build, torch.fmod, ((100,), F32), ((100,), F32))


def test_sums_in_float64_are_added_up_in_float64() -> None:
    x = torch.ones(3, 4096)
    x[0, :64], x[0, 256:320] = 1e9, -1e9
    x[1] = 3e38
    for dynamic in (True, False):
        for fn in (lambda x: x.double().sum(-1), lambda x: x.sum(-1, dtype=torch.float64)):
            found = bt.jit("cpu", dynamic=dynamic)(fn)(x)
            torch.testing.assert_close(found, fn(x), rtol=1e-12, atol=0)


def test_sums_of_what_lies_apart_lose_no_digits() -> None:
    def sums(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        apart = x[:, ::3]
        return x.flip(-1).sum(-1), x[:, 1::2].mean(-1), (apart * apart.flip(-1)).sum(-1)

    generator = torch.Generator().manual_seed(0)
    for length in (7, 100, 8193, 100_000):
        x = torch.rand(3, length, generator=generator) + 0.5
        for found, exact in zip(bt.jit("cpu", dynamic=False)(sums)(x), sums(x.double())):
            torch.testing.assert_close(found.double(), exact, rtol=5e-7, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_sums_beside_copies_of_one_number(dtype: torch.dtype) -> None:
    def repeated(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        wide = x.expand(8, 127)
        return wide.sum(-1), wide

    x = torch.randn(8, 1).to(dtype)
    for found, expected in zip(bt.jit("cpu")(repeated)(x), repeated(x)):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("columns", [7, 300, "c"])
def test_columns_of_any_number_of_rows(columns: int | str) -> None:
    def sums(x):
        return x.sum(0), (x * x).mean(0), x.amax(0)

    compiled = bt.jit("cpu")(sums).lower(bt.Tensor["n", columns]).compile()
    for rows in (2, 3, 63, 64, 65, 128, 129, 1000):
        x = torch.randn(rows, 300 if columns == "c" else int(columns)) + 1
        for ours, exact in zip(compiled(x), sums(x.double())):
            torch.testing.assert_close(ours.double(), exact, rtol=2e-6, atol=1e-6)
    assert "_of_block" in compiled.source("tir")  # float32 for a while
