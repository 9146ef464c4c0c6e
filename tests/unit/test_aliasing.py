"""Which scheduled kernels may write a result to where a parameter lies."""

from __future__ import annotations

from typing import Any

import pytest
from tvm.script import tirx as T

from babytriton.passes.aliasing import reads_before_it_writes
from babytriton.passes.scheduling import RULE


@T.prim_func(s_tir=True)
def elementwise(x: T.Buffer((8,), "float32"), out: T.Buffer((8,), "float32")) -> None:
    for i in range(8):
        out[i] = x[i] + T.float32(1)


@T.prim_func(s_tir=True)
def loaded_first(x: T.Buffer((8,), "float32"), out: T.Buffer((8,), "float32")) -> None:
    part = T.alloc_buffer((2,), "float32")
    for i in range(4):
        for j in range(2):
            part[j] = x[i * 2 + j]
        for lane in range(2):
            out[i * 2 + lane] = part[lane] + T.float32(1)


@T.prim_func(s_tir=True)
def branches(x: T.Buffer((8,), "float32"), out: T.Buffer((8,), "float32")) -> None:
    for i in range(8):
        if i < 4:
            out[i] = x[i] + T.float32(1)
        else:
            out[i] = x[i]


@T.prim_func(s_tir=True)
def stored_twice(x: T.Buffer((8,), "float32"), out: T.Buffer((8,), "float32")) -> None:
    for i in range(8):
        out[i] = T.float32(0)
    for j in range(8):
        out[j] = x[j] + T.float32(1)


@T.prim_func(s_tir=True)
def again(x: T.Buffer((8,), "float32"), out: T.Buffer((8,), "float32")) -> None:
    for i in range(8):
        for _j in range(2):
            out[i] = x[i] + T.float32(1)


@T.prim_func(s_tir=True)
def shifted(x: T.Buffer((9,), "float32"), out: T.Buffer((9,), "float32")) -> None:
    for i in range(8):
        out[i] = x[i + 1]


@T.prim_func(s_tir=True)
def backwards(x: T.Buffer((8,), "float32"), out: T.Buffer((8,), "float32")) -> None:
    for i in range(8):
        out[i] = x[7 - i]


@T.prim_func(s_tir=True)
def loaded_after(x: T.Buffer((8,), "float32"), out: T.Buffer((8,), "float32")) -> None:
    other = T.alloc_buffer((8,), "float32")
    for i in range(8):
        out[i] = x[i] + T.float32(1)
        other[i] = x[i]


@T.prim_func(s_tir=True)
def loaded_by_a_condition(x: T.Buffer((8,), "float32"), out: T.Buffer((8,), "float32")) -> None:
    for i in range(8):
        if x[0] > T.float32(0):
            out[i] = x[i]


@pytest.mark.parametrize("kernel", [elementwise, loaded_first, branches])
def test_what_may_be_in_one_place(kernel: Any) -> None:
    func = kernel.with_attr(RULE, "Elementwise")
    assert reads_before_it_writes(func, *func.params) is not None
    # Of another rule it is not known that each element is stored once.
    assert reads_before_it_writes(kernel.with_attr(RULE, "Rowwise"), *func.params) is None


@pytest.mark.parametrize(
    "kernel", [stored_twice, again, shifted, backwards, loaded_after, loaded_by_a_condition]
)
def test_what_may_not(kernel: Any) -> None:
    func = kernel.with_attr(RULE, "Elementwise")
    assert reads_before_it_writes(func, *func.params) is None
