"""Loops: written out where the number of steps is known and small, else run as loops.

A loop that is run is compiled once, for all its steps: what a step leaves to the next one must
then be of one type. What that is shows by trying: a step is compiled with all that is around it
known, then again with what it changed unknown, until no more changes.
"""

from __future__ import annotations

import ast
import contextlib
import operator
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from babytriton import errors
from babytriton.diagnostics import CompileError
from babytriton.frontend import modules
from babytriton.frontend.assignment import Assignments
from babytriton.frontend.carrying import LoopState
from babytriton.frontend.control_flow import ControlFlow
from babytriton.frontend.exits import FALLS, Exits
from babytriton.frontend.growing import Counter
from babytriton.frontend.grown import Grown
from babytriton.frontend.iteration import Generated, Items, is_numbered, items_of
from babytriton.frontend.joining import expression
from babytriton.frontend.program import LoopNotes
from babytriton.frontend.scope import Scope, Unusable
from babytriton.ops import scalars
from babytriton.ops.counting import counter
from babytriton.ops.loops import counted_loop, while_loop, works_on_elements
from babytriton.ops.regions import Region
from babytriton.ops.sizes import int64
from babytriton.ops.value import Scalar

UNROLL = 32
"""Steps of a loop that are written out one after the other; more are run as a loop."""

FEW = 3
"""Steps that are always written out."""

AT_MOST = 128
"""The same where they cannot be run as a loop."""

_FOUND = "[...]"
"""What the list of a comprehension is called while it is filled."""

NESTED = 4
"""Steps that are written out of a loop around another one, if it can be run as a loop at all."""


