"""Branches: on constants while compiling, on tensors at run time."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from typing import Any, NoReturn

import torch

from babytriton import errors
from babytriton.frontend.exits import FALLS, Exits
from babytriton.frontend.joining import MISSING, Differ, Join, follow, join_states
from babytriton.frontend.liveness import Liveness
from babytriton.frontend.program import describe
from babytriton.frontend.visitor import Visitor
from babytriton.ops import scalars
from babytriton.ops.refusals import IllTyped
from babytriton.ops.value import NeedsConstant, Scalar, Value

_AMBIGUOUS = "Python asks for the truth of a tensor of one element only"


class ControlFlow(Visitor):
    """Blocks of statements, and what decides between them."""

    @cached_property
    def liveness(self) -> Liveness:
        """Which names may still be read, at each statement of the function."""
        return Liveness(self.source.node)

    def block(self, statements: Sequence[ast.stmt]) -> Exits:
        """Compile statements in order, and say how control leaves them."""
        for i, statement in enumerate(statements):
            rest = statements[i + 1 :]
            if isinstance(statement, ast.If):
                exits, done = self._if(statement, rest)
                if done:
                    return exits
            else:
                found = self.visit(statement)
                exits = found if isinstance(found, Exits) else FALLS
            if exits.always or (exits.open and not rest):
                return exits
            if exits.open:
                live = self.liveness.after[rest[-1]]
                return self.unless(statement, exits, live, partial(self.block, rest))
        return FALLS

    def unless(
        self, node: ast.AST, exits: Exits, live: Iterable[str], rest: Callable[[], Exits]
    ) -> Exits:
        """Compile what runs where control has not left already."""
        left = exits.open[0]
        for flag in exits.open[1:]:
            left = self.logical(node, torch.logical_or, left, flag)
        join = partial(self._join_exits, node, left)
        found: Exits = self.fork(node, left, live, exits.surely, rest, join)
        return found

    # ------------------------------------------------------------ statements

    def visit_Return(self, node: ast.Return) -> Exits:
        value = None if node.value is None else self.visit(node.value)
        return Exits({"return": True}, value, node)

    def visit_Break(self, node: ast.Break) -> Exits:
        return Exits({"break": True})

    def visit_Continue(self, node: ast.Continue) -> Exits:
        return Exits({"continue": True})

    def visit_If(self, node: ast.If) -> Exits:
        return self._if(node, ())[0]

    def _if(self, node: ast.If, rest: Sequence[ast.stmt]) -> tuple[Exits, bool]:
        """Compile an if statement; also ``rest`` where one of its branches surely leaves.

        Returns:
            How control leaves, and whether ``rest`` was compiled.
        """
        condition = self.condition(node.test, self.visit(node.test))
        if isinstance(condition, bool):
            return self.block(node.body if condition else node.orelse), False
        body, orelse = list(node.body), list(node.orelse)
        folds = bool(rest) and (_leaves(body) or _leaves(orelse))
        if folds and _leaves(body):
            orelse += rest
        elif folds:
            body += rest
        live = self.liveness.after[rest[-1] if folds else node]
        exits = self.fork(
            node.test,
            condition,
            live,
            lambda: self.block(body),
            lambda: self.block(orelse),
            partial(self._join_exits, node.test, condition),
        )
        return exits, folds

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        condition = self.condition(node.test, self.visit(node.test))
        if isinstance(condition, bool):
            return self.visit(node.body if condition else node.orelse)

        def join(join: Join, one: Any, other: Any) -> Any:
            try:
                return join.value(one, other)
            except Differ as differ:
                self._refuse_unmerged(node, condition, "the expression", differ)

        body, orelse = node.body, node.orelse
        bound = [x.target.id for x in ast.walk(node) if isinstance(x, ast.NamedExpr)]
        return self.fork(
            node, condition, bound, lambda: self.visit(body), lambda: self.visit(orelse), join
        )

    # ------------------------------------------------------------ conditions

    def condition(self, node: ast.AST, value: Any) -> bool | Scalar:
        """Python's truth of a value: known, or a bool of the run time."""
        if not isinstance(value, Value):
            return bool(self.python(node, bool, value))
        if not isinstance(value, Scalar) and value.meta.numel() != 1:
            what = f"a tensor of {describe(value)}"
            instead = "use .any() or .all(), or torch.where for a choice by element"
            self.fail(errors.TensorCondition(self.span(node), what, _AMBIGUOUS, instead))
        with self.program.blaming(self.span(node), "bool", (value,)):
            return scalars.convert(self.program.builder, value, bool)

    def number(self, node: ast.AST, kind: type, value: Value) -> Scalar:
        """``bool``, ``int`` or ``float`` of a tensor of one element, or of a number."""
        with self.program.blaming(self.span(node), kind.__name__, (value,)):
            if value.meta.numel() != 1:
                size = value.meta.numel()
                raise IllTyped(f"a Tensor with {size} elements cannot be converted to a Scalar")
            return scalars.convert(self.program.builder, value, kind)

    def known(self, node: ast.AST, value: Any) -> bool:
        """Python's truth of a value that must be known while compiling."""
        truth = self.condition(node, value)
        if isinstance(truth, Scalar):
            if truth.arguments:
                raise NeedsConstant(truth.arguments)
            self.fail(errors.TensorCondition(self.span(node), describe(value)))
        return truth

    def logical(self, node: ast.AST, fn: Callable[..., Any], *operands: Any) -> Scalar:
        """``torch.logical_and``, ``_or`` or ``_not`` of bools of the run time."""
        builder = self.program.builder
        arguments = frozenset[str]().union(*(operand.arguments for operand in operands))
        tensors = tuple(operand.tensor for operand in operands)
        with self.program.blaming(self.span(node), fn.__name__, operands):
            found = builder.call(fn, tensors, {})
        return Scalar(builder, found.expr, True, arguments)

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        stops = isinstance(node.op, ast.Or)
        fn = torch.logical_or if stops else torch.logical_and
        result = self.visit(node.values[0])
        for value_node in node.values[1:]:
            if not isinstance(result, Value):
                # As Python: the first constant that decides is the result.
                if bool(self.python(node, bool, result)) == stops:
                    return result
                result = self.visit(value_node)
            else:
                result = self._decided(node, fn, result, self.pure(value_node))
        return result

    def pure(self, node: ast.expr) -> Any:
        """An expression that is computed where Python would not always compute it."""
        before, effects = self.program.state(), self.program.builder.effects
        found = self.visit(node)
        after = self.program.state()
        if (
            self.program.builder.effects > effects
            or before.changed_memory(after)
            or before.changed_containers(after)
            or before.changed_names(after)
        ):
            self.fail(errors.NotPure(self.span(node)))
        return found

    def _decided(self, node: ast.AST, fn: Callable[..., Any], left: Any, right: Any) -> Any:
        """``left and right`` or ``left or right``: of numbers, one of them; else their truth."""
        kinds = [scalars.kind_of(operand) for operand in (left, right)]
        tensors = [isinstance(x, Value) and not isinstance(x, Scalar) for x in (left, right)]
        if all(ours or kind is bool for ours, kind in zip(tensors, kinds)):
            return self.both(node, fn, left, right)
        truth = self.condition(node, left)
        if any(tensors) or kinds[0] is not kinds[1] or isinstance(truth, bool):
            why = errors.Unmerged.at_condition(self.span(node))
            types = describe(left), describe(right)
            self.fail(errors.Unmerged(self.span(node), "the result", *types, why))
        one, other = (left, right) if fn is torch.logical_or else (right, left)
        return self.fork(node, truth, (), lambda: one, lambda: other, Join.value)

    def both(self, node: ast.AST, fn: Callable[..., Any], left: Any, right: Any) -> Any:
        """Both truths, at least one of which is known only at run time."""
        tensor = any(isinstance(x, Value) and not isinstance(x, Scalar) for x in (left, right))
        truths = [self.condition(node, value) for value in (left, right)]
        known = next((truth for truth in truths if isinstance(truth, bool)), None)
        if known is not None:
            [open] = [truth for truth in truths if isinstance(truth, Scalar)]
            decides = known == (fn is torch.logical_or)
            return known if decides else open
        found = self.logical(node, fn, *truths)
        return found.tensor if tensor else found

    # ------------------------------------------------------------ two paths

    def fork(
        self,
        node: ast.AST,
        condition: Scalar,
        live: Iterable[str],
        then: Callable[[], Any],
        orelse: Callable[[], Any],
        join_results: Callable[[Join, Any, Any], Any],
    ) -> Any:
        """Compile two paths of which one is taken at run time, and what follows where they meet.

        Args:
            node: what decides between them.
            condition: whether the first is taken.
            live: names that may be read afterwards.
            then: compiles the first path, and gives its result.
            orelse: compiles the second.
            join_results: makes one result of two.
        """
        program = self.program
        base, effects = program.state(), program.builder.effects
        with program.decided_by(condition.arguments):
            paths = (
                follow(program, self.scope, live, then),
                follow(program, self.scope, live, orelse),
            )
        join = Join(program)
        result = join_results(join, paths[0].result, paths[1].result)
        # What is returned is out of reach of any write that follows.
        returned = len(join.pairs) if isinstance(result, Exits) else 0
        try:
            storages = join_states(
                program, self.scope, base, paths, live, self.span(node), condition, join
            )
        except Differ as differ:
            self._refuse_unmerged(node, condition, "a container", differ)
        firsts, seconds = [one for one, _ in join.pairs], [other for _, other in join.pairs]
        taken = join.side(paths[0], firsts, seconds), join.side(paths[1], seconds, firsts)
        then_part, else_part = (
            (path.region, [*side, *(path.state.held(storage)[0] for storage in storages)])
            for path, side in zip(paths, taken)
        )
        if then_part[1] or program.builder.effects > effects:
            with program.blaming(self.span(node), "if", ()):
                found = program.builder.regions.branch(condition.expr, then_part, else_part)
            join.fill(found)
            for storage, expr in zip(storages, found[len(join.pairs) :]):
                storage.expr, storage.version = expr, object()
        join.freeze(base, paths, program.scopes, returned)
        return result

    def _join_exits(
        self, node: ast.AST, condition: Scalar, join: Join, one: Exits, other: Exits
    ) -> Exits:
        kinds = [*one.flags, *(kind for kind in other.flags if kind not in one.flags)]
        flags = {
            kind: join.value(one.flags.get(kind, False), other.flags.get(kind, False))
            for kind in kinds
        }
        first, second = (
            exits.value if "return" in exits.flags else MISSING for exits in (one, other)
        )
        sure = one.always and other.always
        if first is MISSING and second is MISSING:
            return Exits(flags, sure=sure)
        try:
            value = join.value(first, second)
        except Differ as differ:
            lines = [self.span(exits.node).line for exits in (one, other) if exits.node]
            where = f"returned at lines {lines[0]} and {lines[1]}"
            at = one.node or other.node
            self._refuse_unmerged(node, condition, "the result", differ, at, where)
        return Exits(flags, value, one.node or other.node, sure)

    def _refuse_unmerged(
        self,
        node: ast.AST,
        condition: Scalar,
        what: str,
        differ: Differ,
        at: ast.AST | None = None,
        where: str = "",
    ) -> NoReturn:
        if condition.arguments:
            # With a constant for the argument there is one path.
            raise NeedsConstant(condition.arguments)
        why = errors.Unmerged.at_condition(self.span(node))
        span, types = self.span(at or node), (differ.one, differ.other)
        self.fail(errors.Unmerged(span, what, *types, why, where))


def _leaves(statements: Sequence[ast.stmt]) -> bool:
    """Whether control surely leaves a block by return, break, continue or raise."""
    if not statements:
        return False
    last = statements[-1]
    if isinstance(last, ast.If):
        return _leaves(last.body) and _leaves(last.orelse)
    return isinstance(last, (ast.Return, ast.Break, ast.Continue, ast.Raise))
