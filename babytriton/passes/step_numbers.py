"""Numbers that loops count: kernels and conditions take them as numbers, not as tensors.

The frontend's values are tensors, and so is the number of a step: a kernel of its own would store
it for those that read it. FuseTIR mixes up kernels with numbers among their parameters, so this is
for use where all are fused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import ir, relax, s_tir, sym, tirx
from tvm.ir import IRModule
from tvm.relax.expr import _update_type

from babytriton.ops.primfunc import nodes
from babytriton.ops.scalars import COUNT
from babytriton.passes.bindings import CALL_TIR, add_kernel, with_arguments
from babytriton.passes.blocks import element, only_block, plain_blocks
from babytriton.passes.numbers import as_python
from babytriton.passes.statements import without_decided

_WHOLE = ("int", "bool")  # dtypes of numbers that tell places
_MOST = 16  # nodes of an expression that each kernel computes for itself


@dataclass(frozen=True)
class _Number:
    """A tensor without dimensions, by what it holds.

    Attributes:
        value: an expression of numbers that the function is given.
        counts: for some of these, how many there are, from 0.
    """

    value: ir.Expr
    counts: Mapping[ir.Var, ir.Expr]


def is_number(func: tirx.PrimFunc) -> bool:
    """Whether a kernel only stores the number of a step."""
    return bool(func.attrs) and COUNT in func.attrs


def told_as_numbers(mod: IRModule) -> IRModule:
    """A program whose kernels take numbers in the place of tensors that hold steps' numbers."""
    if "vdevice" in mod.global_infos:
        return mod
    functions = dict(mod.functions_items())
    for var, func in mod.functions_items():
        if isinstance(func, relax.Function):
            functions[var] = _Telling(functions).function(func)
    if all(functions[var] is func for var, func in mod.functions_items()):
        return mod
    found = IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)
    return relax.transform.DeadCodeElimination()(found)


class _Telling:
    """Changes the calls of one function; adds the kernels that they are then of.

    Args:
        functions: of the program.
    """

    def __init__(self, functions: dict[ir.GlobalVar, ir.BaseFunc]) -> None:
        self._functions = functions
        self._known: dict[relax.Var, _Number] = {}

    def function(self, func: relax.Function) -> relax.Function:
        """The function with other calls, or as it is."""
        body = self._body(func.body)
        if body is func.body:
            return func
        return relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs, func.span)

    def _body(self, body: relax.SeqExpr) -> relax.SeqExpr:
        """What a function or a branch does with other calls, or as it is."""
        blocks, has_changed = [], False
        for block in body.blocks:
            bindings = []
            for binding in block.bindings:
                value = self._value(binding)
                if value is not None:
                    binding = relax.VarBinding(binding.var, value, binding.span)
                    has_changed = True
                bindings.append(binding)
            blocks.append(type(block)(bindings))
        if not has_changed:
            return body
        made = relax.SeqExpr(blocks, body.body, body.span)
        _update_type(made, body.ty)
        return made

    def _branch(self, value: relax.If) -> relax.If | None:
        """A branch on a number, if its condition is one, and with other calls inside; or None."""
        known = self._known.get(value.cond) if isinstance(value.cond, relax.Var) else None
        condition = value.cond
        if known is not None:
            names = dict.fromkeys(nodes(known.value, ir.Var), "number")
            condition = known.value if as_python(known.value, names) else condition
        branches = self._body(value.true_branch), self._body(value.false_branch)
        before = (value.true_branch, value.false_branch)
        if condition is value.cond and all(x is y for x, y in zip(branches, before)):
            return None
        made = relax.If(condition, *branches, value.span)
        _update_type(made, value.ty)
        return made

    def _value(self, binding: relax.Binding) -> relax.Expr | None:
        """Another value, for one that is given what is known; None for all others."""
        call = getattr(binding, "value", None)
        if isinstance(call, relax.If):
            return self._branch(call)
        if not isinstance(call, ir.Call) or call.op != CALL_TIR or len(call.args) > 2:
            return None
        kernel, given = call.args
        arguments = list(given.fields)
        func = self._functions[kernel]
        known = {n: self._known[x] for n, x in enumerate(arguments) if x in self._known}
        number = _number(func, arguments, known)
        if number is not None:
            self._known[binding.var] = number
        if not known:
            return None
        told = _told(func, arguments, known)
        if told is None:
            return None
        changed, others = told
        var = add_kernel(self._functions, kernel.name_hint, changed)
        return with_arguments(call, [var, relax.Tuple(others)])


def _number(
    func: tirx.PrimFunc, arguments: Sequence[relax.Expr], known: Mapping[int, _Number]
) -> _Number | None:
    """What a kernel gives, where that is one number made of numbers alone."""
    blocks, out = plain_blocks(func), func.params[-1]
    if len(func.params) != len(arguments) + 1 or not isinstance(out.ty, tirx.BufferType):
        return None
    if not blocks or len(out.ty.shape) or not str(out.ty.dtype).startswith(_WHOLE):
        return None
    values: dict[ir.Var, ir.Expr] = {}
    counts: dict[ir.Var, ir.Expr] = {}
    for n, (param, argument) in enumerate(zip(func.params, arguments)):
        if n in known:
            values[param] = known[n].value
            counts.update(known[n].counts)
        elif isinstance(argument.ty, ir.PrimType):
            values[param] = argument
        elif isinstance(argument, ir.GenericConst) and not len(argument.ty.shape):
            values[param] = tirx.const(argument.value.numpy().item(), str(argument.ty.dtype))
        else:
            return None
    if is_number(func):
        number, *told = arguments
        known_count = int(func.attrs[COUNT])
        if known_count or told:
            counts[number] = told[0] if told else tirx.const(known_count, number.ty.dtype)
    values.update(_values(blocks, values))
    return _Number(values[out], counts) if out in values else None


