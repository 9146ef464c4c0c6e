"""What a program leaves to torch, and what of the user's code it cannot look into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

import torch
from tvm import relax
from tvm.relax.script import builder as R
from tvm.script.ir_builder import IRBuilder

from babytriton.ops import attention_layouts
from babytriton.ops.attention_layouts import TOKENS_FIRST, Attention
from babytriton.ops.emission import Emission
from babytriton.ops.fallback import TORCH_CALL, Fallback, TorchCall
from babytriton.ops.reverse.rows import RowStep, UnknownStep
from babytriton.ops.reverse.tape import Tape, all_still, still
from babytriton.ops.reverse.torch_steps import Record, TorchStep
from babytriton.ops.site import relax_type
from babytriton.ops.sizes import int64, symbolic_in
from babytriton.ops.table import PRODUCTS, Callee, Op, called, stops, torch_names
from babytriton.ops.torch_graphs import KEEPER, TorchGradient, draws_unseen
from babytriton.ops.trees import map_leaves
from babytriton.ops.value import Scalar, Value, constant_needed, values_in
from babytriton.ops.views import Read, View
from babytriton.targets import Target
from babytriton.types import Dim, TensorType, size_text

if TYPE_CHECKING:
    from babytriton.ops.builder import Builder
    from babytriton.ops.symbols import Symbols


_OF_IMAGES = frozenset({"conv2d", "conv3d", "conv_transpose2d", "conv_transpose3d"})
"""Calls whose results are in channels_last where their input or their weight is."""

_OF_LIBRARIES = PRODUCTS | {attention_layouts.NAME}
"""Calls for which torch runs a library that reads transposed tensors as they lie, for the same
result."""

_NEW = _OF_LIBRARIES | _OF_IMAGES | {"conv1d", "conv_transpose1d"}
"""Calls that give new tensors, no views, but for those of `_MAY_VIEW`."""

_MAY_WRITE = frozenset({"embedding", "embedding_bag", "batch_norm", "instance_norm"})
"""Those that may write to their operands, which are no others' memory."""

_HALVES = 8
"""Elements of two bytes that libraries load at once, from where these begin."""

_MAY_VIEW = frozenset({"einsum"})
"""Those that give a view of their operand, where they have one alone and nothing to sum."""


