"""Sums of all that rows compute -> a sum of each row, and the sum of these.

A loss is often the sum of a whole tensor, each row of which is the work of a softmax or a norm. The
kernel of the rows would write that tensor, and another one read it to add it up. What adds up a row
fuses with what computes it, and leaves a number for each row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import IRModule, ir, relax, s_tir, tirx

from babytriton.ops.primfunc import nodes
from babytriton.passes.bindings import CALL_TIR, add_kernel
from babytriton.passes.blocks import element, in_loops, of_shape, plain_blocks, same_extents
from babytriton.passes.reshapes import Reshapes
from babytriton.passes.rows import (
    is_reduction,
    shared_columns,
    shared_rows,
    spatial,
    stores_points,
    with_rows_first,
    without_unit_axes,
)
from babytriton.passes.scheduling import is_scheduled
from babytriton.passes.statements import is_constant, is_number

_Made = dict[relax.Var, tuple[tirx.PrimFunc, list[tirx.Var]]]
"""The kernel that computes what a variable is, and its results that are this."""

_BEGINNINGS = {tirx.Add: 0, tirx.Mul: 1, tirx.Max: None, tirx.Min: None}
"""Operators that reduce, and what each must begin with, if anything, for it to do so twice."""


def summed_by_rows(mod: IRModule) -> IRModule:
    """The program with two kernels for each that reduces all of what rows compute.

    Args:
        mod: a program of calls of fused, unscheduled kernels.
    """
    functions = dict(mod.functions_items())
    before = len(functions)
    for var, function in mod.functions_items():
        if isinstance(function, relax.Function) and isinstance(function.body, relax.SeqExpr):
            functions[var] = _changed(mod, functions, function)
    if len(functions) == before:
        return mod
    whole = IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)
    return relax.transform.DeadCodeElimination()(relax.transform.Normalize()(whole))


def _changed(
    mod: IRModule, functions: dict[ir.GlobalVar, ir.BaseFunc], function: relax.Function
) -> relax.Function:
    """A function with kernels of two parts, which are added to the program's functions."""
    blocks: list[relax.BindingBlock] = []
    for block in function.body.blocks:
        made_by: _Made = {}
        bindings: list[relax.Binding] = []
        for binding in block.bindings:
            kernel = _kernel(mod, binding)
            divided = None
            if kernel is not None and isinstance(block, relax.DataflowBlock):
                divided = _divided(binding, kernel, made_by)
            made_by |= _made(binding, kernel, made_by)
            bindings += [binding] if divided is None else divided.bindings(functions)
        blocks.append(type(block)(bindings))
    body = relax.SeqExpr(blocks, function.body.body)
    return relax.Function(
        function.params, body, function.ret_ty, function.is_pure, function.attrs, function.span
    )


def _kernel(mod: IRModule, binding: relax.Binding) -> tirx.PrimFunc | None:
    """The unscheduled kernel that a binding calls."""
    call = binding.value
    if not isinstance(binding, relax.VarBinding) or not isinstance(call, ir.Call):
        return None
    if call.op != CALL_TIR or len(call.args) > 2:
        return None
    kernel = mod[call.args[0]]
    is_of_tensors = all(isinstance(param.ty, tirx.BufferType) for param in kernel.params)
    return kernel if is_of_tensors and not is_scheduled(kernel) else None


def _made(binding: relax.Binding, kernel: tirx.PrimFunc | None, made_by: _Made) -> _Made:
    """The kernels, and their results, that variables of a binding are."""
    value = binding.value
    if kernel is not None:
        return {binding.var: (kernel, list(kernel.params[len(value.args[1].fields) :]))}
    if isinstance(value, relax.TupleGetItem) and value.tuple_value in made_by:
        source, results = made_by[value.tuple_value]
        return {binding.var: (source, [results[value.index]])}
    return {}


