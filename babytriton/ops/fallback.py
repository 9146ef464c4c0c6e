"""Calls that run through torch from inside the compiled graph."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import torch

from babytriton.diagnostics import Span
from babytriton.ops.meta import apply, tensors_of
from babytriton.ops.table import Callee
from babytriton.ops.torch_graphs import Graph
from babytriton.ops.trees import leaves_in, map_leaves
from babytriton.ops.value import Scalar, Value, map_values, values_in
from babytriton.ops.views import View
from babytriton.types import Dim, Size, TensorType

TORCH_CALL = "babytriton.torch_call"
"""Packed function, registered by the runtime: its first argument, applied to the others."""


@dataclass(frozen=True)
class Fallback:
    """A call that runs through torch from inside the compiled graph.

    Attributes:
        name: the callable's name.
        reason: why it did not become part of a kernel.
        span: the user's line it came from.
    """

    name: str
    reason: str
    span: Span | None

    def __str__(self) -> str:
        place = f" ({self.span.path}:{self.span.line})" if self.span else ""
        return f"{self.name}: {self.reason}{place}"


@dataclass(frozen=True)
class TorchCall:
    """What a fallback runs: a torch callable with holes where its tensors go.

    Attributes:
        fn: the callable.
        args, kwargs: its arguments, with a :class:`Value` for each tensor and a :class:`Dim` for
            each symbolic size.
        results: the types of its results, laid out as the program takes them.
        sizes: the names of the symbolic sizes in the arguments and the results.
        fallback: what there is to say of it; ``None`` for what is run for its effect.
        turns: the axes of each tensor that it is given, as the callable is to see them; all as they
            are if empty, and for tensors beyond these.
        views: what the callable is to see of each tensor that it is given, once that is turned; all
            of it where there is none, and for tensors beyond these.
        is_new: whether its results are known to share no memory with what it is given.
        layout: the axes of each result, of those that have as many, in the order in which torch is
            known to lay them out: the program takes results so, without a copy; others as they are.
        keeps_format: whether its results are in channels_last where one of its operands is.
        shapes: of results that the program takes in another shape than torch gives, which one; only
            of calls that give new tensors.
        recorded: the numbers of the tensors that gradients are asked of, if torch is to record the
            call: what keeps its graph comes behind the results.
    """

    fn: Callee
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    results: tuple[TensorType, ...]
    sizes: tuple[str, ...] = ()
    fallback: Fallback | None = None
    turns: tuple[tuple[int, ...], ...] = ()
    views: tuple[View | None, ...] = ()
    is_new: bool = False
    layout: tuple[int, ...] = ()
    keeps_format: bool = False
    shapes: Mapping[int, tuple[Size, ...]] = field(default_factory=dict)
    recorded: tuple[int, ...] = ()

    def __call__(self, given: Sequence[Any]) -> list[torch.Tensor]:
        """Run on the numbers of the sizes, and then the tensors, in the order of the arguments.

        Its results may record gradients, where the callable knows of more than its arguments.

        Raises:
            RuntimeError: torch gives another type than the program was compiled for.
        """
        try:
            if torch._C._is_any_autocast_enabled():
                # What autocast casts was cast when the program was compiled.
                with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
                    return self(given)
            for n, axes in self._turned:
                given = [*given[:n], given[n].permute(axes), *given[n + 1 :]]
            for n, view, is_told in self._viewed:
                view = view.with_sizes(Dim, partial(self._size, given)) if is_told else view
                given = [*given[:n], view.of(given[n]), *given[n + 1 :]]
            graph = None
            if self.recorded:
                graph, found = Graph.of(self.fn, *self._filled(given), self.recorded)
            else:
                found = self._results(given)
            if self.layout:
                found = [x.permute(self.layout) if self.is_laid_out(x.ndim) else x for x in found]
            for tensor, (sizes, dtype) in zip(found, self._expected):
                shape = tuple([given[n] if is_told else n for n, is_told in sizes])
                if tensor.shape != shape or tensor.dtype != dtype:
                    ours, expected = TensorType.of(tensor), TensorType(shape, dtype)
                    raise RuntimeError(f"torch gave {ours} where {expected} was expected")
            for n, sizes in self._reshaped:
                shape = tuple([given[n] if is_told else n for n, is_told in sizes])
                found[n] = found[n].reshape(shape).detach()  # no view to autograd
            return found if graph is None else [*found, graph.keeper(found[0].device)]
        except Exception as error:
            self._say_where(error)
            raise

    def _results(self, given: Sequence[Any]) -> list[torch.Tensor]:
        """What the callable gives."""
        if self._rest is not None:
            result = self.fn(*given[len(self.sizes) :], *self._rest, **self.kwargs)
        else:
            result = apply(self.fn, *self._filled(given))
        return [result] if isinstance(result, torch.Tensor) else tensors_of(result)

    def _say_where(self, error: Exception) -> None:
        """Let what torch raises tell the line that called it, as Python 3.11 and later show it."""
        span = None if self.fallback is None else self.fallback.span
        if self.fallback is not None and span is not None and sys.version_info >= (3, 11):
            place = f"{span.path}:{span.line}: {span.text().strip()}"
            note = f"raised by `{self.fallback.name}`, called at {place}"
            if note not in getattr(error, "__notes__", ()):
                error.add_note(note)

    def is_laid_out(self, rank: int) -> bool:
        """Whether results of so many dimensions are taken in the order of `layout`."""
        return len(self.layout) == rank > 0

    def turning(self, axes: Mapping[int, Sequence[int]]) -> TorchCall:
        """The same for tensors that are turned.

        Args:
            axes: for the numbers of some of what it is given, the axes that make the tensor, which
                it took before, of the one that it takes now.
        """
        first = len(self.sizes)
        turns, views = dict(enumerate(self.turns)), list(self.views)
        for n, made in axes.items():
            view = views[n - first] if n - first < len(views) else None
            turned = None if view is None else view.turned(made)
            if turned is not None:
                views[n - first] = turned
                continue
            turn = turns.get(n - first) or range(len(made))
            turns[n - first] = tuple(made[axis] for axis in turn)
        count = max(turns, default=-1) + 1
        known = tuple(turns.get(n, ()) for n in range(count))
        return replace(self, turns=known, views=tuple(views))

    def laying_out(self, order: tuple[int, ...]) -> TorchCall:
        """The same whose results are taken with their axes in an order, in which torch has them."""
        results = [TensorType(tuple([t.shape[n] for n in order]), t.dtype) for t in self.results]
        return replace(self, results=tuple(results), layout=order)

    def in_shapes(self, shapes: Mapping[int, tuple[Size, ...]]) -> TorchCall:
        """The same with some results, by their numbers, in other shapes.

        It is given the symbolic sizes of these behind those that it was given before: all of the
        names in a shape, in order, also those that it has been told.
        """
        told = [size.name for shape in shapes.values() for size in shape if isinstance(size, Dim)]
        return replace(self, shapes={**self.shapes, **shapes}, sizes=(*self.sizes, *told))

    def _filled(self, given: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with their tensors and sizes."""
        rest = iter(given[len(self.sizes) :])

        def fill(value: Value) -> Any:
            # A Python number of the run time travels as a tensor of one element.
            return next(rest).item() if isinstance(value, Scalar) else next(rest)

        filled = map_values((self.args, dict(self.kwargs)), fill)
        args, kwargs = map_leaves(filled, Dim, partial(self._size, given))
        return args, kwargs

    def _size(self, given: Sequence[Any], dim: Dim) -> int:
        return int(given[self.sizes.index(dim.name)])

    @cached_property
    def _turned(self) -> list[tuple[int, tuple[int, ...]]]:
        """Which of what it is given are tensors to be transposed, and how."""
        first = len(self.sizes)
        return [
            (first + n, axes) for n, axes in enumerate(self.turns) if axes != tuple(sorted(axes))
        ]

    @cached_property
    def _viewed(self) -> list[tuple[int, View, bool]]:
        """Which of what it is given are tensors to be viewed, how, and whether a call tells it."""
        first = len(self.sizes)
        return [
            (first + n, view, bool(leaves_in(view.numbers, Dim)))
            for n, view in enumerate(self.views)
            if view is not None
        ]

    @cached_property
    def _expected(self) -> list[tuple[list[tuple[int, bool]], torch.dtype]]:
        """The sizes and dtype of each result; a size that a call tells by its number."""
        return [([self._size_of(size) for size in type.shape], type.dtype) for type in self.results]

    @cached_property
    def _reshaped(self) -> list[tuple[int, list[tuple[int, bool]]]]:
        """Which results are taken in another shape, and its sizes as in `_expected`."""
        return [(n, [*map(self._size_of, shape)]) for n, shape in self.shapes.items()]

    def _size_of(self, size: Size) -> tuple[int, bool]:
        return (self.sizes.index(size.name), True) if isinstance(size, Dim) else (int(size), False)

    @cached_property
    def _rest(self) -> tuple[Any, ...] | None:
        """What follows the tensors, if these come first and all else is as good as constants.

        None if another argument is or has a tensor or a size, or is a list, of which each call
        gets its own.
        """
        leading = 0
        while leading < len(self.args) and type(self.args[leading]) is Value:
            leading += 1
        rest = (self.args[leading:], dict(self.kwargs))
        lists = [x for x in (*rest[0], *rest[1].values()) if isinstance(x, (list, dict))]
        others = lists or values_in(rest) or leaves_in(rest, Dim)
        return None if others or not callable(self.fn) else rest[0]
