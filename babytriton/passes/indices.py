"""Indices that TVM gets wrong, in a form that it leaves alone, or put right."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import IRModule, ir, s_tir, sym, tirx

from babytriton.ops.primfunc import nodes, with_kernels
from babytriton.passes.intrinsics import dtype_of
from babytriton.passes.statements import is_number


def as_they_stand(mod: IRModule) -> IRModule:
    """Kernels whose indices are computed as they are written.

    Of a division within another, TVM's ``IterMapSimplify`` loses the remainder of what is added
    below: of ``((i + 1) // 2 + 1) % 8`` it makes ``(i + 2) % 16 // 2``; and of ``(7 - i) % 4`` it
    makes ``-i % 4``. Through a bitwise operation, which code generators drop, it does not see.
    Of a cast to a narrower type it takes what is within bounds for what there is, though integers
    wrap: of a number of steps that a call tells, none would be negative in 8 bits.
    """
    return with_kernels(mod, lambda func: _changed(_wrapping(func)))


def _changed(func: tirx.PrimFunc) -> tirx.PrimFunc:
    if not any(map(_is_mistaken, _divisions(func.body))):
        return func
    body = tvm_ffi.structural_map(func.body, [(ir.TensorLoad, _load), (tirx.BufferStore, _store)])
    return func.with_body(body)


def _wrapping(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The kernel with casts that may wrap where TVM does not look into them."""
    analyzer = sym.Analyzer()
    for var, (extent, *others) in ranges_of(func).items():
        if not others:
            analyzer.bind(var, extent)

    def hidden(cast: tirx.Cast) -> ir.Expr:
        value = cast.value
        limits = LIMITS.get(dtype_of(cast))
        if limits is None or dtype_of(value) not in LIMITS:
            return cast
        least, greatest = limits
        bound = analyzer.const_int_bound(value)
        # What is larger than an int64 counts as one for TVM.
        is_bounded = dtype_of(value) != "uint64" or bound.max_value < LIMITS["int64"][1]
        fits = least <= bound.min_value and bound.max_value <= greatest and is_bounded
        is_any = bound.min_value <= least and greatest <= bound.max_value
        if fits or is_any:
            return cast
        return tirx.bitwise_xor(cast, tirx.const(0, cast.ty.dtype))

    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.Cast, hidden)))


