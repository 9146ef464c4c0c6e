"""Reductions that share a pass over a row although the second reads the first."""

from __future__ import annotations

from typing import TypeAlias

from babytriton.passes.gpu.moments import Moments, MomentsWriter, moments
from babytriton.passes.gpu.online import Online, OnlineWriter, online
from babytriton.passes.gpu.program import Program

Pair: TypeAlias = Online | Moments
PairWriter: TypeAlias = OnlineWriter | MomentsWriter


def pairs(program: Program) -> tuple[Pair, ...]:
    """Those of a program."""
    return (*online(program), *moments(program))
