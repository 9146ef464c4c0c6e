"""Loops in a kernel: ranges and grids, ``while``, and the ways out of them."""

from __future__ import annotations

import ast
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from tvm import ir, tirx

from babytriton.frontend.grid import grid
from babytriton.frontend.kernel import scalars
from babytriton.frontend.kernel.assignments import Assignments
from babytriton.frontend.kernel.frames import Jumps
from babytriton.frontend.kernel.program import (
    UNTOUCHED,
    ZERO,
    Assign,
    Branch,
    Loop,
    Statement,
    While,
    index,
    replaced,
)
from babytriton.frontend.kernel.scalars import Number, ScalarType
from babytriton.frontend.kernel.tensors import Tensor

_NO_LOOP = "loop over bt.grid(n, m) or range(start, stop, step)"

Axis = tuple[Any, Any, int]
"""First value, number of values, and step of a range."""


class Loops(Assignments):
    """Visits loops."""

    def visit_all(self, nodes: Sequence[ast.stmt]) -> None:
        """Visit statements in order."""
        raise NotImplementedError

    def visit_For(self, node: ast.For) -> None:
        if not isinstance(node.iter, ast.Call):
            self.refuse(node.iter, "this is no range of numbers", _NO_LOOP)
        fn = self.visit(node.iter.func)
        if fn not in (range, grid) or node.iter.keywords:
            self.refuse(node.iter, "this is no range of numbers", _NO_LOOP)
        args = [self.visit(arg) for arg in node.iter.args]
        for arg in args:
            self.number(node.iter, arg)
            self.typed(node.iter, operator.index, arg)
        if fn is range:
            axes = [self._axis(node.iter, *args)]
        else:
            axes = [self._axis(node.iter, size) for size in args]
            if not axes:
                self.python(node.iter, grid)
        self._for(node, axes, is_single=len(axes) == 1)

    def _axis(self, node: ast.AST, *args: Any) -> Axis:
        """First value, number of values, and step of a range."""
        if not 1 <= len(args) <= 3:
            self.python(node, range, *(0 for _ in args))
        start, stop, step = (0, args[0], 1) if len(args) == 1 else (*args, 1)[:3]
        if isinstance(step, Number):
            self.refuse(node, "the step of a range is known only at run time", "use while")
        if not isinstance(start, Number) and not isinstance(stop, Number):
            return start, len(self.python(node, range, start, stop, step)), step
        self.python(node, range, 0, 0, step)
        first, last = (self.keep(scalars.convert(x, torch.int64)) for x in (start, stop))
        # The values lie between the two ends; backwards, the ends change places.
        low, high = (first, last) if step > 0 else (last, first)
        count = tirx.floordiv(high - low + index(abs(step) - 1), index(abs(step)))
        return Number(first, ScalarType(torch.int64)), self.ranges.analyzer.simplify(count), step

    def _for(self, node: ast.For, axes: list[Axis], is_single: bool) -> None:
        if any(isinstance(count, int) and count == 0 for _, count, _ in axes):
            self.visit_all(node.orelse)
            return
        names = ["i"] if not is_single else [_name(node.target, "i")]
        if not is_single and isinstance(node.target, ast.Tuple):
            names = [_name(item, "i") for item in node.target.elts]
        names = (names * len(axes))[: len(axes)]
        loops = []
        for name, (_, count, _) in zip(names, axes):
            extent = index(count) if isinstance(count, int) else count
            loops.append(Loop(tirx.Var(name, "int64"), extent, ()))
        jumps = self._jumps(node.body)
        frame = self.frame
        certain = self.certain and all(isinstance(count, int) for _, count, _ in axes)
        assigned = set(frame.assigned)
        with self.under(None) as body:
            self.certain = certain and jumps.leave is None
            for loop in loops:
                self.ranges.enter(loop)
            frame.loops.append(jumps)
            values = [_value(loop.var, start, step) for loop, (start, _, step) in zip(loops, axes)]
            self.assign(node.target, values[0] if is_single else tuple(values))
            ends = self._loop_body(node.body, jumps)
            frame.loops.pop()
        runs = all(isinstance(count, int) for _, count, _ in axes)
        ways = [*ends, *jumps.skipped_with, *jumps.left_with]
        frame.assigned = set.intersection(*ways) if runs and ways else assigned
        if jumps.leave is None:
            statement: Sequence[Statement] = body
            for loop in reversed(loops):
                statement = (Loop(loop.var, loop.extent, tuple(statement)),)
            self.out += statement
        else:
            self._counted(loops, body, jumps.leave)
        self._otherwise(node.orelse, jumps)

    def _counted(self, loops: list[Loop], body: list[Statement], leave: tirx.Buffer) -> None:
        """Loops that ``break`` may leave, as one loop that counts by itself."""
        total: ir.Expr = index(1)
        for loop in loops:
            total = total * tirx.max(loop.extent, ZERO)
        counter = self.new_local("count", torch.int64)
        count = tirx.BufferLoad(counter, [ZERO])
        rest: ir.Expr = count
        values: dict[int, ir.Expr] = {}
        for i, loop in reversed(list(enumerate(loops))):
            values[i] = rest if i == 0 else tirx.floormod(rest, loop.extent)
            rest = tirx.floordiv(rest, loop.extent)
        places = [self.new_local(loop.var.name, torch.int64) for loop in loops]
        starts = [Assign(place, (ZERO,), values[i]) for i, place in enumerate(places)]
        loads = [(loop.var, tirx.BufferLoad(p, [ZERO])) for loop, p in zip(loops, places)]
        inner = [replaced(statement, loads) for statement in body]
        goes_on = tirx.And(tirx.LT(count, total), tirx.Not(tirx.BufferLoad(leave, [ZERO])))
        step = Assign(counter, (ZERO,), count + index(1))
        self.out.append(Assign(leave, (ZERO,), tirx.const(False, "bool")))
        self.out.append(Assign(counter, (ZERO,), ZERO))
        self.out.append(While(goes_on, (*starts, *inner, step)))

    def visit_While(self, node: ast.While) -> None:
        jumps = self._jumps(node.body)
        frame = self.frame
        if jumps.leave is not None:
            self.out.append(Assign(jumps.leave, (ZERO,), tirx.const(False, "bool")))
        assigned, faults = set(frame.assigned), len(self.faults)
        with self.under(None) as before:
            test = self.visit(node.test)
        if isinstance(test, Tensor):
            self.number(node.test, test)
        always = not isinstance(test, Number) and bool(test)
        if not isinstance(test, Number) and not always:
            self.visit_all(node.orelse)
            return
        condition = scalars.truth(test)
        with self.under(None) as body:
            frame.loops.append(jumps)
            self._loop_body(node.body, jumps)
            frame.loops.pop()
        frame.assigned = assigned
        if always and jumps.left_with:
            frame.assigned = set.intersection(*jumps.left_with)
        self._while(condition, before, body, jumps.leave, range(faults, len(self.faults)))
        self._otherwise(node.orelse, jumps)
        if always and not jumps.left_with:
            frame.ended = True

    def _while(
        self,
        condition: ir.Expr,
        before: list[Statement],
        body: list[Statement],
        leave: tirx.Buffer | None,
        faults: range,
    ) -> None:
        """A loop that ends at a ``break``, and at a failure: Python would not go on either."""
        stays: list[ir.Expr] = []
        if leave is not None:
            stays.append(tirx.Not(tirx.BufferLoad(leave, [ZERO])))
        for place in faults:
            held = tirx.BufferLoad(self.fault, [index(place)])
            stays.append(tirx.EQ(held, index(UNTOUCHED)))
        statements = tuple(body)
        if before:
            # The condition needs statements of its own: it is found out inside the loop.
            holds = self.new_local("holds", torch.bool)
            load = tirx.BufferLoad(holds, [ZERO])
            self.out.append(Assign(holds, (ZERO,), tirx.const(True, "bool")))
            find = Assign(holds, (ZERO,), condition)
            statements = (*before, find, Branch(load, statements))
            condition = load
        for stay in stays:
            # In this order: what the condition reads may be out of range after a failure.
            condition = tirx.if_then_else(stay, condition, tirx.const(False, "bool"))
        self.out.append(While(condition, statements))

    def _otherwise(self, nodes: Sequence[ast.stmt], jumps: Jumps) -> None:
        """The ``else`` of a loop."""
        if not nodes:
            return
        if jumps.leave is None:
            self.visit_all(nodes)
            return
        frame = self.frame
        assigned = set(frame.assigned)
        stays = tirx.Not(tirx.BufferLoad(jumps.leave, [ZERO]))
        with self.under(None) as statements:
            self.visit_all(nodes)
        frame.assigned, frame.ended = assigned, False
        self.out.append(Branch(stays, tuple(statements)))

    def _jumps(self, nodes: Sequence[ast.stmt]) -> Jumps:
        """What a loop's body may jump by: ``return`` leaves the loop as ``break`` does."""
        found = Jumps()
        if _has(nodes, ast.Break) or any(isinstance(x, ast.Return) for x in walk(nodes)):
            found.leave = self.new_local("left", torch.bool)
        if _has(nodes, ast.Continue):
            found.skip = self.new_local("skipped", torch.bool)
        return found

    def _loop_body(self, nodes: Sequence[ast.stmt], jumps: Jumps) -> list[set[str]]:
        """A loop's statements; the names that have values at their end, if it is reached."""
        frame = self.frame
        if jumps.skip is not None:
            self.out.append(Assign(jumps.skip, (ZERO,), tirx.const(False, "bool")))
        pending = list(frame.pending)
        self.visit_all(nodes)
        ends = [] if frame.ended else [set(frame.assigned)]
        frame.ended = False
        returns = [flag for flag in frame.pending[len(pending) :] if flag is frame.body.leave]
        frame.pending = pending + returns
        return ends

    def visit_Break(self, node: ast.Break) -> None:
        loop = self.frame.loops[-1]
        loop.left_with.append(set(self.frame.assigned))
        self._jump(loop.leave)

    def visit_Continue(self, node: ast.Continue) -> None:
        loop = self.frame.loops[-1]
        loop.skipped_with.append(set(self.frame.assigned))
        self._jump(loop.skip)

    def _jump(self, flag: tirx.Buffer | None) -> None:
        self.set(flag)
        assert flag is not None
        self.frame.pending.append(flag)
        self.frame.ended = True


