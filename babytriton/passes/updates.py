"""Results that take the place of what the caller gave: an argument is written to where it lies.

A program has no memory to write to: what the function writes to an argument is an output, which is
copied to the argument after the call. Where nothing reads the old numbers after the kernel that
gives the new ones, it writes these to the argument itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

import tvm_ffi
from tvm import ir, relax, s_tir, tirx
from tvm.ir import IRModule
from tvm.relax.expr import _update_type

from babytriton.ops.primfunc import nodes
from babytriton.passes.aliasing import reads_before_it_writes
from babytriton.passes.bindings import add_kernel
from babytriton.passes.kernel_names import named_after
from babytriton.passes.owned import of_all
from babytriton.passes.partial_writes import is_box, without_boxes, without_the_rest, writes_a_part
from babytriton.passes.recurrences.in_place import PLACES, with_other_parameters
from babytriton.passes.scheduling import is_scheduled
from babytriton.passes.versions import NEW, Call, Program
from babytriton.plan import Updates

IN_PLACE = "babytriton.in_place"
"""What names the parameters of a kernel that it writes to, by their numbers."""

_BY_TORCH = "babytriton.written_by_torch"
"""What a program is annotated with: pairs of the number of a parameter that is a call of torch, and
which of the tensors that this writes to is one of the program's arguments."""

_TERMINAL = 3
"""FuseOps' number for what operators before it fuse with, and none after it."""

_Scheduled = Callable[[tirx.PrimFunc], tirx.PrimFunc | None]

_Change = Callable[[tirx.PrimFunc, tirx.Var, tirx.Var], tirx.PrimFunc | None]
"""Gives a kernel for which a parameter and a result may be in one place, of one in which they are
apart; None if there is none."""


def kept_apart(mod: IRModule, updates: Updates) -> IRModule:
    """Legalized operators, of which those that write a part of an argument end their groups.

    What reads all of an argument that a part was written to is to read it from there.
    """
    ends: set[str] = set()
    if "vdevice" not in mod.global_infos:
        ends.update(*(_writers(mod, each) for each in of_all(updates, mod)))
    functions = dict(mod.functions_items())
    for var, func in mod.functions_items():
        if isinstance(func, tirx.PrimFunc):
            if var.name_hint not in ends:
                func = without_boxes(func)
            elif any(map(is_box, nodes(func.body, s_tir.SBlock))):
                func = func.with_attr("op_pattern", _TERMINAL)
            functions[var] = func
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def _writers(mod: IRModule, updates: Updates) -> set[str]:
    """The operators that write a part of an argument, and no other does to all of it."""
    found: set[str] = set()
    program = Program.of(mod, updates)
    for parameter, output in updates.pairs:
        chain: list[str] = []
        value = program.outputs[output]
        while not value.same_as(program.parameters[parameter]):
            if value in program.by_torch:
                value = program.by_torch[value].old
                continue
            call = program.calls.get(value)
            if call is None or not writes_a_part(mod[call.kernel]):
                break
            chain.append(call.kernel.name_hint)
            value = call.arguments[0]
        else:
            found.update(chain)
    return found


def parts_in_place(mod: IRModule, updates: Updates, scheduled: _Scheduled) -> IRModule:
    """Fused kernels, of which those that write a part of an argument write that part alone.

    Args:
        mod: the program.
        updates: what it writes to its arguments.
        scheduled: gives a kernel with loops; None where no rule does.
    """

    def changed(func: tirx.PrimFunc, contents: tirx.Var, out: tirx.Var) -> tirx.PrimFunc | None:
        found = without_the_rest(func, contents, out)
        if found is None or not _is_update(found, contents):
            return found
        # It reads the elements that it writes, which are in one place once it is scheduled.
        whole = scheduled(found)
        if whole is None:
            return None
        own = dict(zip(found.params, whole.params))
        return found if reads_before_it_writes(whole, own[contents], own[out]) else None

    return _each_in_place(mod, updates, changed)


def in_place(mod: IRModule, updates: Updates) -> IRModule:
    """Scheduled kernels, of which those that write all of an argument write it where it lies."""
    return _each_in_place(mod, updates, reads_before_it_writes)


