"""Programs as steps that run without a virtual machine: kernels, torch, branches and loops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from tvm import ir, relax, tirx
from tvm.ir import IRModule

from babytriton.ops.fallback import TORCH_CALL
from babytriton.passes.bindings import CALL_IN_PLACE, CALL_PACKED, CALL_TIR, is_tensor
from babytriton.passes.drivers import Counted, Repeated, calls_itself, driver_of
from babytriton.passes.numbers import as_python
from babytriton.passes.updates import written_by_torch
from babytriton.passes.whole_rows import ROW, STORED
from babytriton.plan import (
    Allocation,
    Block,
    Branch,
    Call,
    Function,
    Kind,
    Launch,
    Loop,
    OutsideCall,
    Plan,
    Row,
    Step,
)
from babytriton.types import find_dtype

_DEEPEST_BRANCHES, _DEEPEST_LOOPS = 60, 12
"""Of what is nested: Python takes a hundred levels of indentation, and twenty of loops."""


class NoSteps(Exception):
    """A part of the program is something else than a step, or is nested too deep."""


def steps_of(mod: IRModule, entry: str) -> Plan | None:
    """The steps of a program that calls kernels and torch, under conditions and in loops.

    Args:
        mod: a program of kernels, as ``fuse_and_schedule`` gives it.
        entry: the program's function.
    """
    try:
        return _Reader(mod, entry).program(mod[entry])
    except NoSteps:
        return None


@dataclass
class _Scope:
    """What the variables of a function, or of a branch, are in the program's steps.

    Attributes:
        names: of tensors, of numbers and of what else is handed on.
        tuples: the names of their parts.
    """

    names: dict[Any, str] = field(default_factory=dict)
    tuples: dict[Any, tuple[str, ...]] = field(default_factory=dict)

    def inner(self) -> _Scope:
        """The scope of a part, which sees what is around it."""
        return _Scope(dict(self.names), dict(self.tuples))


class _Reader:
    """Reads a program; numbers its variables as it comes to them."""

    def __init__(self, mod: IRModule, entry: str) -> None:
        self._mod = mod
        self._written = written_by_torch(mod, entry)
        self._writers: dict[str, frozenset[int]] = {}
        """What calls of torch write to where it lies, by the variables of the calls."""
        self._numbers = count()
        self._constants: dict[Any, tuple[str, Any]] = {}
        self._functions: dict[str, Function | None] = {}
        self._branches, self._loops = 0, 0
        """How many the steps that are read stand in."""
        self._torchs: dict[str, tuple[str, ...]] = {}
        """The parameters of the program that functions call torch by."""

    def program(self, function: relax.Function) -> Plan:
        scope = _Scope()
        parameters = tuple(self._new(scope, parameter) for parameter in function.params)
        self._writers = {parameters[n]: found for n, found in self._written.items()}
        sizes = self._sizes(scope, function.params, parameters)
        body = self._block(function.body, scope)
        constants = tuple(self._constants.values())
        if not isinstance(function.body.body, relax.Tuple):
            raise NoSteps
        if {name for name, _ in constants} & set(body.results):
            raise NoSteps
        functions = tuple((name, x) for name, x in self._functions.items() if x is not None)
        return Plan(parameters, sizes, body.steps, body.results, constants, functions)

    def _sizes(
        self, scope: _Scope, params: Sequence[relax.Var], names: Sequence[str]
    ) -> tuple[tuple[str, str, int], ...]:
        """The sizes that parameters tell, which get names."""
        found = []
        for parameter, name in zip(params, names):
            for axis, size in enumerate(getattr(parameter.ty, "shape", None) or ()):
                if isinstance(size, ir.Var) and size not in scope.names:
                    found.append((self._new(scope, size), name, axis))
        return tuple(found)

    # ------------------------------------------------------------ blocks

    def _block(self, body: relax.Expr, scope: _Scope) -> Block:
        """What a function, or a branch, does."""
        steps: list[Step] = []
        if not isinstance(body, relax.SeqExpr):
            return Block((), self._parts(self._flat(body), scope))
        for block in body.blocks:
            for binding in block.bindings:
                if not isinstance(binding, relax.VarBinding):
                    raise NoSteps
                self._binding(binding.var, binding.value, scope, steps)
        return Block(tuple(steps), self._parts(self._flat(body.body), scope))

    @staticmethod
    def _flat(result: relax.Expr) -> list[relax.Expr]:
        return list(result.fields) if isinstance(result, relax.Tuple) else [result]

    def _parts(self, exprs: Sequence[relax.Expr], scope: _Scope) -> tuple[str, ...]:
        """The names of what some expressions are, of tuples those of their parts."""
        return tuple(
            name
            for expr in exprs
            for name in (scope.tuples.get(expr) or (self._name(expr, scope),))
        )

    def _binding(self, variable: relax.Var, value: Any, scope: _Scope, steps: list[Step]) -> None:
        if isinstance(value, relax.TupleGetItem):
            if value.tuple_value not in scope.tuples:
                raise NoSteps
            scope.names[variable] = scope.tuples[value.tuple_value][value.index]
        elif isinstance(value, relax.If):
            steps.append(self._branch(variable, value, scope))
        elif not isinstance(value, ir.Call):
            self._bind(variable, self._parts(self._flat(value), scope), scope)
        elif value.op == CALL_TIR:
            steps.append(self._launch(variable, value, scope))
        elif value.op == CALL_IN_PLACE:
            places = list(map(int, value.attrs.inplace_indices))
            steps.append(self._launch(variable, value, scope, places))
        elif isinstance(value.op, ir.GlobalVar):
            self._bind(variable, self._called(value, scope, steps), scope)
        else:
            steps.append(self._outside(variable, value, scope))

    def _bind(self, variable: relax.Var, names: tuple[str, ...], scope: _Scope) -> None:
        if isinstance(variable.ty, ir.TupleType):
            scope.tuples[variable] = names
        else:
            (scope.names[variable],) = names

    # ------------------------------------------------------------ steps

    def _branch(self, variable: relax.Var, value: relax.If, scope: _Scope) -> Branch:
        condition = value.cond
        of_tensor = is_tensor(condition)
        text = self._name(condition, scope)
        self._branches += 1
        if self._branches > _DEEPEST_BRANCHES:
            raise NoSteps
        then = self._block(value.true_branch, scope.inner())
        orelse = self._block(value.false_branch, scope.inner())
        self._branches -= 1
        written = tuple(self._new(scope) for _ in then.results)
        self._bind(variable, written, scope)
        return Branch(text, of_tensor, then, orelse, written)

    def _outside(self, variable: relax.Var, call: ir.Call, scope: _Scope) -> OutsideCall:
        # One that only has an effect is called directly, the others by an operator.
        packed = [call.op, *call.args]
        if call.op == CALL_PACKED:
            packed = packed[1:]
        if not isinstance(packed[0], relax.ExternFunc) or packed[0].global_symbol != TORCH_CALL:
            raise NoSteps
        (type,) = call.ty_args
        if not isinstance(type, ir.TupleType):
            raise NoSteps
        function, *arguments = self._all(packed[1:], scope)
        results = tuple(self._new(scope) for _ in type.fields)
        tensors = [name for name, x in zip(arguments, packed[2:]) if is_tensor(x)]
        in_place = {n: tensors[n] for n in sorted(self._writers.get(function, ()))}
        scope.tuples[variable] = tuple(in_place.get(n, name) for n, name in enumerate(results))
        return OutsideCall(function, tuple(arguments), results, tuple(in_place.values()))

    def _launch(
        self, variable: relax.Var, call: ir.Call, scope: _Scope, places: Sequence[int] = ()
    ) -> Launch:
        """The step of a call.

        Args:
            variable: that it is bound to.
            call: of a kernel.
            scope: of the call.
            places: for each result, the number of the argument that it is in the place of, or -1;
                none where all are new.
        """
        kernel, arguments, *others = call.args
        if others or not isinstance(arguments, relax.Tuple):
            raise NoSteps
        given = self._all(arguments.fields, scope)
        (type,) = call.ty_args
        types = list(type.fields) if isinstance(type, ir.TupleType) else [type]
        at = list(places) or [-1] * len(types)
        names = tuple(given[n] if n >= 0 else self._new(scope) for n in at)
        self._bind(variable, names, scope)
        outputs = [
            self._allocation(name, type, scope) for name, type, n in zip(names, types, at) if n < 0
        ]
        updated = tuple(name for name, n in zip(names, at) if n >= 0)
        kinds = tuple(map(_kind, self._mod[kernel].params))
        func = self._mod[kernel]
        row, stored = _row(func, given)
        return Launch(kernel.name_hint, given, tuple(outputs), updated, kinds, row, stored)

    def _allocation(self, name: str, type: Any, scope: _Scope) -> Allocation:
        shape = tuple(
            int(size) if isinstance(size, tirx.IntImm) else self._name(size, scope)
            for size in type.shape
        )
        dtype = find_dtype(str(type.dtype))
        if dtype is None:
            raise NoSteps
        return Allocation(name, shape, dtype)

    # ------------------------------------------------------------ functions

    def _called(self, call: ir.Call, scope: _Scope, steps: list[Step]) -> tuple[str, ...]:
        """Add the steps of a call of one of the program's functions, and give its results."""
        function = self._mod[call.op]
        if not calls_itself(self._mod, call.op.name_hint):
            inside = self._entered(function, call.args, scope)
            block = self._block(function.body, inside)
            steps.extend(block.steps)
            return block.results
        driver = driver_of(self._mod, call.op.name_hint)
        if driver is not None:
            steps.append(self._loop(function, driver, call, scope))
        else:
            steps.append(self._recursive(call, scope))
        return steps[-1].written

    def _entered(
        self, function: relax.Function, arguments: Sequence[relax.Expr], scope: _Scope
    ) -> _Scope:
        """The scope of a function that is called with some arguments."""
        inside = _Scope()
        for parameter, argument in zip(function.params, arguments):
            if isinstance(parameter.ty, relax.ShapeType):
                pairs = zip(parameter.ty.values, argument.values)
            else:
                inside.names[parameter] = self._name(argument, scope)
                shapes = (getattr(x.ty, "shape", None) or () for x in (parameter, argument))
                pairs = zip(*shapes)
            for size, given in pairs:
                if isinstance(size, ir.Var):
                    inside.names.setdefault(size, self._name(given, scope))
        return inside

    def _loop(
        self,
        function: relax.Function,
        driver: Counted | Repeated,
        call: ir.Call,
        scope: _Scope,
    ) -> Loop:
        """The loop that a function is which runs steps, and calls itself for more of them."""
        around = self._entered(function, call.args, scope)
        states = [self._new(scope) for _ in driver.states]
        initial = [
            None if place is None else around.names[function.params[place]]
            for place in driver.states
        ]
        inside = around.inner()
        for name, place in zip(states, driver.states):
            if place is not None:
                inside.names[function.params[place]] = name
        if isinstance(driver, Repeated):
            body = self._body(driver.body, inside)
            return Loop("", "", "", tuple(initial), tuple(states), body, driver.again)
        low, high = (around.names[function.params[n]] for n in (driver.low, driver.high))
        number = self._new(inside, function.params[driver.low])
        body = self._body(driver.body, inside)
        return Loop(number, low, high, tuple(initial), tuple(states), body)

    def _body(self, call: ir.Call, scope: _Scope) -> Block:
        """One step of a loop."""
        steps: list[Step] = []
        self._loops += 1
        if self._loops > _DEEPEST_LOOPS:
            raise NoSteps
        results = self._called(call, scope, steps)
        self._loops -= 1
        return Block(tuple(steps), results)

    def _recursive(self, call: ir.Call, scope: _Scope) -> Call:
        """A call of a function that stays one."""
        name, function = call.op.name_hint, self._mod[call.op]
        pairs = list(zip(function.params, call.args))
        # What calls torch is handed on as it is.
        torchs = {x: self._name(given, scope) for x, given in pairs if _is_function(x)}
        if name not in self._functions:
            self._functions[name] = None  # It calls itself.
            self._torchs[name] = tuple(torchs.values())
            self._functions[name] = self._function(function, torchs)
        if self._torchs[name] != tuple(torchs.values()):
            raise NoSteps
        given = [
            number
            for parameter, argument in pairs
            for number in (argument.values if _is_shape(parameter) else [argument])
            if parameter not in torchs
        ]
        type = function.ret_ty
        fields = type.fields if isinstance(type, ir.TupleType) else [type]
        written = tuple(self._new(scope) for _ in fields)
        return Call(name, self._all(given, scope), written)

    def _function(self, function: relax.Function, known: Mapping[relax.Var, str]) -> Function:
        """A function with parameters for what is not known of them."""
        scope = _Scope(dict(known))
        own = [x for x in function.params if x not in known]
        of_each = [list(x.ty.values) if _is_shape(x) else [x] for x in own]
        parameters = tuple(self._new(scope, x) for each in of_each for x in each)
        tensors = [x for x in own if is_tensor(x)]
        sizes = self._sizes(scope, tensors, [scope.names[x] for x in tensors])
        return Function(parameters, sizes, self._block(function.body, scope))

    # ------------------------------------------------------------ names

    def _new(self, scope: _Scope, variable: Any = None) -> str:
        """A name that no other variable has."""
        name = f"x{next(self._numbers)}"
        if variable is not None:
            scope.names[variable] = name
        return name

    def _name(self, expr: Any, scope: _Scope) -> str:
        """The variable for a tensor, or the Python expression of a number."""
        if isinstance(expr, ir.GenericConst) and isinstance(expr.ty, relax.TensorType):
            if expr not in self._constants:
                self._constants[expr] = self._new(scope), expr.value
            return self._constants[expr][0]
        if expr in scope.names:
            return scope.names[expr]
        number = as_python(expr, scope.names)
        if number is None:
            raise NoSteps
        return number

    def _all(self, exprs: Sequence[Any], scope: _Scope) -> tuple[str, ...]:
        return tuple(self._name(expr, scope) for expr in exprs)


