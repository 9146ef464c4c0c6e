"""Fusion beyond TVM's: of kernels that go over the same rows, or over the same points.

TVM fuses what feeds a reduction, but not what reads it: a softmax written by hand is three kernels.
Where all of them work row by row on the same rows, each row can pass through all of them at once.
Nor does it fuse kernels that read the same tensor, such as those of two gradients: they become one
that reads it once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import relax, s_tir, tirx
from tvm.ir import IRModule

from babytriton.passes.merging import with_groups
from babytriton.passes.units import Unit, blocks_of, functions, units_of

_LEFT_OUT = 3  # of the kernels of a group that no schedule takes as it is, at most
_MOST_BLOCKS = 64  # of a kernel: schedules take longer for each there is


@dataclass(frozen=True)
class Kind:
    """A kind of work that kernels can do together.

    Attributes:
        fits: whether the blocks of several kernels are such work; of the same ones, the kinds are
            asked one after the other.
        accepts: whether there is a schedule for a kernel of them.
        side_by_side: whether kernels that read nothing of each other fit, if they read the same.
    """

    fits: Callable[[tuple[s_tir.SBlock, ...]], bool]
    accepts: Callable[[tirx.PrimFunc], bool]
    side_by_side: bool = False


def fuse_kernels(mod: IRModule, kinds: Sequence[Kind], little: int = 0) -> IRModule:
    """Kernels that do one kind of work, one after the other or on the same tensor -> one kernel.

    Args:
        mod: a program of calls of fused, unscheduled kernels.
        kinds: of work, those first that are looked for first.
        little: how many numbers kernels may read to go side by side where they share no tensor.
    """
    if "vdevice" in mod.global_infos:
        return mod  # Which kernel is on which device is not known yet.
    known: dict[tuple[str, int], list[Unit]] = {}
    for kind in kinds:
        for name in functions(mod):
            for number in range(len(blocks_of(mod, name))):
                block = blocks_of(mod, name)[number]  # as the fusion of others has left it
                if not isinstance(block, relax.DataflowBlock):
                    continue
                if (name, number) not in known:
                    known[name, number] = units_of(mod, block, little)
                found = _fused(mod, name, number, known[name, number], kind)
                if found is not mod:
                    known.clear()
                    mod = found
    return mod


def _fused(mod: IRModule, name: str, number: int, units: list[Unit], kind: Kind) -> IRModule:
    """The program with the kernels of one block of a function, which has these units, fused."""
    var = mod.get_global_var(name)
    waiting = [_tries(group) for group in _groups(units, kind)]
    while waiting:
        found, kernels = with_groups(mod, var, number, units, [tries[0] for tries in waiting])
        accepted = [kind.accepts(found[kernel]) for kernel in kernels]
        if all(accepted):
            return found
        waiting = [tries[not fits :] for tries, fits in zip(waiting, accepted)]
        waiting = [tries for tries in waiting if tries]
    return mod


def _tries(group: list[int]) -> list[list[int]]:
    """A group, and what is left of it without those that run last, or those that run first.

    One of these may be what is too much: nothing else of the group needs the last, and the first
    needs nothing else of it.
    """
    counts = range(1, min(_LEFT_OUT, len(group) - 2) + 1)
    return [group, *(group[:-n] for n in counts), *(group[n:] for n in counts)]


def _groups(units: list[Unit], kind: Kind) -> list[list[int]]:
    """The numbers of the units to fuse, in running order; only groups of two and more."""
    groups = [frozenset([number]) for number in range(len(units))]
    tried: set[frozenset[int]] = set(groups)
    before: list[frozenset[int]] = []
    while groups != before:  # A unit may fit a group that was made after it was looked at.
        before = list(groups)
        for number, unit in enumerate(units):
            beside = unit.shares if kind.side_by_side and unit.blocks else ()
            direct = unit.direct if unit.blocks else ()
            for other in [*sorted(direct, reverse=True), *sorted(beside, reverse=True)]:
                joint = groups[number] | groups[other]
                if joint not in tried and _fits(units, joint, groups, kind):
                    for member in joint:
                        groups[member] = joint
                tried.add(joint)
    return [sorted(group) for group in dict.fromkeys(groups) if len(group) > 1]


def _fits(
    units: list[Unit], joint: frozenset[int], groups: list[frozenset[int]], kind: Kind
) -> bool:
    """Whether the units can work together, and nothing must run between them."""
    if not all(units[n].blocks for n in joint):
        return False
    ends = {n for n in joint if units[n].is_end}
    if any(units[n].direct & ends for n in joint):
        return False
    before: set[int] = set()
    more = frozenset().union(*(units[n].needs for n in joint)) - joint
    while more:
        before |= more
        # A group runs as a whole: also what its other members need comes before.
        together = frozenset().union(*(groups[n] for n in more))
        more = together.union(*(units[n].needs for n in together)) - joint - before
    if any(units[n].needs & joint for n in before):
        return False
    blocks = tuple(block for n in sorted(joint) for block in units[n].blocks)
    return len(blocks) <= _MOST_BLOCKS and kind.fits(blocks)
