"""Tensors in the order in which lies in memory what they are computed from.

Arguments may lie in orders of their own, and what torch gives. What is computed from them is
written so as well, as torch's results are: then kernels go through memory from front to back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

from tvm import ir, relax, tirx
from tvm.ir import IRModule

from babytriton.ops.fallback import TORCH_CALL
from babytriton.passes.bindings import CALL_PACKED, CALL_TIR, add_kernel, read_by, with_arguments
from babytriton.passes.turning import (
    Order,
    Places,
    axes_of_copy,
    inverse,
    transposed,
    turned,
    turning,
)
from babytriton.types import MemoryFormat, channels_last

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
class Wanted:
    """Which tensors of a program may lie as its arguments do.

    Attributes:
        entry: the program's function.
        outputs: those that may lie otherwise than contiguous tensors, by their numbers.
        turns_calls: whether torch's functions are given tensors as they lie.
        following: for the parameters that are calls of torch which give images in the memory format
            of one that they are given, by number: whether they are given one in channels_last.
        laid_out: the numbers of those which are calls of torch whose results are taken as torch
            lays them out.
        fresh: of those which give new tensors.
    """

    entry: str = ""
    outputs: Collection[int] = ()
    turns_calls: bool = False
    following: Mapping[int, bool] = field(default_factory=dict)
    laid_out: Collection[int] = ()
    fresh: Collection[int] = ()


CONTIGUOUS = Wanted()
"""None."""


def formats_of_results(mod: IRModule, entry: str) -> dict[int, MemoryFormat]:
    """How outputs of a program lie, by their numbers, where that is not as contiguous tensors.

    The program gives the contiguous tensor that is in memory.
    """
    found = (mod[entry].attrs or {}).get(_RESULTS, ())
    orders = {n: tuple(map(int, order)) for n, order in enumerate(found) if len(order)}
    return {n: MemoryFormat(order) for n, order in orders.items()}


def turned_operands(mod: IRModule, entry: str) -> dict[int, dict[int, Places]]:
    """What calls of torch are given in orders of their own.

    Returns:
        For the parameters that are such calls, by number, the axes that these are to see of what
        they are given, by the numbers of that.
    """
    found: dict[int, dict[int, Places]] = {}
    for call, operand, *axes in (mod[entry].attrs or {}).get(_OPERANDS, ()):
        found.setdefault(int(call), {})[int(operand)] = tuple(map(int, axes))
    return found


def turned_results(mod: IRModule, entry: str) -> dict[int, Order]:
    """For the parameters that are calls of torch, by number, how their results lie."""
    found = (mod[entry].attrs or {}).get(_LAYOUTS, ())
    return {int(call): tuple(map(int, order)) for call, *order in found}


def as_they_lie(mod: IRModule, wanted: Wanted) -> IRModule:
    """The program with kernels that read what lies in orders of its own where it is.

    Args:
        mod: the program, of calls of kernels for single operators.
        wanted: which tensors may lie so.
    """
    copies = any(axes_of_copy(func) is not None for _, func in mod.functions_items())
    if not copies and not (wanted.laid_out and wanted.outputs):
        return mod
    found = _Program(mod, wanted)
    found.run()
    if contiguous := found.needed_contiguous():
        found = _Program(mod, wanted, contiguous)
        found.run()
    made = relax.transform.Normalize()(found.made())
    return relax.transform.DeadCodeElimination([wanted.entry])(made)


def is_channels_last(axes: Places) -> bool:
    """Whether the axes of memory that make a tensor are those of an image in channels_last."""
    return len(axes) > 3 and inverse(axes) == channels_last(len(axes))


@dataclass(frozen=True)
class _Lying:
    """What a tensor is a turned copy of.

    Attributes:
        memory: the contiguous tensor that is there.
        axes: of it, in the order in which they make the tensor.
        is_new: whether that is no other tensor of the program; then it is of a group.
        is_pointwise: whether each element is computed from those at its place of what lies so.
        keeps_format: whether torch has it in channels_last as well, if it is.
    """

    memory: relax.Var
    axes: Places
    is_new: bool = False
    is_pointwise: bool = True
    keeps_format: bool = True

    @property
    def is_as_torchs(self) -> bool:
        """Whether torch's result lies so as well, and it is a tensor of its own."""
        keeps_format = self.is_channels_last and self.keeps_format
        return self.is_new and (self.is_pointwise or keeps_format)

    @property
    def is_channels_last(self) -> bool:
        """Whether it is an image in that memory format."""
        return is_channels_last(self.axes)


@dataclass(eq=False)
class _Together:
    """Tensors that lie in orders of their own because others of them do.

    Attributes:
        members: these.
        are_images: whether torch gives or takes some, which it would copy if they were contiguous.
        are_copied: whether some are needed as contiguous tensors.
    """

    members: set[relax.Expr]
    are_images: bool = False
    are_copied: bool = False


