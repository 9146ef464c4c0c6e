"""What passes over a program's bindings ask about them."""

from __future__ import annotations

import math

from tvm import ir, relax, tirx

CALL_TIR = ir.Op.get("relax.call_tir")
"""The call of a kernel whose results are new tensors."""

CALL_IN_PLACE = ir.Op.get("relax.call_tir_inplace")
"""The call of a kernel of whose results some are in the places of arguments."""

CALL_PACKED = ir.Op.get("relax.call_pure_packed")
"""The call of a function that is not of the program, such as torch."""

_SAMPLE = 1024  # what a size that is known only at the call counts for


def read_by(binding: relax.Binding) -> list[relax.Var]:
    """What is computed from."""
    return list(relax.analysis.free_vars(binding.value))


def is_tensor(var: relax.Var) -> bool:
    """Whether the variable is a tensor, and no number or tuple."""
    return isinstance(var.ty, relax.TensorType)


def elements(var: relax.Var) -> int:
    """How many elements a tensor has, about, where sizes are symbolic."""
    return math.prod(int(n) if isinstance(n, tirx.IntImm) else _SAMPLE for n in var.ty.shape)
