"""Whether two tensors of a program were computed in the same way, and so are equal.

``x[x > 0] = x[x > 0] * 2`` computes its mask twice.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import ir, relax

from babytriton.ops.emission import Emission
from babytriton.ops.value import Value


def are_equal(emitted: Emission, left: Value, right: Value) -> bool:
    """Whether two tensors are the same computation of the same operands.

    Args:
        emitted: what was emitted into the program.
        left: a tensor of it.
        right: likewise.
    """
    pairs: list[tuple[Any, Any]] = [(left.expr, right.expr)]
    seen: set[tuple[Any, Any]] = set()
    while pairs:
        one, other = pairs.pop()
        if one is other or (isinstance(one, ir.Expr) and one.same_as(other)):
            continue
        if isinstance(one, relax.Var) and isinstance(other, relax.Var):
            if (one, other) in seen:
                continue
            seen.add((one, other))
            one, other = emitted.bindings.get(one), emitted.bindings.get(other)
        if one is None or other is None or isinstance(one, relax.Var):
            return False
        if not isinstance(one, relax.Call) or not isinstance(other, relax.Call):
            if not tvm_ffi.structural_equal(one, other):
                return False
            continue
        found = [_operands(emitted, call) for call in (one, other)]
        if len(found[0]) != len(found[1]) or not _alike(emitted, one, other):
            return False
        pairs += zip(*found)
    return True


def _operands(emitted: Emission, call: relax.Call) -> list[Any]:
    found: list[Any] = []
    for arg in call.args:
        if isinstance(arg, ir.GlobalVar) and arg in emitted.functions:
            continue
        found += list(arg.fields) if isinstance(arg, relax.Tuple) else [arg]
    return found


def _alike(emitted: Emission, one: relax.Call, other: relax.Call) -> bool:
    """Whether two calls are of equal functions, whatever of."""
    functions = [
        [emitted.functions[arg] for arg in call.args if isinstance(arg, ir.GlobalVar)]
        for call in (one, other)
    ]
    parts = [(call.op, call.attrs, call.ty_args, call.ty) for call in (one, other)]
    return len(functions[0]) == len(functions[1]) and all(
        tvm_ffi.structural_equal(a, b) for a, b in (*zip(*functions), *zip(*parts))
    )
