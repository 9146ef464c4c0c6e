"""The one door to the IR: torch types a call, its row builds it, or torch itself runs it."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from tvm import relax, te
from tvm.error import InternalError
from tvm.ir import Var
from tvm.relax.script import builder as R
from tvm.script.ir_builder import IRBuilder

from babytriton.diagnostics import Span
from babytriton.ops import mutation, scalars, unseen_writes
from babytriton.ops.autocast import Autocast, State
from babytriton.ops.emission import OPAQUE
from babytriton.ops.memory import Memory
from babytriton.ops.meta import ask_torch, is_at_unknown_place, replace_tensors, tensors_of, typed
from babytriton.ops.refusals import IllTyped, MixedDevices, Random, RowFailed, Unsupported
from babytriton.ops.regions import Regions
from babytriton.ops.results import checked, same, sizes_of
from babytriton.ops.reverse import memory
from babytriton.ops.reverse.rows import CopyStep, RowStep
from babytriton.ops.reverse.tape import all_still, still
from babytriton.ops.reverse.torch_steps import TorchStep
from babytriton.ops.selections import rules
from babytriton.ops.site import Site, relax_type, type_of
from babytriton.ops.sizes import constant, is_symbolic, symbolic_in
from babytriton.ops.storage import Part
from babytriton.ops.table import Callee, Op, stops, torch_names
from babytriton.ops.torch_calls import TorchCalls, left_to_torch
from babytriton.ops.trees import map_leaves
from babytriton.ops.value import (
    DataDependent,
    NeedsConstant,
    Scalar,
    Value,
    constant_needed,
    map_values,
    values_in,
)
from babytriton.ops.views import Read
from babytriton.targets import Target
from babytriton.types import TensorType

if TYPE_CHECKING:
    from babytriton.ops.symbols import Symbols


class Builder(TorchCalls):
    """Emits a program, one torch call at a time, into the open Relax function.

    Args:
        table: the row of each torch callable.
        device: the device the program is called on.
        target: what it is compiled for there.
        symbols: the sizes that are known only at the call, where there are any.
        autocast: how casts are made that torch makes.
        records_torch: whether torch is to record calls whose gradients it computes.
    """

    def __init__(
        self,
        table: Mapping[Callee, Op],
        device: torch.device,
        target: Target,
        symbols: Symbols | None = None,
        autocast: State = (),
        records_torch: bool = True,
    ) -> None:
        super().__init__(device, target, symbols, records_torch)
        self.table = table
        self.autocast = Autocast(autocast)
        self.on_number: Callable[[torch.SymFloat], Scalar] = constant
        """Declares a parameter for a float that is computed from symbolic sizes at the call."""
        self.rows: list[Op] = []
        """Every row that built Relax, in order of use."""
        self._depth = 0
        self.memory = Memory(self)
        self.regions = Regions(self)

    def call(self, fn: Callee, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Emit a call of a torch callable.

        Args:
            fn: a function, or a method or property of ``torch.Tensor``.
            args: values and Python objects, nested in tuples, lists and dicts.
            kwargs: likewise.

        Returns:
            The result with a :class:`Value` for each tensor; a Python object where torch gives
            one.

        Raises:
            IllTyped: torch refuses the arguments.
            Mutation: the call is in place.
            NeedsConstant: a run-time float stands where a constant must.
            Related: symbolic sizes turn out to be equal, or constant.
        """
        if rules.concerns(fn, args, kwargs):
            return rules.call(self, fn, args, kwargs)
        write = mutation.find(fn, args, kwargs)
        if write is not None:
            with self.placement.within(write.device):
                return mutation.make(self, fn, args, kwargs, write)
        if self._depth:
            return self._call_with_numbers(fn, args, kwargs)
        place = self.placement.of_call(fn, args, kwargs, values_in((args, kwargs)))
        if self.placement.span is None and len(self.placement.devices) > 1:
            self.placement.span = self.span
        with self._at(place or self.placement.home):
            args, kwargs = map_values((args, kwargs), self.moved)
            return self.autocast.call(self, self._call_with_numbers, fn, args, kwargs)

    def at_one_place(self, operands: Sequence[Value]) -> contextlib.AbstractContextManager[None]:
        """A call that runs where its operands are, none of which is moved.

        Raises:
            MixedDevices: they are on several devices, or not where the block of the call is.
        """
        places = {value.device for value in operands}
        places |= {self.placement.block} if self.placement.block else set()
        if len(places) > 1:
            raise MixedDevices(" and ".join(sorted(map(str, places))))
        return self._at(next(iter(places), self.placement.home))

    @contextlib.contextmanager
    def _at(self, device: torch.device) -> Iterator[None]:
        before, self.device = self.device, device
        try:
            yield
        finally:
            self.device = before

    def _call_with_numbers(self, fn: Callee, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call with numbers that depend on symbolic sizes: floats, where they may, as inputs."""
        if self.symbols is None or not symbolic_in((args, kwargs)):
            return self._call(fn, args, kwargs)
        kinds = (torch.SymFloat, torch.SymBool)
        op = self.table.get(fn)
        if op is not None and op.scalars:
            given = map_leaves((args, kwargs), torch.SymFloat, self.on_number)
            try:
                return self._call(fn, *map_leaves(given, torch.SymBool, constant))
            except NeedsConstant as needed:
                if needed.arguments:  # of the user's: not, or not only, our numbers
                    raise
            except DataDependent:
                pass
        return self._call(fn, *map_leaves((args, kwargs), kinds, constant))

    def _call(self, fn: Callee, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if fn in (torch.Tensor.cpu, torch.Tensor.cuda):
            # A meta tensor has no numbers to copy there.
            fn, args, kwargs = torch.Tensor.to, (args[0], self.device), {}
        self.memory.note_format(fn, kwargs)
        op = self.table.get(fn)
        values = values_in((args, kwargs))
        if scalars.is_arithmetic(fn, args):
            return scalars.arithmetic(self, fn, args)
        if op is None or not op.scalars:
            args = scalars.as_tensors(fn, args, kwargs)
        before = unseen_writes.versions(values)
        try:
            typed_by = op.meta if op and op.meta else fn
            result = typed(self.device, self.symbols, typed_by, args, kwargs)
        except IllTyped as untyped:
            if op is None or not op.registered or op.meta is not None:
                raise
            return self._typed_by_relax(op, fn, args, kwargs, untyped)
        if self.symbols is not None:
            self.symbols.require_unrelated()
        if op is None or any(result is value.meta for value in values):
            now = enumerate(unseen_writes.versions(values))
            if written := [n for n, version in now if version != before[n]]:
                return unseen_writes.make(self, fn, args, kwargs, written)
        if op is not None and op.registered:
            # ``lambda x: x`` as a type means one like x's, and not x itself.
            result = replace_tensors(result, torch.empty_like)
        metas = tensors_of(result)
        if not metas:
            if op is not None and op.registered and values:
                raise RowFailed(op.name, f"what it stands for gives {result!r} and no tensor")
            if any(isinstance(value, Scalar) for value in values):
                # It was computed from numbers that only stand for those of the run.
                raise constant_needed(getattr(fn, "__name__", str(fn)), values)
            if values:
                self.memory.note_layout(fn, values[0])
            return result
        if is_at_unknown_place(fn, args):
            return self._element(fn, args, kwargs, result)
        for value in values:
            # Methods such as contiguous() return the tensor itself.
            if result is value.meta:
                return self.memory.returned(fn, value)
        built = self._build(op, fn, args, kwargs, result, metas)
        if not values:
            built = [self._placed(expr) for expr in built]
        found = [self.value(expr, meta) for expr, meta in zip(built, metas)]
        for value in found:
            self.memory.note_call(fn, values, kwargs, value, op)
        wrapped = iter(found)
        return replace_tensors(result, lambda _: next(wrapped))

    def moved(self, value: Value) -> Value:
        """A value where the call that is being emitted runs: itself, or a copy."""
        if value.device == self.device:
            return value
        expr = R.emit(relax.op.to_vdevice(value.expr, self.placement.vdevice(self.device)))
        if isinstance(value, Scalar):
            return Scalar(self, expr, value.sample, value.arguments)
        return self._copied(value, self.value(expr, value.meta.clone()))

    def _copied(self, value: Value, copy: Value) -> Value:
        """A copy of a tensor, which takes its gradients along."""
        if self.tape.depends(value):
            self.tape.note(CopyStep(still(value), (copy,), self.span))
        return copy

    def unfollowed(self, expr: relax.Expr) -> relax.Expr:
        """The same numbers, which gradients do not flow through."""
        return expr if self.tape.find(expr) is None else R.emit(expr)

    @contextlib.contextmanager
    def interior(self, span: Span | None, device: torch.device) -> Iterator[None]:
        """Inside, calls are made for a step at ``span``: no code of the user's sees them."""
        before, self.span = self.span, span
        self._depth += 1
        try:
            with self._at(device):
                yield
        finally:
            self._depth -= 1
            self.span = before

    def through_torch(
        self,
        fn: Callee,
        args: tuple[Any, ...],
        metas: list[torch.Tensor],
        reason: str,
        known: Sequence[Read] = (),
    ) -> list[Value]:
        """Let torch run a callable that gives a list of tensors of known types.

        Args:
            fn: the callable.
            args: values and Python objects, nested in tuples, lists and dicts.
            metas: its results.
            reason: why torch runs it.
            known: what the last of the tensors are given as, where that is decided.
        """
        exprs, _ = self.call_torch(fn, args, {}, metas, reason, known=known)
        values = [self.value(expr, meta) for expr, meta in zip(exprs, metas)]
        if self.tape.depends(args):
            given, named = all_still(args, {})
            self.tape.note(TorchStep(fn, given, named, tuple(values), self.span))
        return values

    def _placed(self, expr: relax.Expr) -> relax.Expr:
        """A result that was made of nothing, and so by no operand's device."""
        if self._depth or self.device == self.placement.home or expr.ty.vdevice is not None:
            return expr
        return R.emit(relax.op.to_vdevice(expr, self.placement.vdevice(self.device)))

    def _element(
        self, fn: Callee, args: tuple[Any, ...], kwargs: dict[str, Any], result: torch.Tensor
    ) -> Value:
        """A part of a tensor at a place that is known only at run time.

        For torch it is a view of the tensor: it keeps up with what either of the two becomes.
        """
        meta = torch.empty_like(result, memory_format=torch.contiguous_format)
        found = self.value(self.build(fn, args, kwargs, meta), meta)
        if found.storage is not None and args[0].storage is not None:
            read = partial(self.build, fn, args, kwargs, meta)
            is_item = fn in (operator.getitem, torch.Tensor.__getitem__)
            write = partial(mutation.set_items, self, *args) if is_item else None
            found.storage.part = Part(args[0].storage, read, write)
        return found

    def build(
        self, fn: Callee, args: tuple[Any, ...], kwargs: dict[str, Any], meta: torch.Tensor
    ) -> relax.Expr:
        """Emit a call whose one result is known to be of the type of ``meta``."""
        [expr] = self._build(self.table.get(fn), fn, args, kwargs, meta, [meta])
        return expr

    def value(self, expr: relax.Expr, meta: torch.Tensor) -> Value:
        """A tensor of the program, in the memory that torch puts it into."""
        # What a row makes on its way is not the user's to write to.
        return Value(self, expr, meta, None if self._depth else self.memory.place(expr, meta))

    def number(self, expr: relax.Expr, sample: bool | int | float) -> Scalar:
        """A Python number of the run time."""
        return Scalar(self, expr, sample)

    def follows(self, value: Value) -> bool:
        """Whether gradients flow through a tensor."""
        return self.tape.follows(value)

    def counted_axis(self, value: Value) -> int | None:
        """The axis along which a tensor counts from 0, as ``torch.arange`` does, if any."""
        return self.counted.axis(value.expr)

    def read(self, value: Value) -> relax.Expr:
        """A tensor as it is after its memory was written to."""
        return self.memory.read(value)

    def view(self, contents: relax.Expr, base: torch.Tensor, meta: torch.Tensor) -> relax.Expr:
        """What a tensor sees of a memory that was made for the tensor ``base``.

        It has the gradients that it had, also where none are recorded: it is no new tensor.
        """
        with self.tape.switched(off=False):
            return memory.view(self, Value(self, contents, base), meta).made

    def overwrite(
        self, contents: relax.Expr, base: torch.Tensor, new: relax.Expr, meta: torch.Tensor
    ) -> tuple[relax.Expr, relax.Expr]:
        """Such a memory after what a tensor sees of it got new elements, and what that sees."""
        before, part = Value(self, contents, base), Value(self, new, meta)
        whole, seen = memory.overwrite(self, before, part, meta)
        return whole.made, seen.made

    def after_write(
        self, seen: relax.Expr, before: relax.Expr, after: relax.Expr, meta: torch.Tensor
    ) -> relax.Expr:
        """A memory that was written to through a tensor, which saw it as ``seen``."""
        return memory.after_write(self, seen, before, Value(self, after, meta)).made

    def name(self, name: str, expr: relax.Expr) -> None:
        """Give what was computed the name that the user's code gives it."""
        IRBuilder.name(name, expr)

    def empties(self, types: Sequence[TensorType]) -> list[Value]:
        """Tensors without elements, of which no kernel is made."""
        return [self.call(torch.empty, (type.shape,), {"dtype": type.dtype}) for type in types]

    def argument(self, name: str, type: TensorType, order: tuple[int, ...] = ()) -> Value:
        """Declare a tensor parameter of the program, and the order of its axes in memory if any."""
        meta = self.meta(type)
        expr = R.arg(name, relax_type(TensorType.of(meta)))
        self.views.note_in_memory([expr], order)
        return self.value(expr, meta)

    def cotangent(self, name: str, result: Value) -> Value:
        """Declare a parameter for the gradient of a tensor of the program."""
        expr = R.arg(name, relax_type(TensorType.of(result.meta)))
        self.views.note_in_memory([expr])
        return Value(self, expr, torch.empty_like(result.meta))

    def float_argument(self, name: str, argument: str | None, sample: float) -> Scalar:
        """Declare a Python float parameter, kept variable at run time.

        Args:
            name: of the parameter.
            argument: what the user calls it, for asking that it be constant; ``None`` where it is
                computed from sizes.
            sample: the value it has at this call.
        """
        return self.read_float(self.float_parameter(name), argument, sample)

    def read_float(self, number: Var, argument: str | None, sample: float) -> Scalar:
        """A float parameter as a number of the program, where it is used."""
        # FuseOps takes a float for a size, where a kernel needs sizes of its caller as well.
        attrs = None if self.symbols is None else {"op_pattern": OPAQUE}
        expr = self.emit_te(
            "number", lambda x: te.compute((), lambda: x, name="number"), number, attrs=attrs
        )
        return Scalar(self, expr, sample, frozenset([argument] if argument else []))

    def _build(
        self,
        op: Op | None,
        fn: Callee,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        metas: list[torch.Tensor],
    ) -> list[relax.Expr]:
        operands = [value.meta for value in values_in((args, kwargs))]
        random = False
        if any(meta.numel() == 0 for meta in (*operands, *metas)):
            reason = "a tensor without elements"
        elif op is None:
            reason = getattr(fn, "why", "not in the operator table")
        elif op.why is not None and not self._is_derived(op, args, kwargs):
            reason = op.why
        else:
            try:
                return self._build_row(op, fn, args, kwargs, result, metas)
            except Unsupported as unsupported:
                reason, random = str(unsupported), isinstance(unsupported, Random)
            except (TypeError, InternalError):
                # Rows are written for Python ints, and so is TVM: a row that was not made for
                # symbolic sizes stumbles over the first one.
                if not any(map(is_symbolic, sizes_of(operands, metas))):
                    raise
                reason = "a symbolic size"
        random = random or (op is not None and op.is_random)
        return left_to_torch(self, op, fn, args, kwargs, result, metas, reason, random)

    def _is_derived(self, op: Op, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether a call is made of other rows, which give it its gradient."""
        return op.derive is not None and self.tape.depends((args, kwargs))

    def _build_row(
        self,
        op: Op,
        fn: Callee,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        metas: list[torch.Tensor],
    ) -> list[relax.Expr]:
        kwargs = torch_names(kwargs)
        if not (self._depth or op.registered):
            ask_torch(fn, args, kwargs)
        noted = self.tape.depends((args, kwargs))
        if noted and op.derive is not None:
            op = replace(op, build=None, why=None, decompose=op.derive)
        # What is made of other rows has the gradients of these.
        by_parts = (op.decompose is not None or op.by_parts) and op.gradient is None
        operands = [value.expr for value in values_in((args, kwargs))]
        with contextlib.nullcontext() if by_parts else self.tape.paused():
            exprs = checked(op, self._apply(op, Site(self, result), args, kwargs), metas)
            exprs = [self._own(expr, meta, operands) for expr, meta in zip(exprs, metas)]
        if op.gradient is stops or (self._depth == 0 and not self.tape.running):
            return [self.unfollowed(expr) for expr in exprs]
        new = [not any(expr.same_as(operand) for operand in operands) for expr in exprs]
        if noted and not by_parts and any(new):
            values = tuple(Value(self, expr, meta) for expr, meta in zip(exprs, metas))
            single = isinstance(result, torch.Tensor)
            given, named = all_still(args, kwargs)
            self.tape.note(RowStep(op, fn, given, named, values, single, self.span))
        return exprs

    def _apply(
        self, op: Op, site: Site, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[relax.Expr]:
        """What a row makes of a call, each part as a variable."""
        self._depth += 1
        in_row = contextlib.nullcontext() if self.symbols is None else self.symbols.row()
        try:
            with in_row:
                if op.build is not None:
                    built = op.build(site, *args, **kwargs)
                else:
                    assert op.decompose is not None
                    built = op.decompose(*args, **kwargs)
        finally:
            self._depth -= 1
        exprs = [self._bound(x) for x in (built if isinstance(built, (tuple, list)) else [built])]
        self.rows.append(op)
        return exprs

    def _typed_by_relax(
        self,
        op: Op,
        fn: Callee,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        untyped: IllTyped,
    ) -> Any:
        """A call of what torch cannot type, by the row that user code registered for it."""
        try:
            with self.tape.paused():
                exprs = self._apply(op, Site(self, None), args, kwargs)
        except (RowFailed, Unsupported) as failed:
            why = f"{failed}; on meta tensors it fails by itself: {untyped}"
            raise RowFailed(op.name, why) from failed
        values = tuple(self.value(expr, self.meta(type_of(expr))) for expr in exprs)
        if self.tape.depends((args, kwargs)):
            given, named = all_still(args, kwargs)
            self.tape.note(RowStep(op, fn, given, named, values, len(values) == 1, self.span))
        return values if len(values) > 1 else values[0]

    def _own(self, expr: relax.Expr, meta: torch.Tensor, operands: list[relax.Expr]) -> relax.Expr:
        """A copy, where a row hands an operand through and torch gives memory of its own."""
        inside = self._depth > 0  # where nothing is written to
        if inside or meta._is_view() or not any(expr.same_as(operand) for operand in operands):
            return expr
        copy = self.emit_te("copy", same, expr)
        self._copied(Value(self, expr, meta), Value(self, copy, meta))
        return copy

    def _bound(self, part: Any) -> relax.Expr:
        """What a row built, as a variable; one that hands an operand through stays that operand."""
        expr = part.expr if isinstance(part, Value) else part
        return expr if isinstance(expr, Var) else self.emit(expr)
