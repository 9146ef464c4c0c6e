"""Several kernels of a program -> one kernel, by TVM's FuseTIR."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import tvm_ffi
from tvm import ir, relax
from tvm.ir import IRModule
from tvm.relax.expr import _update_type

from babytriton.passes import lines
from babytriton.passes.bindings import read_by
from babytriton.passes.names import of_constant, of_parts, without_endings
from babytriton.passes.repeated_blocks import without_repeated_blocks
from babytriton.passes.units import Unit, is_kernel

_LONGEST = 60  # letters of a kernel's name


def with_groups(
    mod: IRModule, var: ir.GlobalVar, number: int, units: list[Unit], groups: list[list[int]]
) -> tuple[IRModule, list[ir.GlobalVar]]:
    """The program with each group as one kernel; and these kernels, in the order of the groups."""
    builder = relax.BlockBuilder(mod)
    func = mod[var]
    made: dict[int, ir.GlobalVar] = {}  # by the first member of the group
    covered: dict[ir.GlobalVar, list[str]] = {}
    bindings: list[relax.Binding] = []
    reads = [{var for binding in unit.bindings for var in read_by(binding)} for unit in units]
    readers = Counter(var for read in reads for var in read)
    for part in _order(units, groups):
        inside = [binding for n in part for binding in units[n].bindings]
        if len(part) == 1:
            bindings += inside
            continue
        of_part = Counter(var for n in part for var in reads[n])
        results = [
            var
            for var in (binding.var for binding in inside)
            if readers[var] > of_part[var] or not isinstance(var, relax.DataflowVar)
        ]
        bound = {binding.var for binding in inside}
        arguments = [
            *(
                var
                for var in dict.fromkeys(v for b in inside for v in read_by(b))
                if var not in bound
            ),
            *constants_read(inside),
        ]
        kernel = builder.add_func(as_function(inside, arguments, results), _name(inside))
        parts = [binding.value.args[0] for binding in inside if is_kernel(binding)]
        covered[kernel] = [line for other in parts for line in lines.of_kernel(mod[other])]
        bindings += _calling(kernel, arguments, results)
        made[part[0]] = kernel
    blocks = list(func.body.blocks)
    blocks[number] = relax.DataflowBlock(bindings)
    body = relax.SeqExpr(blocks, func.body.body)
    builder.update_func(
        var, relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs, func.span)
    )
    whole = relax.transform.Normalize()(of_parts(builder.get()))
    found = without_endings(relax.transform.FuseTIR()(whole))
    found = lines.attached(found, {kernel.name_hint: texts for kernel, texts in covered.items()})
    kernels = [found.get_global_var(made[group[0]].name_hint) for group in groups]
    return _computing_once(found, kernels), kernels


def _computing_once(mod: IRModule, kernels: list[ir.GlobalVar]) -> IRModule:
    """The program with kernels that compute nothing twice."""
    functions = dict(mod.functions_items())
    functions.update({kernel: without_repeated_blocks(mod[kernel]) for kernel in kernels})
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def constants_read(bindings: Sequence[relax.Binding]) -> list[ir.GenericConst]:
    """The tensors that kernels read and that are known while compiling, each once."""
    calls = [binding.value for binding in bindings if is_kernel(binding)]
    given = [argument for call in calls for argument in call.args[1].fields]
    return list(dict.fromkeys(x for x in given if isinstance(x, ir.GenericConst)))


def _order(units: list[Unit], groups: list[list[int]]) -> list[list[int]]:
    """The units in an order in which they can run, those of a group together."""
    group_of = {n: group for group in groups for n in group}
    waiting = list(
        {id(part): part for n in range(len(units)) for part in [group_of.get(n, [n])]}.values()
    )
    done: set[int] = set()
    order: list[list[int]] = []
    while waiting:
        ready = next(p for p in waiting if all(units[n].needs <= done | set(p) for n in p))
        waiting.remove(ready)
        done.update(ready)
        order.append(ready)
    return order


def as_function(
    bindings: list[relax.Binding], arguments: list[relax.Expr], results: list[relax.Var]
) -> relax.Function:
    """The bindings as a function that becomes one kernel."""
    names: dict[relax.Expr, relax.Var] = {
        x: relax.Var(x.name if isinstance(x, relax.Var) else of_constant(x), x.ty)
        for x in arguments
    }

    def named(expr: relax.Expr) -> relax.Expr:
        return names.get(expr, expr)

    inner = []
    for binding in bindings:
        value = tvm_ffi.structural_map(binding.value, [(ir.Var, named), (ir.GenericConst, named)])
        kind = relax.Var if binding.var in results else relax.DataflowVar
        names[binding.var] = kind(binding.var.name, binding.var.ty)
        inner.append(relax.VarBinding(names[binding.var], value))
    given = [names[var] for var in results]
    result = given[0] if len(given) == 1 else relax.Tuple(given)
    body = relax.SeqExpr([relax.DataflowBlock(inner)], result)
    func = relax.Function([names[var] for var in arguments], body, result.ty, True)
    return relax.utils.copy_with_new_vars(func.with_attr("Primitive", True))


def _calling(
    kernel: ir.GlobalVar, arguments: list[relax.Expr], results: list[relax.Var]
) -> list[relax.Binding]:
    call = relax.Call(kernel, arguments)
    # TVM would infer a type without the sizes that no argument's shape tells.
    if len(results) == 1:
        _update_type(call, results[0].ty)
        return [relax.VarBinding(results[0], call)]
    whole = relax.DataflowVar("rows", relax.TupleType([var.ty for var in results]))
    _update_type(call, whole.ty)
    parts = [relax.TupleGetItem(whole, n) for n in range(len(results))]
    return [
        relax.VarBinding(whole, call),
        *(relax.VarBinding(var, part) for var, part in zip(results, parts)),
    ]


def _name(bindings: list[relax.Binding]) -> str:
    calls = [binding.value for binding in bindings if is_kernel(binding)]
    names = [call.args[0].name_hint.removeprefix("fused_") for call in calls]
    return f"fused_{'_'.join(names)}"[:_LONGEST].rstrip("_")
