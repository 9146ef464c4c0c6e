"""Which of the user's lines a kernel computes.

Operators carry the place they were written at as TVM's span. TVM drops it where it turns operators
into TensorIR; here it is kept, and ends as an attribute of the kernels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import tvm
from tvm import ir, relax, tirx
from tvm.ir import IRModule

from babytriton.ops.primfunc import LINES
from babytriton.passes.bindings import CALL_TIR

Lines = Mapping[str, Iterable[str]]


def of_kernel(func: tirx.PrimFunc) -> tuple[str, ...]:
    """The lines that a kernel computes; none for one that is not from the user's code."""
    return tuple(map(str, func.attrs.get(LINES, ()))) if func.attrs else ()


def attached(mod: IRModule, lines: Lines) -> IRModule:
    """A module whose kernels have their lines, by the kernels' names."""
    functions = dict(mod.functions_items())
    for var, func in mod.functions_items():
        found = list(dict.fromkeys(lines.get(var.name_hint, ())))
        if isinstance(func, tirx.PrimFunc) and found:
            functions[var] = func.with_attr(LINES, found)
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def of_groups(mod: IRModule) -> Lines:
    """The lines of each group of operators that becomes a kernel, and of each kernel as it is."""
    found: dict[str, list[str]] = {}
    for var, func in mod.functions_items():
        if not isinstance(func, relax.Function):
            continue
        is_group = bool(func.attrs and func.attrs.get("Primitive", False))
        for call in _calls(func):
            if call.op != CALL_TIR or call.span is None:
                continue
            name = var.name_hint if is_group else call.args[0].name_hint
            found.setdefault(name, []).append(f"{call.span.source_name.name}:{call.span.line}")
    return found


def kept_by(change: tvm.transform.Pass) -> tvm.transform.Pass:
    """A pass that rewrites each binding in its place, and keeps the spans of the calls there."""

    def run(mod: IRModule, _: tvm.transform.PassContext) -> IRModule:
        spans = {}
        for _, func in mod.functions_items():
            if isinstance(func, relax.Function):
                for binding in _bindings(func):
                    spans[binding.var] = getattr(binding.value, "span", None)
        mod = change(mod)
        functions = {
            var: _with_spans(func, spans) if isinstance(func, relax.Function) else func
            for var, func in mod.functions_items()
        }
        found = IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)
        return relax.transform.Normalize()(found)

    return tvm.transform.module_pass(run, opt_level=0, name="babytriton.KeepLines")


def _with_spans(func: relax.Function, spans: Mapping[relax.Var, ir.Span | None]) -> relax.Function:
    if not isinstance(func.body, relax.SeqExpr):
        return func
    blocks = [
        type(block)([_with_span(binding, spans.get(binding.var)) for binding in block.bindings])
        for block in func.body.blocks
    ]
    body = relax.SeqExpr(blocks, func.body.body)
    return relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs, func.span)


def _with_span(binding: relax.Binding, span: ir.Span | None) -> relax.Binding:
    call = binding.value
    if (
        span is None
        or not isinstance(binding, relax.VarBinding)
        or not isinstance(call, ir.Call)
        or call.span is not None
    ):
        return binding
    return relax.VarBinding(
        binding.var, relax.Call(call.op, call.args, call.attrs, call.ty_args, span), binding.span
    )


def _calls(func: relax.Function) -> Iterator[ir.Call]:
    for binding in _bindings(func):
        if isinstance(binding.value, ir.Call):
            yield binding.value


def _bindings(func: relax.Function) -> Iterator[relax.Binding]:
    if isinstance(func.body, relax.SeqExpr):
        for block in func.body.blocks:
            yield from block.bindings
