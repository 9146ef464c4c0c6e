"""What running a part of a function may change: names, containers, and the memory of tensors."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from babytriton.diagnostics import Span
from babytriton.frontend.grown import Grown
from babytriton.frontend.scope import Scope
from babytriton.ops.selections.selection import Selection
from babytriton.ops.storage import Storage
from babytriton.ops.value import Value

Container = list[Any] | dict[Any, Any] | set[Any] | deque[Any]
CONTAINERS = (list, dict, set, deque)


@dataclass(frozen=True)
class State:
    """All of it at one moment, to be gone back to, or to be compared with another moment.

    Attributes:
        names: of each scope: what its names stand for, and where they were bound.
        contents: of each container that the scopes reach, by its identity.
        memory: what each storage holds, the version it has, and whether it is frozen.
    """

    names: dict[Scope, tuple[dict[str, Any], dict[str, Span]]]
    contents: dict[int, tuple[Container, Container]]
    memory: dict[Storage, tuple[Any, object, bool]]

    @classmethod
    def capture(cls, scopes: Sequence[Scope], storages: Sequence[Storage]) -> State:
        """The state at this moment.

        Args:
            scopes: of the functions that are being compiled, the innermost last.
            storages: the program's.
        """
        names = {scope: (dict(scope.names), dict(scope.places)) for scope in scopes}
        contents: dict[int, tuple[Container, Container]] = {}
        for scope in scopes:
            for container in _containers(list(scope.names.values()), contents):
                contents[id(container)] = (container, container.copy())
        memory = {s: (s.expr, s.version, s.frozen) for s in storages}
        return cls(names, contents, memory)

    def restore(self) -> None:
        """Go back to this state."""
        for scope, (names, places) in self.names.items():
            scope.names = dict(names)
            scope.places = dict(places)
        for container, copy in self.contents.values():
            refill(container, copy)
        for storage, (expr, version, frozen) in self.memory.items():
            storage.expr, storage.version, storage.frozen = expr, version, frozen

    def held(self, storage: Storage) -> tuple[Any, object, bool]:
        """What a storage held, the version it had, and whether it could not be written to."""
        return self.memory.get(storage, storage.first)

    def changed_names(self, other: State) -> bool:
        """Whether any name stands for another thing in the other one."""
        return any(
            names.keys() != other.names[scope][0].keys()
            or any(value is not other.names[scope][0][name] for name, value in names.items())
            for scope, (names, _) in self.names.items()
        )

    def changed_memory(self, *others: State) -> list[Storage]:
        """The storages that were there already, and were written to in one of the others.

        Those of the caller's tensors were there, even if they were not met before.
        """
        later = [s for other in others for s in other.memory if s.is_callers]
        known = dict.fromkeys([*self.memory, *later])
        return [
            storage
            for storage in known
            if any(other.held(storage)[1] is not self.held(storage)[1] for other in others)
        ]

    def changed_containers(self, *others: State) -> list[Container]:
        """The containers that were there already, and hold other things in one of the others."""
        return [
            container
            for key, (container, copy) in self.contents.items()
            if any(not _same_items(copy, other.content(key, copy)) for other in others)
        ]

    def content(self, key: int, default: Container) -> Container:
        """What a container held; ``default`` if the scopes no longer reached it."""
        return self.contents[key][1] if key in self.contents else default


def refill(container: Container, items: Container) -> None:
    """Let a container hold the items of another one."""
    if isinstance(container, Grown):
        container.become(items)
    elif isinstance(container, list):
        container[:] = items
    else:
        container.clear()
        if isinstance(container, deque):
            container.extend(items)
        else:
            container.update(items)


def reachable(items: Any, seen: set[int] | None = None) -> Iterator[Value]:
    """The tensors in nested containers."""
    seen = set() if seen is None else seen
    if isinstance(items, Selection):
        yield from items.parts
    elif isinstance(items, Value):
        yield items
    elif isinstance(items, (*CONTAINERS, tuple)) and id(items) not in seen:
        seen.add(id(items))
        yield from items.tensors if isinstance(items, Grown) else ()
        for item in _held(items):
            yield from reachable(item, seen)


def containers_in(names: dict[str, Any]) -> list[Container]:
    """The lists, dicts and sets that names reach."""
    known: dict[int, Any] = {}
    for container in _containers(names, known):
        known[id(container)] = container
    return list(known.values())


def _containers(items: Any, known: dict[int, Any]) -> Iterator[Container]:
    for item in _held(items):
        if isinstance(item, CONTAINERS):
            if id(item) in known:
                continue
            yield item
        if isinstance(item, (*CONTAINERS, tuple)):
            yield from _containers(item, known)


def _held(container: Any) -> Any:
    """What a container holds by itself."""
    if isinstance(container, Grown):
        return container.later
    return container.values() if isinstance(container, dict) else container


def _same_items(one: Container, other: Container) -> bool:
    if getattr(one, "head", None) is not getattr(other, "head", None):
        return False
    one, other = (x.later if isinstance(x, Grown) else x for x in (one, other))
    if len(one) != len(other):
        return False
    if isinstance(one, dict) and isinstance(other, dict):
        pairs = zip(one.items(), other.items())
        return all(k is m and v is w for (k, v), (m, w) in pairs)
    if isinstance(one, set):
        return one == other
    return all(x is y for x, y in zip(one, other))
