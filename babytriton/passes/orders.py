"""Tensors in the order in which lies in memory what they are computed from.

Arguments may lie in orders of their own, and what torch gives. What is computed from them is
written so as well, as torch's results are: then kernels go through memory from front to back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm import ir, relax, tirx
from tvm.ir import IRModule

from babytriton.ops.fallback import TORCH_CALL
from babytriton.passes.bindings import CALL_PACKED, CALL_TIR, add_kernel, with_arguments
from babytriton.passes.turning import (
    Order,
    axes_of_copy,
    inverse,
    transposed,
    turned,
    turning,
)
from babytriton.types import MemoryFormat

_RESULTS = "babytriton.memory_formats"
"""What a program is annotated with: for each output the order of its axes in memory, if it is not
that of a contiguous tensor."""

_OPERANDS = "babytriton.turned_operands"
"""Likewise: for calls of torch that are given tensors in orders of their own, the number of the
parameter that is the call, that of the operand, and the axes of it that the call is to see."""

_LAYOUTS = "babytriton.turned_results"
"""Likewise: for calls of torch that give tensors in orders of their own, the number of the
parameter that is the call, and the order."""


@dataclass(frozen=True)
class Results:
    """Which tensors of a program may lie as its arguments do.

    Attributes:
        entry: the program's function.
        outputs: those that may lie otherwise than contiguous tensors, by their numbers.
        turns_calls: whether torch's functions are given tensors as they lie.
        following: for the parameters that are calls of torch which give images in the memory format
            of one that they are given, by number: whether they are given one in channels_last.
    """

    entry: str = ""
    outputs: Collection[int] = ()
    turns_calls: bool = False
    following: Mapping[int, bool] = field(default_factory=dict)


CONTIGUOUS = Results()
"""None."""


def formats_of_results(mod: IRModule, entry: str) -> dict[int, MemoryFormat]:
    """How outputs of a program lie, by their numbers, where that is not as contiguous tensors.

    The program gives the contiguous tensor that is in memory.
    """
    found = (mod[entry].attrs or {}).get(_RESULTS, ())
    orders = {n: tuple(map(int, order)) for n, order in enumerate(found) if len(order)}
    return {n: MemoryFormat(order) for n, order in orders.items()}


def turned_operands(mod: IRModule, entry: str) -> dict[int, dict[int, Order]]:
    """What calls of torch are given in orders of their own.

    Returns:
        For the parameters that are such calls, by number, the axes that these are to see of what
        they are given, by the numbers of that.
    """
    found: dict[int, dict[int, Order]] = {}
    for call, operand, *axes in (mod[entry].attrs or {}).get(_OPERANDS, ()):
        found.setdefault(int(call), {})[int(operand)] = tuple(map(int, axes))
    return found


def turned_results(mod: IRModule, entry: str) -> dict[int, Order]:
    """For the parameters that are calls of torch, by number, how their results lie."""
    found = (mod[entry].attrs or {}).get(_LAYOUTS, ())
    return {int(call): tuple(map(int, order)) for call, *order in found}


def as_they_lie(mod: IRModule, wanted: Results) -> IRModule:
    """The program with kernels that read what lies in orders of its own where it is.

    Args:
        mod: the program, of calls of kernels for single operators.
        wanted: which tensors may lie so.
    """
    if not any(axes_of_copy(func) is not None for _, func in mod.functions_items()):
        return mod
    functions, function = dict(mod.functions_items()), mod[wanted.entry]
    program = _Program(function, functions, wanted)
    blocks = [
        type(block)([x for binding in block.bindings for x in program.without_copies(binding)])
        for block in function.body.blocks
    ]
    fields, marks = program.results(list(function.body.body.fields))
    types = relax.TupleType([x.ty for x in fields])
    body = relax.SeqExpr(blocks, relax.Tuple(fields))
    made = relax.Function(
        function.params, body, types, function.is_pure, function.attrs, function.span
    ).with_attrs(program.notes | {_RESULTS: marks})
    del functions[mod.get_global_var(wanted.entry)]
    functions[ir.GlobalVar(wanted.entry)] = made
    found = IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)
    found = relax.transform.Normalize()(found)
    return relax.transform.DeadCodeElimination([wanted.entry])(found)


def channels_last(rank: int) -> Order:
    """The order of the axes of images of so many dimensions in that memory format of torch's."""
    return 0, *range(2, rank), 1


@dataclass(frozen=True)
class _Lying:
    """What a tensor is a turned copy of.

    Attributes:
        memory: the contiguous tensor that is there.
        axes: of it, in the order in which they make the tensor.
        is_new: whether that is no other tensor of the program.
        is_pointwise: whether it was computed from arguments element by element.
    """

    memory: relax.Var
    axes: Order
    is_new: bool = False
    is_pointwise: bool = True

    @property
    def is_channels_last(self) -> bool:
        """Whether it is in one of torch's memory formats for images."""
        rank = len(self.axes)
        return rank > 3 and inverse(self.axes) == channels_last(rank)


