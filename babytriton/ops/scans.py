"""Running sums, products and extremes along a dimension, and differences of neighbours."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from tvm import relax, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as S

from babytriton.ops import numerics
from babytriton.ops.gradients import scans as gradients
from babytriton.ops.site import Site
from babytriton.ops.sizes import int64, is_symbolic
from babytriton.ops.table import Op
from babytriton.ops.value import Value
from babytriton.types import TensorType, dtype_of

T = torch.Tensor
Expr = Any
State = tuple[Expr, ...]

SCAN = "babytriton.scan"
"""Marks a block that walks along a dimension, and may as well walk the other way.

With how numbers are combined where threads may share the walk ("add", "mul", "max", "min" or
"logaddexp"; else :data:`ALONE`), the dimension, whether it walks from the last element to the
first, and what each of its results is: "value", what it has up to there, or "place", of an extreme
the last place where that is.
"""

ALONE = "alone"
"""Where no rule of the device shares a walk: it reads what it walks along however that lies."""


# Elements of a walk that may be shared, and how many walks keep a GPU busy.
_LONG, _MANY = 256, 1 << 16


def scan(
    site: Site,
    name: str,
    x: relax.Expr,
    shape: Sequence[int],
    dim: int,
    start: State,
    step: Callable[..., State],
    results: Sequence[tuple[torch.dtype, Callable[[State], Expr]]],
    shared: Sequence[str] = (),
    *,
    beside: relax.Expr | None = None,
    backwards: bool = False,
) -> tuple[relax.Expr, ...]:
    """One kernel that walks along a dimension: a block for each row, whose body is the walk.

    TVM's own cumulative sum shares a row among the GPU's threads, and has a race there.

    Args:
        site: of the call.
        name: of the kernel.
        x: what is scanned; not empty.
        shape: of ``x``, and of each result.
        dim: to walk along.
        start: the state before the first element.
        step: ``step(state, element, position)`` is the state after an element. The parts of the
            state change in order: each may depend on itself and on later ones.
        results: the dtype of each result, and its element for the state after its position.
        shared: what :data:`SCAN` has of numbers and results, if it marks the walk. The first part
            of the state has the dtype to combine numbers in.
        beside: a tensor like ``x``, whose element ``step`` takes as well.
        backwards: whether to walk from the last element to the first.
    """
    inputs = [x] if beside is None else [x, beside]
    dtypes = [str(source.ty.dtype) for source in inputs]
    operator, *kinds = shared or (None,)
    mark = {} if operator is None else {SCAN: [operator, dim, int(backwards), *kinds]}
    function = _scan_function(name, dtypes, shape, dim, start, step, results, backwards, mark)
    types = [TensorType(tuple(shape), dtype) for dtype, _ in results]
    found = site.kernel(name, function, inputs, *types)
    if len(types) == 1:
        return (found,)
    return tuple(relax.TupleGetItem(found, i) for i in range(len(types)))


def _scan_function(
    name: str,
    dtypes: Sequence[str],
    shape: Sequence[int],
    dim: int,
    start: State,
    step: Callable[..., State],
    results: Sequence[tuple[torch.dtype, Callable[[State], Expr]]],
    backwards: bool,
    mark: dict[str, Any],
) -> tirx.PrimFunc:
    extents = [int64(n) for n in shape]
    rows = [d for d in range(len(shape)) if d != dim]
    zero = int64(0)
    with IRBuilder() as builder:
        with S.prim_func(s_tir=True):
            S.func_name(name)
            S.func_attr({"tirx.noalias": True})
            sources = [
                S.arg(name, S.buffer(extents, dtype)) for name, dtype in zip(("x", "y"), dtypes)
            ]
            outs = [
                S.arg(
                    name if len(results) == 1 else f"{name}_{i}",
                    S.buffer(extents, dtype_of(result).name),
                )
                for i, (result, _) in enumerate(results)
            ]
            # A single row still needs a loop around its block: schedules hold on to it.
            sizes = [extents[d] for d in rows] or [int64(1)]
            with S.grid(*sizes) as loops, S.sblock(name):
                loops = list(loops) if len(sizes) > 1 else [loops]
                spatial = [S.axis.spatial(n, loop) for n, loop in zip(sizes, loops)]
                S.sblock_attr(mark)
                cells = [
                    S.sblock_alloc_buffer((int64(1),), str(value.ty.dtype), scope="local")
                    for value in start
                ]
                for cell, value in zip(cells, start):
                    S.buffer_store(cell, value, [zero])
                length = extents[dim] if extents else int64(1)
                with S.serial(zero, length) as count:
                    position = length - int64(1) - count if backwards else count
                    index = spatial[: len(rows)]
                    index[dim:dim] = [position] if extents else []
                    state = tuple(cell[zero] for cell in cells)
                    x, *beside = (source[tuple(index)] for source in sources)
                    after = step(state, x, position, *beside)
                    for cell, value in zip(cells, after):
                        S.buffer_store(cell, value, [zero])
                    for out, (_, element) in zip(outs, results):
                        S.buffer_store(out, element(state), index)
        return builder.get()


def _running(
    site: Site,
    name: str,
    input: Value,
    dim: int,
    start: float,
    join: Callable[[Expr, Expr], Expr],
    operator: str,
) -> Any:
    """A scan whose state is its result, in torch's accumulator."""
    wide, narrow = dtype_of(_accumulator(site)).name, dtype_of(site.dtype).name

    def step(state: State, x: Expr, _: Expr) -> State:
        return (join(state[0], x.astype(wide)),)

    (found,) = _along(
        site,
        name,
        site.expr(input, site.dtype),
        site.shape,
        dim,
        (tirx.const(start, wide),),
        step,
        [(site.dtype, lambda state: state[0].astype(narrow))],
        (operator, "value"),
    )
    return found


