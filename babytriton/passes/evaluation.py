"""Tensors that are known while compiling, computed by a kernel of their own that runs at once."""

from __future__ import annotations

import math
from collections.abc import Mapping

import tvm
from tvm import IRModule, ir, relax, s_tir, tirx

from babytriton.ops.primfunc import nodes
from babytriton.passes.bindings import with_type
from babytriton.passes.cpu.backend import BACKEND
from babytriton.passes.cpu.formulas import FORMULAS
from babytriton.passes.intrinsics import (
    dtype_of,
    function_name,
    in_float32,
    is_half_function,
    is_pure,
    rewrite_calls,
)
from babytriton.passes.lowering import LOWERING
from babytriton.passes.merging import as_function, constants_read
from babytriton.passes.names import has_name, with_name
from babytriton.passes.scheduling import is_scheduled
from babytriton.passes.wide_sums import with_wide_sums
from babytriton.targets import UNSOUND_PASSES, WITHOUT_SLP, Target, tvm_target

_WHOLE = "evaluated"

_FROM_ELSEWHERE = ("call_pure_extern", "call_pure_packed")


_MOST = 1 << 24
"""Statements that computing a tensor runs at most."""


def can_run(kernel: tirx.PrimFunc) -> bool:
    """Whether the CPU soon has what a kernel computes, and nothing else comes of that.

    Not of one that its author wrote for a kind of GPU, or that calls functions from elsewhere.
    """
    if is_scheduled(kernel):
        return False
    calls = nodes(kernel.body, ir.Call)
    is_own = all(is_pure(x) and function_name(x) not in _FROM_ELSEWHERE for x in calls)
    return is_own and _steps(kernel.body) <= _MOST


def _steps(stmt: tirx.Stmt) -> float:
    """How many statements are run, where that is known."""
    if isinstance(stmt, s_tir.SBlockRealize):
        return _steps(stmt.block.body)
    if isinstance(stmt, tirx.SeqStmt):
        return sum(map(_steps, stmt.seq))
    if isinstance(stmt, tirx.For):
        is_known = isinstance(stmt.extent, tirx.IntImm)
        return int(stmt.extent) * _steps(stmt.body) if is_known else math.inf
    return 1 if isinstance(stmt, (tirx.BufferStore, tirx.Bind)) else math.inf


def evaluated(
    mod: IRModule, bindings: list[relax.Binding], wanted: list[relax.Var]
) -> Mapping[relax.Var, ir.GenericConst]:
    """The tensors themselves, which have the user's names.

    Args:
        mod: has the kernels.
        bindings: of calls of these, which read each other's results, and what is known.
        wanted: the results to be computed.
    """
    given = constants_read(bindings)
    func = as_function(bindings, given, wanted)
    var = with_type(ir.GlobalVar(_WHOLE), func.ty)
    call = with_type(relax.Call(var, given), func.ret_ty)
    result = relax.Var("result", func.ret_ty)
    block = relax.BindingBlock([relax.VarBinding(result, call)])
    program = relax.Function([], relax.SeqExpr([block], result), func.ret_ty)
    main = ir.GlobalVar("main")
    kernels = {kernel: mod[kernel] for kernel in (x.value.args[0] for x in bindings)}
    functions = {**kernels, var: func, main: program.with_attr("global_symbol", "main")}
    fused = relax.transform.FuseTIR()(IRModule(functions))
    kernel = fused[_WHOLE].with_attr("global_symbol", _WHOLE)
    results = [tvm.runtime.empty([int(n) for n in x.ty.shape], x.ty.dtype) for x in wanted]
    _built(kernel)(*(x.value for x in given), *results)
    constants = (ir.GenericConst(value, x.ty) for value, x in zip(results, wanted))
    return {
        x: with_name(constant, x.name) if has_name(x) else constant
        for x, constant in zip(wanted, constants)
    }


def _built(kernel: tirx.PrimFunc) -> tvm.runtime.Function:
    """The kernel as a function, compiled as those that run at a call are."""
    home = tvm_target(Target("cpu"), (WITHOUT_SLP,))
    mod = IRModule({ir.GlobalVar(_WHOLE): kernel})
    with home, tvm.transform.PassContext(opt_level=3, disabled_pass=UNSOUND_PASSES):
        for step in (with_wide_sums, _rounded_once, *BACKEND.finish):
            mod = step(mod)
        return tvm.tirx.build(mod, target=home, pipeline=LOWERING).get_function(_WHOLE)


def _rounded_once(mod: IRModule) -> IRModule:
    """Kernels whose functions of float32 are as near as one is, which takes no time of a call.

    Torch's are, with few exceptions, and a table of angles multiplies what they differ by.
    """
    return rewrite_calls(mod, _by_double)


def _by_double(call: ir.Call) -> ir.Expr:
    if is_half_function(call):
        whole = in_float32(call)
        return tirx.Cast(dtype_of(whole), _by_double(whole.value))
    if dtype_of(call) != "float32" or function_name(call) not in FORMULAS:
        return call
    wide = (tirx.Cast("float64", x) for x in call.args)
    return tirx.Cast("float32", tirx.call_intrin("float64", call.op, *wide))
