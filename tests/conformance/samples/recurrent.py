"""Samples of ops/recurrent.py."""

import torch

from tests.conformance.sample import Sample, t

_GRU = (t(3, 7), t(3, 5), t(15, 7), t(15, 5))
_LSTM = (t(3, 7), t(3, 5), t(3, 5), t(20, 7), t(20, 5))
_RNN = (t(3, 7), t(3, 5), t(5, 7), t(5, 5))


def _lstm(x, h, c, *weights):
    return torch.lstm_cell(x, (h, c), *weights)


SAMPLES = (
    Sample("gru_cell", lambda *xs: torch.gru_cell(*xs), (*_GRU, t(15), t(15))),
    Sample("gru_cell", lambda *xs: torch.gru_cell(*xs), _GRU),
    Sample("lstm_cell", _lstm, (*_LSTM, t(20), t(20))),
    Sample("lstm_cell", _lstm, _LSTM),
    Sample("rnn_tanh_cell", lambda *xs: torch.rnn_tanh_cell(*xs), (*_RNN, t(5), t(5))),
    Sample("rnn_relu_cell", lambda *xs: torch.rnn_relu_cell(*xs), (*_RNN, t(5), t(5))),
)