class TorchCalls(Emission):
    """Emits calls of torch into the open Relax function.

    Attributes:
        fallbacks: those that were emitted.
        tape: what gradients flow through.
        table: the row of each torch callable.
        draws: how many of the calls draw random numbers, or may.
        records_torch: whether torch is to record calls whose gradients it computes.
    """

    def __init__(
        self, device: torch.device, target: Target, symbols: Symbols | None, records_torch: bool
    ) -> None:
        super().__init__(device, target, symbols)
        self.table: Mapping[Callee, Op] = {}
        self.fallbacks: list[Fallback] = []
        self.tape = Tape()
        self.draws = 0
        self.records_torch = records_torch

    def call_torch(
        self,
        fn: Callee,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        metas: list[torch.Tensor],
        reason: str,
        random: bool = False,
        recorded: tuple[int, ...] = (),
        known: Sequence[Read] = (),
    ) -> tuple[list[relax.Expr], Record | None]:
        """Let torch run a callable.

        Args:
            fn: the callable.
            args, kwargs: values and Python objects.
            metas: its results.
            reason: why torch runs it.
            random: whether it draws random numbers.
            recorded: the numbers of the tensors that gradients are asked of, if torch is to record
                the call.
            known: what the last of the tensors are given as, where that is decided.

        Returns:
            Its results, and the record if there is one.
        """
        self.draws += int(random or draws_unseen(fn, self.table))
        name = called(fn)
        values = values_in((args, kwargs))
        if any(isinstance(value, Scalar) for value in values):
            raise constant_needed(name, values)
        if "device" in kwargs:
            kwargs = kwargs | {"device": self.device}
        elif not values:
            # A factory such as torch.rand: its tensors belong on the program's device.
            kwargs = kwargs | {"device": self.device}
        reads = [*(self._read(fn, x) for x in values[: len(values) - len(known)]), *known]
        layout: tuple[int, ...] = ()
        if self._is_one_of(fn, {attention_layouts.NAME}):
            attention = Attention.of(fn, args, kwargs, values)
            reads = self._with_tokens_first(attention, reads)
            layout = attention.layout(reads, self._order_in_memory)

        def laid_out(meta: torch.Tensor) -> TensorType:
            return TensorType.of(meta.permute(layout) if meta.ndim == len(layout) > 0 else meta)

        types = tuple(map(laid_out, metas))
        views = [read.view.numbers for read in reads if read.view is not None]
        numbers = symbolic_in((args, kwargs, [t.shape for t in types], views))
        sizes = {size_text(n): n for n in numbers}
        held_args, held_kwargs = map_leaves((args, kwargs), torch.SymInt, _as_dim)
        call = TorchCall(
            fn,
            held_args,
            held_kwargs,
            tuple(TensorType(map_leaves(t.shape, torch.SymInt, _as_dim), t.dtype) for t in types),
            tuple(sizes),
            Fallback(name, reason, self.span),
            tuple(() if read.view else read.turns for read in reads),
            tuple(read.view and read.view.with_sizes(torch.SymInt, _as_dim) for read in reads),
            self._is_one_of(fn, _NEW) and not self._may_view(fn, len(values)),
            layout,
            self._is_one_of(fn, _OF_IMAGES) and not isinstance(fn, TorchGradient),
            recorded=recorded,
        )
        exprs = [read.expr for read in reads]
        function, *operands = self.torch_operands(call, self.unique(f"torch_{name}"), exprs)
        self.fallbacks += [call.fallback] if call.fallback else []
        given = [*types, KEEPER] if recorded else types
        results_of = [self.placement.annotated(relax_type(type), self.device) for type in given]
        results = R.emit(
            relax.op.call_pure_packed(
                TORCH_CALL,
                function,
                *map(int64, sizes.values()),
                *operands,
                ty_args=[relax.TupleType(results_of)],
            )
        )
        found = [R.emit(relax.TupleGetItem(results, i)) for i in range(len(given))]
        self.views.note_in_memory(found)
        if recorded:
            IRBuilder.name(self.unique(f"graph_of_{name}"), found[-1])
        order = sorted(range(len(layout)), key=layout.__getitem__)
        turned = [
            self.emit(relax.op.permute_dims(x, order)) if call.is_laid_out(meta.ndim) else x
            for x, meta in zip(found, metas)
        ]
        return turned, Record(found[-1], reads) if recorded else None

    def _row(self, fn: Callee) -> Op | None:
        """The row of a callable, or of that of which it is the gradient."""
        return self.table.get(fn.fn if isinstance(fn, TorchGradient) else fn)

    def _is_one_of(self, fn: Callee, names: Set[str]) -> bool:
        """Whether a callable, or that of which it is the gradient, has one of some rows."""
        row = self._row(fn)
        return row is not None and row.name in names

    def _may_view(self, fn: Callee, count: int) -> bool:
        """Whether a callable's results may be views of one of so many operands."""
        return isinstance(fn, TorchGradient) or (count == 1 and self._is_one_of(fn, _MAY_VIEW))

    def _with_tokens_first(self, attention: Attention, reads: Sequence[Read]) -> list[Read]:
        """What attention is given, in its own order where kernels of ours compute it."""
        found = list(reads)
        turned: dict[relax.Expr, Read] = {}  # One tensor may be queries, keys and values.
        for n in attention.deciding(self.tape.depends(attention.tensors)):
            expr, rank = found[n].expr, len(found[n].turns)
            if rank != 4 or not found[n].is_whole or self.views.is_in_memory(expr):
                continue
            if expr not in turned:
                # It is the tensor itself, by its name and of its line.
                made = relax.op.permute_dims(expr, TOKENS_FIRST)
                there = self.emit(made, getattr(self.bindings.get(expr), "span", None))
                IRBuilder.name(expr.name, there)
                turned[expr] = Read(there, TOKENS_FIRST)
            found[n] = turned[expr]
        return found

    def _order_in_memory(self, read: Read) -> tuple[int, ...] | None:
        """The order in which the axes of what a callable is given lie in memory, if it is known."""
        sample = int if self.symbols is None else self.symbols.sample
        return self.views.order_in_memory(read, sample)

    def _read(self, fn: Callee, value: Value) -> Read:
        """What a callable is given for a tensor.

        Libraries, whose results are the same however their operands lie, read what there is, unless
        that makes them slow. Torch is given what it would have itself. What the user has written
        may write to what it is given, and gets no part of an argument.
        """
        row, is_of_library = self._row(fn), self._is_one_of(fn, _OF_LIBRARIES)
        may_write = row is None or row.registered or row.name in _MAY_WRITE
        found = None if may_write else self.views.of(value)
        if found is not None and _suits(found[1], value.meta, is_of_library):
            expr, view = found
            return Read(expr, tuple(range(value.meta.ndim)), view)
        return Read(*self.views.unturned(value.expr)) if is_of_library else Read.of(value.expr)

    def note_unknown(self, name: str, operands: Any, results: Any) -> None:
        """Take note of a call of the user's own code, which has no gradient.

        Args:
            name: of what is called.
            operands: of the call, nested in tuples, lists and dicts.
            results: likewise.
        """
        if self.tape.depends(operands):
            given, made = (tuple(map(still, values_in(x))) for x in (operands, results))
            why = "it is no row of the operator table; bt.register can give it one, with a gradient"
            self.tape.note(UnknownStep(name, why, given, made, self.span))


