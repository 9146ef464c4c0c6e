"""Whether a scheduled kernel may write a result to where one of its parameters lies."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import ir, s_tir, sym, tirx

from babytriton.ops.primfunc import nodes
from babytriton.passes.nests import offset
from babytriton.passes.scheduling import RULE
from babytriton.passes.statements import has_addresses, is_number

_EACH_ONCE = frozenset({"Elementwise"})
"""The rules whose kernels store each element of a result once."""


def reads_before_it_writes(
    func: tirx.PrimFunc, contents: tirx.Var, out: tirx.Var
) -> tirx.PrimFunc | None:
    """The kernel, if it reads no element of a parameter after that of a result in its place.

    So it does where each element is read by what then stores the one at the same place, and each
    is stored once.

    Args:
        func: a scheduled kernel.
        contents: the parameter.
        out: the result.
    """
    rule = str(func.attrs.get(RULE, "")) if func.attrs else ""
    if rule not in _EACH_ONCE or has_addresses(func.body):
        return None
    found = list(_accesses(func.body, contents, out, ()))
    loads = [access for access in found if not access.is_store]
    stores = [access for access in found if access.is_store]
    one_runs = all(first.excludes(second) for first, second in itertools.combinations(stores, 2))
    if not one_runs or not all(store.is_another_each_time for store in stores):
        return None
    if all(any(load.is_before(store) for store in stores) for load in loads):
        return func
    return None


@dataclass(frozen=True)
class _Access:
    """A load of the parameter, or a store of the result.

    Attributes:
        buffer: whose element it is.
        indices: of the element.
        path: from the kernel to the statement: loops and other statements, each with the turn it
            takes there, if there are several.
        is_store: which of the two.
    """

    buffer: tirx.Var
    indices: tuple[ir.Expr, ...]
    path: tuple[Any, ...]
    is_store: bool

    @property
    def is_another_each_time(self) -> bool:
        """Whether its element follows from all the loops that it is in."""
        used = set(nodes(self.indices, ir.Var))
        for node in reversed(self.path):
            if isinstance(node, s_tir.SBlockRealize):
                for axis, value in zip(node.block.iter_vars, node.iter_values):
                    used |= set(nodes(value, ir.Var)) if axis.var in used else set()
        loops = [node for node in self.path if isinstance(node, tirx.For)]
        return all(loop.loop_var in used or is_number(loop.extent, 1) for loop in loops)

    def excludes(self, other: _Access) -> bool:
        """Whether only one of the two runs in an iteration."""
        for mine, theirs in zip(self.path, other.path):
            if not _are_one(mine, theirs):
                turns = isinstance(mine, _Turn) and isinstance(theirs, _Turn)
                return turns and not mine.is_step
        return False

    def is_before(self, store: _Access) -> bool:
        """Whether it loads just the elements that the store then writes, in the same iteration."""
        own, other = list(self.path), list(store.path)
        while own and other and _are_one(own[0], other[0]):
            own, other = own[1:], other[1:]
        if own and other and isinstance(own[0], _Turn) and isinstance(other[0], _Turn):
            if not own[0].is_earlier(other[0]):
                return False
            own, other = own[1:], other[1:]
        elif own or other:
            return False
        if len(own) != len(other):
            return False
        renamed: dict[ir.Var, ir.Var] = {}
        for mine, theirs in zip(own, other):
            if not (isinstance(mine, tirx.For) and isinstance(theirs, tirx.For)):
                return False
            if not tvm_ffi.structural_equal([mine.min, mine.extent], [theirs.min, theirs.extent]):
                return False
            renamed[mine.loop_var] = theirs.loop_var
        indices = [
            tvm_ffi.structural_map(index, (ir.Var, lambda var: renamed.get(var, var)))
            for index in self.indices
        ]
        if tvm_ffi.structural_equal(indices, list(store.indices)):
            return True
        # The whole place may stand in the last of the indices.
        places = offset(self.buffer, indices), offset(store.buffer, list(store.indices))
        return bool(sym.Analyzer().can_prove_equal(*places))


@dataclass(frozen=True)
class _Turn:
    """Which of a statement's parts a path goes through.

    Attributes:
        number: of the part.
        is_step: whether the parts run one after the other; else one of them runs.
    """

    number: int
    is_step: bool

    def is_earlier(self, other: _Turn) -> bool:
        """Whether it runs before another part."""
        return self.is_step and other.is_step and self.number < other.number


def _are_one(left: Any, right: Any) -> bool:
    if isinstance(left, _Turn) or isinstance(right, _Turn):
        return bool(left == right)
    return bool(left.same_as(right))


def _accesses(
    stmt: tirx.Stmt, contents: tirx.Var, out: tirx.Var, path: tuple[Any, ...]
) -> Iterator[_Access]:
    """All loads of the parameter and stores of the result in a statement."""
    if isinstance(stmt, tirx.SeqStmt):
        for number, part in enumerate(stmt.seq):
            yield from _accesses(part, contents, out, (*path, stmt, _Turn(number, True)))
        return
    inner: list[tirx.Stmt] = []
    if isinstance(stmt, (tirx.For, tirx.AttrStmt)):
        inner, own = [stmt.body], []
        if isinstance(stmt, tirx.For):
            own = [stmt.min, stmt.extent]
    elif isinstance(stmt, tirx.IfThenElse):
        inner = [x for x in (stmt.then_case, stmt.else_case) if x is not None]
        own = [stmt.condition]
    elif isinstance(stmt, s_tir.SBlockRealize):
        block = stmt.block
        inner, own = [x for x in (block.init, block.body) if x is not None], [stmt.predicate]
    else:
        own = [stmt]
    for load in nodes(own, ir.TensorLoad):
        if load.source.same_as(contents):
            yield _Access(load.source, tuple(load.indices), path, False)
    if isinstance(stmt, tirx.BufferStore) and stmt.buffer.same_as(out):
        yield _Access(stmt.buffer, tuple(stmt.indices), path, True)
    is_step = not isinstance(stmt, tirx.IfThenElse)
    turns = [()] if len(inner) == 1 else [(_Turn(n, is_step),) for n in range(len(inner))]
    for turn, part in zip(turns, inner):
        yield from _accesses(part, contents, out, (*path, stmt, *turn))
