"""Running sums of what is turned over, themselves turned over -> walks from the other end.

So torch's users write a running sum from the last element on, and so its gradient is. It would be
three kernels, as each walks along a row in its own order.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import tvm_ffi
from tvm import IRModule, ir, relax, s_tir, tirx

from babytriton.ops.primfunc import nodes, with_fields
from babytriton.ops.scans import SCAN
from babytriton.passes.bindings import CALL_TIR, add_kernel, read_by
from babytriton.passes.scans import is_walk
from babytriton.passes.statements import with_parts

_ASTYPE, _FLIP, _PERMUTE = (
    ir.Op.get(f"relax.{name}") for name in ("astype", "flip", "permute_dims")
)


def scans_from_the_end(mod: IRModule) -> IRModule:
    """The program with one kernel where two operators and a kernel were: the first is left behind.

    Args:
        mod: of operators, and of calls of kernels.
    """
    functions = dict(mod.functions_items())
    for var, function in mod.functions_items():
        if isinstance(function, relax.Function):
            functions[var] = _turned_over(function, functions)
    if all(functions[var] is function for var, function in mod.functions_items()):
        return mod
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def _turned_over(
    function: relax.Function, functions: dict[ir.GlobalVar, ir.BaseFunc]
) -> relax.Function:
    """A function of the program, of which what comes of a change may be changed again."""
    while (changed := _Walks(function, functions).turned()) is not function:
        function = changed
    return function


@dataclass(frozen=True)
class _Walk:
    """A running sum of what is turned over, which is turned over.

    Attributes:
        source: what is turned over first.
        links: what goes from it to the second time, but for that.
        kernel: that of the running sum.
    """

    source: relax.Expr
    links: list[relax.VarBinding]
    kernel: ir.GlobalVar


class _Walks:
    """Those of a function.

    Args:
        function: of the program.
        functions: of the module, to which kernels are added.
    """

    def __init__(
        self, function: relax.Function, functions: dict[ir.GlobalVar, ir.BaseFunc]
    ) -> None:
        self._function, self._functions = function, functions
        self._bindings: dict[relax.Var, relax.VarBinding] = {}
        self._reads = Counter(relax.analysis.free_vars(function.body.body))
        for block in function.body.blocks:
            for binding in block.bindings:
                self._reads.update(read_by(binding))
                if isinstance(binding, relax.VarBinding):
                    self._bindings[binding.var] = binding
        self._kernels: dict[ir.GlobalVar, ir.GlobalVar] = {}

    def turned(self) -> relax.Function:
        """The function with walks from the other end; or the same, where there is nothing such."""
        found = {
            var: walk
            for var, binding in self._bindings.items()
            if (walk := self._walk(binding)) is not None
        }
        if not found:
            return self._function
        blocks = []
        for block in self._function.body.blocks:
            bindings: list[relax.Binding] = []
            for binding in block.bindings:
                walk = found.get(binding.var)
                bindings += [binding] if walk is None else self._made(walk, binding)
            blocks.append(type(block)(bindings))
        own = self._function
        body = relax.SeqExpr(blocks, own.body.body)
        return relax.Function(own.params, body, own.ret_ty, own.is_pure, own.attrs, own.span)

    def _walk(self, binding: relax.VarBinding) -> _Walk | None:
        """What ends with a binding; None if it is something else."""
        if not _is(binding.value, _FLIP):
            return None
        axis, kernel = int(binding.value.attrs.axis), None
        links: list[relax.VarBinding] = []
        var = binding.value.args[0]
        while (link := self._bindings.get(var)) is not None:
            value = link.value
            if kernel is not None and _is(value, _FLIP) and int(value.attrs.axis) == axis:
                return _Walk(value.args[0], links[::-1], kernel)
            if _is(value, CALL_TIR) and kernel is None and axis == self._scanned(value):
                kernel, (var,) = value.args[0], value.args[1].fields
            elif _is(value, _ASTYPE) or (_is(value, _FLIP) and int(value.attrs.axis) != axis):
                (var,) = value.args
            elif _is(value, _PERMUTE) and value.attrs.axes is not None:
                (var,), axis = value.args, int(value.attrs.axes[axis])
            else:
                return None
            if self._reads[link.var] > 1:
                return None
            links.append(link)
        return None

    def _scanned(self, call: ir.Call) -> int | None:
        """The dimension along which a call of a kernel walks, if it does."""
        blocks = [x for x in nodes(self._functions[call.args[0]], s_tir.SBlock) if is_walk(x)]
        if len(blocks) != 1:
            return None
        _, dim, _, *kinds = blocks[0].annotations[SCAN]
        # Places are counted from the first element on.
        return None if "place" in kinds else int(dim)

    def _made(self, walk: _Walk, last: relax.VarBinding) -> list[relax.Binding]:
        """The bindings that end with the variable of one."""
        given, made = walk.source, []
        for link in walk.links:
            value = link.value
            if value.op == CALL_TIR:
                kernel = self._from_the_other_end(walk.kernel)
                arguments = [kernel, relax.Tuple([given])]
            else:
                arguments = [given]
            value = relax.Call(value.op, arguments, value.attrs, value.ty_args, value.span)
            var = last.var if link is walk.links[-1] else type(link.var)(link.var.name, link.var.ty)
            made.append(relax.VarBinding(var, value, link.span))
            given = var
        return made

    def _from_the_other_end(self, kernel: ir.GlobalVar) -> ir.GlobalVar:
        if kernel not in self._kernels:
            made = tvm_ffi.structural_map(self._functions[kernel], (s_tir.SBlock, _turned))
            self._kernels[kernel] = add_kernel(self._functions, kernel.name_hint, made)
        return self._kernels[kernel]


def _is(value: relax.Expr, op: ir.Op) -> bool:
    return isinstance(value, ir.Call) and value.op == op


def _turned(block: s_tir.SBlock) -> s_tir.SBlock:
    """A walk from the last element on in the place of one from the first on, or the other way."""
    if not is_walk(block):
        return block

    def steps(walk: tirx.For) -> tirx.For:
        at = walk.extent - tirx.const(1, "int64") - walk.loop_var
        body = tvm_ffi.structural_map(
            walk.body, (ir.Var, lambda var: at if var.same_as(walk.loop_var) else var)
        )
        return with_parts(walk, body)

    kind, dim, backwards, *kinds = block.annotations[SCAN]
    return with_fields(
        block,
        body=tvm_ffi.structural_map(block.body, (tirx.For, steps)),
        annotations={**block.annotations, SCAN: [kind, dim, 1 - int(backwards), *kinds]},
    )