class _Program:
    """Finds what lies in which order while it goes through the bindings of a program.

    Args:
        mod: the program, of calls of kernels for single operators.
        wanted: which tensors may lie in orders of their own.
        contiguous: those that may not.
    """

    def __init__(
        self, mod: IRModule, wanted: Wanted, contiguous: Set[relax.Expr] = frozenset()
    ) -> None:
        self._mod, self._function, self._wanted = mod, mod[wanted.entry], wanted
        self._contiguous = contiguous
        self._functions = dict(mod.functions_items())
        self._blocks: list[relax.BindingBlock] = []
        self._fields = list(self._function.body.body.fields)
        self._notes: dict[str, list[list[int]]] = {
            _OPERANDS: [],
            _LAYOUTS: [],
            _RESULTS: [[] for _ in self._fields],
        }
        self._lying: dict[relax.Expr, _Lying] = {}
        self._together: dict[relax.Expr, _Together] = {}
        self._images: dict[relax.Expr, tuple[relax.Var, ir.Span | None]] = {}
        """For what torch gives, what it gives in channels_last, and the place of the call."""
        self._laid_out: set[relax.Expr] = set()
        """What torch gives and is taken as it lies there."""
        self._turns: dict[relax.Expr, _Lying] = {}
        """The tensors that torch would have of it."""

    def run(self) -> None:
        """Go through all of it."""
        for block in self._function.body.blocks:
            bindings = [x for binding in block.bindings for x in self._without_copies(binding)]
            self._blocks.append(type(block)(bindings))
        self._take_results()

    def needed_contiguous(self) -> set[relax.Expr]:
        """The tensors that had better be contiguous: some that lie as they do would be copied."""
        groups = {*self._together.values()}
        copied = [group.members for group in groups if group.are_copied and not group.are_images]
        return set().union(*copied)

    def made(self) -> IRModule:
        """The program with what was found."""
        function, entry = self._function, self._wanted.entry
        types = relax.TupleType([x.ty for x in self._fields])
        body = relax.SeqExpr(self._blocks, relax.Tuple(self._fields))
        made = relax.Function(
            function.params, body, types, function.is_pure, function.attrs, function.span
        ).with_attrs({name: found for name, found in self._notes.items() if any(found)})
        # A variable for a function has its type once and for all.
        functions = {var: f for var, f in self._functions.items() if var.name_hint != entry}
        functions[ir.GlobalVar(entry)] = made
        return IRModule(functions, attrs=self._mod.attrs, global_infos=self._mod.global_infos)

    def _without_copies(self, binding: relax.Binding) -> Iterator[relax.Binding]:
        """What takes the place of a binding. Copies stay, for those who need them."""
        value = getattr(binding, "value", None)
        if isinstance(value, ir.Call) and value.op == CALL_TIR and len(value.args) == 2:
            yield from self._kernel(binding, value)
        elif isinstance(value, ir.Call) and value.op == CALL_PACKED:
            yield self._torch_call(binding, value)
        elif isinstance(value, relax.TupleGetItem) and value.tuple_value in self._images:
            images, span = self._images[value.tuple_value]
            order = channels_last(len(binding.var.ty.shape))
            item = relax.TupleGetItem(images, value.index)
            self._together[binding.var] = _Together({binding.var}, are_images=True)
            yield from self._turned(binding, item, order, span)
        else:
            if isinstance(value, relax.TupleGetItem) and value.tuple_value in self._laid_out:
                self._laid_out.add(binding.var)
            self._need_contiguous(read_by(binding))
            yield binding

    def _need_contiguous(self, tensors: Iterable[relax.Expr]) -> None:
        for tensor in tensors:
            lying = self._lying.get(tensor)
            if lying is not None and lying.is_new:
                self._together[tensor].are_copied = True

    def _join(self, var: relax.Expr, others: Iterable[relax.Expr]) -> None:
        """Take note of a tensor that lies as others do."""
        group = self._together.setdefault(var, _Together({var}))
        for other in others:
            own = self._together.get(other, group)
            if own is group:
                continue
            group.members |= own.members
            group.are_images |= own.are_images
            group.are_copied |= own.are_copied
            self._together |= dict.fromkeys(own.members, group)

    def _kernel(self, binding: relax.Binding, call: ir.Call) -> Iterator[relax.Binding]:
        kernel, arguments = call.args[0], list(call.args[1].fields)
        func, var = self._functions[kernel], binding.var
        given = {n: self._lying[x] for n, x in enumerate(arguments) if x in self._lying}
        if not given:
            self._note_copy(var, func, arguments)
            yield binding
            return
        memories = {n: (x.axes, x.memory.ty) for n, x in given.items()}
        others = [arguments[n] for n in given]
        found = turned(func, memories, not self._contiguous & {var, *others})
        self._need_contiguous(
            others if found.has_products else [arguments[n] for n in given if n not in found.read]
        )
        if not found.func.same_as(func):
            kernel = add_kernel(self._functions, kernel.name_hint, found.func)
            arguments = [given[n].memory if n in found.read else x for n, x in enumerate(arguments)]
        call = with_arguments(call, [kernel, relax.Tuple(arguments)])
        if found.order is None:
            yield relax.VarBinding(var, call, binding.span)
            return
        self._join(var, others)
        value = _giving(call, _turned_type(var.ty, found.order))
        yield from self._turned(binding, value, found.order, call.span)
        # Norms of groups go by way of other shapes, and torch's keep the format.
        keeps_format = found.keeps_format or not any(x.is_channels_last for x in given.values())
        self._lying[var] = replace(
            self._lying[var],
            is_pointwise=found.is_pointwise and all(x.is_pointwise for x in given.values()),
            keeps_format=keeps_format and all(x.keeps_format for x in given.values()),
        )

    def _note_copy(
        self, var: relax.Var, func: tirx.PrimFunc, arguments: Sequence[relax.Expr]
    ) -> None:
        """Take note of a tensor that is no other numbers than are in memory."""
        axes = axes_of_copy(func)
        if axes is not None:
            lying = self._lying[var] = _Lying(arguments[0], axes)
            if lying.is_channels_last:
                # What is computed from one image in several ways is to fit together.
                self._join(var, [])
                self._join(arguments[0], [var])
        elif len(arguments) == 1 and (axes := transposed(func)) is not None:
            lying = _Lying(arguments[0], axes, arguments[0] in self._laid_out)
            if lying.is_channels_last:
                self._lying[var] = lying
            elif lying.is_new:
                self._turns[var] = lying

    def _turned(
        self, binding: relax.Binding, value: relax.Expr, order: Order, span: ir.Span | None
    ) -> Iterator[relax.Binding]:
        """A tensor that lies in an order, and the copy that takes its place.

        Args:
            binding: of the tensor.
            value: what is in its memory.
            order: of its axes there.
            span: of the user's call.
        """
        var = binding.var
        type = _turned_type(var.ty, order)
        there = var.__class__(var.name, type)
        yield relax.VarBinding(there, value, binding.span)
        kernel = add_kernel(self._functions, "turned", turning(type, type.shape, order))
        copy = relax.call_tir(kernel, there, var.ty)
        copy = relax.Call(copy.op, list(copy.args), copy.attrs, list(copy.ty_args), span)
        yield relax.VarBinding(var, copy, binding.span)
        self._lying[var] = _Lying(there, inverse(order), is_new=True)

    def _torch_call(self, binding: relax.Binding, call: ir.Call) -> relax.Binding:
        """A call of torch that is given images as they lie, and gives them so."""
        name, function, *operands = call.args
        numbers = [n for n, x in enumerate(self._function.params) if x.same_as(function)]
        is_torch = getattr(name, "global_symbol", "") == TORCH_CALL
        if not is_torch or not numbers or not self._wanted.turns_calls:
            self._need_contiguous(operands)
            return binding
        (number,) = numbers
        if number in self._wanted.laid_out:
            self._laid_out.add(binding.var)
        is_given = self._wanted.following.get(number, False)
        for n, operand in enumerate(operands):
            lying = self._lying.get(operand)
            if lying is not None and lying.is_channels_last:
                operands[n] = lying.memory
                if operand in self._together:
                    self._together[operand].are_images = True
                self._notes[_OPERANDS].append([number, n, *lying.axes])
                is_given = True
            else:
                self._need_contiguous([operand])
        call, var = with_arguments(call, [name, function, *operands]), binding.var
        (given,) = call.ty_args
        if number in self._wanted.following and is_given:
            order = channels_last(len(given.fields[0].shape))
            self._notes[_LAYOUTS].append([number, *order])
            made = relax.TupleType([_turned_type(x, order) for x in given.fields])
            call, var = _giving(call, made), var.__class__(var.name, made)
            self._images[binding.var] = var, call.span
        return relax.VarBinding(var, call, binding.span)

    def _take_results(self) -> None:
        """Give results in the orders in which they lie, where they may."""
        given = list(self._fields)
        for n, field_ in enumerate(given):
            lying = self._lying.get(field_) or self._turns.get(field_)
            is_free = n in self._wanted.outputs and given.count(field_) == 1
            if lying is not None and is_free and lying.is_as_torchs:
                self._fields[n] = lying.memory
                self._notes[_RESULTS][n] = list(inverse(lying.axes))
            else:
                self._need_contiguous([field_])


def _giving(call: ir.Call, type: Any) -> ir.Call:
    """The same call with results of another type."""
    return relax.Call(call.op, list(call.args), call.attrs, [type], call.span)


def _turned_type(type: Any, order: Order) -> relax.TensorType:
    return relax.TensorType([type.shape[n] for n in order], type.dtype, type.vdevice)