def in_place_by_torch(mod: IRModule, updates: Updates) -> IRModule:
    """A program of kernels that notes which calls of torch write to arguments where they lie.

    Args:
        mod: the program, whose kernels write to these already.
        updates: what it writes to its arguments.
    """
    if not updates.writers or "vdevice" in mod.global_infos:
        return mod
    program = Program.of(mod, updates)
    parameters = {param: n for n, param in enumerate(program.parameters)}
    notes: list[list[int]] = []
    for parameter, output in updates.pairs:
        for old, new in program.versions(parameter, output):
            if new in program.by_torch:
                write = program.by_torch[new]
                notes.append([parameters[write.function], write.memory])
            elif not program.calls[new].is_in_place(old, new):
                break  # It is not the argument that lies there from here on.
    if not notes:
        return mod
    functions = dict(mod.functions_items())
    entry = mod.get_global_var(updates.entry)
    functions[entry] = functions[entry].with_attr(_BY_TORCH, notes)
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def written_by_torch(mod: IRModule, entry: str) -> dict[int, frozenset[int]]:
    """What calls of torch write to where it lies.

    Returns:
        For the parameters that are such calls, by number, the numbers of the tensors among those
        that they write to.
    """
    found: dict[int, frozenset[int]] = {}
    for call, memory in (mod[entry].attrs or {}).get(_BY_TORCH, ()):
        found[int(call)] = found.get(int(call), frozenset()) | {int(memory)}
    return found


def _each_in_place(mod: IRModule, updates: Updates, changed: _Change) -> IRModule:
    """A program with results in the places of arguments, its own and those of its functions."""
    if "vdevice" in mod.global_infos:
        return mod
    for each in of_all(updates, mod):
        mod = _in_place(mod, each, changed)
    return mod


def _in_place(mod: IRModule, updates: Updates, changed: _Change) -> IRModule:
    """A program with results in the places of arguments.

    Args:
        mod: the program.
        updates: what it writes to its arguments.
        changed: how a kernel becomes one that does so.
    """
    if not updates.pairs:
        return mod
    program = Program.of(mod, updates)
    found: dict[relax.Var, tuple[tirx.PrimFunc, Call]] = {}
    names: dict[relax.Expr, relax.Var] = {}
    for call in program.calls.values():
        joined = _joined(mod[call.kernel], call)
        if joined is not None:
            found[call.variable] = joined
    for parameter, output in updates.pairs:
        for old, new in program.versions(parameter, output):
            if new in program.by_torch:
                continue
            names[old] = program.parameters[parameter]
            call = program.calls[new]
            func, call = found.get(call.variable, (mod[call.kernel], call))
            merged = _merged(func, call, old, call.place_of(new), changed)
            if merged is not None:
                found[call.variable] = merged
    return _with_calls(mod, program, found, names) if found else mod


def _merged(
    func: tirx.PrimFunc, call: Call, old: relax.Var, place: int, changed: _Change
) -> tuple[tirx.PrimFunc, Call] | None:
    """The kernel with a result in the place of what the call gives it, and the call of that."""
    if call.places[place] != NEW or not _are_one_type(old, call.types[place]):
        return None
    given = [n for n, argument in enumerate(call.arguments) if argument.same_as(old)]
    out = call.parameter_of(place, func)
    if out is None or len(given) > 1 or (given and given[0] in call.places):
        return None
    if not given:  # What is written without being read becomes an argument.
        return _with_argument(func, call, old, place, out)
    contents = func.params[given[0]]
    found = changed(func, contents, out)
    if found is None:
        return None
    if not is_scheduled(func) and _is_update(found, contents):
        # No schedule is made of what reads and writes one tensor: they are joined afterwards.
        return _with_argument(found, call, old, place, out)
    places = [given[0] if n == place else at for n, at in enumerate(call.places)]
    return _in_one(found, contents, out), replace(call, places=places)


