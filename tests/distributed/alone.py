"""Meshes for tests that take one process."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore


@contextmanager
def one_process() -> Iterator[DeviceMesh]:
    """A mesh of this process alone."""
    with tempfile.TemporaryDirectory() as folder:
        store = f"file://{folder}/store"
        dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
        try:
            yield init_device_mesh("cpu", (1,))
        finally:
            dist.destroy_process_group()


@contextmanager
def one_of_many(count: int, rank: int) -> Iterator[DeviceMesh]:
    """A mesh of many processes of which only this one is there: what they send is lost."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=count)
    try:
        yield init_device_mesh("cpu", (count,))
    finally:
        dist.destroy_process_group()
