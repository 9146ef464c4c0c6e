"""Which loops of a nest may run in any order: those whose iterations touch elements of their own.

Sound and simple: of a tensor that is written, every access must have, in some dimension, one and
the same index, and those indices together must tell any two iterations apart.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import ir, sym, tirx

from babytriton.frontend.kernel.program import (
    Loop,
    Statement,
    distinct,
    every,
    exposed,
    has,
    is_local,
    loads_in,
    stores_in,
    variables,
)
from babytriton.frontend.kernel.scalars import loads


def independent(
    nest: Sequence[Loop],
    body: Sequence[Statement],
    live: Sequence[tirx.Buffer],
    ignored: Sequence[tirx.Buffer],
) -> list[Loop]:
    """The loops of a nest whose iterations may run in any order, whatever the others do.

    Args:
        nest: perfectly nested loops, of constant extents.
        body: of the innermost.
        live: the locals whose values are read after the nest.
        ignored: buffers that any iteration may write.
    """
    stores, reads = stores_in(body), loads_in(body)
    written = distinct([store.buffer for store in stores])
    locals = [x for x in written if is_local(x)]
    carried = exposed(body)
    if any(has(carried, x) or has(live, x) for x in locals):
        return []
    found = list(nest)
    tensors = [x for x in written if not is_local(x) and not has(ignored, x)]
    for _ in nest:
        for tensor in tensors:
            accesses = [s.indices for s in stores if s.buffer.same_as(tensor)]
            accesses += [tuple(r.indices) for r in reads if r.source.same_as(tensor)]
            shared = _shared(accesses, found, nest, body, written)
            found = _told_apart(shared, found)
    return found


def _shared(
    accesses: Sequence[Sequence[ir.Expr]],
    loops: Sequence[Loop],
    nest: Sequence[Loop],
    body: Sequence[Statement],
    written: Sequence[tirx.Buffer],
) -> list[ir.Expr]:
    """The indices that are the same in all accesses, and change with the given loops alone."""
    inner = [s.var for s in _loops(body)]
    moving = [loop.var for loop in nest if not has([x.var for x in loops], loop.var)] + inner
    first, *rest = accesses
    analyzer = sym.Analyzer()
    return [
        expr
        for dim, expr in enumerate(first)
        if all(analyzer.can_prove_equal(expr, other[dim]) for other in rest)
        and not any(has(moving, var) for var in variables(expr))
        and not any(has(written, load.source) for load in loads(expr))
    ]


def _told_apart(indices: Sequence[ir.Expr], loops: Sequence[Loop]) -> list[Loop]:
    """The loops whose variables the indices determine."""
    known: list[Loop] = []
    for _ in loops:
        for expr in indices:
            factors = _factors(expr, [loop for loop in loops if loop not in known])
            if factors is not None and _is_injective(factors):
                known += [loop for loop, _ in factors]
    return [loop for loop in loops if loop in known]


def _factors(expr: ir.Expr, loops: Sequence[Loop]) -> list[tuple[Loop, int]] | None:
    """What each of the loops that an index depends on is multiplied by in it."""
    used = [loop for loop in loops if has(variables(expr), loop.var)]
    if not used:
        return None
    found = sym.detect_linear_equation(expr, [loop.var for loop in used])
    if not len(found) or not all(isinstance(x, tirx.IntImm) for x in found[:-1]):
        return None
    if any(has(variables(found[-1]), loop.var) for loop in used):
        return None
    return [(loop, int(factor)) for loop, factor in zip(used, found)]


def _is_injective(factors: Sequence[tuple[Loop, int]]) -> bool:
    """Whether a sum of multiples is another for any other iteration, as digits of a number are."""
    reach = 0
    for loop, factor in sorted(factors, key=lambda item: abs(item[1])):
        if abs(factor) <= reach:
            return False
        reach += abs(factor) * (int(loop.extent) - 1)
    return True


def _loops(statements: Sequence[Statement]) -> list[Loop]:
    return [statement for statement in every(statements) if isinstance(statement, Loop)]