def _row(kernel: tirx.PrimFunc, given: Sequence[str]) -> tuple[Row | None, str | None]:
    """The row that a kernel copies which is given some arguments, and what it copies to it."""
    if not kernel.attrs or ROW not in kernel.attrs:
        return None, None
    place, constant, *terms = map(int, kernel.attrs[ROW])
    row = Row(given[place], tuple((given[n], x) for n, x in zip(terms[::2], terms[1::2])), constant)
    return row, given[int(kernel.attrs[STORED])] if STORED in kernel.attrs else None


def _is_shape(parameter: relax.Var) -> bool:
    return isinstance(parameter.ty, relax.ShapeType)


def _is_function(parameter: relax.Var) -> bool:
    """Whether it is neither a tensor nor numbers."""
    kinds = (relax.TensorType, relax.ShapeType, ir.PrimType)
    return not isinstance(parameter.ty, kinds)


def _kind(parameter: Any) -> Kind:
    """What a kernel asks of what it is given for a parameter."""
    type = parameter.ty
    if not isinstance(type, tirx.BufferType):
        return Kind.FLOAT if "float" in str(type.dtype) else Kind.INTEGER
    told = (*type.shape, *(type.strides or ()), type.elem_offset)
    is_known = all(number is None or isinstance(number, tirx.IntImm) for number in told)
    return Kind.ADDRESS if is_known else Kind.TENSOR
