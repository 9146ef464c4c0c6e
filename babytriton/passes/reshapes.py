"""Reshapes inside kernels -> other shapes for what they read and write.

A contiguous tensor has the same memory under all its shapes. So what goes through elements one by
one, before or after a reshape, can do so under the shape on the other side of it, where a rule may
want it: rows of a reshaped argument are then rows of the argument itself. A parameter may so have
another shape than the tensors that a program gives it: kernels ask these for nothing but their
addresses, and for the outermost size, the only one here that may be symbolic.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import tvm_ffi
from tvm import IRModule, ir, relax, s_tir, sym, tirx
from tvm.relax.expr import _update_type

from babytriton.ops.primfunc import nodes
from babytriton.passes.bindings import CALL_IN_PLACE, CALL_TIR
from babytriton.passes.blocks import element, in_loops, of_shape, only_block
from babytriton.passes.reshape_kernels import RESHAPE
from babytriton.passes.scheduling import is_scheduled

_Shape = tuple[Any, ...]
"""Sizes, of which the first may be a variable."""

_Blocks = Sequence[s_tir.SBlock]


def kernels_folded(mod: IRModule) -> IRModule:
    """The functions with each kernel that no rule has scheduled yet :func:`folded`."""
    functions = {
        var: folded(func) if isinstance(func, tirx.PrimFunc) and not is_scheduled(func) else func
        for var, func in mod.functions_items()
    }
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def folded(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """A kernel that copies nothing only for it to have another shape, where that can be."""
    root = func.body
    if not isinstance(root, s_tir.SBlockRealize):
        return func
    body = root.block.body
    statements = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
    blocks = [only_block(stmt) for stmt in statements]
    known = [block for block in blocks if block is not None]
    if len(known) < len(blocks) or not any(map(is_reshape, known)):
        return func
    found, renamed = Reshapes().without(known)
    if not renamed:
        return func
    made = [
        stmt if new.same_as(old) else in_loops(new)
        for stmt, old, new in zip(statements, known, found)
    ]
    own = root.block
    block = s_tir.SBlock(
        own.iter_vars,
        own.reads,
        own.writes,
        own.name_hint,
        made[0] if len(made) == 1 else tirx.SeqStmt(made),
        own.init,
        [renamed.get(buffer, buffer) for buffer in own.alloc_buffers],
        own.match_buffers,
        own.annotations,
        own.span,
    )
    realized = s_tir.SBlockRealize(root.iter_values, root.predicate, block, root.span)
    params = [renamed.get(param, param) for param in func.params]
    return tirx.PrimFunc(params, realized, func.ret_type, func.attrs, func.span)


def typed_by_calls(mod: IRModule) -> IRModule:
    """A program whose kernels' variables have the types of what they are given.

    Those of kernels that were folded, and then changed, have the types of their parameters.
    """
    renamed: dict[ir.GlobalVar, ir.GlobalVar] = {}
    programs = {var: f for var, f in mod.functions_items() if isinstance(f, relax.Function)}
    for program in programs.values():
        for call in nodes(program.body, ir.Call):
            if call.op not in (CALL_TIR, CALL_IN_PLACE) or call.args[0] in renamed:
                continue
            kernel = call.args[0]
            given = _types_given(call, kernel.ty.params)
            if given is not None:
                renamed[kernel] = made = ir.GlobalVar(kernel.name_hint)
                _update_type(made, relax.FuncType(given, kernel.ty.ret, kernel.ty.purity))
    if not renamed:
        return mod
    functions = {renamed.get(var, var): function for var, function in mod.functions_items()}
    for var, program in programs.items():
        functions[var] = tvm_ffi.structural_map(
            program, (ir.GlobalVar, lambda kernel: renamed.get(kernel, kernel))
        )
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def _types_given(call: ir.Call, params: Sequence[ir.Type]) -> list[ir.Type] | None:
    """The types of a kernel's parameters as a call has them; None where they are its own."""
    (results,) = call.ty_args
    own = list(results.fields) if isinstance(results, ir.TupleType) else [results]
    if call.op == CALL_IN_PLACE:
        own = [x for x, place in zip(own, call.attrs.inplace_indices) if int(place) < 0]
    given = [argument.ty for argument in call.args[1].fields]
    places = [*enumerate(given), *enumerate(own, len(params) - len(own))]
    tensors = [(n, type) for n, type in places if isinstance(type, relax.TensorType)]
    if not any(_differ(type.shape, params[n].shape) for n, type in tensors):
        return None
    found = list(params)
    for n, type in tensors:
        found[n] = relax.TensorType(type.shape, type.dtype)
    return found


def _differ(left: Sequence[ir.Expr], right: Sequence[ir.Expr]) -> bool:
    """Whether two shapes are of other sizes, as far as these are constants."""
    pairs = [(_extent(n), _extent(m)) for n, m in zip(left, right)]
    return len(left) != len(right) or any(None not in (n, m) and n != m for n, m in pairs)


