"""A loop's step, as the program has it, read as blocks of work on the kernel's own tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import tvm_ffi
from tvm import ir, relax, s_tir, tirx

from babytriton.ops.primfunc import is_users, nodes
from babytriton.ops.writes import WHOLE
from babytriton.passes import lines
from babytriton.passes.bindings import CALL_TIR, is_tensor
from babytriton.passes.blocks import plain_blocks
from babytriton.passes.drivers import Counted
from babytriton.passes.names import has_name
from babytriton.passes.recurrences.step import (
    Axis,
    StandsAside,
    Step,
    Work,
    with_values,
    with_variables,
)
from babytriton.passes.statements import OPAQUE, has_addresses, is_number, renamed

Functions = Mapping[ir.GlobalVar, ir.BaseFunc]
"""Those of a program: kernels, and what calls them."""


@dataclass
class Scope:
    """What a function's variables are in the kernel.

    Attributes:
        tensors: by their variables.
        numbers: sizes among them.
    """

    tensors: dict[relax.Expr, tirx.Var] = field(default_factory=dict)
    numbers: dict[ir.Var, ir.Expr] = field(default_factory=dict)

    def tensor(self, expr: relax.Expr) -> tirx.Var:
        """A tensor."""
        if expr not in self.tensors:
            raise StandsAside
        return self.tensors[expr]

    def number(self, expr: ir.Expr) -> ir.Expr:
        """A number of known ones."""
        free = nodes(expr, ir.Var)
        if any(var not in self.numbers for var in free):
            raise StandsAside
        return tvm_ffi.structural_map(expr, (ir.Var, lambda var: self.numbers.get(var, var)))

    def entered(self, function: relax.Function, arguments: Sequence[relax.Expr]) -> Scope:
        """The scope of a function that is called with some of these."""
        inside = Scope()
        for param, argument in zip(function.params, arguments):
            pairs: list[tuple[ir.Expr, ir.Expr]] = []
            if is_tensor(param):
                inside.tensors[param] = self.tensor(argument)
                pairs = list(zip(param.ty.shape or (), inside.tensors[param].ty.shape))
            elif isinstance(param.ty, ir.PrimType):
                pairs = [(param, self.number(argument))]
            elif isinstance(param.ty, relax.ShapeType):
                given = map(self.number, argument.values)
                pairs = list(zip(param.ty.values, given))
            else:
                raise StandsAside
            for size, number in pairs:
                if isinstance(size, ir.Var):
                    inside.numbers.setdefault(size, number)
        return inside


def step_of(
    functions: Functions,
    driver: Counted,
    around: Scope,
    number: tirx.Var,
    states: Sequence[tirx.Var],
) -> Step:
    """One step of a loop.

    Args:
        functions: of the program.
        driver: the function that runs the steps.
        around: what its parameters are in the kernel.
        number: of the step.
        states: what it takes over from the one before.

    Raises:
        StandsAside: it does more than to call kernels that are blocks in plain loops.
    """
    function = functions[driver.body.op]
    reading = _Reading(functions, around.entered(function, driver.body.args))
    nexts = reading.results(function)
    return Step(number, list(states), nexts, reading.works, reading.lines)


def value_of(functions: Functions, scope: Scope, var: relax.Var, call: ir.Call, place: int) -> Work:
    """A tensor's value at each point, as one block, of what its kernel reads.

    Args:
        functions: of the program.
        scope: of the kernel's call.
        var: the tensor.
        call: of the kernel.
        place: of the tensor among the kernel's results.

    Raises:
        StandsAside: the kernel does more than to compute such values.
    """
    reading = _Reading(functions, scope)
    result = reading.kernel(var, call)[place]
    values: dict[tirx.Var, Work] = {}
    for work in reading.works:
        work = with_values(work, values)
        store = work.at_points()
        if store is None or store.buffer in values:
            raise StandsAside
        values[store.buffer] = work
    if result not in values:
        raise StandsAside
    return values[result]


class _Reading:
    """Goes through the function for one step.

    Args:
        functions: of the program.
        scope: of the function.

    Attributes:
        works: of its kernels.
        lines: of the user's that these compute.
    """

    def __init__(self, functions: Functions, scope: Scope) -> None:
        self._functions, self._scope = functions, scope
        self._tuples: dict[relax.Expr, list[tirx.Var]] = {}
        self.works: list[Work] = []
        self.lines: dict[str, None] = {}

    def results(self, function: relax.Function) -> list[tirx.Var]:
        """What the function gives, once its works are known."""
        if not isinstance(function.body, relax.SeqExpr):
            raise StandsAside
        for block in function.body.blocks:
            for binding in block.bindings:
                if not isinstance(binding, relax.VarBinding):
                    raise StandsAside
                self._binding(binding.var, binding.value)
        return self._results(function.body.body)

    def _results(self, expr: relax.Expr) -> list[tirx.Var]:
        if isinstance(expr, relax.Tuple):
            return [self._scope.tensor(x) for x in expr.fields]
        if expr in self._tuples:
            return self._tuples[expr]
        return [self._scope.tensor(expr)]

    def _binding(self, var: relax.Var, value: relax.Expr) -> None:
        if isinstance(value, relax.TupleGetItem) and value.tuple_value in self._tuples:
            self._scope.tensors[var] = self._tuples[value.tuple_value][value.index]
        elif isinstance(value, ir.Call) and value.op == CALL_TIR and len(value.args) == 2:
            results = self.kernel(var, value)
            if isinstance(value.ty_args[0], ir.TupleType):
                self._tuples[var] = results
            else:
                [self._scope.tensors[var]] = results
        elif isinstance(value, (relax.Var, relax.Tuple)) and not is_tensor(var):
            self._tuples[var] = self._results(value)
        else:
            self._scope.tensors[var] = self._scope.tensor(value)

    def kernel(self, var: relax.Var, call: ir.Call) -> list[tirx.Var]:
        """Add the work of a kernel; its results."""
        func, arguments = self._functions[call.args[0]], list(call.args[1].fields)
        [given] = call.ty_args
        types = list(given.fields) if isinstance(given, ir.TupleType) else [given]
        blocks = plain_blocks(func)
        if not blocks or is_users(func) or len(func.params) != len(arguments) + len(types):
            raise StandsAside
        values: dict[ir.Var, ir.Expr] = {}
        for param, argument in zip(func.params, arguments):
            if isinstance(param.ty, tirx.BufferType):
                values[param] = tensor = self._scope.tensor(argument)
                pairs = zip(param.ty.shape, tensor.ty.shape)
                values.update((x, y) for x, y in pairs if isinstance(x, ir.Var))
            else:
                values[param] = self._scope.number(argument)
        results = []
        for param, type in zip(func.params[len(arguments) :], types):
            name = var.name if len(types) == 1 and has_name(var) else param.name
            shape = [self._scope.number(size) for size in type.shape]
            values[param] = tirx.decl_buffer(shape, str(param.ty.dtype), name)
            pairs = zip(param.ty.shape, shape)
            values.update((x, y) for x, y in pairs if isinstance(x, ir.Var))
            results.append(values[param])
        root = func.body.block
        for buffer in root.alloc_buffers:
            shape = [with_variables(size, values) for size in buffer.ty.shape]
            values[buffer] = tirx.decl_buffer(shape, str(buffer.ty.dtype), buffer.name)
        if not _are_whole(func):
            raise StandsAside
        self.works += [_work(block, values) for block in blocks]
        self.lines.update(dict.fromkeys(lines.of_kernel(func)))
        return results


def _are_whole(func: tirx.PrimFunc) -> bool:
    """Whether each block runs once at every point of its axes."""
    realized = [x for x in nodes(func.body, s_tir.SBlockRealize) if not x.same_as(func.body)]
    return all(
        is_number(x.predicate, 1)
        and all(is_number(axis.dom.min, 0) for axis in x.block.iter_vars)
        and all(isinstance(value, ir.Var | tirx.IntImm) for value in x.iter_values)
        for x in realized
    )


_KINDS = {tirx.IterVar.DataPar: False, tirx.IterVar.CommReduce: True}


def _work(block: s_tir.SBlock, values: Mapping[ir.Var, ir.Expr]) -> Work:
    """A block on the kernel's own tensors, with variables of its own."""
    is_known = set(block.annotations) <= {WHOLE} and not block.alloc_buffers
    if not is_known or block.match_buffers or has_addresses(block.body):
        raise StandsAside
    if any(nodes(block.body, kind) for kind in (*OPAQUE, s_tir.SBlock, tirx.AllocBuffer)):
        raise StandsAside
    axes, own = [], dict(values)
    for axis in block.iter_vars:
        if axis.iter_type not in _KINDS:
            raise StandsAside
        var = tirx.Var(axis.var.name.removeprefix("v_"), str(axis.var.ty.dtype))
        own[axis.var] = var
        axes.append(Axis(var, with_variables(axis.dom.extent, values), _KINDS[axis.iter_type]))
    init = None if block.init is None else with_variables(block.init, own)
    return Work(tuple(axes), init, renamed(with_variables(block.body, own)))
