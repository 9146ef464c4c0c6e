"""Streams of a GPU and the memory of virtual machines, without either."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

from babytriton.runtime import interop


@dataclass(eq=False)
class Stream:
    """Stands for one of torch's."""

    device: torch.device = field(default_factory=lambda: torch.device("cuda:0"))
    waits: list[Stream] = field(default_factory=list)

    def wait_stream(self, other: Stream) -> None:
        self.waits.append(other)


def test_a_stream_waits_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interop, "_USED", set())
    current = first = Stream()
    second, elsewhere = Stream(), Stream(torch.device("cuda:1"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current)
    run = interop.after_other_streams([torch.device("cuda:0")], lambda x: x + 1)
    assert run(1) == 2
    assert run(2) == 3
    assert first.waits == []  # there is no other
    current = elsewhere
    run(0)
    assert elsewhere.waits == []  # the others are of another GPU
    current = second
    run(0)
    assert second.waits == [first]
    current = first
    run(0)
    assert first.waits == [second]