class Loops(Assignments, ControlFlow):
    """``for``, ``while`` and comprehensions."""

    def visit_For(self, node: ast.For) -> Exits:
        items = self.items(node.iter, self.visit(node.iter))
        count = items.count()
        if isinstance(count, Scalar):
            return self._ended(node, self._run_counting(node, items, 0, count))
        if not is_numbered(items):
            return self._ended(node, self._written_out(node, items, 0, count))
        if not isinstance(count, int):
            return self._ended(node, self._looped(node, items, count))
        holds_loop = _holds_loop(node)
        start = self.program.mark()
        if count <= (NESTED if holds_loop else UNROLL):
            if count > FEW and self._may_be_a_kernel(node):
                try:
                    return self._ended(node, self._looped(node, items, count, works_on_elements))
                except (CompileError, _IsWrittenOut):
                    if self.program.has_acted(start):
                        raise
                self.program.undo(start)
            return self._ended(node, self._written_out(node, items, 0, count))
        try:
            return self._ended(node, self._looped(node, items, count))
        except CompileError as error:
            if count > (UNROLL if holds_loop else AT_MOST) or self.program.has_acted(start):
                raise
            refused = error
        self.program.undo(start)
        try:
            return self._ended(node, self._written_out(node, items, 0, count))
        except CompileError as error:
            # What Python raises is known for sure where each step is by itself.
            raises = isinstance(error.diagnostic, errors.PythonError)
            raise (error if raises else refused) from None

    def _may_be_a_kernel(self, node: ast.For) -> bool:
        """Whether a loop of few steps may be one kernel, where each writes a row of a tensor.

        Written out, the kernel that writes all rows would compute each from all before it.
        """
        builder = self.program.builder
        return builder.device.type == "cuda" and not builder.tape.running and _writes_rows(node)

    def _looped(self, node: ast.For, items: Items, count: Any, fits: _Fits | None = None) -> Exits:
        """Run the steps of a for loop, the first by itself where it must be.

        Args:
            node: the loop.
            items: that it goes over.
            count: of them.
            fits: whether to run what a step does, rather than to write it out; always if not given.

        Raises:
            _IsWrittenOut: it is written out.
        """
        if not count > 0:  # of a symbolic size, this is a condition of the program
            return FALLS
        try:
            return self._run_for(node, items, 0, count, fits)
        except _NeedsFirstStep:
            # The first step makes what the later ones take over.
            first = self._step(node, items, 0)
            live = self.liveness.again[node]
            if first.always:
                return first
            rest = partial(self._run_for, node, items, 1, count - 1, fits)
            return self.unless(node, first, live, rest) if first.open else rest()

    def visit_While(self, node: ast.While) -> Exits:
        start = self.program.mark()
        for _ in range(UNROLL):
            condition = self.condition(node.test, self.visit(node.test))
            if condition is False:
                return self._ended(node, FALLS)
            if isinstance(condition, Scalar):
                return self._ended(node, self._run_while(node, condition))
            exits = self.block(node.body).without("continue")
            if exits.always:
                return self._ended(node, exits)
            if exits.open:
                break
        if self.program.has_acted(start):
            why = f"it prints or asserts, and has more than {UNROLL} steps or an undecided end"
            instead = "use for and range(), or a condition on tensors from the first step on"
            self.fail(errors.OutsideEffect(self.span(node.test), "while", why, instead))
        self.program.undo(start)
        condition = self.condition(node.test, self.visit(node.test))
        return self._ended(node, self._run_while(node, condition))

    def items(self, node: ast.expr, iterable: Any) -> Items:
        """What a loop over a value runs over."""
        self.hand(node, iter, [iterable])
        iterable = modules.items(self, iterable)
        try:
            return items_of(iterable)
        except TypeError as error:
            self.fail(errors.CannotIterate(self.span(node), str(error)))

    # ------------------------------------------------------------ written out

    def _written_out(self, node: ast.For, items: Items, start: int, count: int) -> Exits:
        for i in range(start, count):
            exits = self._step(node, items, i)
            if items.count() != count:
                what = "what it goes over changes its length in the loop"
                self.fail(errors.CannotIterate(self.span(node.iter), what))
            if exits.always:
                return exits
            if exits.open and i + 1 < count:
                live = self.liveness.again[node]
                rest = partial(self._written_out, node, items, i + 1, count)
                return self.unless(node, exits, live, rest)
            if exits.open:
                return exits
        return FALLS

    def _require_same(self, node: ast.For, items: Items) -> None:
        """Refuse a step, compiled for all, that changes the list which the loop goes over."""
        if not items.is_same():
            what = "what it goes over changes in the loop"
            self.fail(errors.CannotIterate(self.span(node.iter), what))

    def _step(self, node: ast.For, items: Items, index: Any) -> Exits:
        self.bind(node.target, items.item(partial(self.emit, node.iter), index))
        return self.block(node.body).without("continue")

    def _ended(self, node: ast.For | ast.While, exits: Exits) -> Exits:
        """What follows a loop: its ``else``, unless it was left by break."""
        after = exits.without("break")
        if not node.orelse or exits.flags.get("break") is True or after.always:
            return after
        if not exits.open:
            return self.block(node.orelse)
        live = self.liveness.after[node]
        return self.unless(node, exits, live, lambda: self.block(node.orelse)).without("break")

    # ------------------------------------------------------------ run as a loop

    def _run_for(
        self, node: ast.For, items: Items, start: int, count: Any, fits: _Fits | None = None
    ) -> Exits:
        """Run the steps of a for loop: ``count`` of them, from item ``start`` on.

        Raises:
            _NeedsFirstStep: the first step must be compiled by itself.
            _IsWrittenOut: what a step does does not fit.
        """
        notes = self.program.loops.setdefault(node, LoopNotes())
        if fits is not None and notes.ends_early:
            raise _IsWrittenOut
        if start == 0 and notes.needs_first_step:
            raise _NeedsFirstStep
        if notes.ends_early:
            return self._run_counting(node, items, start, count)
        index = counter()
        steps = Counter(count, partial(scalars.counted, self.program.builder, index, count))
        state, settled = self._loop_state(node, steps), False
        while not settled:
            state.begin()
            with state.step() as region:
                step = state.lists.number
                at = self.emit(node.iter, operator.add, step, start) if start else step
                try:
                    exits = self._step(node, items, at)
                except CompileError:
                    if start == 0 and state.lists.reads_too_early:
                        notes.needs_first_step = True
                        raise _NeedsFirstStep from None
                    raise
                self._require_same(node, items)
                settled = state.end(exits)
        if start == 0 and (state.binds or state.mismatch):
            notes.needs_first_step = True
            raise _NeedsFirstStep
        self._require_types(node, state)
        if fits is not None and (exits.flags or not fits(region)):
            raise _IsWrittenOut
        if exits.flags:
            return self._run_counting(node, items, start, count)
        with self.program.blaming(self.span(node.iter), "for", ()):
            body = region, state.results
            builder = self.program.builder
            found = counted_loop(builder, int64(count), index, state.states, state.initial(), body)
        return state.finish(found, True)

    def _run_counting(self, node: ast.For, items: Items, start: int, count: Any) -> Exits:
        """Run the steps of a for loop that ends early, or whose count a tensor holds."""
        state, settled = self._loop_state(node), False
        end = self.emit(node.iter, operator.add, count, start) if start else count
        any_step = self.condition(node.iter, self.emit(node.iter, operator.lt, start, end))
        while not settled:
            state.begin()
            go, index = state.slot("go", any_step), state.slot("index", start)
            with state.step() as region:
                exits = self._step(node, items, index.inside)
                self._require_same(node, items)
                following = self.emit(node.iter, operator.add, index.inside, 1)
                again = self.condition(node.iter, self.emit(node.iter, operator.lt, following, end))
                go.result = self._unless_left(node, again, exits)
                index.result = following.expr
                settled = state.end(exits)
        return self._run(node, state, region)

    def _run_while(self, node: ast.While, any_step: bool | Scalar) -> Exits:
        """Run a while loop, whose first step depends on what is known already."""
        state, settled = self._loop_state(node), False
        while not settled:
            state.begin()
            go = state.slot("go", any_step)
            with state.step() as region:
                exits = self.block(node.body).without("continue")
                # A step that has left the loop asks no more.
                test = self.pure(node.test) if exits.flags else self.visit(node.test)
                again = self.condition(node.test, test)
                go.result = self._unless_left(node, again, exits)
                settled = state.end(exits)
        return self._run(node, state, region)

    def _loop_state(self, node: ast.For | ast.While, counter: Counter | None = None) -> LoopState:
        notes = self.program.loops.setdefault(node, LoopNotes())
        live, span = self.liveness.again[node], self.span(node)
        return LoopState(self.program, self.scope, live, notes, span, counter)

    def _run(self, node: ast.For | ast.While, state: LoopState, region: Region) -> Exits:
        self._require_types(node, state)
        head = node.test if isinstance(node, ast.While) else node.iter
        with self.program.blaming(self.span(head), "loop", ()):
            body = region, state.results
            found = while_loop(self.program.builder, state.states, state.initial(), body)
        return state.finish(found, False)

    def _require_types(self, node: ast.For | ast.While, state: LoopState) -> None:
        if state.mismatch is None:
            return
        what, differ = state.mismatch
        why = f"it has more than {UNROLL} steps, or a tensor decides how many"
        self.fail(errors.LoopCarried(self.span(node), what, differ.one, differ.other, why))

    def _unless_left(self, node: ast.AST, go: bool | Scalar, exits: Exits) -> Any:
        """Whether there is another step: not if this one left the loop."""
        for flag in exits.flags.values():
            if flag is True:
                return scalars.constant(self.program.builder, False)
            assert isinstance(flag, Scalar)
            stays = self.logical(node, torch.logical_not, flag)
            if go is True:
                go = stays
            elif isinstance(go, Scalar):
                go = self.logical(node, torch.logical_and, go, stays)
        return expression(self.program, go)

    # ------------------------------------------------------------ comprehensions

    def visit_ListComp(self, node: ast.ListComp) -> Any:
        [first, *rest] = node.generators
        items = self._items_of(first)
        binds = any(isinstance(x, ast.NamedExpr) for x in ast.walk(node))
        if _are_many(items) and not (rest or first.ifs or binds):
            start = self.program.mark()
            try:
                return self._run_comprehension(node, items)
            except CompileError:
                if not isinstance(items.count(), int) or self.program.has_acted(start):
                    raise
            self.program.undo(start)
        return [self.visit(node.elt) for _ in self._each(items, first, rest)]

    def _run_comprehension(self, node: ast.ListComp, items: Items) -> Any:
        """Run a comprehension as the loop that appends each of its items to a list."""
        [generator] = node.generators
        append = ast.Attribute(ast.Name(_FOUND, ast.Load()), "append", ast.Load())
        body = ast.Expr(ast.Call(append, [node.elt], []))
        loop = ast.For(generator.target, generator.iter, [body], [])
        ast.fix_missing_locations(ast.copy_location(loop, node))
        self.liveness.again[loop] = frozenset()
        own = Scope({_FOUND: Grown()}, self.scope, is_comprehension=True)
        with self._inside(own):
            self._looped(loop, items, items.count())
        return own.names[_FOUND]

    def visit_SetComp(self, node: ast.SetComp) -> set[Any]:
        return {self.visit(node.elt) for _ in self._all(node.generators)}

    def visit_DictComp(self, node: ast.DictComp) -> dict[Any, Any]:
        return {self.visit(node.key): self.visit(node.value) for _ in self._all(node.generators)}

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> Generated:
        outside = self.scope
        found = Generated([self.visit(node.elt) for _ in self._all(node.generators, False)])
        for bound in (x for x in ast.walk(node) if isinstance(x, ast.NamedExpr)):
            # Python computes items when they are asked for, and not all of them may be.
            name = bound.target.id
            what = f"{name} after {name} := ... in a generator expression"
            unknown = partial(errors.UnsupportedSyntax, node=what, instead="write a list: [...]")
            outside.of_function.bind(name, Unusable(unknown))
        return found

    def _all(self, generators: list[ast.comprehension], binds: bool = True) -> Iterator[None]:
        """Go through a comprehension's items, with its variables bound for each of them.

        Args:
            generators: where the items come from.
            binds: whether ``:=`` binds names around it, and not in it.
        """
        [first, *rest] = generators
        return self._each(self._items_of(first), first, rest, binds)

    def _items_of(self, generator: ast.comprehension) -> Items:
        if generator.is_async:
            self.fail(errors.UnsupportedSyntax(self.span(generator.iter), "async for"))
        return self.items(generator.iter, self.visit(generator.iter))

    def _each(
        self,
        items: Items,
        first: ast.comprehension,
        rest: list[ast.comprehension],
        binds: bool = True,
    ) -> Iterator[None]:
        count = items.count()
        if isinstance(count, torch.SymInt):
            what = "a generator over a symbolic size"
            instead = "write a list, [...], or compile for each size, with dynamic=False"
            self.fail(errors.UnsupportedSyntax(self.span(first.iter), what, instead))
        if not isinstance(count, int):
            self.fail(errors.DataDependent(self.span(first.iter), "a comprehension"))
        # Its variables are its own: the names around it stay what they are.
        own = Scope({}, self.scope, is_comprehension=binds)
        for i in range(count):
            with self._inside(own):
                self.bind(first.target, items.item(partial(self.emit, first.iter), i))
                if all(self.known(test, self.visit(test)) for test in first.ifs):
                    yield from self._all(rest, binds) if rest else iter([None])

    @contextlib.contextmanager
    def _inside(self, own: Scope) -> Iterator[None]:
        """Inside, names are those of a comprehension."""
        outside, self.scope = self.scope, own
        self.program.scopes.append(own)
        try:
            yield
        finally:
            self.program.scopes.pop()
            self.scope = outside


