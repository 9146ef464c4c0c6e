"""Conversions between dtypes, and copies."""

from __future__ import annotations

from typing import Any

import torch

from babytriton.ops import numerics
from babytriton.ops.gradients.elementwise import same
from babytriton.ops.pointwise import elementwise, spelled
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
    wide = (torch.float32, torch.float64)
    if site.dtype != torch.bfloat16 or input.meta.dtype not in wide or input.device.type != "cpu":
        return site.expr(input, site.dtype)

    # On the CPU, TVM computes bfloat16 in float32, and converts there and back to no effect.
    def body(x: Any) -> Any:
        return numerics.rounded_to_bfloat16(x).astype("bfloat16")

    return elementwise(site, "bfloat16", body, input, dtype=torch.float32)


ROWS: tuple[Op, ...] = (
    *(
        Op(name, (getattr(torch.Tensor, name),), _convert, gradient=same)
        for name in ("to", "type", "type_as", *_DTYPES)
    ),
    *(Op(name, spelled(name), _convert, gradient=same) for name in ("clone", "contiguous")),
    Op("detach", (*spelled("detach"), _DATA), _convert, gradient=stops),
)
