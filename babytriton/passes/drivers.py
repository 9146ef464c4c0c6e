"""Functions that run the steps of a loop, as the frontend makes them: they call themselves.

TVM's programs have no loops. One of known steps is a function that runs the first half of them and
then the second; one without is a function that runs as many as its depth allows, and goes on for as
long as the first of its states is true.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import ir, relax, tirx
from tvm.ir import IRModule

from babytriton.ops.primfunc import nodes
from babytriton.passes.statements import is_number


@dataclass(frozen=True)
class Counted:
    """A loop from one number to another.

    Attributes:
        body: the call of a step, with the driver's parameters as arguments.
        states: for each of its results, the number of the parameter that is its last value.
        low, high: the numbers of the parameters for the first step, and for that after the last.
    """

    body: ir.Call
    states: tuple[int | None, ...]
    low: int
    high: int


@dataclass(frozen=True)
class Repeated:
    """A loop that goes on while a state is true, and has one step at least.

    Attributes:
        body: the call of a step, with the driver's parameters as arguments.
        states: for each of its results, the number of the parameter that is its last value; None
            for those that no step reads.
        again: the number of the result that is asked.
    """

    body: ir.Call
    states: tuple[int | None, ...]
    again: int


def calls_itself(mod: IRModule, name: str) -> bool:
    """Whether a function of a program calls itself, or others that do."""
    seen: set[str] = set()
    waiting = list(_called(mod, name))
    while waiting:
        other = waiting.pop()
        if other == name:
            return True
        if other not in seen:
            seen.add(other)
            waiting.extend(_called(mod, other))
    return False


def _called(mod: IRModule, name: str) -> Iterator[str]:
    for var in nodes(mod[name].body, ir.GlobalVar):
        if isinstance(mod[var], relax.Function):
            yield var.name_hint


def driver_of(mod: IRModule, name: str) -> Counted | Repeated | None:
    """The loop that a function is; None where it calls itself in another way."""
    function = mod[name]
    body, params = function.body, list(function.params)
    branch = _branch(body)
    if branch is None or not isinstance(branch.cond, tirx.LT):
        return None
    return _counted(name, branch, params) or _repeated(name, branch, params)


def _counted(name: str, branch: relax.If, params: list[relax.Var]) -> Counted | None:
    few = _branch(branch.true_branch)
    halves = list(_calls(branch.false_branch))
    if few is None or len(halves) != 2 or any(x.op.name_hint != name for x in halves):
        return None
    length = few.cond.a if isinstance(few.cond, tirx.LT) else None
    if not isinstance(length, tirx.Sub) or not is_number(few.cond.b, 1):
        return None
    low, high = (_place(x, params) for x in (length.b, length.a))
    if low is None or high is None or not is_number(branch.cond.b, 2):
        return None
    none, single = _results(few.true_branch), list(_calls(few.false_branch))
    if len(single) != 1 or single[0].op.name_hint == name:
        return None
    states = tuple(_place(x, params) for x in none)
    first, second = halves
    middle = first.args[high]
    is_halved = first.args[low].same_as(params[low]) and second.args[high].same_as(params[high])
    if not is_halved or not tvm_ffi.structural_equal(middle, second.args[low]):
        return None
    bounds = (low, high)
    if (
        not states
        or None in states
        or not _hands_on(branch.false_branch, halves, params, states, bounds)
    ):
        return None
    return Counted(single[0], states, low, high)


def _repeated(name: str, branch: relax.If, params: list[relax.Var]) -> Repeated | None:
    depth = _place(branch.cond.a, params)
    single, more = list(_calls(branch.true_branch)), list(_calls(branch.false_branch))
    again = _branch(branch.false_branch)
    if depth is None or again is None or len(single) != 1 or len(more) != 1:
        return None
    halves = [*more, *_calls(again.true_branch)]
    if len(halves) != 2 or any(x.op.name_hint != name for x in halves):
        return None
    if single[0].op.name_hint == name or not is_number(branch.cond.b, 1):
        return None
    items = _items(branch.false_branch, more[0])
    kept = _results(again.false_branch)
    places = [items.get(x) if isinstance(x, relax.Var) else None for x in kept]
    if again.cond not in items or places != list(range(len(kept))):
        return None
    states: list[int | None] = [None] * len(kept)
    for place, argument in enumerate(halves[1].args):
        if isinstance(argument, relax.Var) and argument in items:
            states[items[argument]] = place
    if not _hands_on(branch.false_branch, halves, params, states, (depth,)):
        return None
    return Repeated(single[0], tuple(states), items[again.cond])


def _hands_on(
    body: relax.Expr,
    halves: Sequence[ir.Call],
    params: Sequence[relax.Var],
    states: Sequence[int | None],
    numbers: Sequence[int],
) -> bool:
    """Whether the second half goes on from what the first one gives, with all else as it is."""
    first, second = halves
    items = _items(body, first)
    for place, param in enumerate(params):
        if place in numbers:
            continue
        if isinstance(param.ty, relax.ShapeType):
            if not all(_tells(call, place, params) for call in halves):
                return False
            continue
        argument = second.args[place]
        is_state = isinstance(argument, relax.Var) and argument in items
        given_on = is_state and states[items[argument]] == place
        if not first.args[place].same_as(param) or not (given_on or argument.same_as(param)):
            return False
        if not is_state and place in states:
            return False
    return True


def _tells(call: ir.Call, place: int, params: Sequence[relax.Var]) -> bool:
    """Whether a shape that a call hands on has in it what the other arguments are."""
    sizes, given = params[place].ty.values, call.args[place]
    if not isinstance(given, relax.ShapeExpr) or len(given.values) != len(sizes):
        return False
    told = dict(zip(params, call.args))
    return all(
        bool(tvm_ffi.structural_equal(value, told.get(size, size)))
        for size, value in zip(sizes, given.values)
    )


def _branch(body: relax.Expr) -> relax.If | None:
    """The branch whose result is that of a body, alone or last."""
    if not isinstance(body, relax.SeqExpr):
        return None
    bindings = [binding for block in body.blocks for binding in block.bindings]
    found = [x.value for x in bindings if isinstance(getattr(x, "value", None), relax.If)]
    last = _value_of(body.body, bindings)
    return found[0] if len(found) == 1 and last is not None and last.same_as(found[0]) else None


def _value_of(expr: relax.Expr, bindings: Sequence[relax.Binding]) -> relax.Expr | None:
    values = {x.var: x.value for x in bindings if isinstance(x, relax.VarBinding)}
    while isinstance(expr, relax.Var) and expr in values:
        expr = values[expr]
    return expr


def _results(body: relax.Expr) -> list[relax.Expr]:
    """What a body gives, if it is a tuple."""
    if isinstance(body, relax.SeqExpr):
        bindings = [binding for block in body.blocks for binding in block.bindings]
        found = _value_of(body.body, bindings)
    else:
        found = body
    return list(found.fields) if isinstance(found, relax.Tuple) else []


def _calls(body: relax.Expr) -> Iterator[ir.Call]:
    """The calls of functions of the program in a body, but for those in its branches."""
    for block in body.blocks if isinstance(body, relax.SeqExpr) else ():
        for binding in block.bindings:
            value = getattr(binding, "value", None)
            if isinstance(value, ir.Call) and isinstance(value.op, ir.GlobalVar):
                yield value


def _items(body: relax.SeqExpr, call: ir.Call) -> dict[relax.Var, int]:
    """The variables for what a call gives, with their numbers."""
    bindings = [binding for block in body.blocks for binding in block.bindings]
    whole = next(
        x.var for x in bindings if getattr(x, "value", None) is not None and x.value.same_as(call)
    )
    return {
        x.var: x.value.index
        for x in bindings
        if isinstance(getattr(x, "value", None), relax.TupleGetItem)
        and x.value.tuple_value.same_as(whole)
    }


def _place(expr: relax.Expr, params: Sequence[relax.Var]) -> int | None:
    return next((n for n, param in enumerate(params) if param.same_as(expr)), None)
