"""Steps of recurrent networks, as the documents of ``torch.nn``'s cells give them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from babytriton.ops.refusals import Unsupported
from babytriton.ops.site import Site
from babytriton.ops.table import Op


def _gru_cell(input: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
    reset, update, new = F.linear(input, w_ih, b_ih).chunk(3, -1)
    reset_before, update_before, new_before = F.linear(hx, w_hh, b_hh).chunk(3, -1)
    kept = torch.sigmoid(update + update_before)
    found = torch.tanh(new + torch.sigmoid(reset + reset_before) * new_before)
    return (hx - found) * kept + found


def _lstm_cell(
    input: Any, hx: Sequence[Any], w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None
) -> Any:
    hidden, cell = hx
    gates = F.linear(input, w_ih, b_ih) + F.linear(hidden, w_hh, b_hh)
    enters, stays, new, leaves = gates.chunk(4, -1)
    cell = torch.sigmoid(stays) * cell + torch.sigmoid(enters) * torch.tanh(new)
    return torch.sigmoid(leaves) * torch.tanh(cell), cell


def _rnn_cell(activation: Callable[[Any], Any]) -> Callable[..., Any]:
    def step(input: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
        return activation(F.linear(input, w_ih, b_ih) + F.linear(hx, w_hh, b_hh))

    return step


def _fused(step: Callable[..., Any]) -> Callable[..., Any]:
    def build(site: Site, *args: Any, **kwargs: Any) -> Any:
        if sum(op.name in _NAMES for op in site.builder.rows) >= _MOST:
            raise Unsupported("torch's own, of so many that are written out, compile sooner")
        return step(*args, **kwargs)

    return build


_NAMES = ("gru_cell", "lstm_cell", "rnn_tanh_cell", "rnn_relu_cell")
_MOST = 4
"""Steps of a program that are fused: a loop that is run has one of each of its layers."""

_STEPS = (_gru_cell, _lstm_cell, _rnn_cell(torch.tanh), _rnn_cell(torch.relu))

ROWS: tuple[Op, ...] = tuple(
    Op(name, (getattr(torch, name),), _fused(step), parts=step, by_parts=True)
    for name, step in zip(_NAMES, _STEPS)
)
