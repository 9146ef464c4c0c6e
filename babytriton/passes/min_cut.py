"""The cheapest set of nodes that separates the ends of a graph from its beginnings."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict, deque
from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

Node = TypeVar("Node", bound=Hashable)

_SOURCE, _SINK = ("source",), ("sink",)


def min_cut(
    costs: Mapping[Node, float],
    edges: Iterable[tuple[Node, Node]],
    sources: Iterable[Node],
    sinks: Iterable[Node],
) -> list[Node]:
    """The nodes of the least total cost without which no path leads from a source to a sink.

    By the theorem of Ford and Fulkerson from a largest flow, which shortest augmenting paths find
    (J. Edmonds and R. Karp, Theoretical improvements in algorithmic efficiency for network flow
    problems, 1972). Of several such sets, the one nearest to the sinks.

    Args:
        costs: of each node; infinite for one that must not be among them.
        edges: from a node to another.
        sources: nodes that paths begin at; they may be among those found.
        sinks: nodes that paths end at, likewise.

    Raises:
        ValueError: every such set costs infinitely much.
    """
    # Each node is an edge of its own, from where it is entered to where it is left.
    room: dict[Hashable, dict[Hashable, float]] = defaultdict(dict)

    def connect(one: Hashable, other: Hashable, capacity: float) -> None:
        room[one][other] = room[one].get(other, 0.0) + capacity
        room[other].setdefault(one, 0.0)

    for node, cost in costs.items():
        connect((node, "in"), (node, "out"), cost)
    for one, other in edges:
        connect((one, "out"), (other, "in"), math.inf)
    for node in sources:
        connect(_SOURCE, (node, "in"), math.inf)
    for node in sinks:
        connect((node, "out"), _SINK, math.inf)
    while True:
        before = _reached(room)
        if _SINK not in before:
            break
        path: list[Hashable] = [_SINK]
        while path[-1] != _SOURCE:
            path.append(before[path[-1]])
        path.reverse()
        flow = min(room[start][end] for start, end in itertools.pairwise(path))
        if flow == math.inf:
            raise ValueError("a path has no node that may be cut")
        for start, end in itertools.pairwise(path):
            room[start][end] -= flow
            room[end][start] += flow
    after = _reaching(room)
    return [x for x in costs if (x, "out") in after and (x, "in") not in after]


def _reached(room: Mapping[Hashable, Mapping[Hashable, float]]) -> dict[Hashable, Hashable]:
    """The nodes that more can flow to, each with the one before it."""
    before: dict[Hashable, Hashable] = {_SOURCE: _SOURCE}
    queue: deque[Hashable] = deque([_SOURCE])
    while queue and _SINK not in before:
        node = queue.popleft()
        for other, capacity in room.get(node, {}).items():
            if capacity > 0 and other not in before:
                before[other] = node
                queue.append(other)
    return before


def _reaching(room: Mapping[Hashable, Mapping[Hashable, float]]) -> set[Hashable]:
    """The nodes that more can flow from to the sink; every edge has an opposite in ``room``."""
    found: set[Hashable] = {_SINK}
    queue: deque[Hashable] = deque([_SINK])
    while queue:
        node = queue.popleft()
        for other in room.get(node, {}):
            if other not in found and room[other].get(node, 0.0) > 0:
                found.add(other)
                queue.append(other)
    return found
