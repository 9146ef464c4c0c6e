"""Steps of recurrent networks, as the documents of ``torch.nn``'s cells give them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

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


ROWS: tuple[Op, ...] = (
    Op("gru_cell", (torch.gru_cell,), decompose=_gru_cell),
    Op("lstm_cell", (torch.lstm_cell,), decompose=_lstm_cell),
    Op("rnn_tanh_cell", (torch.rnn_tanh_cell,), decompose=_rnn_cell(torch.tanh)),
    Op("rnn_relu_cell", (torch.rnn_relu_cell,), decompose=_rnn_cell(torch.relu)),
)
