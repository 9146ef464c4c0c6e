"""Functions of torch's that are Python themselves: their own bodies are compiled in their place."""

from __future__ import annotations

import torch.nn.functional as F

from babytriton.ops.table import Op


def _inlined(name: str, *functions: str) -> Op:
    return Op(name, tuple(getattr(F, each) for each in functions), inlined=True)


ROWS: tuple[Op, ...] = (
    _inlined("multi_head_attention_forward", "multi_head_attention_forward"),
    _inlined("in_projection", "_in_projection"),
    _inlined("canonical_mask", "_canonical_mask"),
    _inlined("gumbel_softmax", "gumbel_softmax"),
    _inlined("multilabel_soft_margin_loss", "multilabel_soft_margin_loss"),
    _inlined("triplet_margin_with_distance_loss", "triplet_margin_with_distance_loss"),
)
