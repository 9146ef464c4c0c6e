"""Reading elements by tensors of indices.

An index outside of the tensor, for which torch raises on the CPU, reads as NaN (zero for
integers), and as no class at all in one_hot: a kernel cannot raise. ``x[...]`` is in
``subscript.py``, writing in ``scattering.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as S

from babytriton.ops.gradients import indexing as gradients
from babytriton.ops.numerics import opmath
from babytriton.ops.refusals import Unsupported
from babytriton.ops.site import Site
from babytriton.ops.sizes import int64
from babytriton.ops.subscript import checked, index64
from babytriton.ops.table import Op
from babytriton.ops.value import Value
from babytriton.types import TensorType, dtype_of

T = torch.Tensor


def _index_select(site: Site, input: Value, dim: int, index: Value) -> Any:
    if input.meta.ndim == 0:
        return input
    dim %= input.meta.ndim
    index = index.reshape(-1)

    def body(tensors: Sequence[Any], *at: Any) -> Any:
        x, picks = tensors
        places = list(at)
        places[dim] = index64(picks(at[dim]))
        return checked(x, places, [dim])

    return site.gather("index_select", site.shape, body, input.expr, index.expr)


def _gather(site: Site, input: Value, dim: int, index: Value, *, sparse_grad: bool = False) -> Any:
    if input.meta.ndim == 0 or index.meta.ndim == 0:
        flat = torch.gather(input.reshape(-1), 0, index.reshape(-1))
        return flat.reshape(site.shape)
    dim %= input.meta.ndim

    def body(tensors: Sequence[Any], *at: Any) -> Any:
        x, picks = tensors
        places = list(at)
        places[dim] = index64(picks(*at))
        return checked(x, places, [dim])

    return site.gather("gather", site.shape, body, input.expr, index.expr)


def _take_along_dim(input: Any, indices: Any, dim: int | None = None) -> Any:
    if dim is None:
        return torch.take_along_dim(input.reshape(-1), indices.reshape(-1), 0)
    dim %= input.ndim
    # Unlike gather, it counts negative indices from the end.
    indices = torch.where(indices < 0, indices + input.shape[dim], indices)
    sizes = [1 if d == dim else n for d, n in enumerate(input.shape)]
    picks = [1 if d == dim else n for d, n in enumerate(indices.shape)]
    shape = list(torch.broadcast_shapes(sizes, picks))
    shape[dim] = input.shape[dim]
    index_shape = [*shape[:dim], indices.shape[dim], *shape[dim + 1 :]]
    return torch.gather(input.expand(shape), dim, indices.expand(index_shape))


def _take(site: Site, input: Value, index: Value) -> Any:
    def body(tensors: Sequence[Any], *at: Any) -> Any:
        x, picks = tensors
        return checked(x, [index64(picks(*at))], [0], wraps=True)

    return site.gather("take", site.shape, body, input.reshape(-1).expr, index.expr)


def _embedding(
    site: Site,
    input: Value,
    weight: Value,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    if max_norm is not None:
        raise Unsupported("max_norm writes to the weight")

    def body(tensors: Sequence[Any], *at: Any) -> Any:
        table, picks = tensors
        *where, column = at
        row = index64(picks(*where))
        return checked(table, [row, column], [0])

    return site.gather("embedding", site.shape, body, weight.expr, input.expr)


def _torch_embedding(
    weight: Any,
    indices: Any,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    padding = None if padding_idx < 0 else padding_idx
    return F.embedding(indices, weight, padding, scale_grad_by_freq=scale_grad_by_freq)


def _one_hot(site: Site, tensor: Value, num_classes: int = -1) -> Any:
    def body(tensors: Sequence[Any], *at: Any) -> Any:
        *where, place = at
        return tirx.EQ(index64(tensors[0](*where)), place).astype("int64")

    return site.compute("one_hot", site.shape, body, tensor.expr)


def _searchsorted(
    site: Site,
    sorted_sequence: Any,
    input: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Any = None,
) -> Any:
    """A binary search for each element, in the innermost dimension of the sequence."""
    if sorter is not None:
        sorted_sequence = torch.gather(sorted_sequence, -1, sorter)
    right = right or side == "right"
    given = input.meta if isinstance(input, Value) else input
    dtype = opmath(torch.result_type(sorted_sequence.meta, given))
    sequence = site.expr(sorted_sequence, dtype)
    if isinstance(input, Value):
        wanted, shape = site.expr(input, dtype), tuple(input.meta.shape)
    else:
        wanted, shape = site.number(input, dtype), ()
    function = _search(dtype, tuple(sorted_sequence.meta.shape), shape, site.dtype, right)
    return site.kernel("searchsorted", function, [sequence, wanted], TensorType.of(site.out))


def _search(
    dtype: torch.dtype,
    sequence: Sequence[int],
    shape: Sequence[int],
    result: torch.dtype,
    right: bool,
) -> tirx.PrimFunc:
    name = dtype_of(dtype).name
    extents = [int64(n) for n in shape]
    with IRBuilder() as builder:
        with S.prim_func(s_tir=True):
            S.func_name("searchsorted")
            S.func_attr({"tirx.noalias": True})
            ordered = S.arg("sequence", S.buffer([int64(n) for n in sequence], name))
            wanted = S.arg("values", S.buffer(extents, name))
            out = S.arg("searchsorted", S.buffer(extents, dtype_of(result).name))
            sizes = extents or [int64(1)]
            with S.grid(*sizes) as loops, S.sblock("searchsorted"):
                loops = list(loops) if len(sizes) > 1 else [loops]
                at = [S.axis.spatial(n, loop) for n, loop in zip(sizes, loops)][: len(shape)]
                row = at[:-1] if len(sequence) > 1 else []
                low, high = (
                    S.sblock_alloc_buffer((int64(1),), "int64", scope="local") for _ in range(2)
                )
                zero = int64(0)
                S.buffer_store(low, zero, [zero])
                S.buffer_store(high, int64(sequence[-1]), [zero])
                # Each step halves what is left of the sequence.
                steps = S.serial(zero, int64(int(sequence[-1]).bit_length()))
                with steps, S.If(low[zero] < high[zero]), S.Then():
                    middle = low[zero] + ((high[zero] - low[zero]) >> int64(1))
                    element, value = ordered[(*row, middle)], wanted[tuple(at)]
                    with S.If(element > value if right else element >= value):
                        with S.Then():
                            S.buffer_store(high, middle, [zero])
                        with S.Else():
                            S.buffer_store(low, middle + int64(1), [zero])
                S.buffer_store(out, low[zero].astype(dtype_of(result).name), at)
        return builder.get()


def _bucketize(input: Any, boundaries: Any, *, out_int32: bool = False, right: bool = False) -> Any:
    return torch.searchsorted(boundaries, input, out_int32=out_int32, right=right)


ROWS: tuple[Op, ...] = (
    Op(
        "index_select",
        (torch.index_select, T.index_select),
        _index_select,
        gradient=gradients.index_select,
    ),
    Op("gather", (torch.gather, T.gather), _gather, gradient=gradients.gather),
    Op("take_along_dim", (torch.take_along_dim, T.take_along_dim), decompose=_take_along_dim),
    Op("take", (torch.take, T.take), _take, gradient=gradients.take),
    Op("embedding", (F.embedding,), _embedding, gradient=gradients.embedding),
    Op("torch.embedding", (torch.embedding,), decompose=_torch_embedding),
    Op("one_hot", (F.one_hot,), _one_hot),
    Op("searchsorted", (torch.searchsorted,), _searchsorted),
    Op("bucketize", (torch.bucketize,), decompose=_bucketize),
    Op(
        "embedding_bag",
        (F.embedding_bag,),
        why="bags are as long as their offsets say",
        gradient=gradients.embedding_bag,
    ),
)
