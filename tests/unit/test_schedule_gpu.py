"""GPU rules: values against torch in several thread orders, and a thread for every block."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F
import tvm
from tvm import relax, s_tir, te, tirx
from tvm.script import tirx as T

import babytriton as bt
from babytriton.passes.gpu.fallback import Fallback
from babytriton.passes.gpu.threads import all_bound
from tests.conformance import gpu
from tests.emulator import emulator
from tests.unit.kernels import CUDA, as_one, check_gpu, kernels, on_gpu, rules_of, running_sum

pytestmark = pytest.mark.skipif(
    emulator.available_gpu() is None, reason=emulator.missing() or "no GPU"
)

op = relax.op
F32 = "float32"


def is_bound(mod: tvm.IRModule) -> bool:
    return all(all_bound(s_tir.Schedule(func)) for func in kernels(mod))


def source(mod: tvm.IRModule) -> str:
    return tvm.compile(mod, target=CUDA).mod.imports[0].imports[0].inspect_source()


class TestElementwise:
    @pytest.mark.parametrize("shape", [(1, 1), (3, 7), (5, 1003)])
    def test_chain(self, shape):
        def build(bb, a, b):
            return bb.emit(op.exp(bb.emit(op.add(a, bb.emit(op.sin(b))))))

        mod = check_gpu(build, lambda a, b: (a + b.sin()).exp(), (shape, F32), (shape[1:], F32))
        assert rules_of(mod) == ["Elementwise"]
        assert is_bound(mod)

    def test_value_read_often_is_computed_once(self):
        def build(bb, x):
            for _ in range(20):
                x = bb.emit(op.add(bb.emit(op.multiply(x, x)), bb.emit(op.sin(x))))
            return x

        assert source(on_gpu(build, ((332,), F32))).count("sinf") == 20

    def test_several_results(self):
        def pair(x):
            y = te.compute(x.shape, lambda i: te.exp(x[i]), "y")
            return [y, te.compute(x.shape, lambda i: y[i] * y[i], "z")]

        def build(bb, x):
            both = as_one(bb, pair, x)
            return bb.emit(relax.TupleGetItem(both, 0)), bb.emit(relax.TupleGetItem(both, 1))

        mod = check_gpu(build, lambda x: (x.exp(), x.exp() ** 2), ((333,), F32))
        assert rules_of(mod) == ["Elementwise"]

    def test_scalar(self):
        mod = check_gpu(lambda bb, a, b: bb.emit(op.add(a, b)), torch.add, ((), F32), ((), F32))
        assert rules_of(mod) == ["Elementwise"]
        assert is_bound(mod)


class TestRowwise:
    @pytest.mark.parametrize("shape", [(3, 1003), (5, 64), (1, 300), (2, 3, 40), (400,)])
    def test_softmax(self, shape):
        mod = check_gpu(
            lambda bb, x: bb.emit(op.nn.softmax(x, axis=-1)), lambda x: x.softmax(-1), (shape, F32)
        )
        assert rules_of(mod) == ["Rowwise"]
        assert source(mod).count("__global__ void") == 2  # declared and defined: one kernel

    def test_layer_norm(self):
        mod = check_gpu(
            lambda bb, x, w, b: bb.emit(op.nn.layer_norm(x, w, b, axes=[-1])),
            lambda x, w, b: F.layer_norm(x, (100,), w, b),
            ((5, 100), F32),
            ((100,), F32),
            ((100,), F32),
            within=1e-4,
        )
        assert rules_of(mod) == ["Rowwise"]

    def test_argmax(self):
        mod = check_gpu(
            lambda bb, x: bb.emit(op.argmax(x, axis=-1)), lambda x: x.argmax(-1), ((4, 133), F32)
        )
        assert rules_of(mod) == ["Fallback"]  # TVM reduces pairs there

    def test_whole(self):
        mod = check_gpu(
            lambda bb, x: bb.emit(op.sqrt(bb.emit(op.sum(x)))),
            lambda x: x.sum().sqrt(),
            ((13, 77), F32),
            within=1e-4,
        )
        assert "Rowwise" in rules_of(mod)

    def test_row_beyond_shared_memory_is_computed_twice(self):
        mod = check_gpu(
            lambda bb, x: bb.emit(op.nn.softmax(x, axis=-1)),
            lambda x: x.softmax(-1),
            ((2, 20000), F32),
        )
        assert rules_of(mod) == ["Rowwise"]

    @pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
    def test_narrow_types(self, dtype):
        mod = check_gpu(
            lambda bb, x: bb.emit(op.max(x, axis=[-1])), lambda x: x.amax(-1), ((4, 133), dtype)
        )
        assert rules_of(mod) == ["Rowwise"]

    def test_unknown_reducer_stands_aside(self):
        last = te.comm_reducer(
            lambda a, b: tirx.Select(tirx.isnan(a), a, te.max(a, b)),
            lambda t: tirx.const(-1e30, t),
        )

        def greatest(x):
            k = te.reduce_axis((0, x.shape[1]), "k")
            return te.compute((x.shape[0],), lambda i: last(x[i, k], axis=k), "y")

        mod = check_gpu(
            lambda bb, x: as_one(bb, greatest, x), lambda x: x.amax(-1), ((3, 100), F32)
        )
        assert rules_of(mod) == ["Fallback"]


class TestReduction:
    @pytest.mark.parametrize(
        ("shape", "axis"), [((96, 100), 0), ((100, 103), 0), ((3, 7), 0), ((8, 51, 25), 1)]
    )
    def test_columns(self, shape, axis):
        def build(bb, x):
            return bb.emit(op.exp(bb.emit(op.mean(x, axis=[axis]))))

        mod = check_gpu(build, lambda x: x.mean(axis).exp(), (shape, F32), within=1e-4)
        assert rules_of(mod) == ["Columns"]

    def test_greatest_of_columns(self):
        mod = check_gpu(
            lambda bb, x: bb.emit(op.max(x, axis=[0])), lambda x: x.amax(0), ((50, 33), F32)
        )
        assert rules_of(mod) == ["Columns"]


class TestMatmul:
    @pytest.mark.parametrize(("m", "k", "n"), [(64, 32, 64), (33, 17, 29), (5, 6, 7)])
    def test_sizes(self, m, k, n):
        def build(bb, a, b, c):
            y = bb.emit(op.add(bb.emit(op.matmul(a, b)), c))
            return bb.emit(op.nn.relu(y))

        mod = check_gpu(
            build,
            lambda a, b, c: (a @ b + c).relu(),
            ((m, k), F32),
            ((k, n), F32),
            ((n,), F32),
            within=1e-4,
        )
        assert rules_of(mod) == ["Matmul"]

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
    def test_halves_sum_up_in_float32(self, dtype):
        def build(bb, a, b):
            return bb.emit(op.matmul(a, b, out_dtype=F32))

        mod = check_gpu(build, torch.matmul, *[((128, 128), dtype)] * 2, within=1e-4)
        assert rules_of(mod) == ["Matmul"]
        assert "wmma" not in source(mod)

    def test_batched_and_convolution(self):
        check_gpu(
            lambda bb, a, b: bb.emit(op.matmul(a, b)),
            torch.matmul,
            ((3, 9, 20), F32),
            ((3, 20, 11), F32),
            within=1e-4,
        )
        mod = check_gpu(
            lambda bb, x, w: bb.emit(op.nn.conv2d(x, w, padding=1)),
            lambda x, w: F.conv2d(x, w, padding=1),
            ((2, 4, 9, 7), F32),
            ((5, 4, 3, 3), F32),
            within=1e-4,
        )
        assert rules_of(mod) == ["Matmul"]

    @pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
    def test_sums_of_eight_bits(self, dtype):
        """Whose threads TVM would not have wait for each other."""

        def weighted(x, w):
            return torch.einsum("kabl,lck->cab", x, w)

        x = torch.randint(0, 3, (64, 20, 5, 5), dtype=dtype)
        w = torch.randint(0, 3, (5, 1, 64), dtype=dtype)
        compiled = bt.jit(gpu.TARGET)(weighted).lower(x, w).compile()
        for order in emulator.ORDERS:
            with emulator.thread_order(order, lockstep=False):
                assert torch.equal(gpu.call(compiled, (x, w)), weighted(x, w))

    def test_second_result_stands_aside(self):
        def both(a, b):
            k = te.reduce_axis((0, 40), "k")
            y = te.compute((40, 40), lambda i, j: te.sum(a[i, k] * b[k, j], k), "y")
            return [y, te.compute((40, 40), lambda i, j: y[i, j] + 1.0, "z")]

        def build(bb, a, b):
            results = as_one(bb, both, a, b)
            return tuple(bb.emit(relax.TupleGetItem(results, i)) for i in range(2))

        mod = check_gpu(build, lambda a, b: (a @ b, a @ b + 1), *[((40, 40), F32)] * 2, within=1e-4)
        assert is_bound(mod)


class TestFallback:
    @pytest.mark.parametrize("rows", [1, 40])
    def test_scan(self, rows):
        mod = check_gpu(
            running_sum(rows, 33), lambda x: x.cumsum(-1), ((rows, 33), F32), within=1e-4
        )
        assert rules_of(mod) == ["Fallback"]
        assert is_bound(mod)

    def test_pooling_norms_and_columns(self):
        mod = check_gpu(
            lambda bb, x: bb.emit(op.nn.max_pool2d(x, (3, 3), padding=(1, 1))),
            lambda x: F.max_pool2d(x, 3, 1, 1),
            ((2, 3, 9, 7), F32),
        )
        assert rules_of(mod) == ["Fallback"]
        mod = check_gpu(
            lambda bb, x: bb.emit(op.nn.softmax(x, axis=0)), lambda x: x.softmax(0), ((50, 33), F32)
        )
        assert is_bound(mod)
        check_gpu(
            lambda bb, x, w, b: bb.emit(
                op.nn.group_norm(x, w, b, num_groups=4, channel_axis=1, axes=[2, 3])
            ),
            lambda x, w, b: F.group_norm(x, 4, w, b),
            ((3, 8, 4, 4), F32),
            ((8,), F32),
            ((8,), F32),
            within=1e-4,
        )

    def test_blocks_that_share_a_loop(self):
        @T.prim_func(s_tir=True)
        def two(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")):
            z = T.sblock_alloc_buffer((8,), "float32")
            for i in range(8):
                with T.sblock("z"):
                    v = T.axis.spatial(8, i)
                    z[v] = x[v] + T.float32(1)
                with T.sblock("y"):
                    v = T.axis.spatial(8, i)
                    y[v] = z[v] * T.float32(2)

        sch = Fallback().apply(two, CUDA, False)
        assert all_bound(sch)

    def test_symbolic_sizes(self):
        n = tirx.Var("n", "int64")
        mod = on_gpu(lambda bb, x: bb.emit(op.nn.softmax(x, axis=-1)), ((n, n), F32))
        assert is_bound(mod)


class TestPreciseMath:
    @pytest.mark.parametrize("name", ["exp", "sinh", "ceil", "log2", "erf", "atanh"])
    @pytest.mark.parametrize("dtype", [F32, "float16", "bfloat16"])
    def test_functions_of_halves_run_in_float32(self, name, dtype):
        def build(bb, x):
            function = getattr(tirx, name)
            return as_one(bb, lambda x: te.compute(x.shape, lambda i: function(x[i]), "y"), x)

        text = source(on_gpu(build, ((64,), dtype)))
        # Where the result is rounded to 16 bits, the hardware's exponentials have enough.
        is_fast = name == "exp" and dtype != F32
        assert bool(re.search(rf"\b__{name}f\(", text)) == is_fast
        assert bool(re.search(rf"\b{name}f\(", text)) != is_fast
        assert not re.search(rf"\bh{name}\(", text)