@dataclass(frozen=True)
class _Divided:
    """A kernel of sums that is to be two.

    Attributes:
        binding: its call.
        kernel: as it is.
        first: the statements that the sums need, and those of each row's sums.
        last: the statements of the sums of these, and of what is computed from them.
        partial: the rows' sums.
        sizes: how many rows there are, along each of their axes, as the program has it.
    """

    binding: relax.Binding
    kernel: tirx.PrimFunc
    first: list[tirx.Stmt]
    last: list[tirx.Stmt]
    partial: list[tirx.Var]
    sizes: list[ir.Expr]

    def bindings(self, functions: dict[ir.GlobalVar, ir.BaseFunc]) -> list[relax.Binding]:
        """The calls of the two kernels, which are added to the functions."""
        call = self.binding.value
        given = dict(zip(self.kernel.params, call.args[1].fields))
        results, name = list(self.kernel.params)[len(given) :], call.args[0].name_hint
        kernels = []
        for part, statements in (("rows", self.first), ("sum", self.last)):
            loads = {load.source for stmt in statements for load in nodes(stmt, ir.TensorLoad)}
            used = [param for param in given if param in loads]
            params = [*used, *self.partial] if part == "rows" else [*self.partial, *used, *results]
            func = self._func(statements, params)
            kernels.append((add_kernel(functions, f"{name}_of_{part}", func), used))
        (first, read), (last, others) = kernels
        types = [relax.TensorType(self.sizes, sums.ty.dtype) for sums in self.partial]
        rows = relax.call_tir(first, [given[x] for x in read], types if types[1:] else types[0])
        own = f"{self.binding.var.name}_of_rows"
        whole = relax.DataflowVar(own, rows.ty)
        made: list[relax.Binding] = [relax.VarBinding(whole, rows)]
        sums = [whole]
        if types[1:]:
            sums = [relax.DataflowVar(f"{own}_{n}", type) for n, type in enumerate(types)]
            parts = [relax.TupleGetItem(whole, n) for n in range(len(types))]
            made += [relax.VarBinding(var, part) for var, part in zip(sums, parts)]
        (type_,) = call.ty_args
        outs = list(type_.fields) if isinstance(type_, ir.TupleType) else type_
        end = relax.call_tir(last, [*sums, *(given[x] for x in others)], outs)
        return [*made, relax.VarBinding(self.binding.var, end)]

    def _func(self, statements: list[tirx.Stmt], params: list[tirx.Var]) -> tirx.PrimFunc:
        """A kernel of statements."""
        used = [x.source for stmt in statements for x in nodes(stmt, ir.TensorLoad)]
        used += [x.buffer for stmt in statements for x in nodes(stmt, tirx.BufferStore)]
        own = [buffer for buffer in dict.fromkeys(used) if buffer not in params]
        body = tirx.SeqStmt(statements) if len(statements) > 1 else statements[0]
        root = s_tir.SBlock([], [], [], "root", body, alloc_buffers=own)
        realized = s_tir.SBlockRealize([], tirx.const(True, "bool"), root)
        func = tirx.PrimFunc(params, realized, self.kernel.ret_type, self.kernel.attrs)
        return s_tir.renew_defs(func)


def _divided(binding: relax.Binding, kernel: tirx.PrimFunc, made_by: _Made) -> _Divided | None:
    """How a kernel is two; None of one that does not reduce all of what rows compute."""
    blocks = _Blocks.of(plain_blocks(kernel))
    if blocks is None or any(block.body.buffer in kernel.params for block in blocks.before):
        return None
    given = dict(zip(kernel.params, binding.value.args[1].fields))
    first, *_ = blocks.sums
    found = (
        (var, shared)
        for block in (first, *blocks.before)
        for load in nodes(block.body.value, ir.TensorLoad)
        if isinstance(var := given.get(load.source), relax.Var)
        and var in made_by
        and _is_at_every_point(load, block, first)
        and (shared := _shared_axes(*made_by[var]))
    )
    rows, shared = next(found, (None, []))
    return None if rows is None else _parts(binding, kernel, blocks, rows, shared)


