"""Control flow, which is not compiled yet: each statement says what to write instead."""

from __future__ import annotations

import ast
from typing import NoReturn

from babytriton import errors
from babytriton.frontend.visitor import Visitor

_INSTEAD = {
    "if": "use torch.where for a choice by element, or a conditional expression on constants",
    "for": "write the steps out, or use one operator over a whole dimension",
    "while": "a fixed number of steps can be written out",
    "comprehension": "write the items out",
}


class ControlFlow(Visitor):
    """Branches, loops and blocks."""

    def visit_If(self, node: ast.If) -> NoReturn:
        self._control_flow(node, "if")

    def visit_For(self, node: ast.For) -> NoReturn:
        self._control_flow(node, "for")

    def visit_While(self, node: ast.While) -> NoReturn:
        self._control_flow(node, "while")

    def visit_ListComp(self, node: ast.ListComp) -> NoReturn:
        self._control_flow(node, "comprehension")

    def visit_SetComp(self, node: ast.SetComp) -> NoReturn:
        self._control_flow(node, "comprehension")

    def visit_DictComp(self, node: ast.DictComp) -> NoReturn:
        self._control_flow(node, "comprehension")

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> NoReturn:
        self._control_flow(node, "comprehension")

    def _control_flow(self, node: ast.AST, statement: str) -> NoReturn:
        self.fail(errors.ControlFlow(self.span(node), statement, _INSTEAD[statement]))
