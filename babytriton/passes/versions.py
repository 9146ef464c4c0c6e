"""What an argument of a program holds, before and after all that may write to its place.

Kernels write there, and calls of torch that write to what they are given.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tvm import ir, relax, tirx
from tvm.ir import IRModule

from babytriton.ops.fallback import TORCH_CALL
from babytriton.ops.primfunc import nodes
from babytriton.passes.bindings import CALL_IN_PLACE, CALL_PACKED, CALL_TIR, is_tensor, read_by
from babytriton.passes.partial_writes import without_the_rest
from babytriton.plan import Updates

KERNEL_CALLS = (CALL_TIR, CALL_IN_PLACE)

NEW = -1
"""TVM's number for a result that is not in the place of an argument."""


@dataclass(frozen=True)
class Call:
    """A call of a kernel.

    Attributes:
        number: of its binding.
        variable: that it is bound to.
        kernel: what is called.
        arguments: of the call.
        results: a variable for each result; None for one that nothing reads.
        types: of the results.
        places: for each, the number of the argument that it takes the place of, or ``NEW``.
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

    def is_in_place(self, old: relax.Var, new: relax.Var) -> bool:
        """Whether a result is in the place of an argument."""
        at = self.places[self.place_of(new)]
        return at != NEW and bool(self.arguments[at].same_as(old))

    def parameter_of(self, result: int, func: tirx.PrimFunc) -> tirx.Var | None:
        """The kernel's parameter for a new result; None if the kernel has others, such as sizes."""
        new = [number for number, at in enumerate(self.places) if at == NEW]
        outputs = list(func.params)[len(self.arguments) :]
        return outputs[new.index(result)] if len(outputs) == len(new) else None

    def value(self, kernel: ir.GlobalVar) -> relax.Call:
        """The call, of another kernel."""
        types = self.types if len(self.types) > 1 else self.types[0]
        return relax.op.call_tir_inplace(kernel, relax.Tuple(self.arguments), self.places, types)


@dataclass(frozen=True)
class TorchWrite:
    """What a call of torch leaves in a tensor that it is given and writes to.

    Attributes:
        number: of its binding.
        function: the parameter that is the call.
        memory: which of the tensors that it writes to.
        old: the tensor as it is given.
    """

    number: int
    function: relax.Var
    memory: int
    old: relax.Expr


