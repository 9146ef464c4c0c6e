"""The names of a kernel's function bodies: which are numbers that change as it runs."""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tvm import tirx

from babytriton.frontend.scope import Scope
from babytriton.frontend.source import FunctionNode, Source

Loops = tuple[frozenset[str], ...]


@dataclass
class Jumps:
    """A loop, or a function body, that statements inside may leave.

    Attributes:
        leave: the local that says that ``break``, or ``return``, was reached.
        skip: the local that says that ``continue`` was.
        left_with: the names that have a value, at each ``break``.
        skipped_with: likewise at each ``continue``.
    """

    leave: tirx.Buffer | None = None
    skip: tirx.Buffer | None = None
    left_with: list[set[str]] = field(default_factory=list)
    skipped_with: list[set[str]] = field(default_factory=list)


@dataclass(frozen=True)
class Names:
    """The names of a function body.

    Attributes:
        own: all that are assigned in it.
        changing: those that need a place in memory. Left out are names that are assigned once and
            read only in the loop body where that happens, and the variables of loops that are
            read inside alone.
    """

    own: frozenset[str]
    changing: frozenset[str]


@dataclass
class Frame:
    """One function body, the kernel's own or one inlined into it.

    Attributes:
        source: where it stands.
        scope: its names that stand for one value each, and those from around it.
        key: tells this body from others, for the types of its locals.
        names: those that are assigned in it.
        assigned: the names that have a value by now.
        loops: the loops that the current statement is in, outermost first.
        ended: whether no statement after this one is reached.
        pending: the locals that say that what follows is skipped.
        body: the body itself, which ``return`` leaves.
        returned: what it returns, where its last statement is its only ``return``.
    """

    source: Source
    scope: Scope
    key: tuple[int, ...]
    names: Names
    assigned: set[str]
    loops: list[Jumps] = field(default_factory=list)
    ended: bool = False
    pending: list[tirx.Buffer] = field(default_factory=list)
    body: Jumps = field(default_factory=Jumps)
    returned: Any = None


def names_of(node: FunctionNode) -> Names:
    """The names of a function, without those of functions inside."""
    found = _Names()
    for statement in [node.body] if isinstance(node, ast.Lambda) else node.body:
        found.visit(statement)
    parameters = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args)]
    stores = Counter(name for name, _ in found.stores) + Counter(
        {name: 1 for name in parameters if any(name == other for other, _ in found.stores)}
    )
    changing = {name for name, count in stores.items() if count > 1} | found.updated
    homes = dict(found.stores)
    for name, loops in found.reads:
        if name in homes and loops[: len(homes[name])] != homes[name]:
            changing.add(name)
        if name in found.targets and not any(name in targets for targets in loops):
            changing.add(name)
    changing |= found.targets & homes.keys()
    return Names(frozenset(found.targets | homes.keys()), frozenset(changing))


class _Names(ast.NodeVisitor):
    """Where names are assigned and read: inside which loops, outermost first."""

    def __init__(self) -> None:
        self.loops: Loops = ()
        self.stores: list[tuple[str, Loops]] = []
        self.reads: list[tuple[str, Loops]] = []
        self.updated: set[str] = set()
        self.targets: set[str] = set()
        self._count = 0

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Store):
            self.stores.append((node.id, self.loops))
        else:
            self.reads.append((node.id, self.loops))

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self.updated.add(node.target.id)
        self.generic_visit(node)

    def visit_For(self, node: ast.For) -> None:
        self.visit(node.iter)
        names = [x.id for x in ast.walk(node.target) if isinstance(x, ast.Name)]
        self.targets.update(names)
        self._inside(frozenset(names), node.body)
        for statement in node.orelse:
            self.visit(statement)

    def visit_While(self, node: ast.While) -> None:
        self._inside(frozenset(), [node.test, *node.body])
        for statement in node.orelse:
            self.visit(statement)

    def _inside(self, targets: frozenset[str], nodes: list[Any]) -> None:
        # A number of its own tells a loop from another over the same names.
        self._count += 1
        before, self.loops = self.loops, (*self.loops, targets | {str(self._count)})
        for node in nodes:
            self.visit(node)
        self.loops = before
