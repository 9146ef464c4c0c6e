"""Names that compilers for GPUs take, and names that are not taken."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Set
from itertools import count

import tvm_ffi
from tvm import ir, tirx


def in_ascii(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """A kernel with names that compilers for GPUs take."""
    taken = {param.name for param in func.params if param.name.isascii()}
    renamed: dict[ir.Var, ir.Var] = {}

    def of_var(var: ir.Var) -> ir.Var:
        if var.name.isascii():
            return var
        if var not in renamed:
            name = variable_name(var.name)
            name = free(name, taken) if name in taken else name
            taken.add(name)
            renamed[var] = ir.Var(name, var.ty)
        return renamed[var]

    return tvm_ffi.structural_map(func, (ir.Var, of_var))


def ascii_of(name: str) -> str:
    """A name without what ASCII lacks; letters without their accents."""
    plain = unicodedata.normalize("NFKD", name)
    plain = "".join(c for c in plain if not unicodedata.combining(c))
    return re.sub(r"[^\x00-\x7f]", "_", plain)


def variable_name(name: str) -> str:
    """The same for a variable: names of underscores alone are those of compilers."""
    plain = ascii_of(name)
    return plain if plain.strip("_") else "v"


def free(name: str, taken: Set[str]) -> str:
    """A name like the given one that is not taken."""
    return next(x for n in count(2) if (x := f"{name}_{n}") not in taken)
