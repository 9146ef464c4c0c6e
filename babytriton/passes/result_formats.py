"""Results in the order in which the arguments lie.

What is computed element by element from arguments that are not contiguous lies as they do, as
torch's results do: then a kernel goes through memory from front to back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from tvm import ir, relax, s_tir, tirx
from tvm.ir import IRModule
from tvm.relax.expr import _update_type
from tvm.s_tir.dlight.analysis import SBlockInfo

from babytriton.ops.primfunc import nodes
from babytriton.passes.bindings import CALL_TIR, read_by
from babytriton.passes.blocks import (
    closed_kernel,
    is_output,
    is_pointwise,
    open_kernel,
    same_extents,
    uses,
)
from babytriton.types import MemoryFormat

_RESULTS = "babytriton.memory_formats"
"""What a program is annotated with: for each output the order of its axes in memory, if it is not
that of a contiguous tensor."""

_Order = tuple[int, ...]


def formats_of_results(mod: IRModule, entry: str) -> dict[int, MemoryFormat]:
    """How outputs of a program lie, by their numbers, where that is not as contiguous tensors.

    The program gives the contiguous tensor that is in memory.
    """
    found = (mod[entry].attrs or {}).get(_RESULTS, ())
    orders = {n: tuple(map(int, order)) for n, order in enumerate(found) if len(order)}
    return {n: MemoryFormat(order) for n, order in orders.items()}


@dataclass(frozen=True)
class Results:
    """Which results of a program may lie as its arguments do.

    Attributes:
        entry: the program's function.
        formats: of its parameters, by their numbers.
        outputs: those that may lie otherwise than contiguous tensors, by their numbers.
    """

    entry: str = ""
    formats: Mapping[int, MemoryFormat] = field(default_factory=dict)
    outputs: Collection[int] = ()


CONTIGUOUS = Results()
"""None."""


def results_as_arguments(mod: IRModule, wanted: Results) -> IRModule:
    """A program of fused kernels, with results in the order in which the arguments lie.

    Args:
        mod: the program, unscheduled.
        wanted: which of them may.
    """
    if not wanted.formats or not wanted.outputs:
        return mod
    entry, formats, outputs = wanted.entry, wanted.formats, wanted.outputs
    function = mod[entry]
    fields = list(function.body.body.fields)
    stored = {function.params[number]: kept for number, kept in formats.items()}
    places = {field: n for n, field in enumerate(fields) if fields.count(field) == 1}
    calls = _Calls(function)
    orders: dict[int, _Order] = {}
    changed: dict[ir.GlobalVar, tuple[tirx.PrimFunc, _Order]] = {}
    for call in calls.all:
        given = [stored.get(argument) for argument in call.arguments]
        results = [places.get(result) for result in call.results]
        ours = [n for n in results if n in outputs]
        alone = len(ours) == len(results) and calls.are_results_alone(call)
        if not any(given) or not alone or calls.count(call.kernel) > 1:
            continue
        found = _ordered(mod[call.kernel], given)
        if found is not None:
            changed[call.kernel] = found
            orders |= {n: found[1] for n in ours if n is not None}
    return _with(mod, entry, calls, changed, orders) if changed else mod


@dataclass(frozen=True)
class _Call:
    """A call of a kernel, and the variables that its results are in."""

    kernel: ir.GlobalVar
    arguments: tuple[relax.Expr, ...]
    results: tuple[relax.Var, ...]
    bound: relax.Var


class _Calls:
    """The calls of kernels in a function, and who reads what they give.

    Args:
        function: that makes them.
    """

    def __init__(self, function: relax.Function) -> None:
        self.all: list[_Call] = []
        self._read: dict[relax.Var, int] = {}
        self._kernels: list[ir.GlobalVar] = []
        parts: dict[relax.Var, dict[int, relax.Var]] = {}
        bindings = [binding for block in function.body.blocks for binding in block.bindings]
        for binding in bindings:
            value = getattr(binding, "value", None)
            if isinstance(value, relax.TupleGetItem):
                parts.setdefault(value.tuple_value, {})[value.index] = binding.var
            elif value is not None:
                for var in read_by(binding):
                    self._read[var] = self._read.get(var, 0) + 1
        for binding in bindings:
            value = getattr(binding, "value", None)
            if isinstance(value, ir.Call) and value.op == CALL_TIR:
                kernel, arguments, *others = value.args
                self._kernels.append(kernel)
                found = parts.get(binding.var, {0: binding.var})
                (type,) = value.ty_args
                count = len(type.fields) if isinstance(type, ir.TupleType) else 1
                if not others and len(found) == count:
                    results = tuple(found[n] for n in range(count))
                    self.all.append(_Call(kernel, tuple(arguments.fields), results, binding.var))

    def are_results_alone(self, call: _Call) -> bool:
        """Whether nothing in the program reads what a call gives."""
        return not any(var in self._read for var in (*call.results, call.bound))

    def count(self, kernel: ir.GlobalVar) -> int:
        """How often a kernel is called."""
        return sum(other.same_as(kernel) for other in self._kernels)


def _ordered(
    func: tirx.PrimFunc, given: list[MemoryFormat | None]
) -> tuple[tirx.PrimFunc, _Order] | None:
    """A kernel whose results are in the order of its arguments, and that order.

    None if it is not elementwise, or its arguments lie in several ways.

    Args:
        func: the kernel.
        given: how its arguments lie.
    """
    opened = open_kernel(func)
    if opened is None:
        return None
    sch, infos = opened
    lasting = [info for info in infos if is_output(sch, info)]
    if not all(is_pointwise(sch, info) for info in infos):
        return None
    # Others are broadcast.
    whole = [info for info in infos if same_extents(info.dom(), lasting[0].dom())]
    if not all(any(info is other for other in whole) for info in lasting):
        return None
    orders: set[_Order] = set()
    for info in whole:
        found = _orders_read(sch, info, dict(zip(func.params, given)))
        if found is None:
            return None
        orders |= found
    if len(orders) != 1:
        return None
    (order,) = orders
    if order == tuple(sorted(order)):
        return None
    if any(len(_axes(sch, info)) != len(order) for info in whole):
        return None
    for info in whole:
        # A block has no loop for an axis of one element.
        axes = _axes(sch, info)
        turned = [axis for n in order if (axis := axes[n]) is not None]
        loops = sch.get_loops(info.block_rv)
        sch.reorder(*[loops[axis] for axis in turned])
        sch.reorder_block_iter_var(info.block_rv, turned)
    for info in lasting:
        sch.transform_layout(info.block_rv, ("write", 0), lambda *axes: [axes[n] for n in order])
    return closed_kernel(sch).with_attrs(dict(func.attrs)), order


def _axes(sch: s_tir.Schedule, info: SBlockInfo) -> list[int | None]:
    """For each axis of what a block writes, the number of the iteration along it, if there is one.

    Fewer than it has iterations, where it does not write each at its own place.
    """
    block = sch.get(info.block_rv)
    point = [it.var for it in block.iter_vars]
    return [
        next((n for n, var in enumerate(point) if index.same_as(var)), None)
        for index in block.body.indices
    ]


def _orders_read(
    sch: s_tir.Schedule, info: SBlockInfo, given: Mapping[tirx.Var, MemoryFormat | None]
) -> set[_Order] | None:
    """The orders in which a block reads whole arguments; None if it reads one otherwise.

    Smaller ones, which are broadcast, have no part in it.
    """
    block, axes = sch.get(info.block_rv), _axes(sch, info)
    point = [it.var for it in block.iter_vars]
    if sorted(axis for axis in axes if axis is not None) != list(range(len(point))):
        return None
    found: set[_Order] = set()
    for load in nodes(block.body, ir.TensorLoad):
        if load.source not in given:
            continue  # of a block before
        if not all(any(uses(index, var) for index in load.indices) for var in point):
            continue
        kept = given[load.source]
        if kept is None or len(kept.order) != len(axes):
            return None
        for index, n in zip(load.indices, kept.order):
            axis = axes[n]
            if axis is not None and not index.same_as(point[axis]):
                return None
        found.add(kept.order)
    return found


def _with(
    mod: IRModule,
    entry: str,
    calls: _Calls,
    changed: Mapping[ir.GlobalVar, tuple[tirx.PrimFunc, _Order]],
    orders: Mapping[int, _Order],
) -> IRModule:
    """The program with other kernels, and outputs as they give them."""
    functions = {var: f for var, f in mod.functions_items() if var.name_hint != entry}
    made: dict[relax.Var, relax.Var] = {}
    values: dict[relax.Var, relax.Expr] = {}
    for call in calls.all:
        if call.kernel not in changed:
            continue
        func, order = changed[call.kernel]
        kernel = ir.GlobalVar(call.kernel.name_hint)
        _update_type(kernel, func.ty)
        del functions[call.kernel]
        functions[kernel] = func
        types = [_turned(var.ty, order) for var in call.results]
        out = types if len(types) > 1 or not call.bound.same_as(call.results[0]) else types[0]
        values[call.bound] = relax.call_tir(kernel, relax.Tuple(list(call.arguments)), out)
        for var, ty in zip(call.results, types):
            made[var] = type(var)(var.name, ty)
    function = mod[entry]
    blocks = []
    for block in function.body.blocks:
        bindings: list[Any] = []
        for binding in block.bindings:
            var, value = binding.var, getattr(binding, "value", None)
            if var in values:
                value = values[var]
                new = made.get(var)
                if new is None:  # several results
                    new = made[var] = type(var)(var.name, value.ty)
                binding = relax.VarBinding(new, value, binding.span)
            elif var in made and isinstance(value, relax.TupleGetItem):
                item = relax.TupleGetItem(made[value.tuple_value], value.index)
                binding = relax.VarBinding(made[var], item, binding.span)
            bindings.append(binding)
        blocks.append(type(block)(bindings))
    fields = [made.get(field, field) for field in function.body.body.fields]
    types = relax.TupleType([x.ty for x in fields])
    body = relax.SeqExpr(blocks, relax.Tuple(fields))
    program = relax.Function(
        function.params, body, types, function.is_pure, function.attrs, function.span
    )
    marks = [list(orders.get(n, ())) for n in range(len(fields))]
    functions[ir.GlobalVar(entry)] = program.with_attr(_RESULTS, marks)
    found = IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)
    return relax.transform.Normalize()(found)


def _turned(type: Any, order: _Order) -> relax.TensorType:
    return relax.TensorType([type.shape[n] for n in order], type.dtype, type.vdevice)
