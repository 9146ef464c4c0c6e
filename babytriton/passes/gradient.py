"""A program with its gradients -> the half that runs at the call, and the half that runs back.

What the second half needs of the first is handed over, or computed again: of all ways to do this
the one that moves the fewest bytes, where elementwise work is computed again and nothing else is.
The cut is that of T. Chen et al., Training deep nets with sublinear memory cost, 2016, as a minimum
cut (R. Kumar et al., Efficient rematerialization for deep networks, 2019).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import ir, relax, tirx
from tvm.ir import IRModule
from tvm.relax.utils import copy_with_new_vars

from babytriton.ops.primfunc import nodes
from babytriton.passes.bindings import CALL_PACKED, elements, is_cheap, is_tensor, read_by
from babytriton.passes.effects import acts, effective, silenced
from babytriton.passes.min_cut import min_cut
from babytriton.passes.names import RESULTS, has_name, result_name
from babytriton.passes.repeated_values import without_repeated_values


@dataclass(frozen=True)
class Split:
    """A program as two.

    Attributes:
        forward: gives the results, and what else is saved.
        parameters: the numbers of what it takes, of the whole program's parameters.
        backward: gives the gradients.
        sources: where each parameter of ``backward`` comes from: a parameter of the whole
            program by its number, or a result of ``forward``.
        reads: the numbers of the parameters that the gradients are computed from.
    """

    forward: IRModule
    parameters: tuple[int, ...]
    backward: IRModule
    sources: tuple[Parameter | Result, ...]
    reads: frozenset[int]


@dataclass(frozen=True)
class Parameter:
    """The parameter of the whole program of this number."""

    number: int


@dataclass(frozen=True)
class Result:
    """The result of the forward half of this number."""

    number: int


def split(
    mod: IRModule,
    entry: str,
    grads: Collection[int],
    kept: int,
    results: int,
    written: Collection[int] = (),
    is_again: bool = False,
    recorded: Collection[int] = (),
) -> Split:
    """Divide a program that computes gradients.

    Args:
        mod: the program.
        entry: its function, which returns a tuple: the results and then the gradients.
        grads: the numbers of the parameters that are gradients of results.
        kept: how many of the first parameters ``forward`` takes whether it reads them or not.
        results: how many of what it returns is no gradient.
        written: the numbers of the parameters that change once the first half has run: what they
            were is saved as a copy.
        is_again: whether the first half is run again as well, for gradients of gradients.
        recorded: the numbers of the parameters that are calls of torch which it records: what these
            are given is saved, also where it is cheap, since torch keeps it as well.
    """
    program = _Program(silenced(mod, is_again), entry, written, recorded)
    given = {program.function.params[i] for i in grads}
    outputs = list(program.function.body.body.fields)
    back = program.dependents(given)
    firsts = [x for x in outputs[:results] if isinstance(x, relax.Var)]
    lasts = [x for x in outputs[results:] if isinstance(x, relax.Var)]
    late = program.before(lasts, ())
    boundary = [*(var for var in lasts if var not in back)]
    for var in late:
        if var in back and var in program.reads:
            boundary += [x for x in program.reads[var] if x not in back]
    handed = _handed_over(program, list(dict.fromkeys(boundary)), firsts)
    saved = [var for var in handed if var in program.reads]
    params = [var for var in program.function.params if var in handed or var in given]
    taken = program.with_sizes([*params, *saved], lasts)
    extra = [var for var in saved if not any(var.same_as(x) for x in firsts)]
    names = program.names(extra)
    again = names | program.names_of_results(outputs[:results], saved)
    ends = [*firsts, *extra, *program.effects]
    early = program.before(ends, ())
    chosen = [
        i
        for i, var in enumerate(program.function.params)
        if i not in grads and (i < kept or var in early)
    ]
    parameters = [program.function.params[i] for i in chosen]
    numbers = {var: Parameter(i) for i, var in enumerate(program.function.params)}
    places = {var: Result(i) for i, var in enumerate([*outputs[:results], *extra])}
    used = program.before(lasts, ())
    return Split(
        program.half(parameters, [*outputs[:results], *extra], (), program.effects, names, results),
        tuple(chosen),
        program.half(
            taken, outputs[results:], saved, (), again, len(outputs) - results, backward_of(entry)
        ),
        tuple(numbers[var] if var in numbers else places[var] for var in taken),
        frozenset(i for i, var in enumerate(program.function.params) if var in used),
    )


class _Program:
    """The bindings of one function of a module.

    Attributes:
        function: the function.
        reads: of each variable that is bound, what it is computed from.
        effects: variables for what is done beside computing.
    """

    def __init__(
        self, mod: IRModule, entry: str, written: Collection[int], recorded: Collection[int]
    ) -> None:
        self._mod = without_repeated_values(relax.transform.AnnotateTIROpPattern()(mod))
        self._entry = entry
        self.function, copies = _with_copies(self._mod[entry], written)
        blocks = self.function.body.blocks
        self._bindings = {b.var: b for block in blocks for b in block.bindings}
        self.reads = {var: read_by(binding) for var, binding in self._bindings.items()}
        calls = {self.function.params[i] for i in recorded}
        kept = [reads for reads in self.reads.values() if any(x in calls for x in reads)]
        self._kept = {*copies, *(x for reads in kept for x in reads)}
        """What is not computed again: copies of parameters, and what torch keeps as well."""
        acting = effective(mod)
        self.effects = [var for var, b in self._bindings.items() if acts(b.value, acting)]

    def dependents(self, given: Collection[relax.Var]) -> set[relax.Var]:
        """What is computed from given variables, these included."""
        found = set(given)
        for var, reads in self.reads.items():
            if any(x in found for x in reads):
                found.add(var)
        return found

    def before(
        self, ends: Iterable[relax.Var], starts: Collection[relax.Var]
    ) -> dict[relax.Var, None]:
        """What given variables are computed from, these included, no further than ``starts``."""
        found: dict[relax.Var, None] = {}
        queue = list(ends)
        while queue:
            var = queue.pop()
            if var not in found:
                found[var] = None
                queue += () if var in starts else self.reads.get(var, ())
        return found

    def with_sizes(self, params: Sequence[relax.Var], ends: Sequence[relax.Var]) -> list[relax.Var]:
        """Parameters with more of the program's, where no tensor tells the size of another."""
        found = list(params)
        known = {size for var in found for size in _told(var)}
        needed = {size for var in self.before(ends, ()) for size in _sizes_in(var.ty)}
        for var in self.function.params:
            if isinstance(var.ty, ir.PrimType) and var in needed and var not in found:
                found.append(var)
        # What a call computes of its sizes may be computed of any of them.
        every = any(isinstance(var.ty, ir.PrimType) for var in found)
        for var in self.function.params:
            told = [size for size in _told(var) if every or size in needed]
            if var not in found and any(size not in known for size in told):
                found.append(var)
                known |= set(_told(var))
        return found

    def is_cheap(self, var: relax.Var) -> bool:
        """Whether it is computed again rather than handed over."""
        return var not in self._kept and is_cheap(self._mod, self._bindings[var].value)

    def is_torchs(self, var: relax.Var) -> bool:
        """Whether a call of torch gives it."""
        value = self._bindings[var].value
        if isinstance(value, relax.TupleGetItem) and value.tuple_value in self._bindings:
            value = self._bindings[value.tuple_value].value
        return isinstance(value, ir.Call) and value.op == CALL_PACKED

    def names(self, saved: Sequence[relax.Var]) -> dict[relax.Var, str]:
        """Names for what is saved and has none: those of its operators."""
        taken = {var.name for var in (*self.function.params, *self.reads)}
        found = {}
        for var in saved:
            binding = self._bindings[var]
            while binding.value in self._bindings:  # Such as what is detached.
                binding = self._bindings[binding.value]
            name = result_name(binding, self._mod)
            if name is not None:
                numbered = (f"{name}_{n}" for n in itertools.count(2))
                found[var] = next(x for x in itertools.chain([name], numbered) if x not in taken)
                taken.add(found[var])
        return found

    def names_of_results(
        self, results: Sequence[relax.Expr], saved: Collection[relax.Var]
    ) -> dict[relax.Var, str]:
        """The function's name for results that are saved and have none."""
        found = {x: n for n, x in enumerate(results) if x in saved and not has_name(x)}
        several = len(found) > 1
        return {x: f"{self._entry}_{n}" if several else self._entry for x, n in found.items()}

    def half(
        self,
        params: Sequence[relax.Var],
        results: Sequence[relax.Expr],
        starts: Collection[relax.Var],
        effects: Sequence[relax.Var],
        names: Mapping[relax.Var, str],
        count: int,
        name: str | None = None,
    ) -> IRModule:
        """A module with the part of the function that leads from parameters to results.

        Args:
            params: what the part takes.
            results: what it gives.
            starts: of the parameters, those that the function binds.
            effects: variables for what it does beside computing.
            names: that variables get.
            count: how many of the results are the user's.
            name: of its function; that of the whole, if not given.
        """
        name = name or self._entry
        ends = [x for x in results if isinstance(x, relax.Var)]
        needed = self.before([*ends, *effects], set(starts))
        bindings = [b for var, b in self._bindings.items() if var in needed and var not in starts]
        renamed = {var: relax.Var(new, var.ty) for var, new in names.items()}
        bindings = [_with_vars(binding, renamed) for binding in bindings]
        params = [renamed.get(var, var) for var in params]
        results = [renamed.get(x, x) if isinstance(x, relax.Var) else x for x in results]
        body = relax.SeqExpr([relax.BindingBlock(bindings)], relax.Tuple(list(results)))
        types = relax.TupleType([x.ty for x in results])
        function = relax.Function(
            list(params), body, types, self.function.is_pure or not effects, self.function.attrs
        )
        functions = dict(self._mod.functions_items())
        for var in list(functions):
            if var.name_hint == self._entry:
                del functions[var]
        named = function.with_attr("global_symbol", name).with_attr(RESULTS, count)
        functions[ir.GlobalVar(name)] = copy_with_new_vars(named)
        made = IRModule(functions, attrs=self._mod.attrs, global_infos=self._mod.global_infos)
        return relax.transform.DeadCodeElimination([name])(relax.transform.Normalize()(made))