def _are_many(items: Items) -> bool:
    """Whether items are run as a loop although each could be computed where it stands."""
    count = items.count()
    is_known = isinstance(count, int)
    return (
        is_numbered(items) and not isinstance(count, Scalar) and (not is_known or count > AT_MOST)
    )


def _holds_loop(node: ast.For) -> bool:
    inner = (found for statement in node.body for found in ast.walk(statement))
    return any(isinstance(found, (ast.For, ast.While)) for found in inner)


def _writes_rows(node: ast.For) -> bool:
    """Whether each step writes to a place that its number, or its item, tells, or appends."""
    own = {name.id for name in ast.walk(node.target) if isinstance(name, ast.Name)}
    for statement in node.body:
        for found in ast.walk(statement):
            if isinstance(found, ast.Subscript) and isinstance(found.ctx, ast.Store):
                places = ast.walk(found.slice)
                if any(isinstance(x, ast.Name) and x.id in own for x in places):
                    return True
            if isinstance(found, ast.Attribute) and found.attr == "append":
                return True
    return False


_Fits = Callable[[Region], bool]
"""Whether a step, as a region, is run as one of a loop."""


class _IsWrittenOut(Exception):
    """A loop that could be run as one is written out."""


class _NeedsFirstStep(Exception):
    """The steps of a loop take over what only the first one makes."""
