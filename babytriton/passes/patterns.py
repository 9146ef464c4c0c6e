"""What TVM's FuseOps takes kernels for, where it knows them too little."""

from __future__ import annotations

from tvm import IRModule, tirx

from babytriton.passes.blocks import plain_blocks
from babytriton.passes.contractions import is_product
from babytriton.passes.scheduling import is_scheduled

_PATTERN = "op_pattern"
_REDUCTION, _PRODUCT = 3, 4


def reductions_as_such(mod: IRModule) -> IRModule:
    """The kernels, with those that reduce and then finish marked as any other reduction.

    TVM takes them for products, which it fuses with what comes after, however large that is, and
    not with what comes before. What goes with a reduction, `fusion.py` finds out.

    Args:
        mod: has kernels with patterns.
    """
    functions = dict(mod.functions_items())
    for var, func in mod.functions_items():
        if not isinstance(func, tirx.PrimFunc) or is_scheduled(func):
            continue
        pattern = int((func.attrs or {}).get(_PATTERN, 0))
        if pattern == _PRODUCT and not any(map(is_product, plain_blocks(func))):
            functions[var] = func.with_attr(_PATTERN, _REDUCTION)
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def fuses_with_values(kernel: tirx.PrimFunc) -> bool:
    """Whether FuseOps makes what computes a value of a kernel's point a part of that kernel."""
    return int((kernel.attrs or {}).get(_PATTERN, _PRODUCT)) <= _REDUCTION
