"""Kernels compute again what others would write to memory for them.

A tensor that passes between kernels is written once, and read by each of those that need it. Where
it is cheap to compute, point by point of what lies in memory anyway, each of them does that by
itself, and it never is in memory: such are the parts of products that are turned for each head of
attention, and what the way back of an activation needs both for sums and for what follows these.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial

from tvm import DataType, ir, relax, s_tir, sym, tirx
from tvm.ir import IRModule
from tvm.relax.expr import _update_type

from babytriton.ops.primfunc import nodes
from babytriton.passes.bindings import about, add_kernel, elements, read_by, with_arguments
from babytriton.passes.blocks import of_results, parameters, plain_blocks, uses
from babytriton.passes.effort import FUNCTION
from babytriton.passes.intrinsics import function_name
from babytriton.passes.merging import with_groups
from babytriton.passes.partial_writes import is_box, is_copy_of
from babytriton.passes.reshapes import is_reshape
from babytriton.passes.rows import spatial_axes, stores_points, without_unit_axes
from babytriton.passes.units import Unit, blocks_of, functions, is_kernel, units_of

_EXTERN = ("call_extern", "call_pure_extern")


def recomputed(
    mod: IRModule, place_of: Callable[[tirx.PrimFunc], int | None], cheap: int
) -> IRModule:
    """A program whose kernels compute themselves what is as cheap to compute as to read.

    Args:
        mod: a program of calls of fused, unscheduled kernels.
        place_of: the place of the first schedule rule that takes a kernel.
        cheap: how much, in nodes of expressions, may be computed again for a number.
    """
    if "vdevice" in mod.global_infos:
        return mod  # Which kernel is on which device is not known yet.
    for name in functions(mod):
        for number in range(len(blocks_of(mod, name))):
            mod = _Recomputing(place_of, cheap).of_block(mod, name, number)
    return mod


@dataclass(frozen=True)
class _Tensor:
    """A tensor that passes between kernels.

    Attributes:
        var: the tensor.
        source: the number of the unit that computes it.
        place: among the results of that.
        readers: the numbers of the units that read it.
        gain: how many bytes less are read and written if these compute it.
    """

    var: relax.Var
    source: int
    place: int
    readers: tuple[int, ...]
    gain: int


class _Recomputing:
    """Works on a block of a program.

    Args:
        place_of: the place of the first schedule rule that takes a kernel.
        cheap: how much may be computed again for a number.
    """

    def __init__(self, place_of: Callable[[tirx.PrimFunc], int | None], cheap: int) -> None:
        self._place_of = place_of
        self._cheap = cheap
        self._refused: set[tuple[str, ...]] = set()
        """The names of tensors, and of kernels that were not to compute them: those that others
        share these with are refused as well."""

    def of_block(self, mod: IRModule, name: str, number: int) -> IRModule:
        """The program with what is as well computed again in a block of a function."""
        while True:
            block = _Block.of(mod, name, number)
            found = self._apart(list(block.tensors(self._cheap)), block.units)
            if not found:
                return mod
            mod = self._without(block, found)

    def _apart(self, tensors: Sequence[_Tensor], units: Sequence[Unit]) -> list[_Tensor]:
        """Those to begin with: no kernel is to compute what another one reads no longer."""
        found: list[_Tensor] = []
        sources: set[int] = set()
        readers: set[int] = set()
        for tensor in sorted(tensors, key=lambda x: -x.gain):
            if _named(tensor, units) in self._refused:
                continue
            if tensor.source not in readers and not sources & set(tensor.readers):
                sources.add(tensor.source)
                readers.update(tensor.readers)
                found.append(tensor)
        return found

    def _without(self, block: _Block, tensors: Sequence[_Tensor]) -> IRModule:
        """The program without as many of these tensors of a block as there are schedules for.

        No rule for any of the kernels is a less particular one than that before.
        """
        units = block.units
        while tensors:
            made, kernels = _Change(block, tensors).made()
            bad = {
                n
                for n, kernel in kernels.items()
                if self._is_less_particular(made[kernel], block.mod[units[n].kernel])
            }
            if not bad:
                return made
            refused = [x for x in tensors if bad & {x.source, *x.readers}]
            self._refused.update(_named(x, units) for x in refused)
            tensors = [x for x in tensors if x not in refused]
        return block.mod

    def _is_less_particular(self, kernel: tirx.PrimFunc, before: tirx.PrimFunc) -> bool:
        place, old = self._place_of(kernel), self._place_of(before)
        return old is not None and (place is None or place > old)


def _named(tensor: _Tensor, units: Sequence[Unit]) -> tuple[str, ...]:
    kernels = (units[n].kernel.name_hint for n in (tensor.source, *tensor.readers))
    return (tensor.var.name, *kernels)


@dataclass(frozen=True)
class _Block:
    """A block of a program.

    Attributes:
        mod: the program.
        name: of the function.
        number: of the block in it.
        units: of the block; none where it has calls whose order is not open.
    """

    mod: IRModule
    name: str
    number: int
    units: Sequence[Unit]

    @classmethod
    def of(cls, mod: IRModule, name: str, number: int) -> _Block:
        """A block as it is in a program."""
        block = mod[name].body.blocks[number]
        is_open = isinstance(block, relax.DataflowBlock)
        is_more = sum(map(is_kernel, block.bindings)) > 1  # of which one may read another's results
        return cls(mod, name, number, units_of(mod, block) if is_open and is_more else [])

    def tensors(self, cheap: int) -> Iterator[_Tensor]:
        """Those that are better computed where they are read.

        Args:
            cheap: how much may be computed again for a number.
        """
        for source, unit in enumerate(self.units):
            if not unit.blocks or unit.is_end or self._is_read_as_tuple(source):
                continue
            for place, var in enumerate(unit.results):
                if not isinstance(var, relax.DataflowVar):
                    continue
                readers = [n for n in self._readers.get(var, ()) if n != source]
                is_there = cache(partial(self._is_there, unit, place))
                if readers and all(self._can_compute(n, var, is_there) for n in readers):
                    gain = self._gain(source, place, var, readers, cheap)
                    if gain is not None and gain > 0:
                        yield _Tensor(var, source, place, tuple(readers), gain)

    @cached_property
    def _readers(self) -> dict[relax.Var, list[int]]:
        """The numbers of the units that read each tensor."""
        found: dict[relax.Var, list[int]] = {}
        for n, unit in enumerate(self.units):
            for var in {var for binding in unit.bindings for var in read_by(binding)}:
                found.setdefault(var, []).append(n)
        return found

    def _is_read_as_tuple(self, number: int) -> bool:
        """Whether others than the parts of its own results are taken of what a unit gives."""
        unit = self.units[number]
        var = unit.bindings[0].var
        return len(unit.bindings) > 1 and self._readers.get(var, []) != [number]

    def _is_there(self, unit: Unit, place: int) -> bool:
        """Whether a result is a number, or a part of another tensor."""
        func, _ = of_results(self.mod[unit.kernel], [place], len(unit.results))
        return all(_is_number(block) or _is_part(block) for block in plain_blocks(func))

    def _can_compute(self, number: int, var: relax.Var, is_there: Callable[[], bool]) -> bool:
        """Whether a unit is a kernel that reads no number of a tensor more than a few times.

        And that does not write to a part of it, for which the tensor must be in memory.

        Args:
            number: of the unit.
            var: the tensor.
            is_there: whether to compute a number of it is to read another one, or to be given it.
        """
        unit = self.units[number]
        if not unit.blocks:
            return False
        func = self.mod[unit.kernel]
        own = [param for param, x in zip(func.params, unit.arguments) if x.same_as(var)]
        readers = [
            block
            for block in plain_blocks(func)
            if any(region.source.same_as(x) for region in block.reads for x in own)
        ]
        return not any(
            (_points(block) > elements(var) and not is_there())
            or is_box(block)
            or is_copy_of(block, x)
            for block in readers
            for x in own
        )

    def _gain(
        self, source: int, place: int, var: relax.Var, readers: Sequence[int], cheap: int
    ) -> int | None:
        """How many bytes less are read and written if readers compute a tensor.

        None if that is not cheap.
        """
        unit = self.units[source]
        func, places = of_results(self.mod[unit.kernel], [place], len(unit.results))
        if not _is_cheap(func, cheap):
            return None
        needed: Counter[relax.Expr] = Counter()
        for n, (param, count) in zip(places, _read(func).items()):
            needed[unit.arguments[n]] += count * _width(param)
        gain = elements(var) * _width(var) * (1 + len(readers))
        if len(unit.results) == 1:
            gain += needed.total()
        for n in readers:
            known = set(self.units[n].arguments)
            gain -= sum(size for x, size in needed.items() if x not in known)
        return gain


class _Change:
    """A block some of whose tensors are computed where they are read.

    Args:
        block: the block.
        tensors: which.
    """

    def __init__(self, block: _Block, tensors: Sequence[_Tensor]) -> None:
        self._block, self._mod, self._units = block, block.mod, block.units
        self._functions = dict(block.mod.functions_items())
        self._parts: dict[tuple[int, tuple[int, ...]], tuple[ir.GlobalVar, list[int]]] = {}
        self._of_source: dict[int, list[_Tensor]] = {}
        self._of_reader: dict[int, dict[int, list[_Tensor]]] = {}
        for tensor in tensors:
            self._of_source.setdefault(tensor.source, []).append(tensor)
            for n in tensor.readers:
                self._of_reader.setdefault(n, {}).setdefault(tensor.source, []).append(tensor)

    def made(self) -> tuple[IRModule, dict[int, ir.GlobalVar]]:
        """The program, and its kernels by the numbers of the units that they are of."""
        bindings: list[relax.Binding] = []
        together: dict[int, list[relax.Var]] = {}
        kernels: dict[int, ir.GlobalVar] = {}
        for n, unit in enumerate(self._units):
            if n in self._of_source:
                dropped = {x.place for x in self._of_source[n]}
                left = [
                    place
                    for place, var in enumerate(unit.results)
                    if var is not None and place not in dropped
                ]
                if left:
                    kernels[n], made = self._call(n, left, [unit.results[place] for place in left])
                    bindings += made
            elif n in self._of_reader:
                renamed: dict[relax.Expr, relax.Var] = {}
                for source, tensors in self._of_reader[n].items():
                    own = {x.place: relax.DataflowVar(x.var.name, x.var.ty) for x in tensors}
                    renamed |= {x.var: own[x.place] for x in tensors}
                    bindings += self._call(source, list(own), list(own.values()))[1]
                call, *rest = unit.bindings
                operands = relax.Tuple([renamed.get(x, x) for x in unit.arguments])
                again = with_arguments(call.value, [unit.kernel, operands])
                bindings += [relax.VarBinding(call.var, again), *rest]
                together[n] = [*renamed.values(), call.var]
            else:
                bindings += unit.bindings
        return self._merged(bindings, together, kernels)

    def _call(
        self, number: int, places: Sequence[int], variables: Sequence[relax.Var]
    ) -> tuple[ir.GlobalVar, list[relax.Binding]]:
        """A kernel for some results of a unit, and its call with what binds these."""
        unit = self._units[number]
        key = number, tuple(places)
        if key not in self._parts:
            func, given = of_results(self._mod[unit.kernel], places, len(unit.results))
            self._parts[key] = add_kernel(self._functions, unit.kernel.name_hint, func), given
        kernel, given = self._parts[key]
        types = [var.ty for var in variables]
        type = types[0] if len(types) == 1 else relax.TupleType(types)
        operands = relax.Tuple([unit.arguments[n] for n in given])
        before = unit.bindings[0].value
        call = relax.Call(before.op, [kernel, operands], before.attrs, [type], before.span)
        _update_type(call, type)
        if len(variables) == 1:
            return kernel, [relax.VarBinding(variables[0], call)]
        whole = relax.DataflowVar(unit.bindings[0].var.name, type)
        parts = [relax.TupleGetItem(whole, n) for n in range(len(variables))]
        return kernel, [
            relax.VarBinding(whole, call),
            *(relax.VarBinding(var, part) for var, part in zip(variables, parts)),
        ]

    def _merged(
        self,
        bindings: Sequence[relax.Binding],
        together: dict[int, list[relax.Var]],
        kernels: dict[int, ir.GlobalVar],
    ) -> tuple[IRModule, dict[int, ir.GlobalVar]]:
        """The program of the bindings, in which kernels have merged with what they compute."""
        var = self._mod.get_global_var(self._block.name)
        func = self._mod[var]
        blocks = list(func.body.blocks)
        blocks[self._block.number] = block = relax.DataflowBlock(bindings)
        body = relax.SeqExpr(blocks, func.body.body)
        self._functions[var] = relax.Function(
            func.params, body, func.ret_ty, func.is_pure, func.attrs, func.span
        )
        mod = IRModule(self._functions, attrs=self._mod.attrs, global_infos=self._mod.global_infos)
        units = units_of(mod, block)
        home = {x.var: n for n, unit in enumerate(units) for x in unit.bindings}
        groups = [sorted({home[x] for x in variables}) for variables in together.values()]
        found, merged = with_groups(mod, var, self._block.number, units, groups)
        left = {n: found.get_global_var(kernel.name_hint) for n, kernel in kernels.items()}
        return found, left | dict(zip(together, merged))


def _is_cheap(func: tirx.PrimFunc, cheap: int) -> bool:
    """Whether a kernel computes little, number by number, and reads what lies as its result does.

    No functions from elsewhere: those of users may do more than to give a number.
    """
    blocks = plain_blocks(func)
    if not all(map(stores_points, blocks)):
        return False
    calls = Counter(function_name(call) for block in blocks for call in nodes(block.body, ir.Call))
    effort = sum(len(nodes(block.body.value, ir.Expr)) for block in blocks)
    return (
        not any(name in calls for name in _EXTERN)
        and effort + FUNCTION * calls.total() <= cheap
        and all(is_reshape(block) or _goes_along_lines(block) for block in blocks)
    )


def _is_number(block: s_tir.SBlock) -> bool:
    """Whether a block stores a number that its kernel is given, or knows."""
    store = block.body
    return isinstance(store, tirx.BufferStore) and isinstance(
        store.value, (tirx.Var, tirx.IntImm, tirx.FloatImm)
    )


def _is_part(block: s_tir.SBlock) -> bool:
    """Whether a block copies numbers of a tensor, at places that are known."""
    store = block.body
    if not isinstance(store, tirx.BufferStore) or not isinstance(store.value, ir.TensorLoad):
        return False
    return not nodes(list(store.value.indices), ir.TensorLoad)


def _goes_along_lines(block: s_tir.SBlock) -> bool:
    """Whether what a block reads lies behind each other, or is one number, along its last axis."""
    axes = spatial_axes(block)
    if not axes:
        return True
    inner, analyzer = axes[-1][0], sym.Analyzer()
    for load in nodes(block.body, ir.TensorLoad):
        *outer, last = without_unit_axes(load.source, load.indices) or [inner]
        if uses(last, inner):
            last = analyzer.simplify(last - inner)
        if any(uses(index, inner) for index in (*outer, last)):
            return False
    return True


def _read(func: tirx.PrimFunc) -> dict[tirx.Var, int]:
    """How many numbers of each tensor a kernel reads that goes over points, about."""
    found: Counter[tirx.Var] = Counter()
    for block in plain_blocks(func):
        extents = {it.var: about(it.dom.extent) for it in block.iter_vars}
        for source, count in _loaded(block.body.value, extents).items():
            found[source] += count
    sizes = {x: math.prod(map(about, x.ty.shape)) for x in parameters(func)}
    return {x: min(size, found[x]) for x, size in sizes.items()}


def _loaded(expr: ir.Expr, extents: dict[tirx.Var, int]) -> Counter[tirx.Var]:
    """How many numbers of each tensor an expression reads: of two branches, what the larger does.

    Args:
        expr: the expression.
        extents: of the axes of its block.
    """
    if isinstance(expr, ir.TensorLoad):
        used = {var for index in expr.indices for var in nodes(index, ir.Var)} & set(extents)
        return Counter({expr.source: math.prod(extents[var] for var in used)})
    if isinstance(expr, ir.Call) and function_name(expr) == "if_then_else":
        _, *branches = expr.args
        one, other = (_loaded(branch, extents) for branch in branches)
        return one | other
    found: Counter[tirx.Var] = Counter()
    for part in _parts(expr):
        found += _loaded(part, extents)
    return found


def _parts(expr: ir.Expr) -> list[ir.Expr]:
    """What an expression is made of."""
    names = ("a", "b", "value", "condition", "true_value", "false_value")
    found = [part for name in names if isinstance(part := getattr(expr, name, None), ir.Expr)]
    return [*found, *expr.args] if isinstance(expr, ir.Call) else found


def _points(block: s_tir.SBlock) -> int:
    """How many iterations a block has, about."""
    return math.prod(about(it.dom.extent) for it in block.iter_vars)


def _width(tensor: ir.Var) -> int:
    """The bytes of a number."""
    return -(-int(DataType(tensor.ty.dtype).bits) // 8)