@dataclass(frozen=True)
class _Blocks:
    """The blocks of a kernel that reduces everything.

    Attributes:
        before: what the sums need.
        sums: the reductions, which need nothing of each other.
        after: all else, which needs nothing of what is before.
    """

    before: list[s_tir.SBlock]
    sums: list[s_tir.SBlock]
    after: list[s_tir.SBlock]

    @classmethod
    def of(cls, blocks: Sequence[s_tir.SBlock]) -> _Blocks | None:
        """Of a kernel's blocks; None of one that is something else."""
        sums = [block for block in blocks if is_reduction(block)]
        if not sums or not all(_is_of_everything(block, sums[0]) for block in sums):
            return None
        needed = list(sums)
        for block in reversed(blocks):
            if block not in needed and _written([block]) & _read(needed):
                needed.append(block)
        before = [block for block in blocks if block in needed and block not in sums]
        after = [block for block in blocks if block not in needed]
        if not all(map(stores_points, (*before, *after))) or _written(before) & _read(after):
            return None
        own = {block.body.buffer for block in sums}
        values = [load.source for x in sums for load in nodes(x.body.value.b, ir.TensorLoad)]
        if own & {*_read(before), *values}:
            return None
        return cls(before, sums, after)


def _read(blocks: Sequence[s_tir.SBlock]) -> set[tirx.Var]:
    return {load.source for block in blocks for load in nodes(block.body, ir.TensorLoad)}


def _written(blocks: Sequence[s_tir.SBlock]) -> set[tirx.Var]:
    return {region.source for block in blocks for region in block.writes}


def _is_of_everything(block: s_tir.SBlock, first: s_tir.SBlock) -> bool:
    """Whether a block reduces several axes, as the first does, to a single number."""
    store = block.body
    if not isinstance(store, tirx.BufferStore) or type(store.value) not in _BEGINNINGS:
        return False
    beginning = _BEGINNINGS[type(store.value)]
    if beginning is not None and not is_constant(block.init.value, beginning):
        return False
    is_own = isinstance(store.value.a, ir.TensorLoad) and store.value.a.source == store.buffer
    return is_own and not spatial(block) and len(_axes(block)) > 1 and _goes_along(block, first)


def _goes_along(block: s_tir.SBlock, other: s_tir.SBlock) -> bool:
    """Whether blocks go through as many points."""
    return same_extents(_extents(block), _extents(other))


def _extents(block: s_tir.SBlock) -> list[ir.Expr]:
    return [it.dom.extent for it in _axes(block)]


def _axes(block: s_tir.SBlock) -> list[tirx.IterVar]:
    """The block's axes that are not of size 1."""
    return [it for it in block.iter_vars if not is_number(it.dom.extent, 1)]


def _is_at_every_point(load: ir.TensorLoad, block: s_tir.SBlock, whole: s_tir.SBlock) -> bool:
    """Whether a block reads all of a tensor, each number at its own point, as another one would."""
    index, axes = without_unit_axes(load.source, list(load.indices)), _axes(block)
    is_own = len(index) == len(axes) and all(i.same_as(it.var) for i, it in zip(index, axes))
    return is_own and _goes_along(block, whole)


def _shared_axes(kernel: tirx.PrimFunc, results: Sequence[tirx.Var]) -> list[int]:
    """Which axes of what a kernel computes row by row are the rows; none of what it does not."""
    (result,) = results
    blocks = with_rows_first(Reshapes().without(plain_blocks(kernel))[0])
    rows = (shared_rows(blocks) or shared_columns(blocks)) if blocks else None
    last = next((block for block in blocks if _stores(block, result)), None)
    if not rows or last is None:
        return []
    axes = [it.var for it in _axes(last)]
    index = without_unit_axes(last.body.buffer, list(last.body.indices))
    found = [n for var in axes[: len(rows)] for n, i in enumerate(index) if i.same_as(var)]
    return found if len(found) == len(rows) < len(index) else []


def _stores(block: s_tir.SBlock, buffer: tirx.Var) -> bool:
    return stores_points(block) and block.body.buffer.same_as(buffer)


