"""What becomes of scheduled CPU kernels: tight bounds, loops merged, float reductions in lanes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import tvm
from tvm import relax, te, tirx
from tvm.script import tirx as T

import babytriton as bt
from babytriton.passes.cpu.lanes import STRIDES
from babytriton.passes.lowering import LOWERING
from babytriton.passes.pipeline import finish
from tests.unit.kernels import CPU, as_one, check_cpu, on_cpu, run_cpu

F32 = "float32"
LENGTHS = [*range(1, 34), 63, 64, 65, 71, 72, 73, 127, 128, 129, 1003]


def reducing(*results):
    """A kernel of the results of `results(x)`, for a matrix x."""

    def build(bb, x):
        (fn,) = results
        return as_one(bb, fn, x)

    return build


def sums(x):
    k = te.reduce_axis((0, x.shape[1]), "k")
    return te.compute((x.shape[0],), lambda i: te.sum(x[i, k], k), "s")


def largest(x):
    k = te.reduce_axis((0, x.shape[1]), "k")
    return te.compute((x.shape[0],), lambda i: te.max(x[i, k], k), "m")


def smallest(x):
    k = te.reduce_axis((0, x.shape[1]), "k")
    return te.compute((x.shape[0],), lambda i: te.min(x[i, k], k), "m")


class TestLanes:
    @pytest.mark.parametrize("length", LENGTHS)
    def test_every_length(self, length):
        shape = ((5, length), F32)
        check_cpu(reducing(sums), lambda x: x.sum(-1), shape, within=1e-5)
        check_cpu(reducing(largest), lambda x: x.amax(-1), shape, within=0)
        check_cpu(reducing(smallest), lambda x: x.amin(-1), shape, within=0)

    @pytest.mark.parametrize("length", [15, 16, 100, 1003])
    def test_lengths_that_the_call_tells(self, length):
        n = tirx.Var("n", "int64")
        mod = on_cpu(lambda bb, x: bb.emit(relax.op.sum(x, axis=[1])), ((n, n), F32))
        assert "T.vectorized(T.int64(64))" in mod.script()
        x = torch.randn(length, length)
        torch.testing.assert_close(
            run_cpu(mod, [x])[0].double(), x.double().sum(1), rtol=0, atol=1e-3
        )

    def test_elements_and_their_sum_in_one_loop(self):
        def both(x):
            k = te.reduce_axis((0, x.shape[1]), "k")
            y = te.compute(x.shape, lambda i, j: te.exp(x[i, j]), "y")
            return [y, te.compute((x.shape[0],), lambda i: te.sum(y[i, k], k), "s")]

        def build(bb, x):
            results = as_one(bb, both, x)
            return tuple(bb.emit(relax.TupleGetItem(results, i)) for i in range(2))

        mod = check_cpu(build, lambda x: (x.exp(), x.exp().sum(-1)), ((33, 267), F32), within=1e-5)
        assert mod.script().count("T.exp(") == 3  # in long vectors, in short ones, and alone

    def test_two_axes_reduced(self):
        for shape, axes in (((4, 6, 50), [1, 2]), ((4, 33, 7), [1, 2]), ((3, 20, 5, 18), [1, 3])):
            check_cpu(
                lambda bb, x, axes=axes: bb.emit(relax.op.sum(x, axis=axes)),
                lambda x, axes=axes: x.sum(axes),
                (shape, F32),
                within=1e-5,
            )

    def test_what_lies_far_apart_stays_one_by_one(self):
        def every(stride):
            def fn(x):
                k = te.reduce_axis((0, 40), "k")
                return te.compute((x.shape[0],), lambda i: te.sum(x[i, stride * k], k), "s")

            shape = (5, 40 * stride), F32
            return check_cpu(
                reducing(fn), lambda x: x[:, ::stride].sum(-1), shape, within=1e-5
            ).script()

        assert "T.vectorized" in every(3)
        assert "T.vectorized" not in every(STRIDES[-2] + 3)

    def test_what_comes_before_the_sum_is_kept(self):
        def from_seven(x):
            k = te.reduce_axis((0, x.shape[1]), "k")
            reducer = te.comm_reducer(lambda a, b: a + b, lambda t: tirx.const(7, t), name="from7")
            return te.compute((x.shape[0],), lambda i: reducer(x[i, k], axis=k), "s")

        check_cpu(reducing(from_seven), lambda x: x.sum(-1) + 7, ((3, 100), F32), within=1e-5)


class TestMerging:
    def test_readers_of_other_elements_stay_behind(self):
        def folded(x):
            n, m = x.shape
            k = te.reduce_axis((0, m), "k")
            y = te.compute((n, m), lambda i, j: te.exp(x[i, j]), "y")
            z = te.compute((n, m), lambda i, j: y[i, j] + y[i, m - 1 - j], "z")
            s = te.compute((n,), lambda i: te.sum(z[i, k], k), "s")
            return te.compute((n, m), lambda i, j: z[i, j] / s[i], "o")

        def reference(x):
            z = x.exp() + x.exp().flip(-1)
            return z / z.sum(-1, keepdim=True)

        check_cpu(reducing(folded), reference, ((9, 77), F32), within=1e-5)

    def test_neighbours(self):
        def differences(x):
            n, m = x.shape
            k = te.reduce_axis((0, m), "k")
            y = te.compute((n, m), lambda i, j: te.exp(x[i, j]), "y")
            d = te.compute(
                (n, m),
                lambda i, j: y[i, tirx.Min(j + 1, m - 1)] - y[i, j],
                "d",
            )
            s = te.compute((n,), lambda i: te.sum(d[i, k] * d[i, k], k), "s")
            return te.compute((n, m), lambda i, j: d[i, j] / s[i], "o")

        def reference(x):
            y = x.exp()
            d = torch.diff(y, append=y[:, -1:])
            return d / (d * d).sum(-1, keepdim=True)

        check_cpu(lambda bb, x: as_one(bb, differences, x), reference, ((9, 77), F32))


class TestBounds:
    @pytest.mark.parametrize("shape", [(40009,), (100, 1003), (5, 65537)])
    def test_no_condition_at_each_step(self, shape):
        for axes in (None, [0]):
            mod = check_cpu(
                lambda bb, x, axes=axes: bb.emit(relax.op.sum(x, axis=axes)),
                lambda x, axes=axes: x.sum() if axes is None else x.sum(axes),
                (shape, F32),
                within=1e-4,
            )
            assert "if " not in mod.script()


@bt.kernel("cpu")
def recurrence(x, y, s):
    for i in range(len(x)):
        for k in range(1, x.shape[1]):
            y[i, k] = y[i, k - 1] * 0.5 + x[i, k]
            s[i] = s[i] + y[i, k]


@bt.kernel("cpu")
def cleared(x, y, s):
    for i in range(len(x)):
        for k in range(x.shape[1]):
            s[i] = s[i] + y[i, k]
            y[i, k] = 0.0


@bt.kernel("cpu")
def spread(x, y, s):
    for i in range(len(x)):
        for k in range(x.shape[1] - 1):
            s[i] = s[i] + x[i, k]
            y[i, k] = x[i, k]
            y[i, k + 1] = x[i, k] * 2.0


@bt.kernel("cpu")
def last_element(x, y, s):
    for i in range(len(x)):
        for k in range(x.shape[1]):
            y[i, 0] = x[i, k] * 2.0
            s[i] = s[i] + y[i, 0]


@bt.kernel("cpu")
def below_a_float(x, alpha, y):
    for i in range(len(x)):
        if i < alpha:
            y[i] = x[i] * 2.0


class TestKernelsOfUsers:
    """Loops that look like sums beside elements, and are more."""

    @pytest.mark.parametrize("kernel", [recurrence, cleared, spread, last_element])
    def test_order_of_statements_and_steps(self, kernel: Any) -> None:
        x, y, s = torch.randn(5, 77), torch.randn(5, 77), torch.zeros(5)
        wide = [t.double() for t in (x, y, s)]
        kernel.fn(*wide)
        kernel(x, y, s)
        torch.testing.assert_close(y.double(), wide[1], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(s.double(), wide[2], rtol=1e-5, atol=1e-4)

    def test_bound_that_is_no_integer(self) -> None:
        x, y = torch.randn(20), torch.zeros(20)
        below_a_float(x, 7.5, y)
        assert torch.equal(y, torch.cat([x[:8] * 2, torch.zeros(12)]))

    def test_loop_that_starts_later(self) -> None:
        @T.prim_func(s_tir=True)
        def some(x: T.Buffer((20,), "float32"), out: T.Buffer((20,), "float32")):
            T.func_attr({"tirx.noalias": True})
            for i in range(8, 20):
                if i < 12:
                    out[i] = x[i]

        built = finished(some)
        x, out = torch.randn(20), torch.zeros(20)
        built(x, out)
        assert torch.equal(out.nonzero().flatten(), torch.arange(8, 12))

    def test_division_stays_under_its_condition(self) -> None:
        @T.prim_func(s_tir=True)
        def guarded(
            a: T.Buffer((16,), "int32"),
            b: T.Buffer((16,), "int32"),
            out: T.Buffer((16,), "float32"),
        ):
            T.func_attr({"tirx.noalias": True})
            for i in range(16):
                out[i] = T.if_then_else(
                    b[i] != 0,
                    T.exp(T.Cast("float32", T.truncdiv(a[i], b[i]))),
                    T.float32(0),
                )

        built = finished(guarded)
        a, b = torch.arange(16, dtype=torch.int32), torch.arange(16, dtype=torch.int32) % 3
        out = torch.zeros(16)
        built(a, b, out)
        wanted = torch.where(b != 0, torch.exp((a // b.clamp(min=1)).float()), torch.zeros(16))
        torch.testing.assert_close(out, wanted)


def finished(func: tirx.PrimFunc) -> Any:
    """A kernel that is scheduled already, as it is compiled."""
    mod = finish(tvm.IRModule({"main": func}), "cpu")
    return tvm.compile(mod["main"], target=CPU, tir_pipeline=LOWERING)