def _joined(func: tirx.PrimFunc, call: Call) -> tuple[tirx.PrimFunc, Call] | None:
    """A scheduled kernel with one parameter for an argument that it is given to read and write.

    Raises:
        RuntimeError: it reads what it has written.
    """
    merged = None
    for place, at in enumerate(call.places):
        if at == NEW:
            continue
        old = call.arguments[at]
        given = [n for n, x in enumerate(call.arguments) if n != at and x.same_as(old)]
        if not given:
            continue
        contents, out = func.params[given[0]], func.params[at]
        if len(given) > 1 or not reads_before_it_writes(func, contents, out):
            raise RuntimeError(f"internal error: `{call.kernel.name_hint}` reads what it wrote")
        arguments = [x for n, x in enumerate(call.arguments) if n != at]
        places = [given[0] if n == place else x for n, x in enumerate(call.places)]
        places = [x - 1 if x > at else x for x in places]
        func, call = _in_one(func, contents, out), replace(call, arguments=arguments, places=places)
        merged = func, call
    return merged


def _in_one(func: tirx.PrimFunc, contents: tirx.Var, out: tirx.Var) -> tirx.PrimFunc:
    """A kernel with one parameter for two."""
    own = [param for param in func.params if not param.same_as(out)]
    body = tvm_ffi.structural_map(
        func.body, (ir.Var, lambda var: contents if var.same_as(out) else var)
    )
    merged = tirx.PrimFunc(own, body, func.ret_type, func.attrs, func.span)
    return with_other_parameters(merged, func)


def _with_argument(
    func: tirx.PrimFunc, call: Call, old: relax.Var, place: int, out: tirx.Var
) -> tuple[tirx.PrimFunc, Call]:
    """The kernel with a result in the place of one more argument."""
    count = len(call.arguments)
    own = [param for param in func.params if not param.same_as(out)]
    own.insert(count, out)
    moved = tirx.PrimFunc(own, func.body, func.ret_type, func.attrs, func.span)
    places = [count if n == place else at for n, at in enumerate(call.places)]
    arguments = [*call.arguments, old]
    return with_other_parameters(moved, func), replace(call, arguments=arguments, places=places)


def _is_update(func: tirx.PrimFunc, buffer: tirx.Var) -> bool:
    """Whether a kernel writes elements from what they are; steps of loops are known to be safe."""
    if func.attrs and PLACES in func.attrs:
        return False
    return any(load.source.same_as(buffer) for load in nodes(func.body, ir.TensorLoad))


def _are_one_type(old: relax.Var, type: relax.TensorType) -> bool:
    return bool(tvm_ffi.structural_equal(old.ty.shape, type.shape)) and old.ty.dtype == type.dtype


def _with_calls(
    mod: IRModule,
    program: Program,
    found: Mapping[relax.Var, tuple[tirx.PrimFunc, Call]],
    names: Mapping[relax.Expr, relax.Var],
) -> IRModule:
    """The program with other calls, and the kernels of these.

    Calls of one kernel that write to the same of its parameters are calls of one kernel again.

    Args:
        mod: the program.
        program: what its entry does.
        found: the calls, by their variables, and their kernels.
        names: the arguments of the entry in whose place a tensor is.
    """
    functions = dict(mod.functions_items())
    left = Counter(program.kernels)
    left.subtract(call.kernel.name_hint for _, call in found.values())
    for _, call in found.values():
        if not left[call.kernel.name_hint]:
            functions.pop(call.kernel, None)
    made: dict[tuple[ir.GlobalVar, tuple[int, ...]], ir.GlobalVar] = {}
    for kernel, call in found.values():
        key = call.kernel, tuple(call.places)
        if key not in made:
            written = sorted(at for at in call.places if at != NEW)
            func = named_after(kernel, [names.get(x, x) for x in call.arguments])
            func = func.with_attr(IN_PLACE, written)
            # A variable for a function has its type once and for all.
            made[key] = add_kernel(functions, call.kernel.name_hint, func)
    entry = mod.get_global_var(program.entry)
    function = mod[entry]
    blocks = []
    for block in function.body.blocks:
        bindings = []
        for binding in block.bindings:
            if binding.var in found:
                _, call = found[binding.var]
                value = call.value(made[call.kernel, tuple(call.places)])
                _update_type(value, binding.var.ty)
                binding = relax.VarBinding(binding.var, value, binding.span)
            bindings.append(binding)
        blocks.append(type(block)(bindings))
    body = relax.SeqExpr(blocks, function.body.body)
    functions[entry] = relax.Function(
        function.params, body, function.ret_ty, function.is_pure, function.attrs, function.span
    )
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)