@dataclass
class _Program:
    """Finds what lies in which order while it goes through the bindings of a function.

    Attributes:
        function: the program's.
        functions: of the program; kernels are added.
        wanted: which tensors may lie in orders of their own.
        notes: what the program is annotated with.
    """

    function: relax.Function
    functions: dict[ir.GlobalVar, ir.BaseFunc]
    wanted: Results

    def __post_init__(self) -> None:
        self.notes: dict[str, list[list[int]]] = {_OPERANDS: [], _LAYOUTS: []}
        self._lying: dict[relax.Expr, _Lying] = {}
        self._images: dict[relax.Expr, tuple[relax.Var, ir.Span | None]] = {}
        """For what torch gives, what it gives in channels_last, and the place of the call."""

    def without_copies(self, binding: relax.Binding) -> Iterator[relax.Binding]:
        """What takes the place of a binding. Copies stay, for those who need them."""
        value = getattr(binding, "value", None)
        if isinstance(value, ir.Call) and value.op == CALL_TIR and len(value.args) == 2:
            yield from self._kernel(binding, value)
        elif isinstance(value, ir.Call) and value.op == CALL_PACKED:
            yield self._torch_call(binding, value)
        elif isinstance(value, relax.TupleGetItem) and value.tuple_value in self._images:
            images, span = self._images[value.tuple_value]
            order = channels_last(len(binding.var.ty.shape))
            yield from self._turned(binding, relax.TupleGetItem(images, value.index), order, span)
        else:
            yield binding

    def _kernel(self, binding: relax.Binding, call: ir.Call) -> Iterator[relax.Binding]:
        kernel, arguments = call.args[0], list(call.args[1].fields)
        func = self.functions[kernel]
        given = {n: self._lying[x] for n, x in enumerate(arguments) if x in self._lying}
        if not given:
            self._note_copy(binding.var, func, arguments)
            yield binding
            return
        found = turned(func, {n: (x.axes, x.memory.ty) for n, x in given.items()})
        if not found.func.same_as(func):
            kernel = add_kernel(self.functions, kernel.name_hint, found.func)
            arguments = [given[n].memory if n in found.read else x for n, x in enumerate(arguments)]
        call = with_arguments(call, [kernel, relax.Tuple(arguments)])
        if found.order is None:
            yield relax.VarBinding(binding.var, call, binding.span)
            return
        is_pointwise = found.is_pointwise and all(x.is_pointwise for x in given.values())
        value = _giving(call, _turned_type(binding.var.ty, found.order))
        yield from self._turned(binding, value, found.order, call.span, is_pointwise)

    def _note_copy(
        self, var: relax.Var, func: tirx.PrimFunc, arguments: Sequence[relax.Expr]
    ) -> None:
        """Take note of a tensor that is no other numbers than are in memory."""
        axes = axes_of_copy(func)
        if axes is not None:
            self._lying[var] = _Lying(arguments[0], axes)
        elif len(arguments) == 1 and (axes := transposed(func)) is not None:
            lying = _Lying(arguments[0], axes)
            self._lying |= {var: lying} if lying.is_channels_last else {}

    def _turned(
        self,
        binding: relax.Binding,
        value: relax.Expr,
        order: Order,
        span: ir.Span | None,
        is_pointwise: bool = True,
    ) -> Iterator[relax.Binding]:
        """A tensor that lies in an order, and the copy that takes its place.

        Args:
            binding: of the tensor.
            value: what is in its memory.
            order: of its axes there.
            span: of the user's call.
            is_pointwise: as of :class:`_Lying`.
        """
        var = binding.var
        type = _turned_type(var.ty, order)
        there = var.__class__(var.name, type)
        yield relax.VarBinding(there, value, binding.span)
        kernel = add_kernel(self.functions, "turned", turning(type, type.shape, order))
        copy = relax.call_tir(kernel, there, var.ty)
        copy = relax.Call(copy.op, list(copy.args), copy.attrs, list(copy.ty_args), span)
        yield relax.VarBinding(var, copy, binding.span)
        self._lying[var] = _Lying(there, inverse(order), True, is_pointwise)

    def _torch_call(self, binding: relax.Binding, call: ir.Call) -> relax.Binding:
        """A call of torch that is given images as they lie, and gives them so."""
        name, function, *operands = call.args
        numbers = [n for n, x in enumerate(self.function.params) if x.same_as(function)]
        is_torch = getattr(name, "global_symbol", "") == TORCH_CALL
        if not is_torch or not numbers or not self.wanted.turns_calls:
            return binding
        (number,) = numbers
        is_given = self.wanted.following.get(number, False)
        for n, operand in enumerate(operands):
            lying = self._lying.get(operand)
            if lying is not None and lying.is_channels_last:
                operands[n] = lying.memory
                self.notes[_OPERANDS].append([number, n, *lying.axes])
                is_given = True
        call, var = with_arguments(call, [name, function, *operands]), binding.var
        (given,) = call.ty_args
        if number in self.wanted.following and is_given:
            order = channels_last(len(given.fields[0].shape))
            self.notes[_LAYOUTS].append([number, *order])
            made = relax.TupleType([_turned_type(x, order) for x in given.fields])
            call, var = _giving(call, made), var.__class__(var.name, made)
            self._images[binding.var] = var, call.span
        return relax.VarBinding(var, call, binding.span)

    def results(self, fields: list[relax.Expr]) -> tuple[list[relax.Expr], list[list[int]]]:
        """What the program gives, and how it is annotated.

        Args:
            fields: what it gave.
        """
        found = list(fields)
        marks: list[list[int]] = [[] for _ in fields]
        for n, given in enumerate(fields):
            lying = self._lying.get(given)
            if lying is None or n not in self.wanted.outputs or fields.count(given) > 1:
                continue
            if lying.is_new and (lying.is_pointwise or lying.is_channels_last):
                found[n], marks[n] = lying.memory, list(inverse(lying.axes))
        return found, marks


def _giving(call: ir.Call, type: Any) -> ir.Call:
    """The same call with results of another type."""
    return relax.Call(call.op, list(call.args), call.attrs, [type], call.span)


def _turned_type(type: Any, order: Order) -> relax.TensorType:
    return relax.TensorType([type.shape[n] for n in order], type.dtype, type.vdevice)