def _along(
    site: Site,
    name: str,
    x: relax.Expr,
    shape: Sequence[int],
    dim: int,
    start: State,
    step: Callable[..., State],
    results: Sequence[tuple[torch.dtype, Callable[[State], Expr]]],
    shared: Sequence[str],
) -> tuple[relax.Expr, ...]:
    """A scan that threads may share, along rows where that is better: as :func:`scan`."""
    if site.builder.device.type != "cuda" and shared[0] not in ("add", "mul"):
        shared = (ALONE, *shared[1:])
    dims = list(range(len(shape)))
    dim %= max(len(dims), 1)
    if not _wants_rows(site, shape, dim):
        return scan(site, name, x, shape, dim, start, step, results, shared)
    order = [*(d for d in dims if d != dim), dim]
    turned, sizes = site.emit(relax.op.permute_dims(x, order)), [shape[d] for d in order]
    found = scan(site, name, turned, sizes, dims[-1], start, step, results, shared)
    back = [order.index(d) for d in dims]
    return tuple(relax.op.permute_dims(site.emit(each), back) for each in found)


def _wants_rows(site: Site, shape: Sequence[int], dim: int) -> bool:
    """Whether to lay out what is walked along as rows, which a GPU's threads share.

    A thread walks along what lies across memory; where that is long, and there are few such walks,
    most of a GPU would have nothing to do.
    """
    if site.builder.device.type != "cuda" or not shape or any(map(is_symbolic, shape)):
        return False
    length, walks = shape[dim], math.prod(shape) // max(shape[dim], 1)
    return dim < len(shape) - 1 and length >= _LONG and walks < _MANY


def _accumulator(site: Site) -> torch.dtype:
    """What a scan adds up in: float64 for float32, as torch does on the CPU.

    Where kernels are source alone, it is float32: not all languages have more.
    """
    dtype = numerics.opmath(site.dtype)
    if dtype == torch.float32 == site.dtype and site.builder.device.type != "meta":
        return torch.float64
    return dtype


def _cumsum(site: Site, input: Value, dim: int, *, dtype: Any = None) -> Any:
    return _running(site, "cumsum", input, dim, 0, lambda total, x: total + x, "add")


def _cumprod(site: Site, input: Value, dim: int, *, dtype: Any = None) -> Any:
    return _running(site, "cumprod", input, dim, 1, lambda total, x: total * x, "mul")