def _parts(
    binding: relax.Binding,
    kernel: tirx.PrimFunc,
    blocks: _Blocks,
    computed: relax.Var,
    shared: list[int],
) -> _Divided | None:
    """The statements of two kernels; None where one needs a size that it is not told.

    Args:
        binding: the kernel's call.
        kernel: as it is.
        blocks: of the kernel.
        computed: what rows have computed.
        shared: the axes of this that are the rows.
    """
    sized = [n for n in computed.ty.shape if not is_number(n, 1)]
    rows, totals, partial = [], [], []
    for block in blocks.sums:
        kept = [_axes(block)[n] for n in shared]
        shape = of_shape(block.body.buffer.ty, [it.dom.extent for it in kept])
        buffer = ir.Var(f"{block.body.buffer.name}_of_rows", shape)
        partial.append(buffer)
        rows.append(_of_rows(block, kept, buffer))
        totals.append(_of_sums(block, kept, buffer))
    first, last = [*blocks.before, *rows], [*totals, *blocks.after]
    given = [param for param in kernel.params if param in _read(first)]
    if not _is_told(first, given) or not _is_told(last, partial):
        return None
    return _Divided(
        binding,
        kernel,
        [in_loops(block) for block in first],
        [in_loops(block) for block in last],
        partial,
        [sized[n] for n in shared],
    )


def _is_told(blocks: Sequence[s_tir.SBlock], given: Sequence[tirx.Var]) -> bool:
    """Whether blocks use no variables but their own, and sizes of what they are given."""
    sizes = {size for buffer in given for size in buffer.shape}
    bound = {it.var for block in blocks for it in block.iter_vars}
    buffers = {x.source for block in blocks for x in (*block.reads, *block.writes)}
    used = {v for block in blocks for v in nodes(block.body, ir.Var)}
    return used <= {*sizes, *bound, *buffers}


def _of_rows(block: s_tir.SBlock, kept: Sequence[tirx.IterVar], buffer: tirx.Var) -> s_tir.SBlock:
    """The reduction of each row."""
    point = [tirx.Var(it.var.name, it.var.ty.dtype) for it in kept]
    others = [it for it in block.iter_vars if it not in kept]
    axes = [
        *(tirx.IterVar(it.dom, var, tirx.IterVar.DataPar) for it, var in zip(kept, point)),
        *(tirx.IterVar(it.dom, it.var, it.iter_type) for it in others),
    ]
    names = {it.var: var for it, var in zip(kept, point)}
    value = tvm_ffi.structural_map(block.body.value.b, (ir.Var, lambda var: names.get(var, var)))
    return _reducing(block, axes, buffer, point, value)


def _of_sums(block: s_tir.SBlock, kept: Sequence[tirx.IterVar], buffer: tirx.Var) -> s_tir.SBlock:
    """The reduction of the rows' results."""
    point = [tirx.Var(it.var.name, it.var.ty.dtype) for it in kept]
    units = [it for it in block.iter_vars if it.iter_type == tirx.IterVar.DataPar]
    axes = [
        *(tirx.IterVar(it.dom, it.var, it.iter_type) for it in units),
        *(tirx.IterVar(it.dom, var, it.iter_type) for it, var in zip(kept, point)),
    ]
    store = block.body
    value = tirx.BufferLoad(buffer, point)
    return _reducing(block, axes, store.buffer, list(store.indices), value)


def _reducing(
    block: s_tir.SBlock,
    axes: Sequence[tirx.IterVar],
    buffer: tirx.Var,
    index: Sequence[ir.Expr],
    value: ir.Expr,
) -> s_tir.SBlock:
    """A block that reduces a value, as another one does its own."""
    combined = type(block.body.value)(tirx.BufferLoad(buffer, list(index)), value)
    reads = [element(load.source, load.indices) for load in nodes(value, ir.TensorLoad)]
    return s_tir.SBlock(
        axes,
        reads,
        [element(buffer, index)],
        buffer.name,
        tirx.BufferStore(buffer, combined, list(index)),
        tirx.BufferStore(buffer, block.init.value, list(index)),
        span=block.span,
    )
