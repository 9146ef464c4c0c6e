"""Gives every kernel its loops: the first rule that fits a kernel wins.

A rule is a `ScheduleRule` of TVM's dlight: it returns a schedule, or None to stand aside. The
rules of a device are a tuple, the most particular first (`passes/cpu`, `passes/gpu`).
"""

from __future__ import annotations

import logging

import tvm_ffi
from tvm import IRModule, s_tir, tirx
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target

from babytriton.ops.primfunc import with_fields
from babytriton.passes.inlining import with_few_blocks

logger = logging.getLogger("babytriton")

RULE = "babytriton.rule"
SCHEDULED = "tirx.is_scheduled"  # dlight's own mark: its passes leave such functions alone.


class NoScheduleError(RuntimeError):
    """A GPU kernel that no rule took: without thread bindings it cannot be built."""

    def __init__(self, name: str) -> None:
        super().__init__(f"internal error: no schedule rule took the kernel `{name}`")


def schedule(mod: IRModule, rules: tuple[ScheduleRule, ...], target: Target) -> IRModule:
    """A copy of `mod` in which each unscheduled PrimFunc is scheduled by the first rule that fits.

    The winner's class name is kept as the attribute "babytriton.rule". A CPU kernel that no rule
    takes stays as it is (a serial loop still runs); a GPU kernel raises NoScheduleError.
    """
    functions = {}
    for var, func in mod.functions_items():
        if not isinstance(func, tirx.PrimFunc) or is_scheduled(func):
            functions[var] = func
            continue
        # A kernel placed on another device than the rest carries its own target.
        own = func.attrs.get("target") or target
        found = first_fit(func, var.name_hint, rules, own)
        if found is None and "gpu" in own.keys:
            raise NoScheduleError(var.name_hint)
        functions[var] = found or func
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def first_fit(
    func: tirx.PrimFunc, name: str, rules: tuple[ScheduleRule, ...], target: Target
) -> tirx.PrimFunc | None:
    """`func` as the first fitting rule schedules it, or None."""
    func = with_few_blocks(with_one_root(func))
    for rule in rules:
        rule_name = type(rule).__name__
        try:
            with target:
                found = rule.apply(func, target, False)
        except Exception as error:
            # Rules raise on valid functions (TVM's own do); the kernel must still get built.
            logger.debug("rule %s failed on %s: %s", rule_name, name, error)
            continue
        if found is None:
            continue
        # A rule with a space of schedules to choose from lists them: the first is its default.
        chosen = found if isinstance(found, s_tir.Schedule) else found[0]
        logger.debug("rule %s took %s", rule_name, name)
        return chosen.mod["main"].with_attrs({SCHEDULED: True, RULE: rule_name})
    return None


def with_one_root(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` with no block called "root" but the outermost.

    A tensor of that name (a square root, say) gives its block the name, and schedules, TVM's
    analyses among them, look blocks up by name.
    """
    outermost = getattr(func.body, "block", None)

    def rename(block: s_tir.SBlock) -> s_tir.SBlock:
        if block.name_hint != "root" or block.same_as(outermost):
            return block
        return with_fields(block, name_hint="root_block")

    return tvm_ffi.structural_map(func, (s_tir.SBlock, rename), order="pre")


def is_scheduled(func: tirx.PrimFunc) -> bool:
    """Whether a rule, or the user by hand, has scheduled `func` already."""
    return bool(func.attrs.get(SCHEDULED, False)) if func.attrs else False