def left_to_torch(
    builder: Builder,
    op: Op | None,
    fn: Callee,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    result: Any,
    metas: list[torch.Tensor],
    reason: str,
    random: bool,
) -> list[relax.Expr]:
    """Emit a call that torch runs, and note where its gradient comes from.

    Args:
        builder: emits it.
        op: the row of the callable, if it has one.
        fn: the callable.
        args, kwargs: values and Python objects.
        result: of the call, on meta tensors.
        metas: the tensors of that.
        reason: why torch runs it.
        random: whether it draws random numbers.
    """
    rule = None if op is None else op.gradient
    if rule is stops or not builder.tape.depends((args, kwargs)):
        return builder.call_torch(fn, args, kwargs, metas, reason, random)[0]
    has_rule = rule is not None and not random
    # Gradients that have gradients themselves are computed from the arguments.
    is_recorded = builder.records_torch and not has_rule
    operands = enumerate(values_in((args, kwargs)))
    wanted = tuple(i for i, x in operands if is_recorded and builder.follows(x))
    exprs, record = builder.call_torch(fn, args, kwargs, metas, reason, random, wanted)
    values = tuple(Value(builder, expr, meta) for expr, meta in zip(exprs, metas))
    given, named = all_still(args, torch_names(kwargs))
    if op is not None and has_rule:
        single = isinstance(result, torch.Tensor)
        builder.tape.note(RowStep(op, fn, given, named, values, single, builder.span))
        return exprs
    builder.tape.note(TorchStep(fn, given, named, values, builder.span, random, record))
    return exprs


def _suits(view: View, meta: torch.Tensor, is_of_library: bool) -> bool:
    """Whether a callable takes a view for a tensor."""
    if is_of_library:
        return meta.dtype.itemsize != 2 or not view.breaks_steps_of(_HALVES)
    return view.is_like(meta)


def _as_dim(size: torch.SymInt) -> Dim:
    return Dim(size_text(size), 2)
