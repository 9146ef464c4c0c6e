"""Which names may still be read: only those are taken out of a branch, or around a loop.

The classic backward analysis of compilers, over Python's syntax tree.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from babytriton.frontend.source import FunctionNode

Names = frozenset[str]
NONE: Names = frozenset()
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


class Liveness:
    """The live names of one function, at each statement.

    Args:
        function: the function's definition.
    """

    def __init__(self, function: FunctionNode) -> None:
        self.after: dict[ast.stmt, Names] = {}
        """What may be read after a statement, also when it leaves a step of a loop."""
        self.again: dict[ast.stmt, Names] = {}
        """What may be read after a step of a loop: by the next step, or behind the loop."""
        self._always: Names = NONE
        if isinstance(function, ast.Lambda):
            return
        # A nested function reads the variables around it whenever it is called.
        inner = [node for node in ast.walk(function) if isinstance(node, _FUNCTIONS)]
        self._always = frozenset(n for node in inner if node is not function for n in _reads(node))
        self._block(function.body, NONE, NONE, NONE)

    def _block(
        self, statements: Sequence[ast.stmt], after: Names, on_break: Names, on_continue: Names
    ) -> Names:
        """What may be read from the first of some statements on."""
        for statement in reversed(statements):
            after = self._statement(statement, after, on_break, on_continue)
        return after

    def _statement(
        self, node: ast.stmt, after: Names, on_break: Names, on_continue: Names
    ) -> Names:
        self.after[node] = after | on_break | on_continue | self._always
        if isinstance(node, ast.Return):
            return frozenset(_reads(node))
        if isinstance(node, ast.Break):
            return on_break
        if isinstance(node, ast.Continue):
            return on_continue
        if isinstance(node, ast.If):
            body = self._block(node.body, after, on_break, on_continue)
            orelse = self._block(node.orelse, after, on_break, on_continue)
            return frozenset(_reads(node.test)) | body | orelse
        if isinstance(node, (ast.For, ast.While)):
            return self._loop(node, after, on_break, on_continue)
        if isinstance(node, ast.With):
            body = self._block(node.body, after, on_break, on_continue)
            items = [name for item in node.items for name in _reads(item.context_expr)]
            return body | frozenset(items)
        return (after - frozenset(_writes(node))) | frozenset(_reads(node))

    def _loop(
        self, node: ast.For | ast.While, after: Names, on_break: Names, on_continue: Names
    ) -> Names:
        ended = self._block(node.orelse, after, on_break, on_continue)
        if isinstance(node, ast.For):
            head, bound = frozenset(_reads(node.iter)), frozenset(_writes(node.target))
        else:
            head, bound = frozenset(_reads(node.test)), NONE
        test = NONE if isinstance(node, ast.For) else head
        again = ended | after | test
        while True:
            body = self._block(node.body, again, after, again) - bound
            if body <= again:
                break
            again |= body
        self.again[node] = again | self._always
        return again | head


def _reads(node: ast.AST) -> Iterator[str]:
    for found in ast.walk(node):
        if isinstance(found, ast.Name) and isinstance(found.ctx, ast.Load):
            yield found.id
        elif isinstance(found, ast.AugAssign) and isinstance(found.target, ast.Name):
            yield found.target.id


def _writes(node: ast.AST) -> Iterator[str]:
    """What a statement surely binds, or forgets."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _writes(target)
    elif isinstance(node, (ast.AnnAssign, ast.AugAssign)):
        yield from _writes(node.target)
    elif isinstance(node, (ast.Tuple, ast.List)):
        for item in node.elts:
            yield from _writes(item.value if isinstance(item, ast.Starred) else item)
    elif isinstance(node, ast.Delete):
        for target in node.targets:
            yield from _writes(target)
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        yield node.name
    elif isinstance(node, ast.Name):
        yield node.id
