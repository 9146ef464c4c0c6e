"""Which functions of a program are the last to read what they are given, as steps of loops are.

A step gives the next one a new tensor for each that changes. Where nothing else reads the old one
any more, it may become the new one. That is so if, at each call of the function, it is a tensor
that the program has made, that nothing reads later, and that nothing else lies in the memory of.
It is found by taking it to be so of all, and giving up what is not until no more changes: an escape
analysis (Choi et al., Escape Analysis for Java, 1999) of one flow per path.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tvm import ir, relax
from tvm.ir import IRModule

from babytriton.passes.bindings import CALL_IN_PLACE, CALL_TIR, is_tensor
from babytriton.plan import Updates

_Path = tuple[tuple[int, bool], ...]
"""Of nested branches: their numbers, and which side."""

_Tokens = frozenset[tuple[int, _Path]]
"""Pieces of memory that a tensor may lie in, and after which branches it does."""

_WAYS = 4
"""Through branches to a piece of memory; of more, it is not told which they are."""

_Fields = tuple[_Tokens, ...]
"""Those of each tensor of a tuple, or of the one tensor."""


def of_all(updates: Updates, mod: IRModule) -> Sequence[Updates]:
    """What a program writes to its arguments, and its functions to what is their own.

    Nothing, where it is not known which of the functions is the program's entry.
    """
    return (updates, *owned(mod, updates)) if updates.entry else ()


def owned(mod: IRModule, updates: Updates) -> list[Updates]:
    """What private functions may put in the place of what they are given: all pairs of these.

    Args:
        mod: a program of calls of kernels.
        updates: what its entry writes to its arguments, which are its own as far as that goes.
    """
    functions = {
        var.name_hint: func
        for var, func in mod.functions_items()
        if isinstance(func, relax.Function)
    }
    if len(functions) < 2:
        return []
    known = {name: _Known.of(func) for name, func in functions.items()}
    if updates.entry in known:
        written = {parameter for parameter, _ in updates.pairs}
        takes = known[updates.entry].takes
        takes[:] = [own and number in written for number, own in enumerate(takes)]
    before = None
    while before != (before := [(list(x.takes), list(x.gives)) for x in known.values()]):
        for name, func in functions.items():
            _Reading(known, name).function(func)
    return [
        Updates(name, tuple(known[name].pairs(func)), own=True)
        for name, func in functions.items()
        if name != updates.entry
    ]


@dataclass
class _Known:
    """What is known of a function.

    Attributes:
        takes: for each parameter, whether what it is given is its own.
        gives: for each result, whether it is the caller's own.
    """

    takes: list[bool]
    gives: list[bool]

    @classmethod
    def of(cls, func: relax.Function) -> _Known:
        """What is taken to be so at first."""
        result = func.ret_ty
        count = len(result.fields) if isinstance(result, ir.TupleType) else 1
        return cls(list(map(is_tensor, func.params)), [True] * count)

    def pairs(self, func: relax.Function) -> Iterator[tuple[int, int]]:
        """The numbers of parameters that are its own, with those of all that it computes."""
        if not isinstance(func.body.body, relax.Tuple):
            return  # A branch, or another function, does.
        for parameter, takes in enumerate(self.takes):
            if takes:
                yield from ((parameter, result) for result in range(len(self.gives)))


@dataclass
class _Reading:
    """Goes through a function in the order in which it runs.

    Attributes:
        known: of all functions; what does not hold is taken back.
        name: of the function.
        own: for each piece of memory, whether nothing else knows of it.
        uses: where each is read: a number that grows, and the path.
        moves: where each is handed over to a function, as that one's parameter.
        fields: the pieces of memory of each variable.
    """

    known: dict[str, _Known]
    name: str
    own: list[bool] = field(default_factory=list)
    uses: list[list[tuple[int, _Path]]] = field(default_factory=list)
    moves: list[tuple[_Tokens, int, _Path, str, int]] = field(default_factory=list)
    fields: dict[relax.Var, _Fields] = field(default_factory=dict)
    _now: int = 0
    _branches: int = 0

    def function(self, func: relax.Function) -> None:
        """Take back what does not hold of the function, and of those that it calls."""
        known = self.known[self.name]
        for param, takes in zip(func.params, known.takes):
            self.fields[param] = (self._new(takes),)
        results = self._sequence(func.body, ())
        for number, result in enumerate(results):
            others = [x for n, tokens in enumerate(results) if n != number for x, _ in tokens]
            known.gives[number] &= all(self.own[x] and x not in others for x, _ in result)
        for moved, time, path, callee, parameter in self.moves:
            self.known[callee].takes[parameter] &= all(
                self.own[token] and not self._is_read_after(token, time, (*path, *branches))
                for token, branches in moved
            )

    def _new(self, own: bool) -> _Tokens:
        self.own.append(own)
        self.uses.append([])
        return frozenset([(len(self.own) - 1, ())])

    def _is_read_after(self, token: int, time: int, path: _Path) -> bool:
        return any(
            time < other and not _are_apart(path, elsewhere)
            for other, elsewhere in self.uses[token]
        )

    def _sequence(self, body: relax.Expr, path: _Path) -> _Fields:
        if not isinstance(body, relax.SeqExpr):
            return self._value(body, path)
        for block in body.blocks:
            for binding in block.bindings:
                value = getattr(binding, "value", None)
                found = self._value(value, path)
                self.fields[binding.var] = found
        return self._value(body.body, path)

    def _value(self, value: relax.Expr | None, path: _Path) -> _Fields:
        self._now += 1
        if isinstance(value, relax.Var):
            return self._read(value, path)
        if isinstance(value, relax.Tuple):
            return tuple(tokens for x in value.fields for tokens in self._value(x, path)[:1])
        if isinstance(value, relax.TupleGetItem):
            found = self.fields.get(value.tuple_value)
            return (found[value.index],) if found else (self._unknown(value, path),)
        if isinstance(value, relax.If):
            return self._branch(value, path)
        if isinstance(value, ir.Call) and value.op in (CALL_TIR, CALL_IN_PLACE):
            return self._kernel(value, path)
        if isinstance(value, ir.Call) and isinstance(value.op, ir.GlobalVar):
            return self._call(value, path)
        unknown = self._unknown(value, path)
        fields = getattr(getattr(value, "ty", None), "fields", None)
        return (unknown,) * (1 if fields is None else len(fields))

    def _read(self, var: relax.Var, path: _Path) -> _Fields:
        found = self.fields.get(var) or (self._new(False),)
        for token, branches in _together(found):
            self.uses[token].append((self._now, (*path, *branches)))
        return found

    def _unknown(self, value: relax.Expr | None, path: _Path) -> _Tokens:
        """What something else may know of, and so whatever that was made of."""
        for var in [] if value is None else relax.analysis.free_vars(value):
            for token, _ in _together(self._read(var, path)):
                self.own[token] = False
        return self._new(False)

    def _branch(self, value: relax.If, path: _Path) -> _Fields:
        self._unread(value.cond, path)
        self._branches += 1
        number = self._branches
        then = self._sequence(value.true_branch, (*path, (number, True)))
        orelse = self._sequence(value.false_branch, (*path, (number, False)))
        self._now += 1
        return tuple(_either(one, other, number) for one, other in zip(then, orelse))

    def _unread(self, expr: relax.Expr, path: _Path) -> None:
        for var in relax.analysis.free_vars(expr):
            self._read(var, path)

    def _kernel(self, call: ir.Call, path: _Path) -> _Fields:
        _, given, *others = call.args
        arguments = list(given.fields) if isinstance(given, relax.Tuple) else [given]
        read = [self._value(x, path)[:1] for x in arguments]
        for other in others:
            self._unread(other, path)
        types = call.ty_args[0]
        count = len(types.fields) if isinstance(types, ir.TupleType) else 1
        if call.op == CALL_IN_PLACE:
            places = [int(n) for n in call.attrs.inplace_indices]
            return tuple(read[n][0] if n >= 0 else self._new(True) for n in places)
        return tuple(self._new(True) for _ in range(count))

    def _call(self, call: ir.Call, path: _Path) -> _Fields:
        callee = call.op.name_hint
        given: list[_Tokens] = []
        for number, argument in enumerate(call.args):
            if not isinstance(argument, relax.Var) or not is_tensor(argument):
                self._unread(argument, path)
                self.known[callee].takes[number] = False
                given.append(frozenset())
                continue
            [tokens] = self._value(argument, path)
            others = {token for other in given for token, _ in other}
            for token, _ in tokens:
                self.own[token] &= token not in others
            given.append(tokens)
        for number, tokens in enumerate(given):
            self.moves.append((tokens, self._now, path, callee, number))
        known = self.known[callee]
        kept = _together([x for x, takes in zip(given, known.takes) if not takes])
        found: list[_Tokens] = []
        for gives in known.gives:
            # What is not new may be anything that it was given.
            found.append(self._new(True) if gives else self._new(False) | kept)
        return tuple(found)


def _either(then: _Tokens, orelse: _Tokens, number: int) -> _Tokens:
    """What a tensor may lie in after a branch, by what it may lie in on its sides."""
    on_one = [
        *((token, (*at, (number, True))) for token, at in then - orelse),
        *((token, (*at, (number, False))) for token, at in orelse - then),
    ]
    # In what it may lie by many ways, it is taken to lie whatever way was taken.
    ways = Counter(token for token, _ in on_one)
    return (then & orelse).union((x, at if ways[x] <= _WAYS else ()) for x, at in on_one)


def _together(fields: Iterable[_Tokens]) -> _Tokens:
    return frozenset().union(*fields)


def _are_apart(one: _Path, other: _Path) -> bool:
    """Whether two places are on different sides of a branch."""
    sides = dict(one)
    return any(sides.get(number, side) != side for number, side in other)
