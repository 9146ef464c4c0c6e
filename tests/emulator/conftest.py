"""Every test that takes `order` runs in each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .emulator import ORDERS, Order, thread_order


@pytest.fixture(params=ORDERS)
def order(request: pytest.FixtureRequest) -> Iterator[Order]:
    with thread_order(request.param, seed=7):
        yield request.param
