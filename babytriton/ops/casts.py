"""Conversions between dtypes, and copies."""

from __future__ import annotations

from typing import Any

import torch

from babytriton.ops.gradients.elementwise import same
from babytriton.ops.pointwise import spelled
from babytriton.ops.site import Site
from babytriton.ops.table import Op, stops
from babytriton.ops.value import Value

_DATA: Any = torch.Tensor.data  # a property, for which typed stubs take its result

_DTYPES = (
    *("float", "double", "half", "bfloat16"),
    *("long", "int", "short", "char", "byte", "bool"),
)


def _convert(site: Site, input: Value, *_: Any, **__: Any) -> Any:
    """The operand in torch's dtype of the result; memory formats and devices change no value."""
    return site.expr(input, site.dtype)


ROWS: tuple[Op, ...] = (
    *(
        Op(name, (getattr(torch.Tensor, name),), _convert, gradient=same)
        for name in ("to", "type", "type_as", *_DTYPES)
    ),
    *(Op(name, spelled(name), _convert, gradient=same) for name in ("clone", "contiguous")),
    Op("detach", (*spelled("detach"), _DATA), _convert, gradient=stops),
)