class Reshapes:
    """Blocks without reshapes. What it finds out of a block that many kernels have, it keeps."""

    def __init__(self) -> None:
        self.copies = cache(is_reshape)
        """Whether a block does."""
        self.touched = cache(_touched)
        """What it reads or writes."""

    def without(self, blocks: _Blocks) -> tuple[_Blocks, dict[tirx.Var, tirx.Var]]:
        """Blocks, in the order they run, as those of a kernel that is :func:`folded`.

        Returns:
            The blocks, and the buffers that have become others.
        """
        if all(map(_is_pointwise, blocks)):
            return blocks, {}  # any shape will do for them, and their own has the plainest indices
        renamed: dict[tirx.Var, tirx.Var] = {}
        refused: set[tuple[tirx.Var, _Shape]] = set()
        while True:
            change = next((x for x in self._changes(blocks) if x not in refused), None)
            if change is None:
                return blocks, renamed
            found = _Change(blocks, *change, self).made()
            if found is None:
                refused.add(change)
                continue
            blocks, made = found
            renamed = {old: made.get(new, new) for old, new in renamed.items()} | made

    def _changes(self, blocks: _Blocks) -> Iterator[tuple[tirx.Var, _Shape]]:
        """Buffers, and shapes that would make copies of reshapes; what follows goes first."""
        for block in filter(self.copies, blocks):
            source, result = _load(block).source, block.body.buffer
            for buffer, other in ((result, source), (source, result)):
                shape = _shape(other)
                if shape is not None:
                    yield buffer, shape


class _Change:
    """Another shape for a buffer, and for what is computed element by element from or for it.

    Args:
        blocks: of the kernel.
        buffer: the one to begin with.
        shape: to have.
        known: of the blocks.
    """

    def __init__(self, blocks: _Blocks, buffer: tirx.Var, shape: _Shape, known: Reshapes) -> None:
        self._blocks, self._before, self._after = blocks, _shape(buffer), shape
        self._known = known
        self._buffers = [buffer]
        self._own = {buffer}

    def made(self) -> tuple[_Blocks, dict[tirx.Var, tirx.Var]] | None:
        """The blocks, and the new buffers by the old ones; None where a block works otherwise."""
        of_buffer: dict[tirx.Var, list[s_tir.SBlock]] = {}
        for block in self._blocks:
            for touched in self._known.touched(block):
                of_buffer.setdefault(touched, []).append(block)
        for buffer in self._buffers:  # to which is added on the way
            if not all(map(self._goes_along, of_buffer.get(buffer, ()))):
                return None
        self._new = {
            x: ir.Var(x.name, of_shape(x.ty, [_size(n) for n in self._after]))
            for x in self._buffers
        }
        return [self._changed(block) for block in self._blocks], self._new

    def _goes_along(self, block: s_tir.SBlock) -> bool:
        """Whether a block can do with the shape; what this depends on is to have it, too."""
        if self._known.copies(block):
            return True
        if not _is_pointwise(block) or _extents(block) != self._before:
            return False
        self._add(block.body.buffer)
        loads = nodes(block.body.value, ir.TensorLoad)
        for load in loads:
            if _shape(load.source) == self._before and _is_point(load.indices, block):
                self._add(load.source)
        return all(_is_point(x.indices, block) for x in loads if x.source in self._own)

    def _add(self, buffer: tirx.Var) -> None:
        if buffer not in self._own:
            self._own.add(buffer)
            self._buffers.append(buffer)

    def _changed(self, block: s_tir.SBlock) -> s_tir.SBlock:
        if self._known.touched(block).isdisjoint(self._own):
            return block
        store = block.body
        target = self._new.get(store.buffer, store.buffer)
        shape = _shape(target)
        assert shape is not None
        axes = _axes(block, shape)
        point = [axis.var for axis in axes]
        if self._known.copies(block):
            source = _load(block).source
            source = self._new.get(source, source)
            given = _shape(source)
            assert given is not None
            copied = tirx.BufferLoad(source, _same_place(point, shape, given))
            return _block(block, axes, tirx.BufferStore(target, copied, point))
        assert self._before is not None  # as of the block
        before = _same_place(point, self._after, self._before)
        places = {axis.var: index for axis, index in zip(block.iter_vars, before)}
        analyzer = sym.Analyzer()
        for axis in axes:
            analyzer.bind(axis.var, axis.dom)

        def placed(expr: ir.Expr) -> ir.Expr:
            return tvm_ffi.structural_map(expr, (ir.Var, lambda var: places.get(var, var)))

        def loaded(load: ir.TensorLoad) -> ir.TensorLoad:
            if load.source in self._new:
                return tirx.BufferLoad(self._new[load.source], point)
            indices = [analyzer.simplify(placed(index)) for index in load.indices]
            return tirx.BufferLoad(load.source, indices)

        value = placed(tvm_ffi.structural_map(store.value, (ir.TensorLoad, loaded)))
        return _block(block, axes, tirx.BufferStore(target, value, point))