def walk(nodes: Sequence[ast.AST], skip: tuple[type[ast.AST], ...] = ()) -> Iterator[ast.AST]:
    """The nodes and those inside them, without functions and what the given kinds of loops run."""
    for node in nodes:
        yield node
        if isinstance(node, skip) and isinstance(node, (ast.For, ast.While)):
            yield from walk(node.orelse, skip)  # a break there is that of the loop around
        elif not isinstance(node, (ast.FunctionDef, ast.Lambda, ast.ClassDef, *skip)):
            yield from walk(list(ast.iter_child_nodes(node)), skip)


def _has(nodes: Sequence[ast.stmt], kind: type[ast.AST]) -> bool:
    """Whether statements have a ``break`` or ``continue`` of the loop they are in."""
    return any(isinstance(node, kind) for node in walk(nodes, (ast.For, ast.While)))


def _value(var: tirx.Var, start: Any, step: int) -> Number:
    """The value of a loop's variable, from the number of the iteration."""
    first = start.expr if isinstance(start, Number) else index(start)
    expr = var if step == 1 else var * index(step)
    is_zero = not isinstance(start, Number) and start == 0
    return Number(expr if is_zero else first + expr, ScalarType(torch.int64))


def _name(target: ast.AST, otherwise: str) -> str:
    return target.id if isinstance(target, ast.Name) else otherwise
