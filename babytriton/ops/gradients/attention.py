"""Gradients of attention."""

from __future__ import annotations

from typing import Any

from babytriton.ops.refusals import Random, Unsupported


def multi_head_attention_forward(
    grads: Any,
    results: Any,
    query: Any,
    key: Any,
    value: Any,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Any,
    in_proj_bias: Any,
    bias_k: Any,
    bias_v: Any,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Any,
    out_proj_bias: Any,
    training: bool = True,
    **_: Any,
) -> Any:
    """Of a module's whole forward pass, which torch runs again, unless that draws other numbers.

    Raises:
        Random: it does.
        Unsupported: the gradient is torch's own.
    """
    if training and dropout_p > 0:
        raise Random
    raise Unsupported("torch runs the forward pass")
