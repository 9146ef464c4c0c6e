"""Results that take the place of what the caller gave: an argument is written to where it lies.

A program has no memory to write to: what the function writes to an argument is an output, which is
copied to the argument after the call. Where nothing reads the old numbers after the kernel that
gives the new ones, it writes these to the argument itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import tvm_ffi
from tvm import ir, relax, s_tir, tirx
from tvm.ir import IRModule
from tvm.relax.expr import _update_type

from babytriton.ops.fallback import TORCH_CALL
from babytriton.ops.primfunc import nodes
from babytriton.passes.aliasing import reads_before_it_writes
from babytriton.passes.bindings import (
    CALL_IN_PLACE,
    CALL_PACKED,
    CALL_TIR,
    add_kernel,
    read_by,
)
from babytriton.passes.kernel_names import named_after
from babytriton.passes.owned import of_all
from babytriton.passes.partial_writes import is_box, without_boxes, without_the_rest, writes_a_part
from babytriton.passes.recurrences.in_place import PLACES, with_other_parameters
from babytriton.passes.scheduling import is_scheduled
from babytriton.plan import Updates

IN_PLACE = "babytriton.in_place"
"""What names the parameters of a kernel that it writes to, by their numbers."""

_KERNEL_CALLS = (CALL_TIR, CALL_IN_PLACE)

_TERMINAL = 3
"""FuseOps' number for what operators before it fuse with, and none after it."""

_NEW = -1
"""TVM's number for a result that is not in the place of an argument."""


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
    program = _Program.of(mod, updates)
    for parameter, output in updates.pairs:
        chain: list[str] = []
        value = program.outputs[output]
        while not value.same_as(program.parameters[parameter]):
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
    program = _Program.of(mod, updates)
    found: dict[relax.Var, tuple[tirx.PrimFunc, _Call]] = {}
    names: dict[relax.Expr, relax.Var] = {}
    for call in program.calls.values():
        joined = _joined(mod[call.kernel], call)
        if joined is not None:
            found[call.variable] = joined
    for parameter, output in updates.pairs:
        for old, new in program.versions(parameter, output):
            names[old] = program.parameters[parameter]
            call = program.calls[new]
            func, call = found.get(call.variable, (mod[call.kernel], call))
            merged = _merged(func, call, old, call.place_of(new), changed)
            if merged is not None:
                found[call.variable] = merged
    return _with_calls(mod, program, found, names) if found else mod


def _merged(
    func: tirx.PrimFunc, call: _Call, old: relax.Var, place: int, changed: _Change
) -> tuple[tirx.PrimFunc, _Call] | None:
    """The kernel with a result in the place of what the call gives it, and the call of that."""
    if call.places[place] != _NEW or not _are_one_type(old, call.types[place]):
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


def _joined(func: tirx.PrimFunc, call: _Call) -> tuple[tirx.PrimFunc, _Call] | None:
    """A scheduled kernel with one parameter for an argument that it is given to read and write.

    Raises:
        RuntimeError: it reads what it has written.
    """
    merged = None
    for place, at in enumerate(call.places):
        if at == _NEW:
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
    func: tirx.PrimFunc, call: _Call, old: relax.Var, place: int, out: tirx.Var
) -> tuple[tirx.PrimFunc, _Call]:
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


@dataclass(frozen=True)
class _Call:
    """A call of a kernel.

    Attributes:
        number: of its binding.
        variable: that it is bound to.
        kernel: what is called.
        arguments: of the call.
        results: a variable for each result; None for one that nothing reads.
        types: of the results.
        places: for each, the number of the argument that it takes the place of, or ``_NEW``.
    """

    number: int
    variable: relax.Var
    kernel: ir.GlobalVar
    arguments: list[relax.Expr]
    results: list[relax.Var | None]
    types: list[relax.TensorType]
    places: list[int]

    def place_of(self, result: relax.Var) -> int:
        """The number of a result."""
        return next(n for n, x in enumerate(self.results) if x is not None and x.same_as(result))

    def parameter_of(self, result: int, func: tirx.PrimFunc) -> tirx.Var | None:
        """The kernel's parameter for a new result; None if the kernel has others, such as sizes."""
        new = [number for number, at in enumerate(self.places) if at == _NEW]
        outputs = list(func.params)[len(self.arguments) :]
        return outputs[new.index(result)] if len(outputs) == len(new) else None

    def value(self, kernel: ir.GlobalVar) -> relax.Call:
        """The call, of another kernel."""
        types = self.types if len(self.types) > 1 else self.types[0]
        return relax.op.call_tir_inplace(kernel, relax.Tuple(self.arguments), self.places, types)


