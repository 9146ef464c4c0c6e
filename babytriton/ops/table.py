"""What a row of the operator table is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from babytriton.ops.refusals import RANDOM

Callee = Callable[..., Any]
"""A torch callable as the user's code reaches it: a function, a method or property of
``torch.Tensor``, or one of ``operator``'s functions."""


PRODUCTS = frozenset(
    ("matmul", "mm", "bmm", "mv", "addmm", "baddbmm", "addbmm", "linear", "einsum", "tensordot")
)
"""Rows of sums of products, by name. However their operands lie, torch's library reads them as they
are, and its results lie the same."""

_NUMPY_NAMES = {"axis": "dim", "keepdims": "keepdim"}
"""NumPy's names of parameters, which torch takes everywhere; rows know torch's own."""


@dataclass(frozen=True)
class Op:
    """One operator: the torch callables that mean it, and how Relax computes it.

    Exactly one of ``build``, ``decompose``, ``why`` and ``inlined`` is given.

    Args:
        name: torch's name of it, without a module.
        calls: the callables that mean this row. They are compared by identity, so an alias works.
        build: ``build(site, *args, **kwargs)`` with the callable's own arguments returns the
            Relax expression of the result, or a tuple of them. Tensors arrive as ``Value``,
            everything else as the Python value it is. It raises ``Unsupported`` for what it does
            not cover; that call then runs through torch.
        decompose: the operator in terms of other rows, as a plain torch function of the
            callable's own arguments.
        why: why it runs through torch, where neither of the above exists.
        scalars: whether Python floats among its arguments may stay variable at run time, so that
            a new value does not compile again. Only for elementwise arithmetic.
        meta: gives the result as meta tensors, where the callable itself does not.
        gradient: ``gradient(grad, result, *args, **kwargs)`` with the callable's own arguments,
            as a plain torch function, gives the gradients of its leading arguments: a tensor, or a
            tuple of tensors, of lists of them for arguments that are lists, and of ``None``. Where
            an argument was broadcast, or is of another dtype, the caller of the rule sums up and
            casts. ``grad`` and ``result`` are tuples where the callable gives several tensors. A
            row with ``decompose`` needs none.
        derive: the operator in terms of other rows, as ``decompose``, for where gradients are
            asked for and ``build`` would hide what they need.
        parts: the operator in terms of others that autocast may cast the arguments of, as a plain
            torch function, where torch's own is made of such.
        by_parts: whether ``build`` emits nothing but calls of other rows, so that these have its
            gradient, as with ``decompose``.
        inlined: whether its own Python body is compiled in its place, with ``gradient`` for the
            whole of it.
        registered: whether user code added the row: what goes wrong in it is the user's. Where its
            callable fails on meta tensors, Relax types the result.
    """

    name: str
    calls: tuple[Callee, ...]
    build: Callable[..., Any] | None = None
    decompose: Callable[..., Any] | None = None
    why: str | None = None
    scalars: bool = False
    meta: Callable[..., Any] | None = None
    gradient: Callable[..., Any] | None = None
    derive: Callable[..., Any] | None = None
    parts: Callable[..., Any] | None = None
    by_parts: bool = False
    inlined: bool = False
    registered: bool = False

    def __post_init__(self) -> None:
        given = [x for x in (self.build, self.decompose, self.why) if x is not None]
        if len(given) + self.inlined != 1:
            raise ValueError(f"row {self.name}: give one of build, decompose, why and inlined")

    @property
    def is_random(self) -> bool:
        """Whether another run of it gives other numbers."""
        return self.why == RANDOM


def stops(*_: Any) -> tuple[()]:
    """The gradient of what passes on numbers and no gradients, as ``detach`` does."""
    return ()


def index(rows: Iterable[Op]) -> dict[Callee, Op]:
    """The row of each callable.

    Raises:
        ValueError: two rows claim the same callable.
    """
    found: dict[Callee, Op] = {}
    for row in rows:
        for call in row.calls:
            if call in found:
                raise ValueError(f"{call} stands in rows {found[call].name} and {row.name}")
            found[call] = row
    return found


def torch_names(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of a call as rows know them."""
    # Where ``out`` is given at all, it is None: anything else is a mutation.
    return {_NUMPY_NAMES.get(k, k): value for k, value in kwargs.items() if k != "out"}


def called(fn: Callee) -> str:
    """What a callable that torch runs is called."""
    # What user code defines by torch.library.custom_op has its name in an attribute of its own.
    return str(getattr(fn, "__name__", None) or getattr(fn, "_name", None) or type(fn).__name__)
