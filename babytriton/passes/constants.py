"""Tensors that are known while compiling: who is given one gets a tensor of its own.

The program keeps them, and gives the same ones at each call. What a caller wrote to a result that
is one of them would be there at the next call.
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm_ffi
from tvm import ir, relax, te, tirx
from tvm.ir import IRModule

from babytriton.passes.bindings import add_kernel, with_arguments
from babytriton.passes.uniform import number_of


def of_their_own(mod: IRModule) -> IRModule:
    """The program with copies of such tensors where it gives them away."""
    functions = dict(mod.functions_items())
    copies = _Copies(functions, "vdevice" not in mod.global_infos)
    for var, func in mod.functions_items():
        if isinstance(func, relax.Function) and not (func.attrs and "Primitive" in func.attrs):
            body = tvm_ffi.structural_map(func.body, (relax.SeqExpr, copies.given_away))
            if not body.same_as(func.body):
                made = relax.Function(
                    func.params, body, func.ret_ty, func.is_pure, func.attrs, func.span
                )
                functions[var] = made
    if len(functions) == len(mod.functions_items()):
        return mod
    found = IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)
    return relax.transform.Normalize()(found)


class _Copies:
    """Calls kernels that copy, or that fill a tensor with one number.

    Args:
        functions: of the module; the kernels are added.
        fill: whether they may read nothing: where they run does not show then.
    """

    def __init__(self, functions: dict[ir.GlobalVar, ir.BaseFunc], fill: bool) -> None:
        self._functions, self._fill = functions, fill

    def given_away(self, seq: relax.SeqExpr) -> relax.SeqExpr:
        """A body whose results, and what it calls functions with, are no such tensors."""
        blocks: list[relax.BindingBlock] = []
        count = len(self._functions)
        for block in seq.blocks:
            bindings: list[relax.Binding] = []
            for binding in block.bindings:
                call = getattr(binding, "value", None)
                if isinstance(call, ir.Call) and isinstance(call.op, ir.GlobalVar):
                    before, args = self._copied(call.args)
                    if before:
                        bindings += before
                        value = with_arguments(call, args)
                        binding = relax.VarBinding(binding.var, value, binding.span)
                bindings.append(binding)
            blocks.append(type(block)(bindings))
        results = list(seq.body.fields) if isinstance(seq.body, relax.Tuple) else [seq.body]
        after, results = self._copied(results)
        if len(self._functions) == count:
            return seq
        if after:
            blocks.append(relax.BindingBlock(after))
        result = relax.Tuple(results) if isinstance(seq.body, relax.Tuple) else results[0]
        return relax.SeqExpr(blocks, result)

    def _copied(self, given: Sequence[relax.Expr]) -> tuple[list[relax.Binding], list[relax.Expr]]:
        """Bindings of copies, and what is given with these in the places of constants."""
        bindings: list[relax.Binding] = []
        found: list[relax.Expr] = []
        for expr in given:
            if isinstance(expr, ir.GenericConst) and isinstance(expr.ty, relax.TensorType):
                made = self._filling(expr) if self._fill else None
                kernel, read = (self._copying(expr), [expr]) if made is None else (made, [])
                call = relax.call_tir(kernel, read, out_ty=expr.ty)
                expr = relax.Var("constant", expr.ty)
                bindings.append(relax.VarBinding(expr, call))
            found.append(expr)
        return bindings, found

    def _copying(self, constant: ir.GenericConst) -> ir.GlobalVar:
        shape = list(constant.ty.shape)
        given = te.placeholder(shape, str(constant.ty.dtype), name="known")
        copy = te.compute(shape, lambda *index: given(*index), name="copy")
        return self._kernel("copy", [given, copy])

    def _filling(self, constant: ir.GenericConst) -> ir.GlobalVar | None:
        """A kernel that stores the one number which all elements are; None if there are others."""
        number = number_of(constant)
        if number is None:
            return None
        fill = te.compute(list(constant.ty.shape), lambda *_: number, name="full")
        return self._kernel("full", [fill])

    def _kernel(self, name: str, tensors: list[te.Tensor]) -> ir.GlobalVar:
        func: tirx.PrimFunc = te.create_prim_func(tensors, "int64")
        func = func.without_attr("global_symbol").with_attr("tirx.noalias", True)
        return add_kernel(self._functions, name, func)
