"""Arguments that are read as they lie in memory.

Kernels read contiguous tensors. Of an argument that lies otherwise, the program takes the
contiguous tensor that is in its memory, and what reads it finds the elements there. Where the
argument is part of that tensor, the scheduled program takes the part, with its strides.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import tvm_ffi
from tvm import ir, relax, tirx
from tvm.ir import IRModule

from babytriton.ops.fallback import TORCH_CALL
from babytriton.ops.primfunc import nodes
from babytriton.passes.bindings import (
    CALL_IN_PLACE,
    CALL_PACKED,
    CALL_TIR,
    add_kernel,
    read_by,
    replaced,
    with_arguments,
)
from babytriton.passes.blocks import of_shape, with_types
from babytriton.passes.turning import Places, turning
from babytriton.types import MemoryFormat

_ENDS = "babytriton.ends"
"""What a program is annotated with: for parameters of which it is to take parts, by their numbers,
the axes in memory along which there is more, and the sizes of the parts along them."""

_KERNEL_CALLS = (CALL_TIR, CALL_IN_PLACE)


@dataclass(frozen=True)
class Stored:
    """A program that takes what is in the memory of some of its arguments.

    Attributes:
        mod: the program.
        turned: for the parameters that are calls of torch, by number, how each tensor that it takes
            is turned: for the numbers of these the axes that the call is to see.
    """

    mod: IRModule
    turned: Mapping[int, Mapping[int, Places]]


def as_stored(
    mod: IRModule, entry: str, formats: Mapping[int, MemoryFormat], turns_calls: bool
) -> Stored:
    """The program for arguments that lie in given ways.

    Args:
        mod: the program, of operators.
        entry: its function.
        formats: of its parameters, by their numbers.
        turns_calls: whether torch's functions are given tensors as they lie.
    """
    function = mod[entry]
    functions = dict(mod.functions_items())
    rewriter = _Reading(function, formats, functions, turns_calls)
    blocks = [rewriter.block(block) for block in function.body.blocks]
    before, result = rewriter.read(function.body.body, relax.Var)
    body = relax.SeqExpr([*blocks, *([relax.BindingBlock(before)] if before else [])], result)
    made = relax.Function(
        rewriter.params, body, function.ret_ty, function.is_pure, function.attrs, function.span
    )
    ends = [
        [n, kept.order.index(axis), int(function.params[n].ty.shape[axis])]
        for n, kept in formats.items()
        for axis, _ in kept.gaps
    ]
    made = made.with_attr(_ENDS, ends) if ends else made
    # A variable for a function has its type once and for all.
    del functions[mod.get_global_var(entry)]
    functions[ir.GlobalVar(entry)] = made
    found = IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)
    return Stored(relax.transform.Normalize()(found), rewriter.turned)


@dataclass
class _Reading:
    """Reads parameters of a function from their memory, anew for each reader.

    Attributes:
        function: the program's.
        formats: of parameters, by their numbers.
        functions: of the program; kernels are added.
        turns_calls: whether torch's functions are given tensors as they lie.
        turned: as of :class:`Stored`.
    """

    function: relax.Function
    formats: Mapping[int, MemoryFormat]
    functions: dict[ir.GlobalVar, ir.BaseFunc]
    turns_calls: bool
    turned: dict[int, dict[int, Places]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.params = list(self.function.params)
        self._memory: dict[relax.Var, tuple[relax.Var, MemoryFormat]] = {}
        for number, kept in self.formats.items():
            param = self.params[number]
            type = relax.TensorType(kept.stored(param.ty.shape), param.ty.dtype, param.ty.vdevice)
            self.params[number] = memory = relax.Var(param.name, type)
            self._memory[param] = memory, kept

    def block(self, block: relax.BindingBlock) -> relax.BindingBlock:
        """A block of the function's."""
        kind = relax.DataflowVar if isinstance(block, relax.DataflowBlock) else relax.Var
        bindings: list[relax.Binding] = []
        for binding in block.bindings:
            if isinstance(binding, relax.VarBinding) and any(
                var in self._memory for var in read_by(binding)
            ):
                value = self._called(binding.value)
                before, value = self.read(value, kind)
                bindings += before
                binding = relax.VarBinding(binding.var, value, binding.span)
            bindings.append(binding)
        return type(block)(bindings)

    def read(
        self, expr: relax.Expr, kind: Callable[..., relax.Var]
    ) -> tuple[list[relax.Binding], relax.Expr]:
        """An expression of parameters, and what is bound before it.

        Args:
            expr: of the function.
            kind: of the variables that are bound.
        """
        bindings: list[relax.Binding] = []
        found: dict[relax.Var, relax.Var] = {}
        for var in relax.analysis.free_vars(expr):
            if var in self._memory:
                memory, kept = self._memory[var]
                read = kept.read(var.ty.shape)
                kernel = add_kernel(self.functions, "turned", turning(memory.ty, read, kept.order))
                turned = relax.call_tir(kernel, memory, _turned_type(memory.ty, read, kept.inverse))
                if kept.repeated:
                    shape = relax.ShapeExpr(list(var.ty.shape))
                    bindings.append(relax.VarBinding(once := kind(var.name, turned.ty), turned))
                    turned = relax.op.broadcast_to(once, shape)
                found[var] = kind(var.name, var.ty)
                bindings.append(relax.VarBinding(found[var], turned))
        return bindings, replaced(expr, found)

    def _called(self, value: relax.Expr) -> relax.Expr:
        """A call of torch that turns what it is given itself; any other as it is."""
        if not self.turns_calls or not isinstance(value, ir.Call) or value.op != CALL_PACKED:
            return value
        name, function, *args = value.args
        if getattr(name, "global_symbol", "") != TORCH_CALL:
            return value
        numbers = [n for n, param in enumerate(self.function.params) if param.same_as(function)]
        if not numbers:
            return value
        turned = self.turned.setdefault(numbers[0], {})
        for n, arg in enumerate(args):
            memory, kept = self._memory.get(arg, (None, None))
            if kept is not None and not kept.repeated:
                args[n], turned[n] = memory, kept.inverse
        return with_arguments(value, [name, function, *args])