def _with_vars(binding: relax.Binding, names: Mapping[relax.Var, relax.Var]) -> relax.Binding:
    """A binding with other variables."""
    if not isinstance(binding, relax.VarBinding):
        return binding
    value = tvm_ffi.structural_map(binding.value, (ir.Var, lambda var: names.get(var, var)))
    return relax.VarBinding(names.get(binding.var, binding.var), value, binding.span)


def backward_of(entry: str) -> str:
    """The name of the function of the way back."""
    return f"{entry}_backward"


def _handed_over(
    program: _Program, boundary: Sequence[relax.Var], results: Collection[relax.Var]
) -> list[relax.Var]:
    """What the backward half gets of the forward one and its parameters."""
    every = program.before(boundary, ())
    free = {var for var in every if not is_tensor(var) and var not in program.reads}
    costs = {var: _cost(program, var, results) for var in every}
    cheap = {var for var in every if var in program.reads and program.is_cheap(var)}
    edges = [(x, var) for var in cheap for x in program.reads[var] if x in every]
    sources = [var for var in every if var not in cheap and var not in free]
    found = min_cut(costs, edges, sources, boundary)
    again = program.before(boundary, set(found))
    return [*found, *(var for var in again if var in free)]


def _cost(program: _Program, var: relax.Var, results: Collection[relax.Var]) -> float:
    """Bytes that are moved for handing it over."""
    if not is_tensor(var):
        return math.inf if var in program.reads else 0.0
    bits = int(tvm.DataType(str(var.ty.dtype)).bits)
    alive = var not in program.reads or any(var.same_as(x) for x in results)
    # What is alive anyway is read; what is not also takes memory, and is written but by torch.
    moves = 1.0 if alive else 1.1 if program.is_torchs(var) else 2.1
    return elements(var) * max(bits // 8, 1) * moves + 1e-3


def _with_copies(
    function: relax.Function, written: Collection[int]
) -> tuple[relax.Function, list[relax.Var]]:
    """A function that reads copies of some of its parameters; and these copies."""
    copies = {}
    for number in written:
        param = function.params[number]
        copies[param] = relax.Var(f"{param.name}_before", param.ty)
    if not copies:
        return function, []
    copied = [relax.VarBinding(var, _copy(param)) for param, var in copies.items()]
    body = tvm_ffi.structural_map(function.body, (ir.Var, lambda var: copies.get(var, var)))
    blocks = [relax.BindingBlock(copied), *body.blocks]
    made = relax.Function(
        function.params,
        relax.SeqExpr(blocks, body.body),
        function.ret_ty,
        function.is_pure,
        function.attrs,
    )
    return made, list(copies.values())


def _copy(param: relax.Var) -> relax.Expr:
    if str(param.ty.dtype) == "bool":
        return relax.op.logical_and(param, param)
    return relax.op.multiply(param, relax.const(1, str(param.ty.dtype)))


def _told(var: relax.Var) -> list[tirx.Var]:
    """The sizes that a parameter tells."""
    if not is_tensor(var):
        return []
    return [n for n in var.ty.shape if isinstance(n, ir.Var)]


def _sizes_in(type: ir.Type) -> list[tirx.Var]:
    """The variables in the shape of a tensor."""
    if not isinstance(type, relax.TensorType) or type.shape is None:
        return []
    return [x for n in type.shape for x in nodes(n, ir.Var)]
