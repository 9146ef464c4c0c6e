"""The generator of a kernel: function bodies, and the statements that are no loops."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

import torch
from tvm import tirx

from babytriton import errors
from babytriton.errors import kernels as kernel_errors
from babytriton.frontend.kernel import scalars
from babytriton.frontend.kernel.loops import Loops, walk
from babytriton.frontend.kernel.program import ZERO, Assign, Branch
from babytriton.frontend.kernel.scalars import Number
from babytriton.frontend.kernel.tensors import Tensor

RESULT = "return"
"""The name of a function's result, which no name of the user's can be."""


class Generator(Loops):
    """Visits a function body; what it does goes to ``out``."""

    def run(self) -> Any:
        """Compile the frame's function body; what it returns, if that is known here."""
        node = self.frame.source.node
        if isinstance(node, ast.Lambda):
            return self.visit(node.body)
        if isinstance(node, ast.AsyncFunctionDef):
            self.fail(errors.UnsupportedSyntax(self.span(node), "async def"))
        frame = self.frame
        returns = [x for x in walk(node.body) if isinstance(x, ast.Return)]
        if returns and returns != node.body[-1:]:
            frame.body.leave = self.new_local("returned", torch.bool)
            self.out.append(Assign(frame.body.leave, (ZERO,), tirx.const(False, "bool")))
        self.visit_all(node.body)
        if frame.body.leave is None or (*frame.key, RESULT) not in self.types:
            return frame.returned
        if not frame.ended and RESULT not in frame.assigned:
            self.refuse(node, f"`{node.name}` returns nothing on some way", "return on every way")
        return self.load_local(RESULT)

    def visit_Return(self, node: ast.Return) -> None:
        frame = self.frame
        value = None if node.value is None else self.visit(node.value)
        if not frame.key and value is not None:
            self.fail(kernel_errors.KernelReturns(self.span(node)))
        frame.ended = True
        if frame.body.leave is None:
            frame.returned = value
            return
        if value is not None:
            self.number(node, value)
            self.store_local(RESULT, value)
        for loop in frame.loops:
            self.set(loop.leave)
        self.set(frame.body.leave)
        frame.pending.append(frame.body.leave)

    def visit_all(self, nodes: Sequence[ast.stmt]) -> None:
        """Statements in order; what follows a jump runs only where it was not taken."""
        line = self.line
        try:
            self._visit_each(nodes)
        finally:
            self.line = line

    def _visit_each(self, nodes: Sequence[ast.stmt]) -> None:
        frame = self.frame
        for i, node in enumerate(nodes):
            if frame.ended:
                return
            before = len(frame.pending)
            span = self.span(node)
            self.line = f"{span.path}:{span.line}"
            self.visit(node)
            flags, rest = frame.pending[before:], nodes[i + 1 :]
            if flags and rest and not frame.ended:
                stays = [tirx.Not(tirx.BufferLoad(flag, [ZERO])) for flag in flags]
                goes_on = stays[0]
                for other in stays[1:]:
                    goes_on = tirx.And(goes_on, other)
                with self.under(None) as statements:
                    self.visit_all(rest)
                self.out.append(Branch(goes_on, tuple(statements)))
                return

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):
            self.visit(node.value)

    def visit_Pass(self, node: ast.Pass) -> None:
        pass

    def visit_Assert(self, node: ast.Assert) -> None:
        test = self.visit(node.test)
        if isinstance(test, (Number, Tensor)):
            self.refuse(node, "an assertion that depends on numbers", "check before the call")
        if not test:
            self.fail(errors.PythonError(self.span(node), "AssertionError", "it is false"))

    def visit_If(self, node: ast.If) -> None:
        test = self.visit(node.test)
        if not isinstance(test, Number):
            if isinstance(test, Tensor):
                self.number(node.test, test)
            self.visit_all(node.body if test else node.orelse)
            return
        frame = self.frame
        condition = scalars.truth(test)
        before = set(frame.assigned)
        with self.under(condition) as then:
            self.visit_all(node.body)
        ended, assigned = frame.ended, frame.assigned
        frame.ended, frame.assigned = False, before
        with self.under(tirx.Not(condition)) as otherwise:
            self.visit_all(node.orelse)
        if ended:
            assigned = frame.assigned
        elif not frame.ended:
            assigned = assigned & frame.assigned
        frame.ended = ended and frame.ended
        frame.assigned = assigned
        self.out.append(Branch(condition, tuple(then), tuple(otherwise)))
