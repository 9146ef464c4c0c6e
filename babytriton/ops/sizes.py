"""Sizes in kernels: constants, and those known only at the call."""

from __future__ import annotations

from typing import Any

import torch
from tvm import ir, sym, tirx

from babytriton.ops.trees import leaves_in

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
"""Python numbers that depend on sizes known only at the call."""


_KINDS: tuple[tuple[type, type], ...] = tuple(zip(SYMBOLIC, (int, float, bool)))


def int64(size: Any) -> tirx.PrimExpr:
    """A size or an index as kernels have it: FuseTIR joins only buffers with int64 shapes.

    Args:
        size: a Python int, a symbolic size of torch's, or an expression already.
    """
    if isinstance(size, torch.SymInt):
        return size.node.shape_env.expr(size)
    return tirx.IntImm("int64", size) if isinstance(size, int) else size


def as_number(size: Any, dtype: str) -> tirx.PrimExpr:
    """A size as a number to compute with."""
    return int64(size).astype(dtype) if is_symbolic(size) else tirx.const(size, dtype)


def is_symbolic(size: Any) -> bool:
    """Whether a size of torch's, or of a kernel's buffer, is known only at the call."""
    if isinstance(size, ir.Expr):
        return not isinstance(size, tirx.IntImm)
    return isinstance(size, torch.SymInt)


def is_known(condition: Any) -> bool:
    """Whether a condition on sizes holds for all that the program is for."""
    if isinstance(condition, bool):
        return condition
    # Imported where there are symbolic sizes: it is a part of torch's compiler.
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return bool(statically_known_true(condition))


def divided(number: Any, by: Any) -> tuple[Any, Any]:
    """Quotient and remainder of sizes, of which the remainder is not negative where that is known.

    Those of a symbolic size hold for all that the program is for; the quotient may be too small.
    """
    symbolic = next((n for n in (number, by) if isinstance(n, torch.SymInt)), None)
    found: tuple[Any, Any]
    found = divmod(number, by) if symbolic is None else symbolic.node.shape_env.divided(number, by)
    return found


def is_at_most(size: Any, most: Any) -> bool:
    """Whether a size is known to be no greater than another, whatever the symbolic ones are."""
    symbolic = isinstance(size, torch.SymInt)
    parts = size.node.shape_env.bounds(size) if symbolic else [size]
    return any(is_known(part <= most) for part in parts)


def is_empty(meta: torch.Tensor) -> bool:
    """Whether a tensor has no elements, whatever the sizes are that a call tells."""
    return any(isinstance(n, int) and n == 0 for n in meta.shape)


def is_one(size: Any) -> bool:
    """Whether a dimension of a kernel's buffer broadcasts.

    A symbolic size is never 1: where torch compared it with 1, that is a guard of the program.
    """
    return not is_symbolic(size) and int(size) == 1


def each(value: Any, rank: int) -> list[int]:
    """A size for each dimension, where torch takes one number for all of them."""
    if isinstance(value, int):
        return [value] * rank
    given = [int(n) for n in value]
    return given * rank if len(given) == 1 else given


def same_shape(left: Any, right: Any) -> bool:
    """Whether two shapes are known to be equal, whatever the symbolic sizes in them are."""
    if len(left) != len(right):
        return False
    pairs = [(int64(a), int64(b)) for a, b in zip(left, right)]
    analyzer = sym.Analyzer()
    return all(
        int(a) == int(b)
        if isinstance(a, tirx.IntImm) and isinstance(b, tirx.IntImm)
        else analyzer.can_prove_equal(a, b)
        for a, b in pairs
    )


def symbolic_in(tree: Any) -> list[Any]:
    """The symbolic numbers in nested tuples, lists, dicts and slices, in order."""
    return leaves_in(tree, SYMBOLIC)


def constant(number: Any) -> Any:
    """A symbolic number as the constant it is for this program, which is guarded from then on."""
    return next(kind(number) for symbolic, kind in _KINDS if isinstance(number, symbolic))