def _turned_type(type: Any, read: Sequence[Any], axes: Sequence[int]) -> relax.TensorType:
    return relax.TensorType([read[n] for n in axes], type.dtype, type.vdevice)


_Ends = tuple[tuple[int, int], ...]
"""Of a part of what is in memory, sizes by axes: those along which there is more."""


def as_parts(mod: IRModule, entry: str) -> IRModule:
    """The program with parameters that are parts of what is in memory, where only these are read.

    Args:
        mod: the program, of scheduled kernels.
        entry: its function.
    """
    function = mod[entry]
    ends: dict[relax.Var, _Ends] = {}
    for number, axis, size in (function.attrs or {}).get(_ENDS, ()):
        param = function.params[int(number)]
        ends[param] = (*ends.get(param, ()), (int(axis), int(size)))
    if not ends:
        return mod

    def key_of(call: ir.Call) -> tuple[ir.GlobalVar, tuple[tuple[int, _Ends], ...]]:
        given = enumerate(call.args[1].fields)
        return call.args[0], tuple((n, ends[x]) for n, x in given if x in ends)

    functions = dict(mod.functions_items())
    kernels = dict.fromkeys(
        key_of(call) for call in nodes(function.body, ir.Call) if call.op in _KERNEL_CALLS
    )
    for kernel, _ in kernels:
        functions.pop(kernel, None)
    made = {
        (kernel, given): add_kernel(functions, kernel.name_hint, _of_parts(mod[kernel], given))
        for kernel, given in kernels
    }

    def of_parts(call: ir.Call) -> ir.Call:
        if call.op not in _KERNEL_CALLS:
            return call
        return with_arguments(call, [made[key_of(call)], *call.args[1:]])

    params = {param: relax.Var(param.name, _part(param.ty, ends[param])) for param in ends}
    body = tvm_ffi.structural_map(function.body, (ir.Call, of_parts))
    made_of_parts = relax.Function(
        [params.get(param, param) for param in function.params],
        replaced(body, params),
        *(function.ret_ty, function.is_pure, function.attrs, function.span),
    )
    functions[mod.get_global_var(entry)] = made_of_parts.without_attr(_ENDS)
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def _part(type: Any, ends: _Ends) -> relax.TensorType:
    return relax.TensorType(_cut(type.shape, ends), type.dtype, type.vdevice)


def _cut(shape: Sequence[Any], ends: _Ends) -> list[Any]:
    """The shape of a part, of that of the whole."""
    sizes = {axis: tirx.const(size, "int64") for axis, size in ends}
    return [sizes.get(axis, size) for axis, size in enumerate(shape)]


def _of_parts(func: tirx.PrimFunc, given: Sequence[tuple[int, _Ends]]) -> tirx.PrimFunc:
    """A kernel some of whose arguments, by their numbers, are parts of what is in memory."""
    types = {}
    for number, ends in given:
        buffer = func.params[number]
        whole = list(buffer.shape)
        strides = [
            reduce(operator.mul, whole[axis + 1 :], tirx.const(1, "int64"))
            for axis in range(len(whole))
        ]
        types[buffer] = of_shape(buffer.ty, _cut(whole, ends), strides)
    return with_types(func, types)
