"""Steps that read and write parts of memory that tensors share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from tvm import relax
from tvm.relax.script import builder as R

from babytriton.diagnostics import Span
from babytriton.ops.functions import INJECTIVE
from babytriton.ops.layout import Layout, overwritten, viewed
from babytriton.ops.refusals import NoGradient
from babytriton.ops.reverse.rows import CopyStep
from babytriton.ops.reverse.tape import still
from babytriton.ops.sizes import is_empty
from babytriton.ops.value import Value
from babytriton.types import TensorType

if TYPE_CHECKING:
    from babytriton.ops.builder import Builder

Grads = Sequence[tuple[Value, Value | None]]


def view(builder: Builder, contents: Value, meta: torch.Tensor) -> Value:
    """Emit what a tensor sees of a memory.

    Args:
        builder: emits it.
        contents: of the memory, as the tensor that it was made for.
        meta: the tensor that views it.
    """
    base, part = Layout.of(contents.meta), Layout.of(meta)
    if is_empty(meta):
        return Value(builder, builder.empties([TensorType.of(meta)])[0].expr, meta)
    expr = builder.emit_te("view", viewed(base, part), contents.expr, attrs=INJECTIVE)
    found = Value(builder, expr, meta)
    if builder.tape.depends(contents):
        builder.tape.note(ViewStep(still(contents), (found,), builder.span))
    return found


def overwrite(
    builder: Builder, contents: Value, new: Value, meta: torch.Tensor
) -> tuple[Value, Value]:
    """Emit a memory after a part of it got new elements.

    Args:
        builder: emits it.
        contents: of the memory, as the tensor that it was made for.
        new: the elements.
        meta: the tensor that views them.

    Returns:
        The memory, and what the tensor sees of it.
    """
    if is_empty(meta):
        if not builder.tape.depends(new):
            return contents, new
        found = Value(builder, R.emit(contents.expr), contents.meta)  # now with gradients
        _note_overwritten(builder, contents, new, meta, found)
        return found, new
    base, part = Layout.of(contents.meta), Layout.of(meta)
    put = builder.views.put(new.expr)
    if put is not None and put.is_of(contents.expr, part):
        found = Value(builder, put.into(base), contents.meta)
        _note_overwritten(builder, contents, new, meta, found)
        return found, view(builder, found, meta)
    contents = builder.views.before(contents, part)
    expr = builder.emit_te(
        "overwrite", overwritten(base, part), contents.expr, new.expr, attrs=INJECTIVE
    )
    found = Value(builder, expr, contents.meta)
    builder.views.note_written(expr, contents, part)
    _note_overwritten(builder, contents, new, meta, found)
    return found, new


def _note_overwritten(
    builder: Builder, contents: Value, new: Value, meta: torch.Tensor, found: Value
) -> None:
    if builder.tape.depends((contents, new)):
        step = OverwriteStep(still(contents), still(new), meta, (found,), builder.span)
        builder.tape.note(step)


def after_write(builder: Builder, seen: relax.Expr, before: relax.Expr, after: Value) -> Value:
    """A memory that was written to, with the gradient that torch gives it.

    Where none is recorded, or through a tensor that is detached, a write changes numbers and
    leaves their gradient what it was.

    Args:
        builder: emits it.
        seen: the memory as the tensor saw it that is written to.
        before, after: what the memory holds.
    """
    kept = builder.tape.find(before)
    if not builder.tape.is_off and (kept is None or builder.tape.find(seen) is not None):
        return after
    if kept is None:
        return Value(builder, builder.unfollowed(after.made), after.meta)
    found = Value(builder, R.emit(after.made), after.meta)
    builder.tape.replace(CopyStep(kept, (found,), builder.span))
    return found


@dataclass(frozen=True)
class ViewStep:
    """A part of a memory was read."""

    contents: Value
    results: tuple[Value, ...]
    span: Span | None

    def pull(self, builder: Builder, grads: Sequence[Value | None]) -> Grads:
        """Emit a memory of zeros with the gradient in the part that was read."""
        [grad], meta = grads, self.results[0].meta
        assert grad is not None
        if not Layout.of(meta).is_injective:
            why = "several of its elements lie in one place of memory that is written to"
            raise NoGradient("view", why, self.span)
        zeros = _lying(builder.call(torch.zeros_like, (self.contents,), {}), self.contents)
        whole, _ = overwrite(builder, zeros, grad, meta)
        return [(self.contents, whole)]


@dataclass(frozen=True)
class OverwriteStep:
    """A part of a memory was written to."""

    contents: Value
    new: Value
    meta: torch.Tensor
    results: tuple[Value, ...]
    span: Span | None

    def pull(self, builder: Builder, grads: Sequence[Value | None]) -> Grads:
        """Emit the gradient of the elements that stayed, and of those that are new."""
        [grad] = grads
        assert grad is not None
        grad = _lying(grad, self.contents)
        zeros = builder.call(torch.zeros_like, (self.new,), {})
        stayed, _ = overwrite(builder, grad, zeros, self.meta)
        return [(self.contents, stayed), (self.new, view(builder, grad, self.meta))]


def _lying(grad: Value, contents: Value) -> Value:
    """The gradient of a memory, with its elements where those of the memory lie.

    Torch lays gradients out otherwise, such as one that is a number for all elements.
    """
    found = Value(grad.emitter, grad.expr, contents.meta)
    found.device = grad.device
    return found
