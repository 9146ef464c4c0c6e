"""Copies of what nothing else reads, which are what they copy.

So is what steps of a loop append to a list, once it is stacked: the rows are there already. What
torch gives may be copied to another shape: it is taken in that one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import tvm_ffi
from tvm import ir, relax, tirx
from tvm.ir import IRModule
from tvm.relax.expr import _update_type

from babytriton.ops.fallback import TORCH_CALL
from babytriton.passes.bindings import CALL_PACKED, CALL_TIR, is_tensor, replaced
from babytriton.passes.reshape_kernels import keeps_order
from babytriton.passes.uses import Uses

_SHAPES = "babytriton.shapes_of_results"
"""What a program is annotated with: for results of torch that it takes in another shape than torch
gives them, the number of the parameter that is the call, that of the result, and the shape: a
number, or a name that a call tells, for each dimension."""


def shapes_of_results(mod: IRModule, entry: str) -> dict[int, dict[int, tuple[int | str, ...]]]:
    """In which other shapes a program takes what torch gives.

    Returns:
        For the parameters that are calls of torch, by number, the shapes of some results, by the
        numbers of these. The call is given the sizes that have names, in this order, behind those
        that it was given before.
    """
    found: dict[int, dict[int, tuple[int | str, ...]]] = {}
    for call, result, *shape in (mod[entry].attrs or {}).get(_SHAPES, ()):
        sizes = tuple(str(size) if isinstance(size, str) else int(size) for size in shape)
        found.setdefault(int(call), {})[int(result)] = sizes
    return found


def without_needless_copies(
    mod: IRModule, entry: str = "", fresh: Collection[int] = ()
) -> IRModule:
    """A program without copies of tensors that a kernel or torch has made and nothing else reads.

    Args:
        mod: a program of fused kernels.
        entry: the program's function.
        fresh: the numbers of its parameters that are calls of torch which give new tensors.
    """
    if "vdevice" in mod.global_infos:
        return mod
    functions = dict(mod.functions_items())
    for var, func in mod.functions_items():
        if isinstance(func, relax.Function) and isinstance(func.body, relax.SeqExpr):
            calls = {func.params[n]: n for n in fresh} if var.name_hint == entry else {}
            functions[var] = _Function(mod, func, calls).made()
    if all(functions[var] is func for var, func in mod.functions_items()):
        return mod
    found = IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)
    return relax.transform.DeadCodeElimination()(relax.transform.Normalize()(found))


class _Function:
    """A function of a program, and what of it is copied in vain.

    Args:
        mod: the program.
        func: the function.
        calls: the numbers of the parameters that are calls of torch which give new tensors.
    """

    def __init__(self, mod: IRModule, func: relax.Function, calls: Mapping[relax.Var, int]) -> None:
        self._mod, self._func, self._calls = mod, func, calls
        self._uses = Uses.of(func)
        self._same: dict[relax.Var, relax.Var] = {}
        """What is copied, and the copy, whose variable may be one that is seen from outside."""
        self._shapes: dict[relax.Var, dict[int, relax.Var]] = {}
        """By what torch gives: the numbers of results that are taken in the shape of a copy."""

    def made(self) -> relax.Function:
        """The function without the copies."""
        func = self._func
        blocks = [
            type(block)([x for x in block.bindings if not self._is_needless(x)])
            for block in func.body.blocks
        ]
        if not self._same:
            return func
        blocks = [type(block)([*map(self._reshaped, block.bindings)]) for block in blocks]
        for source, copy in self._same.items():
            while copy in self._same:
                copy = self._same[copy]
            self._same[source] = copy
        body = relax.SeqExpr(blocks, func.body.body, func.body.span)
        _update_type(body, func.body.ty)
        body = replaced(body, self._same)
        made = relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs, func.span)
        return made.with_attr(_SHAPES, self._notes()) if self._shapes else made

    def _is_needless(self, binding: relax.Binding) -> bool:
        """Whether a binding copies what nothing else reads; then it takes note of that."""
        call = getattr(binding, "value", None)
        if not isinstance(call, ir.Call) or call.op != CALL_TIR or len(call.args) > 2:
            return False
        arguments = [x for x in call.args[1].fields if is_tensor(x)]
        if len(arguments) != 1 or not isinstance(arguments[0], relax.Var):
            return False
        [source], copy = arguments, binding.var
        if self._uses.reads[source] != 1 or not keeps_order(self._mod[call.args[0]]):
            return False
        part, made = None, self._uses.values.get(source)
        if isinstance(made, relax.TupleGetItem):
            part, made = made, self._uses.values.get(made.tuple_value)
        if not isinstance(made, ir.Call):
            return False
        if made.op == CALL_TIR:
            if not tvm_ffi.structural_equal(source.ty, copy.ty):
                return False
        elif part is None or not self._is_torchs_alone(part, made) or not _has_plain_shape(copy):
            return False
        else:
            self._shapes.setdefault(part.tuple_value, {})[int(part.index)] = copy
        self._same[source] = copy
        return True

    def _is_torchs_alone(self, part: relax.TupleGetItem, call: ir.Call) -> bool:
        """Whether a call is one of torch that gives new tensors, of which this one has one name."""
        if call.op != CALL_PACKED or getattr(call.args[0], "global_symbol", "") != TORCH_CALL:
            return False
        items = [x for x in self._uses.values.values() if isinstance(x, relax.TupleGetItem)]
        whole, n = part.tuple_value, part.index
        names = [x for x in items if x.tuple_value.same_as(whole) and x.index == n]
        return call.args[1] in self._calls and len(names) == 1 and not self._uses.reads[whole]

    def _reshaped(self, binding: relax.Binding) -> relax.Binding:
        """A binding of what torch gives, with the shapes of the copies."""
        value: Any = getattr(binding, "value", None)
        if isinstance(value, relax.TupleGetItem) and value.tuple_value in self._shapes:
            item = relax.TupleGetItem(self._same[value.tuple_value], value.index)
            return relax.VarBinding(binding.var, item, binding.span)
        copies = self._shapes.get(binding.var)
        if copies is None:
            return binding
        (given,) = value.ty_args
        types = [copies[n].ty if n in copies else x for n, x in enumerate(given.fields)]
        type = relax.TupleType(types)
        name, function, *operands = value.args
        first = next((n for n, x in enumerate(operands) if is_tensor(x)), len(operands))
        operands[first:first] = [size for copy in copies.values() for size in _told(copy)]
        call = relax.Call(value.op, [name, function, *operands], value.attrs, [type], value.span)
        var = self._same[binding.var] = binding.var.__class__(binding.var.name, type)
        return relax.VarBinding(var, call, binding.span)

    def _notes(self) -> list[list[int | str]]:
        """What the function is annotated with."""
        found: list[list[int | str]] = []
        for var, copies in self._shapes.items():
            number = self._calls[self._uses.values[var].args[1]]
            for result, copy in copies.items():
                sizes = [int(x) if isinstance(x, tirx.IntImm) else x.name for x in copy.ty.shape]
                found.append([number, result, *sizes])
        return found


def _has_plain_shape(tensor: relax.Var) -> bool:
    """Whether each size of a tensor is a number or has a name."""
    return all(isinstance(size, (tirx.IntImm, ir.Var)) for size in tensor.ty.shape)


def _told(tensor: relax.Var) -> list[ir.Var]:
    """The sizes of a tensor that have names."""
    return [size for size in tensor.ty.shape if isinstance(size, ir.Var)]