@dataclass
class _Program:
    """What the entry of a program does, with its bindings numbered.

    Attributes:
        mod: that it is of.
        entry: its name.
        fresh: the calls of torch, by their parameters, that give new tensors.
        own: whether nothing else sees what it writes.
        parameters, outputs: of the entry.
        calls: of kernels, by the variables of their results.
        uses: the numbers of the bindings that read a variable.
        kernels: how often each is called.
    """

    mod: IRModule
    entry: str
    fresh: list[relax.Var]
    own: bool
    parameters: list[relax.Var]
    outputs: list[relax.Expr]
    bindings: list[relax.Binding] = field(default_factory=list)
    calls: dict[relax.Var, _Call] = field(default_factory=dict)
    uses: dict[relax.Var, list[int]] = field(default_factory=dict)
    kernels: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, mod: IRModule, updates: Updates) -> _Program:
        """The program of a module."""
        function = mod[updates.entry]
        parameters = list(function.params)
        fresh = [parameters[n] for n in updates.fresh]
        result = function.body.body
        outputs = list(result.fields) if isinstance(result, relax.Tuple) else []
        found = cls(mod, updates.entry, fresh, updates.own, parameters, outputs)
        found._read(function)
        for _, other in mod.functions_items():
            for call in nodes(other, ir.Call) if isinstance(other, relax.Function) else ():
                if call.op in _KERNEL_CALLS:
                    name = call.args[0].name_hint
                    found.kernels[name] = found.kernels.get(name, 0) + 1
        return found

    def _read(self, function: relax.Function) -> None:
        tuples: dict[relax.Var, _Call] = {}
        for block in function.body.blocks:
            for binding in block.bindings:
                value, number = getattr(binding, "value", None), len(self.bindings)
                self.bindings.append(binding)
                if isinstance(value, relax.TupleGetItem) and value.tuple_value in tuples:
                    call = tuples[value.tuple_value]
                    call.results[value.index] = binding.var
                    self.calls[binding.var] = call
                    continue
                for var in read_by(binding):
                    self.uses.setdefault(var, []).append(number)
                if not isinstance(value, ir.Call) or value.op not in _KERNEL_CALLS:
                    continue
                kernel, given, *others = value.args
                if others or not isinstance(given, relax.Tuple):
                    continue
                types = list(value.ty_args[0].fields) if _gives_several(value) else value.ty_args
                places = [_NEW] * len(types)
                if value.op == CALL_IN_PLACE:
                    places = [int(n) for n in value.attrs.inplace_indices]
                call = _Call(
                    number, binding.var, kernel, list(given.fields), [], list(types), places
                )
                call.results.extend([None] * len(types))
                if _gives_several(value):
                    tuples[binding.var] = call
                else:
                    call.results[0] = binding.var
                    self.calls[binding.var] = call

    def versions(self, parameter: int, output: int) -> Iterator[tuple[relax.Var, relax.Var]]:
        """What an argument holds before and after each kernel that may write to its place.

        Args:
            parameter: the argument's number.
            output: the number of what it is to hold in the end.
        """
        first, value = self.parameters[parameter], self.outputs[output]
        if sum(x.same_as(value) for x in self.outputs) > 1 or not self._is_plain(value, None):
            return
        if any(x.same_as(first) for x in self.outputs):
            return
        found: list[tuple[relax.Var, relax.Var]] = []
        while not value.same_as(first):
            call = self.calls.get(value)
            if call is None:
                return
            if not (self.own or all(map(self._is_sure, self.bindings[call.number :]))):
                return  # What fails afterwards would leave numbers that torch never has.
            old = self._before(call, call.place_of(value), first)
            if not self._is_plain(old, call.number) or self._is_output(old):
                return
            if self.own and not any(old.same_as(x) for x in call.arguments):
                return  # It may become another result.
            found.append((old, value))
            value = old
        yield from reversed(found)

    def _before(self, call: _Call, place: int, first: relax.Var) -> relax.Var:
        """What the place of a result holds before a call: that of another call, or the argument."""
        at = call.places[place]
        if at != _NEW:
            return call.arguments[at]
        func = self.mod[call.kernel]
        out = call.parameter_of(place, func)
        for param, argument in zip(func.params, call.arguments) if out is not None else ():
            if argument in self.calls and _is_of_part(func, param, out):
                return argument
        return first

    def _is_output(self, var: relax.Var) -> bool:
        return any(x.same_as(var) for x in self.outputs)

    def _is_plain(self, var: relax.Var, last: int | None) -> bool:
        """Whether what reads a variable keeps no view of it, and runs no later than a binding."""
        return all(
            (last is None or number <= last) and self._keeps_nothing(self.bindings[number])
            for number in self.uses.get(var, ())
        )

    def _is_sure(self, binding: relax.Binding) -> bool:
        """Whether what a binding runs fails for no numbers."""
        value = getattr(binding, "value", None)
        if not isinstance(value, ir.Call):
            return not isinstance(value, (relax.If, relax.SeqExpr))
        return value.op in _KERNEL_CALLS or self._gives_new(value)

    def _gives_new(self, call: ir.Call) -> bool:
        """Whether it is a call of torch that is known to give a new tensor."""
        if call.op != CALL_PACKED or getattr(call.args[0], "global_symbol", "") != TORCH_CALL:
            return False
        return any(call.args[1].same_as(function) for function in self.fresh)

    def _keeps_nothing(self, binding: relax.Binding) -> bool:
        call = getattr(binding, "value", None)
        if not isinstance(call, ir.Call):
            return False
        if call.op in _KERNEL_CALLS:
            # A virtual machine makes a view of what is only read in another shape.
            return not relax.analysis.has_reshape_pattern(self.mod[call.args[0]])
        return self._gives_new(call)


def _gives_several(call: ir.Call) -> bool:
    (type, *_) = call.ty_args
    return isinstance(type, ir.TupleType)


def _is_of_part(func: tirx.PrimFunc, contents: tirx.Var, out: tirx.Var) -> bool:
    """Whether a kernel copies a parameter to a result, but for a part."""
    if not isinstance(contents.ty, tirx.BufferType):
        return False
    return without_the_rest(func, contents, out) is not None


def _with_calls(
    mod: IRModule,
    program: _Program,
    found: Mapping[relax.Var, tuple[tirx.PrimFunc, _Call]],
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
            written = sorted(at for at in call.places if at != _NEW)
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