LIMITS = {
    **{f"int{bits}": (-(1 << bits - 1), (1 << bits - 1) - 1) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": (0, (1 << bits) - 1) for bits in (8, 16, 32, 64)},
}
"""The least and the greatest integer of each dtype."""


def _load(load: ir.TensorLoad) -> ir.TensorLoad:
    return tirx.BufferLoad(load.source, [_opaque(index) for index in load.indices])


def _store(store: tirx.BufferStore) -> tirx.BufferStore:
    indices = [_opaque(index) for index in store.indices]
    return tirx.BufferStore(store.buffer, store.value, indices)


def of_one_width(mod: IRModule) -> IRModule:
    """Kernels in which the indices of a vector are of as many bits as what they are computed from.

    TVM makes those of a lane 32 bits wide where that is enough for the position it is added to,
    though not for what this is computed from; then it does not see that the elements lie together.
    """
    functions = {
        var: func.with_body(
            tvm_ffi.structural_map(
                func.body, [(ir.TensorLoad, _wide_load), (tirx.BufferStore, _wide_store)]
            )
        )
        if isinstance(func, tirx.PrimFunc)
        else func
        for var, func in mod.functions_items()
    }
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def _wide_load(load: ir.TensorLoad) -> ir.TensorLoad:
    indices = [_wide(index) for index in load.indices]
    is_same = all(new is old for new, old in zip(indices, load.indices))
    return load if is_same else tirx.BufferLoad(load.source, indices)


def _wide_store(store: tirx.BufferStore) -> tirx.BufferStore:
    indices = [_wide(index) for index in store.indices]
    is_same = all(new is old for new, old in zip(indices, store.indices))
    return store if is_same else tirx.BufferStore(store.buffer, store.value, indices)


def _wide(index: ir.Expr) -> ir.Expr:
    if not any(isinstance(cast.value, tirx.Ramp) for cast in nodes(index, tirx.Cast)):
        return index

    def widened(cast: tirx.Cast) -> ir.Expr:
        if not isinstance(cast.value, tirx.Ramp):
            return cast
        ramp, dtype = cast.value, str(cast.ty.dtype).partition("x")[0]
        return tirx.Ramp(ramp.base.astype(dtype), ramp.stride.astype(dtype), ramp.lanes)

    return sym.Analyzer().simplify(tvm_ffi.structural_map(index, (tirx.Cast, widened)))


def of_whole_vectors(mod: IRModule) -> IRModule:
    """Kernels in which a vector whose place has 64 bits is at a product with its length.

    NVIDIA's compiler takes stores of vectors apart, and puts the parts together again where it sees
    that they lie side by side: at such a product, but not at every sum of 64 bits.
    """
    functions = {
        var: func.with_body(tvm_ffi.structural_map(func.body, (tirx.Ramp, _at_product)))
        if isinstance(func, tirx.PrimFunc)
        else func
        for var, func in mod.functions_items()
    }
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def _at_product(ramp: tirx.Ramp) -> tirx.Ramp:
    if str(ramp.base.ty.dtype) != "int64" or not is_number(ramp.stride, 1):
        return ramp
    length = tirx.const(int(ramp.lanes), "int64")
    number = sym.Analyzer().simplify(tirx.floordiv(ramp.base, length))
    return ramp if _divisions(number) else tirx.Ramp(number * length, ramp.stride, ramp.lanes)


def in_short(mod: IRModule) -> IRModule:
    """Kernels without divisions whose results follow from how far threads and loops go.

    Of ``(3 * row + column) // 3``, for three columns, it leaves the row.
    """
    return with_kernels(mod, _shortened)


def _shortened(func: tirx.PrimFunc) -> tirx.PrimFunc:
    analyzer = sym.Analyzer()
    for var, extents in ranges_of(func).items():
        if all(tvm_ffi.structural_equal(extents[0], other) for other in extents):
            analyzer.bind(var, extents[0])

    def shorter(division: ir.Expr) -> ir.Expr:
        found = analyzer.simplify(division)
        return found if len(nodes(found, ir.Expr)) < len(nodes(division, ir.Expr)) else division

    body = tvm_ffi.structural_map(
        func.body,
        [
            *((kind, shorter) for kind in (tirx.FloorDiv, tirx.FloorMod)),
            *((kind, _without_zero) for kind in (tirx.Add, tirx.Mul)),
            (tirx.BitwiseOr, _without_opaque),
        ],
    )
    return func.with_body(body)


def ranges_of(func: tirx.PrimFunc) -> dict[tirx.Var, list[ir.Range]]:
    """How far loops, axes of blocks and threads go, by their variables."""
    found: dict[tirx.Var, list[ir.Range]] = {}
    for block in nodes(func.body, s_tir.SBlock):
        for axis in block.iter_vars:
            found.setdefault(axis.var, []).append(axis.dom)
    for loop in nodes(func.body, tirx.For):
        own = ir.Range.from_min_extent(loop.min, loop.extent)
        found.setdefault(loop.loop_var, []).append(own)
    for axis in nodes(func.body, tirx.AttrStmt):
        if axis.attr_key == "thread_extent":
            zero = tirx.const(0, axis.node.var.ty.dtype)
            own = ir.Range.from_min_extent(zero, axis.value)
            found.setdefault(axis.node.var, []).append(own)
    return found


def _without_zero(whole: tirx.Add | tirx.Mul) -> ir.Expr:
    """A sum or a product of integers without what is 0."""
    if str(whole.ty.dtype) not in ("int32", "int64"):
        return whole
    for one, other in ((whole.a, whole.b), (whole.b, whole.a)):
        if is_number(one, 0):
            return other if isinstance(whole, tirx.Add) else one
    return whole


def _without_opaque(either: tirx.BitwiseOr) -> ir.Expr:
    """What :func:`_opaque` has put behind a bitwise operation, which hides nothing any more."""
    return either.a if is_number(either.b, 0) else either


def _divisions(root: Any) -> list[ir.Expr]:
    return [*nodes(root, tirx.FloorDiv), *nodes(root, tirx.FloorMod)]


def _is_mistaken(division: ir.Expr) -> bool:
    """Whether it is of what another one and a sum with a number are part of, divisors aside.

    Or of what falls with an index.
    """
    dividend = tvm_ffi.structural_map(
        division.a,
        [
            (tirx.FloorDiv, lambda inner: type(inner)(inner.a, _divisor(inner))),
            (tirx.FloorMod, lambda inner: type(inner)(inner.a, _divisor(inner))),
        ],
    )
    factors = [x for product in nodes(dividend, tirx.Mul) for x in (product.a, product.b)]
    if any(map(_is_negative, factors)):
        return True
    # It leaves bounds alone, such as how much of the last piece there is.
    is_bound = bool(nodes(dividend, tirx.Min)) or bool(nodes(dividend, tirx.Max))
    falling = [each for each in nodes(dividend, tirx.Sub) if not isinstance(each.b, tirx.IntImm)]
    if falling and not is_bound:
        return True
    sums = [*nodes(dividend, tirx.Add), *nodes(dividend, tirx.Sub)]
    numbers = [part for each in sums for part in (each.a, each.b) if isinstance(part, tirx.IntImm)]
    return bool(numbers) and bool(_divisions(dividend))


def _is_negative(number: ir.Expr) -> bool:
    return isinstance(number, tirx.IntImm) and int(number) < 0


def _divisor(division: ir.Expr) -> ir.Expr:
    """What it divides by, or a name for it."""
    divisor = division.b
    return divisor if isinstance(divisor, tirx.IntImm) else tirx.Var("size", divisor.ty.dtype)


def _opaque(index: ir.Expr) -> ir.Expr:
    """The index with divisions behind a bitwise operation: the innermost, and those mistaken."""
    if not any(map(_is_mistaken, _divisions(index))):
        return index

    def wrapped(division: ir.Expr) -> ir.Expr:
        if _divisions(division.a) and not _is_mistaken(division):
            return division
        return tirx.bitwise_or(division, tirx.const(0, division.ty.dtype))

    return tvm_ffi.structural_map(index, [(tirx.FloorDiv, wrapped), (tirx.FloorMod, wrapped)])
