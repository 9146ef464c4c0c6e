"""Functions of integers that wrap, of as many numbers as a call tells."""

from __future__ import annotations

import torch


def remainder_of_short(x):
    return x + torch.arange(x.shape[0], device=x.device).to(torch.int8) % 7


def quotient_of_short(x):
    return x + torch.arange(x.shape[0], device=x.device).to(torch.int8) // 7


def remainder_of_product(x):
    i = torch.arange(x.shape[0], dtype=torch.int32, device=x.device)
    return x + (i * 1103515245) % 7


def of_squares(x):
    i = torch.arange(x.shape[0], dtype=torch.int16, device=x.device)
    return x + (i * i) % 11 + (i * i) // 11


def by_size(x):
    i, n = torch.arange(x.shape[0], dtype=torch.int16, device=x.device), x.shape[0]
    return x + (i * 300) // n + (i * 300) % n


def of_shifted(x):
    i = torch.arange(x.shape[0], dtype=torch.int32, device=x.device)
    return x + (i << 28) % 7


def of_sums(x):
    i = torch.arange(x.shape[0], dtype=torch.int32, device=x.device)
    return x + (i + 2147483600) % 3 + ((i + 2147483600) < 0)


FUNCTIONS = (
    *(remainder_of_short, quotient_of_short, remainder_of_product, of_squares),
    *(by_size, of_shifted, of_sums),
)