def _values(
    blocks: Sequence[s_tir.SBlock], known: Mapping[ir.Var, ir.Expr]
) -> dict[ir.Var, ir.Expr]:
    """What blocks that store one number each store, where that is made of known numbers alone."""
    found = dict(known)
    for block in blocks:
        store = block.body
        if not isinstance(store, tirx.BufferStore) or len(store.indices) or block.init is not None:
            continue
        value = _replaced(store.value, found)
        are_whole = all(str(x.ty.dtype).startswith(_WHOLE) for x in nodes(value, ir.Var))
        is_short = not nodes(value, ir.TensorLoad) and len(nodes(value, ir.Expr)) <= _MOST
        if are_whole and is_short:
            found[store.buffer] = value
    return {buffer: value for buffer, value in found.items() if buffer not in known}


def _told(
    func: tirx.PrimFunc, arguments: Sequence[relax.Expr], known: Mapping[int, _Number]
) -> tuple[tirx.PrimFunc, list[relax.Expr]] | None:
    """A kernel that is told numbers, and its arguments; None where it is no plain loops."""
    blocks = plain_blocks(func)
    if not blocks:
        return None
    params, count = list(func.params), len(arguments)
    sizes = _sizes(params, arguments)
    own: dict[ir.Var, tirx.Var] = {}
    for number in known.values():
        for var in nodes(number.value, ir.Var):
            if var not in sizes:
                own.setdefault(var, tirx.Var(var.name, str(var.ty.dtype)))
    names = {**sizes, **own}
    analyzer = sym.Analyzer()
    for number in known.values():
        for var, extent in number.counts.items():
            if var in own and all(x in names for x in nodes(extent, ir.Var)):
                zero = tirx.const(0, own[var].ty.dtype)
                extent = _replaced(extent, names)
                analyzer.bind(own[var], ir.Range.from_min_extent(zero, extent))
    values = {params[n]: _replaced(number.value, names) for n, number in known.items()}
    results = set(params[count:])
    inside = {x: value for x, value in _values(blocks, values).items() if x not in results}
    values.update(inside)
    body = _replaced(_without(func.body, inside), values)
    body = tvm_ffi.structural_map(body, (s_tir.SBlock, lambda x: _of_numbers(x, values, analyzer)))
    kept = [n for n in range(count) if n not in known]
    own_params = [*(params[n] for n in kept), *own.values(), *params[count:]]
    made = tirx.PrimFunc(own_params, body, func.ret_type, func.attrs, func.span)
    return made, [*(arguments[n] for n in kept), *own]


def _sizes(params: Sequence[tirx.Var], arguments: Sequence[relax.Expr]) -> dict[ir.Var, tirx.Var]:
    """The kernel's own variables for sizes of the program, as tensors tell them."""
    return {
        given: size
        for param, argument in zip(params, arguments)
        if isinstance(param.ty, tirx.BufferType)
        for size, given in zip(param.ty.shape, argument.ty.shape)
        if isinstance(size, ir.Var) and isinstance(given, ir.Var)
    }


def _without(body: tirx.Stmt, buffers: Mapping[ir.Var, ir.Expr]) -> tirx.Stmt:
    """The body of a kernel without the blocks that store some of its own buffers."""
    if not buffers:
        return body
    root = body.block
    parts = root.body.seq if isinstance(root.body, tirx.SeqStmt) else [root.body]
    kept = []
    for part in parts:
        block = only_block(part)
        store = None if block is None else block.body
        if not isinstance(store, tirx.BufferStore) or store.buffer not in buffers:
            kept.append(part)
    block = s_tir.SBlock(
        root.iter_vars,
        root.reads,
        root.writes,
        root.name_hint,
        kept[0] if len(kept) == 1 else tirx.SeqStmt(kept),
        root.init,
        [x for x in root.alloc_buffers if x not in buffers],
        root.match_buffers,
        root.annotations,
        root.span,
    )
    return s_tir.SBlockRealize(body.iter_values, body.predicate, block, body.span)


def _replaced(node: ir.Expr | tirx.Stmt, values: Mapping[ir.Var, ir.Expr]) -> ir.Expr | tirx.Stmt:
    """An expression or statement with values for variables, and for loads from them."""

    def load(found: ir.TensorLoad) -> ir.Expr:
        return values.get(found.source, found)

    def variable(var: ir.Var) -> ir.Expr:
        is_number = isinstance(var.ty, ir.PrimType)
        return values.get(var, var) if is_number else var

    return tvm_ffi.structural_map(node, [(ir.TensorLoad, load), (ir.Var, variable)])


def _of_numbers(
    block: s_tir.SBlock, values: Mapping[ir.Var, ir.Expr], analyzer: sym.Analyzer
) -> s_tir.SBlock:
    """A block that reads no tensors of numbers, without conditions that always hold."""
    for axis in block.iter_vars:
        analyzer.bind(axis.var, axis.dom, allow_override=True)

    body = without_decided(block.body, analyzer)
    reads = [element(load.source, load.indices) for load in nodes(body, ir.TensorLoad)]
    if isinstance(body, tirx.BufferStore):
        writes = [element(body.buffer, body.indices)]
    else:
        reads = [x for x in block.reads if x.source not in values]
        writes = list(block.writes)
    return s_tir.SBlock(
        block.iter_vars,
        reads,
        writes,
        block.name_hint,
        body,
        block.init,
        block.alloc_buffers,
        block.match_buffers,
        block.annotations,
        block.span,
    )
