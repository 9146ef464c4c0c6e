"""Programs without branches, as steps that run without a virtual machine."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

from tvm import ir, relax, tirx
from tvm.ir import IRModule

from babytriton.ops.fallback import TORCH_CALL
from babytriton.passes.bindings import CALL_IN_PLACE, CALL_PACKED, CALL_TIR
from babytriton.plan import Allocation, Kind, Launch, OutsideCall, Plan
from babytriton.types import find_dtype


class _NotStraight(Exception):
    """A part of the program is something else than a step."""


def straight_line(mod: IRModule, entry: str) -> Plan | None:
    """The steps of a program that calls kernels and torch, and nothing else.

    Args:
        mod: a program of kernels, as ``fuse_and_schedule`` gives it.
        entry: the program's function.
    """
    try:
        return _Reader(mod).program(mod[entry])
    except _NotStraight:
        return None


def has_branches(mod: IRModule) -> bool:
    """Whether what is computed is asked, while a program runs, for what to run next."""
    functions = [func for func in mod.functions.values() if isinstance(func, relax.Function)]
    blocks = [block for func in functions for block in getattr(func.body, "blocks", ())]
    bindings = [binding for block in blocks for binding in block.bindings]
    is_asked = any(isinstance(getattr(x, "value", None), relax.If) for x in bindings)
    return len(functions) > 1 or is_asked


class _Reader:
    """Reads a program; numbers its variables as it comes to them."""

    def __init__(self, mod: IRModule) -> None:
        self._mod = mod
        self._numbers = count()
        self._names: dict[Any, str] = {}
        self._tuples: dict[Any, tuple[str, ...]] = {}
        self._constants: dict[str, Any] = {}

    def program(self, function: relax.Function) -> Plan:
        parameters = tuple(self._new(parameter) for parameter in function.params)
        sizes = []
        for parameter, name in zip(function.params, parameters):
            shape = getattr(parameter.ty, "shape", None) or ()
            for axis, size in enumerate(shape):
                if isinstance(size, ir.Var) and size not in self._names:
                    sizes.append((self._new(size), name, axis))
        steps = [
            step
            for block in function.body.blocks
            for binding in block.bindings
            if (step := self._step(binding)) is not None
        ]
        result = function.body.body
        if not isinstance(result, relax.Tuple):
            raise _NotStraight
        results = self._all(result.fields)
        if any(name in self._constants for name in results):
            raise _NotStraight
        constants = tuple(self._constants.items())
        return Plan(parameters, tuple(sizes), tuple(steps), results, constants)

    def _step(self, binding: relax.Binding) -> Launch | OutsideCall | None:
        value = binding.value
        if not isinstance(binding, relax.VarBinding):
            raise _NotStraight
        if isinstance(value, relax.TupleGetItem):
            if value.tuple_value not in self._tuples:
                raise _NotStraight
            self._names[binding.var] = self._tuples[value.tuple_value][value.index]
            return None
        if not isinstance(value, ir.Call):
            raise _NotStraight
        if value.op == CALL_TIR:
            return self._launch(binding.var, value)
        if value.op == CALL_IN_PLACE:
            return self._launch(binding.var, value, list(map(int, value.attrs.inplace_indices)))
        # One that only has an effect is called directly, the others by an operator.
        packed = [value.op, *value.args]
        if value.op == CALL_PACKED:
            packed = packed[1:]
        if not isinstance(packed[0], relax.ExternFunc) or packed[0].global_symbol != TORCH_CALL:
            raise _NotStraight
        (type,) = value.ty_args
        if not isinstance(type, ir.TupleType):
            raise _NotStraight
        function, *arguments = self._all(packed[1:])
        self._tuples[binding.var] = results = tuple(self._new() for _ in type.fields)
        return OutsideCall(function, tuple(arguments), results)

    def _launch(self, variable: Any, call: ir.Call, places: Sequence[int] = ()) -> Launch:
        """The step of a call.

        Args:
            variable: that it is bound to.
            call: of a kernel.
            places: for each result, the number of the argument that it is in the place of, or -1;
                none where all are new.
        """
        kernel, arguments, *others = call.args
        if others or not isinstance(arguments, relax.Tuple):
            raise _NotStraight
        given = self._all(arguments.fields)
        (type,) = call.ty_args
        is_tuple = isinstance(type, ir.TupleType)
        types = list(type.fields) if is_tuple else [type]
        at = list(places) or [-1] * len(types)
        names = [given[n] if n >= 0 else self._new() for n in at]
        if is_tuple:
            self._tuples[variable] = tuple(names)
        else:
            (self._names[variable],) = names
        outputs = [self._allocation(name, type) for name, type, n in zip(names, types, at) if n < 0]
        updated = tuple(name for name, n in zip(names, at) if n >= 0)
        kinds = tuple(map(_kind, self._mod[kernel].params))
        return Launch(kernel.name_hint, given, tuple(outputs), updated, kinds)

    def _allocation(self, name: str, type: Any) -> Allocation:
        shape = tuple(
            int(size) if isinstance(size, tirx.IntImm) else self._name(size) for size in type.shape
        )
        dtype = find_dtype(str(type.dtype))
        if dtype is None:
            raise _NotStraight
        return Allocation(name, shape, dtype)

    def _new(self, variable: Any = None) -> str:
        """A name that no other variable has."""
        name = f"x{next(self._numbers)}"
        if variable is not None:
            self._names[variable] = name
        return name

    def _name(self, expr: Any) -> str:
        if isinstance(expr, ir.GenericConst) and isinstance(expr.ty, relax.TensorType):
            if expr not in self._names:
                self._constants[self._new(expr)] = expr.value
        elif expr not in self._names:
            raise _NotStraight
        return self._names[expr]

    def _all(self, exprs: Sequence[Any]) -> tuple[str, ...]:
        return tuple(map(self._name, exprs))


def _kind(parameter: Any) -> Kind:
    """What a kernel asks of what it is given for a parameter."""
    type = parameter.ty
    if not isinstance(type, tirx.BufferType):
        return Kind.FLOAT if "float" in str(type.dtype) else Kind.INTEGER
    told = (*type.shape, *(type.strides or ()), type.elem_offset)
    is_known = all(number is None or isinstance(number, tirx.IntImm) for number in told)
    return Kind.ADDRESS if is_known else Kind.TENSOR