def _logcumsumexp(site: Site, input: Value, dim: int) -> Any:
    def join(total: Expr, x: Expr) -> Expr:
        low, high = numerics.minimum(total, x), numerics.maximum(total, x)
        # Of two infinities of one sign the difference would be NaN.
        infinite = tirx.EQ(tirx.abs(high), numerics.like(high, math.inf))
        return tirx.Select(infinite, high, tirx.log1p(tirx.exp(low - high)) + high)

    return _running(site, "logcumsumexp", input, dim, -math.inf, join, "logaddexp")


def _recurrence(site: Site, input: Value, factor: Value, dim: int, backwards: bool) -> Any:
    wide, narrow = dtype_of(_accumulator(site)).name, dtype_of(site.dtype).name
    zero = tirx.const(0, wide)

    def forth(state: State, x: Expr, _: Expr, f: Expr) -> State:
        return (x.astype(wide) + f.astype(wide) * state[0],)

    def back(state: State, x: Expr, _: Expr, f: Expr) -> State:
        # The parts change in order: the second is the factor of the step to the next element.
        return (x.astype(wide) + state[1] * state[0], f.astype(wide))

    return scan(
        site,
        "recurrence",
        input.expr,
        site.shape,
        dim % max(len(site.shape), 1),
        (zero, zero) if backwards else (zero,),
        back if backwards else forth,
        [(site.dtype, lambda state: state[0].astype(narrow))],
        beside=factor.expr,
        backwards=backwards,
    )


def _extreme(name: str, largest: bool) -> Callable[..., Any]:
    """The extreme so far and the last of its places; a NaN is one, and stays."""

    def build(site: Site, input: Value, dim: int) -> Any:
        element = dtype_of(input.meta.dtype).name

        def order(x: Expr) -> Expr:
            return numerics.order_key(x, nan="max" if largest else "min", signed_zeros=False)

        def step(state: State, x: Expr, position: Expr) -> State:
            value, place, best = state
            key = order(x)
            wins = key >= best if largest else key <= best
            return (
                tirx.Select(wins, x, value),
                tirx.Select(wins, position, place),
                tirx.max(key, best) if largest else tirx.min(key, best),
            )

        zero = tirx.const(0, element)
        limit = tirx.min_value if largest else tirx.max_value
        start = (zero, int64(0), limit(str(order(zero).ty.dtype)))
        results: list[tuple[torch.dtype, Callable[[State], Expr]]] = [
            (input.meta.dtype, lambda state: state[0]),
            (torch.int64, lambda state: state[1]),
        ]
        shared = ("max" if largest else "min", "value", "place")
        shape = tuple(input.meta.shape)
        return _along(site, name, input.expr, shape, dim, start, step, results, shared)

    return build


def _diff(input: Any, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> Any:
    if n == 0:
        return input
    parts = [part for part in (prepend, input, append) if part is not None]
    found = torch.cat(parts, dim) if len(parts) > 1 else input
    subtract = torch.logical_xor if found.dtype == torch.bool else torch.sub
    for _ in range(n):
        length = found.shape[dim] - 1
        found = subtract(found.narrow(dim, 1, length), found.narrow(dim, 0, length))
    return found


ROWS: tuple[Op, ...] = (
    Op("cumsum", (torch.cumsum, T.cumsum), _cumsum, gradient=gradients.cumsum),
    Op("cumprod", (torch.cumprod, T.cumprod), _cumprod, gradient=gradients.cumprod),
    Op(
        "logcumsumexp",
        (torch.logcumsumexp, T.logcumsumexp),
        _logcumsumexp,
        gradient=gradients.logcumsumexp,
    ),
    Op(
        "cummax",
        (torch.cummax, T.cummax),
        _extreme("cummax", True),
        gradient=gradients.extreme,
    ),
    Op(
        "cummin",
        (torch.cummin, T.cummin),
        _extreme("cummin", False),
        gradient=gradients.extreme,
    ),
    Op("diff", (torch.diff, T.diff), decompose=_diff),
)

PARTS: tuple[Op, ...] = (
    Op("recurrence", (gradients.recurrence,), _recurrence, gradient=gradients.of_recurrence),
)