@dataclass
class Program:
    """What the entry of a program does, with its bindings numbered.

    Attributes:
        mod: that it is of.
        entry: its name.
        fresh: the calls of torch, by their parameters, that give new tensors.
        own: whether nothing else sees what it writes.
        writers: how many of the tensors that they are given other calls of torch write to, the
            first ones, by their parameters.
        parameters, outputs: of the entry.
        calls: of kernels, by the variables of their results.
        by_torch: what calls of torch have written, by the variables of their results.
        uses: the numbers of the bindings that read a variable.
        kernels: how often each is called.
    """

    mod: IRModule
    entry: str
    fresh: list[relax.Var]
    own: bool
    writers: dict[relax.Var, int]
    parameters: list[relax.Var]
    outputs: list[relax.Expr]
    bindings: list[relax.Binding] = field(default_factory=list)
    calls: dict[relax.Var, Call] = field(default_factory=dict)
    by_torch: dict[relax.Var, TorchWrite] = field(default_factory=dict)
    uses: dict[relax.Var, list[int]] = field(default_factory=dict)
    kernels: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, mod: IRModule, updates: Updates) -> Program:
        """The program of a module."""
        function = mod[updates.entry]
        parameters = list(function.params)
        fresh = [parameters[n] for n in updates.fresh]
        writers = {parameters[n]: count for n, count in updates.writers.items()}
        result = function.body.body
        outputs = list(result.fields) if isinstance(result, relax.Tuple) else []
        found = cls(mod, updates.entry, fresh, updates.own, writers, parameters, outputs)
        found._read(function)
        for _, other in mod.functions_items():
            for call in nodes(other, ir.Call) if isinstance(other, relax.Function) else ():
                if call.op in KERNEL_CALLS:
                    name = call.args[0].name_hint
                    found.kernels[name] = found.kernels.get(name, 0) + 1
        return found

    def _read(self, function: relax.Function) -> None:
        tuples: dict[relax.Var, Call] = {}
        written: dict[relax.Var, list[TorchWrite]] = {}
        for block in function.body.blocks:
            for binding in block.bindings:
                value, number = getattr(binding, "value", None), len(self.bindings)
                self.bindings.append(binding)
                if isinstance(value, relax.TupleGetItem) and value.tuple_value in tuples:
                    call = tuples[value.tuple_value]
                    call.results[value.index] = binding.var
                    self.calls[binding.var] = call
                    continue
                if isinstance(value, relax.TupleGetItem) and value.tuple_value in written:
                    for write in written[value.tuple_value][value.index : value.index + 1]:
                        self.by_torch[binding.var] = write
                    continue
                for var in read_by(binding):
                    self.uses.setdefault(var, []).append(number)
                if _is_torch_call(value):
                    written[binding.var] = self._writes(value, number)
                if not isinstance(value, ir.Call) or value.op not in KERNEL_CALLS:
                    continue
                kernel, given, *others = value.args
                if others or not isinstance(given, relax.Tuple):
                    continue
                types = list(value.ty_args[0].fields) if _gives_several(value) else value.ty_args
                places = [NEW] * len(types)
                if value.op == CALL_IN_PLACE:
                    places = [int(n) for n in value.attrs.inplace_indices]
                call = Call(
                    number, binding.var, kernel, list(given.fields), [], list(types), places
                )
                call.results.extend([None] * len(types))
                if _gives_several(value):
                    tuples[binding.var] = call
                else:
                    call.results[0] = binding.var
                    self.calls[binding.var] = call

    def _writes(self, call: ir.Call, number: int) -> list[TorchWrite]:
        """What a call of torch writes to, by its results; the first of these are what it leaves."""
        function, *given = call.args[1:]
        tensors = [x for x in given if isinstance(x, relax.Var) and is_tensor(x)]
        return [
            TorchWrite(number, function, memory, tensors[memory])
            for memory in range(self.writers.get(function, 0))
        ]

    def versions(self, parameter: int, output: int) -> Iterator[tuple[relax.Var, relax.Var]]:
        """What an argument holds before and after each that may write to its place.

        Args:
            parameter: the argument's number.
            output: the number of what it is to hold in the end.
        """
        first, value = self.parameters[parameter], self.outputs[output]
        if sum(x.same_as(value) for x in self.outputs) > 1 or self._is_output(first):
            return
        if value not in self.by_torch and not self._is_plain(value, None):
            return
        found: list[tuple[relax.Var, relax.Var]] = []
        end = len(self.bindings)
        while not value.same_as(first):
            if value in self.by_torch:
                # Here the argument holds what torch has there, whatever fails afterwards.
                old, end = self.by_torch[value].old, self.by_torch[value].number
                is_free = self._is_read_before(old, end)
            else:
                old = self._before_kernel(value, first, end)
                is_free = old is not None and self._is_plain(old, self.calls[value].number)
            if old is None or not is_free or self._is_output(old):
                return
            found.append((old, value))
            value = old
        yield from reversed(found)

    def _before_kernel(self, value: relax.Var, first: relax.Var, end: int) -> relax.Var | None:
        """What the place of a kernel's result holds before; None if that is to stay there.

        Args:
            value: the result.
            first: the argument.
            end: the number of the binding from which on nothing shows that it was overwritten.
        """
        call = self.calls.get(value)
        if call is None:
            return None
        if not (self.own or all(map(self._is_sure, self.bindings[call.number : end]))):
            return None  # What fails afterwards would leave numbers that torch never has.
        old = self._before(call, call.place_of(value), first)
        if self.own and not any(old.same_as(x) for x in call.arguments):
            return None  # It may become another result.
        return old

    def _before(self, call: Call, place: int, first: relax.Var) -> relax.Var:
        """What the place of a result holds before a call: that of another call, or the argument."""
        at = call.places[place]
        if at != NEW:
            return call.arguments[at]
        func = self.mod[call.kernel]
        out = call.parameter_of(place, func)
        for param, argument in zip(func.params, call.arguments) if out is not None else ():
            is_version = argument in self.calls or argument in self.by_torch
            if self._is_of_torch(argument, first) or (is_version and _is_of_part(func, param, out)):
                return argument
        return first

    def _is_of_torch(self, value: relax.Expr, first: relax.Var) -> bool:
        """Whether torch has written it, and nothing but torch, to where an argument lies."""
        written = value
        while written in self.by_torch:
            written = self.by_torch[written].old
        return value in self.by_torch and bool(written.same_as(first))

    def _is_output(self, var: relax.Var) -> bool:
        return any(x.same_as(var) for x in self.outputs)

    def _is_plain(self, var: relax.Var, last: int | None) -> bool:
        """Whether what reads a variable keeps no view of it, and runs no later than a binding."""
        return all(
            (last is None or number <= last) and self._keeps_nothing(self.bindings[number])
            for number in self.uses.get(var, ())
        )

    def _is_read_before(self, var: relax.Expr, last: int) -> bool:
        """Whether what reads a variable runs no later than a binding, which reads it once."""
        bindings = [self.bindings[number] for number in self.uses.get(var, ()) if number != last]
        given = self.bindings[last].value.args
        views = [binding for binding in bindings if self._is_view(binding)]
        is_past = all(number <= last for number in self.uses.get(var, ()))
        return is_past and not views and sum(x.same_as(var) for x in given) == 1

    def _is_sure(self, binding: relax.Binding) -> bool:
        """Whether what a binding runs fails for no numbers."""
        value = getattr(binding, "value", None)
        if not isinstance(value, ir.Call):
            return not isinstance(value, (relax.If, relax.SeqExpr))
        return value.op in KERNEL_CALLS or self._gives_new(value)

    def _gives_new(self, call: ir.Call) -> bool:
        """Whether it is a call of torch that is known to give a new tensor."""
        return _is_torch_call(call) and any(call.args[1].same_as(x) for x in self.fresh)

    def _keeps_nothing(self, binding: relax.Binding) -> bool:
        call = getattr(binding, "value", None)
        if not isinstance(call, ir.Call):
            return False
        if call.op in KERNEL_CALLS:
            return not self._is_view(binding)
        return self._gives_new(call)

    def _is_view(self, binding: relax.Binding) -> bool:
        """Whether a kernel only reads in another shape: a virtual machine makes a view of that."""
        call = getattr(binding, "value", None)
        if not isinstance(call, ir.Call) or call.op not in KERNEL_CALLS:
            return False
        return bool(relax.analysis.has_reshape_pattern(self.mod[call.args[0]]))


def _is_torch_call(value: relax.Expr | None) -> bool:
    if not isinstance(value, ir.Call) or value.op != CALL_PACKED:
        return False
    return getattr(value.args[0], "global_symbol", "") == TORCH_CALL


def _gives_several(call: ir.Call) -> bool:
    (type, *_) = call.ty_args
    return isinstance(type, ir.TupleType)


def _is_of_part(func: tirx.PrimFunc, contents: tirx.Var, out: tirx.Var) -> bool:
    """Whether a kernel copies a parameter to a result, but for a part."""
    if not isinstance(contents.ty, tirx.BufferType):
        return False
    return without_the_rest(func, contents, out) is not None