def is_reshape(block: s_tir.SBlock) -> bool:
    """Whether a block copies all of a tensor to another shape."""
    if not block.name_hint.startswith(RESHAPE) or not _is_pointwise(block):
        return False
    if not isinstance(block.body.value, ir.TensorLoad):
        return False
    given, shape = _shape(_load(block).source), _shape(block.body.buffer)
    if given is None or shape is None or given == shape or not _have_as_many(given, shape):
        return False
    analyzer = sym.Analyzer()
    for axis in block.iter_vars:
        analyzer.bind(axis.var, axis.dom)
    point = [axis.var for axis in block.iter_vars]
    return bool(analyzer.can_prove_equal(_flat(_load(block).indices, given), _flat(point, shape)))


def _is_pointwise(block: s_tir.SBlock) -> bool:
    """Whether a block stores one number at each of its points, which are all of a tensor's."""
    return (
        isinstance(block.body, tirx.BufferStore)
        and block.init is None
        and not block.annotations
        and all(axis.iter_type == tirx.IterVar.DataPar for axis in block.iter_vars)
        and _extents(block) == _shape(block.body.buffer)
        and _is_point(block.body.indices, block)
    )


def _is_point(indices: Sequence[ir.Expr], block: s_tir.SBlock) -> bool:
    """Whether these are the axes of a block, in order."""
    axes = block.iter_vars
    return len(indices) == len(axes) and all(
        index.same_as(axis.var)
        or (isinstance(index, tirx.IntImm) and _extent(axis.dom.extent) == 1 and int(index) == 0)
        for index, axis in zip(indices, axes)
    )


def _touched(block: s_tir.SBlock) -> frozenset[tirx.Var]:
    return frozenset(region.source for region in (*block.reads, *block.writes))


def _load(block: s_tir.SBlock) -> ir.TensorLoad:
    return block.body.value


def _extent(size: ir.Expr) -> int | None:
    return int(size) if isinstance(size, tirx.IntImm) else None


def _sizes(sizes: Sequence[ir.Expr]) -> _Shape | None:
    """Sizes that are constants, and not 0, but for the first, which may be a variable; or None."""
    found = [_extent(size) for size in sizes]
    if found and isinstance(sizes[0], ir.Var):
        return (sizes[0], *found[1:]) if all(found[1:]) else None
    return tuple(found) if all(found) else None


def _have_as_many(left: _Shape, right: _Shape) -> bool:
    """Whether two shapes are of as many elements."""
    if any(isinstance(n, ir.Var) for n in (*left, *right)):
        if left[:1] != right[:1]:
            return False
        left, right = left[1:], right[1:]
    return math.prod(left) == math.prod(right)


def _shape(buffer: tirx.Var) -> _Shape | None:
    return _sizes(buffer.ty.shape)


def _extents(block: s_tir.SBlock) -> _Shape | None:
    return _sizes([axis.dom.extent for axis in block.iter_vars])


def _flat(index: Sequence[ir.Expr], shape: _Shape) -> ir.Expr:
    """The number of an element in memory."""
    flat, *rest = index or [tirx.const(0, "int64")]
    for place, size in zip(rest, shape[1:]):
        flat = flat * _size(size) + place
    return flat


def _size(size: Any) -> ir.Expr:
    return tirx.const(size, "int64") if isinstance(size, int) else size


def _same_place(index: Sequence[ir.Expr], shape: _Shape, other: _Shape) -> list[ir.Expr]:
    """The index of an element under another shape."""
    if shape == other:
        return list(index)
    flat = _flat(index, shape)
    found: list[ir.Expr] = []
    for n, size in enumerate(other):
        below = tirx.const(math.prod(other[n + 1 :]), "int64")
        place = tirx.floordiv(flat, below)
        found.append(tirx.floormod(place, tirx.const(size, "int64")) if n else place)
    return found


def _axes(block: s_tir.SBlock, shape: _Shape) -> list[tirx.IterVar]:
    """Axes for a block that goes through a shape; its own, if it does."""
    if _extents(block) == shape:
        return list(block.iter_vars)
    zero = tirx.const(0, "int64")
    return [
        tirx.IterVar(
            ir.Range.from_min_extent(zero, _size(size)),
            tirx.Var(f"v_i{n}", "int64"),
            tirx.IterVar.DataPar,
        )
        for n, size in enumerate(shape)
    ]


def _block(
    block: s_tir.SBlock, axes: Sequence[tirx.IterVar], store: tirx.BufferStore
) -> s_tir.SBlock:
    """A block that stores something else."""
    reads = [element(load.source, load.indices) for load in nodes(store.value, ir.TensorLoad)]
    writes = [element(store.buffer, store.indices)]
    return s_tir.SBlock(axes, reads, writes, block.name_hint, store, None, span=block.span)
