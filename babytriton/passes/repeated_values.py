"""What a program would compute twice, it computes once.

What gradients flow through is made of parts: those of softmax and of log_softmax of one tensor both
take the maxima of its rows, and sums of the same exponentials, for the way back to read. Of those,
and of all that is not cheap, the first stays. What is cheap is left to those that read it, with
which it fuses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm_ffi
from tvm import ir, relax, tirx
from tvm.ir import IRModule
from tvm.relax.expr import _update_type

from babytriton.ops.primfunc import is_users, nodes
from babytriton.passes.bindings import (
    CALL_IN_PLACE,
    CALL_PACKED,
    CALL_TIR,
    is_cheap,
    read_by,
    replaced,
    with_arguments,
)
from babytriton.passes.duplicates import same_as_before

_VIEWS = frozenset(
    f"relax.{name}"
    for name in ("reshape", "expand_dims", "squeeze", "permute_dims", "broadcast_to")
)
"""Operators whose results may be in the memory of what they are given."""


def without_repeated_values(mod: IRModule) -> IRModule:
    """A program without calls that compute what another one has computed.

    Args:
        mod: the program, whose kernels have patterns; those that nothing calls any more stay.
    """
    functions = dict(mod.functions_items())
    kernels = same_as_before(mod, [x for x, f in functions.items() if isinstance(f, tirx.PrimFunc)])
    for var, func in mod.functions_items():
        if isinstance(func, relax.Function) and isinstance(func.body, relax.SeqExpr):
            functions[var] = _without(mod, func, kernels)
    if all(functions[var] is func for var, func in mod.functions_items()):
        return mod
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def _without(
    mod: IRModule, func: relax.Function, kernels: Mapping[ir.GlobalVar, ir.GlobalVar]
) -> relax.Function:
    """A function of the program without such calls, some of whose kernels are the same."""
    seen = _Seen(mod, func, kernels)
    blocks = []
    for block in func.body.blocks:
        blocks.append(type(block)([x for x in block.bindings if not seen.again(x)]))
    if not seen.same:
        return func
    body = relax.SeqExpr(blocks, func.body.body, func.body.span)
    _update_type(body, func.body.ty)
    body = replaced(body, seen.same)
    return relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs, func.span)


class _Seen:
    """What a function has computed up to some binding.

    Args:
        mod: the program.
        func: the function.
        kernels: for each that is the same as one before it, that one.

    Attributes:
        same: for each variable that is left out, the one that has the same value.
    """

    def __init__(
        self, mod: IRModule, func: relax.Function, kernels: Mapping[ir.GlobalVar, ir.GlobalVar]
    ) -> None:
        self.same: dict[relax.Var, relax.Var] = {}
        self._mod = mod
        self._kernels = kernels
        self._given = _given(mod, func)
        self._equal: dict[relax.Var, relax.Var] = {}
        """For each variable the first that has the same value, also where both stay."""
        self._known: dict[tuple[Any, ...], list[tuple[relax.Expr, relax.Var]]] = {}

    def again(self, binding: relax.Binding) -> bool:
        """Whether a binding, the next one, is left out."""
        if isinstance(binding.value, relax.Var):  # such as what is detached
            self._equal[binding.var] = self._equal.get(binding.value, binding.value)
            return False
        first = self._first(binding) if self._is_value(binding) else None
        if first is None:
            return False
        self._equal[binding.var] = first
        if not self._is_replaced(binding, first):
            return False
        self.same[binding.var] = first
        return True

    def _first(self, binding: relax.Binding) -> relax.Var | None:
        """The variable that a binding before has given the same value."""
        value, reads = binding.value, read_by(binding)
        value = replaced(value, {x: self._equal[x] for x in reads if x in self._equal})
        if isinstance(value, ir.Call) and value.op == CALL_TIR and value.args[0] in self._kernels:
            arguments = [self._kernels[value.args[0]], *value.args[1:]]
            value = with_arguments(value, arguments)
        # Of other variables, values have the same hash if these have the same types.
        hashed = tvm_ffi.structural_hash(value, map_free_vars=True)
        alike = self._known.setdefault((hashed, *(self._equal.get(x, x) for x in reads)), [])
        for other, first in alike:
            if tvm_ffi.structural_equal(other, value):
                return first
        alike.append((value, binding.var))
        return None

    def _is_value(self, binding: relax.Binding) -> bool:
        """Whether a binding does no more than to compute, the same of the same."""
        value = binding.value
        if not isinstance(binding, relax.VarBinding) or isinstance(binding.var, relax.DataflowVar):
            return False
        if isinstance(value, relax.TupleGetItem):
            return True
        if not isinstance(value, ir.Call) or not isinstance(value.op, ir.Op):
            return False
        if value.op in (CALL_PACKED, CALL_IN_PLACE):  # torch may draw random numbers
            return False
        return value.op != CALL_TIR or not is_users(self._mod[value.args[0]])

    def _is_replaced(self, binding: relax.Binding, first: relax.Var) -> bool:
        """Whether a variable is left out, for which there is another one."""
        if {binding.var, first} <= self._given:
            return False
        is_part = isinstance(binding.value, relax.TupleGetItem)
        return is_part or not is_cheap(self._mod, binding.value)


def _given(mod: IRModule, func: relax.Function) -> set[relax.Var]:
    """What a function gives, or may give views of: each has its own memory."""
    found = set(relax.analysis.free_vars(func.body.body))
    for block in reversed(func.body.blocks):
        for binding in reversed(block.bindings):
            if binding.var in found and not _is_new(mod, getattr(binding, "value", None)):
                found.update(read_by(binding))
    return found


def _is_new(mod: IRModule, value: Any) -> bool:
    """Whether a value has memory of its own."""
    if not isinstance(value, ir.Call) or not isinstance(value.op, ir.Op):
        return False
    if value.op == CALL_TIR:
        stores = nodes(mod[value.args[0]], tirx.BufferStore)
        return not all(isinstance(store.value, ir.TensorLoad) for store in stores)
    return value.op.name not in _VIEWS
