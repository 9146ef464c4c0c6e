"""What a loop takes from step to step: names, containers, memory, and how it was left."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from babytriton import errors
from babytriton.diagnostics import Diagnostic, Span
from babytriton.frontend.exits import FALLS, Exits
from babytriton.frontend.growing import Counter, Lists
from babytriton.frontend.joining import Differ, blank, expression, leaves, rebuilt
from babytriton.frontend.program import LoopNotes, Program
from babytriton.frontend.scope import Scope, Unusable
from babytriton.frontend.slots import Slot
from babytriton.frontend.state import Container, State, containers_in, reachable, refill
from babytriton.ops.regions import Region
from babytriton.ops.sizes import is_known
from babytriton.ops.storage import Storage, may_be, memory_of, storage_of
from babytriton.ops.value import Scalar, Value


@dataclass
class _Carried:
    """Something that changes from step to step: what it was, and a slot for each leaf of that."""

    before: Any
    slots: list[Slot]

    @property
    def inside(self) -> Any:
        return rebuilt(self.before, iter([slot.inside for slot in self.slots]))


class LoopState:
    """The state of one loop.

    Args:
        program: being compiled.
        scope: of the function that the loop stands in.
        live: names that a later step, or what follows the loop, may read.
        notes: on the loop, which are taken here.
        span: of the loop, for messages.
        counter: how it counts its steps; None where it does not know how many there are.
    """

    def __init__(
        self,
        program: Program,
        scope: Scope,
        live: frozenset[str],
        notes: LoopNotes,
        span: Span,
        counter: Counter | None = None,
    ) -> None:
        self._program = program
        self._scope = scope
        self._live = live
        self._notes = notes
        self._span = span
        self.lists = Lists(program, counter)
        self._tries = 0
        self._changing_containers: list[Container] = []
        self._changing_storages: list[Storage] = []
        self._followed: set[str] = set()
        self._later: dict[tuple[Any, int], list[Value]] = {}
        """What the last try of a step left in a slot, by what it is of and its place in that."""
        self.binds: list[str] = []
        """Names that are live, and that only a step binds."""
        self.mismatch: tuple[str, Differ] | None = None
        """What a step leaves with another type than it found it with."""

    def begin(self) -> None:
        """Start compiling a step, with a slot for all that is known to change."""
        scope = self._scope
        self._base = self._program.mark()
        self._own: list[Slot] = []
        self._left: list[Slot] = []
        self._exits = FALLS
        self.mismatch = None
        self._names = {
            name: self._carry(name, scope.names[name], name)
            for name in self._notes.names
            if name in scope.names and not isinstance(scope.names[name], Unusable)
        }
        self._containers = [
            (c, self._carry("item", c.copy(), id(c))) for c in self._changing_containers
        ]
        self._storages = [
            (s, self._slot("memory", self._program.builder.value(s.expr, s.meta)))
            for s in self._changing_storages
        ]
        self.lists.begin(self._followed)
        self._program.builder.memory.relate(
            (slot.inside, x) for slot in self._slots for x in slot.later
        )

    def slot(self, name: str, initial: Any) -> Slot:
        """Carry a number of the loop's own; such slots are the first of the states, in order."""
        self._own.append(self._slot(name, initial))
        return self._own[-1]

    def _carry(self, name: str, value: Any, key: Any) -> _Carried:
        slots = [
            Slot(self._program, name, leaf, name in self._followed, self._later.get((key, i), ()))
            for i, leaf in enumerate(leaves(value))
        ]
        return _Carried(value, slots)

    def _slot(self, name: str, initial: Any) -> Slot:
        return Slot(self._program, name, initial, name in self._followed)

    @contextlib.contextmanager
    def step(self) -> Iterator[Region]:
        """Inside, a step is compiled, up to :meth:`end`."""
        try:
            with self._program.part() as region:
                for name, carried in self._names.items():
                    self._scope.bind(name, carried.inside)
                    self._freeze_inside(name, carried)
                for container, carried in self._containers:
                    refill(container, carried.inside)
                for storage, slot in self._storages:
                    storage.expr, storage.version = slot.var, object()
                self.lists.enter()
                own = {n: self._scope.names[n] for n in self._names}
                own |= {str(i): container for i, (container, _) in enumerate(self._containers)}
                self._inside = containers_in(own)
                self._installed = self._program.state()
                yield region
        finally:
            self._program.restore(self._base.state)

    def end(self, exits: Exits) -> bool:
        """Take stock at the end of a step: what it changed, and what the next one gets.

        Returns:
            Whether the step changes nothing but what is carried; if not, the next try carries it.
        """
        start, after = self._installed, self._program.state()
        before, names = start.names[self._scope][0], after.names[self._scope][0]
        changed = [n for n in names if names[n] is not before.get(n)]
        self.binds = [n for n in changed if n not in before and n in self._live]
        self._changed = changed
        grown = [n for n in changed if n in before and n in self._live and n not in self._names]
        # What a slot brings into a step is the step's own: its result is what is handed on.
        own = [getattr(slot.inside, "storage", None) for slot in self._slots]
        known = [*own, *(storage for storage, _ in self._storages)]
        storages = _new(start.changed_memory(after), known)
        held = [*self._inside, *(container for container, _ in self._containers)]
        containers = _new(start.changed_containers(after), [*held, *self.lists.targets])
        if grown or storages or containers:
            self._notes.names += grown
            containers = [
                c
                for c in containers
                if not self.lists.note(c, start.content(id(c), c), after.content(id(c), c))
            ]
            self._changing_storages += storages
            self._changing_containers += containers
            return self._again()
        for name, carried in self._names.items():
            self._finish_slots(f"`{name}`", carried, names.get(name))
        for container, carried in self._containers:
            self._finish_slots(f"a {type(container).__name__}", carried, container)
        for storage, slot in self._storages:
            slot.result = storage.expr
        try:
            self.lists.end()
        except Differ as differ:
            self.mismatch = "a list", differ
        newly = self._newly_followed()
        lying = self._lying_otherwise()
        if newly or lying:
            self._followed |= newly
            self._later |= lying
            return self._again()
        self._require_own(start, after)
        self._exits = exits
        self._notes.ends_early |= bool(exits.flags)
        for value in (*exits.flags.values(), *leaves(exits.value)):
            slot = Slot(self._program, "left", value)
            slot.result = slot.initial
            self._left.append(slot)
        return True

    def _again(self) -> bool:
        """Forget the step: another try follows."""
        self._program.forget(self._base)
        self._tries += 1
        if self._tries > _MOST_TRIES:
            what = "what a step changes is a new list or dict each time"
            self._program.fail(errors.Mutation(self._span, what, "change what is there before"))
        return False

    def _newly_followed(self) -> set[str]:
        """Names of slots where gradients flow to what a step leaves, and not to what it found."""
        tape = self._program.builder.tape
        if not tape.running:
            return set()
        return {
            slot.name
            for slot in self._slots
            if not isinstance(slot.inside, Scalar)
            and tape.find(slot.result) is not None
            and tape.find(slot.var) is None
        }

    def _lying_otherwise(self) -> dict[tuple[Any, int], list[Value]]:
        """What a step leaves, by its slot; nothing if all of it lies as it was taken to."""
        carried = [*self._names.items(), *((id(c), found) for c, found in self._containers)]
        each = {(key, i): x for key, found in carried for i, x in enumerate(found.slots)}
        slots = {key: x for key, x in each.items() if storage_of(x.leaf) is not None}
        # What is handed on may be a copy of what is around the loop, or is handed on as well.
        places = {storage: storage for storage in self._base.state.memory}
        places |= {slot.leaf.storage: slot.inside.storage for slot in slots.values()}
        if all(may_be(slot.inside, slot.leaf, places) for slot in slots.values()):
            return {}
        return {key: [*slot.later, slot.leaf] for key, slot in slots.items()}

    def _finish_slots(self, what: str, carried: _Carried, value: Any) -> None:
        try:
            found = leaves(value, carried.before)
        except Differ as differ:
            self.mismatch = what, differ
            return
        for slot, leaf in zip(carried.slots, found):
            slot.result, slot.leaf = expression(self._program, leaf), leaf

    # ------------------------------------------------------------ around the steps

    @property
    def _carried(self) -> list[Slot]:
        """What names and containers hand on."""
        named = [slot for carried in self._names.values() for slot in carried.slots]
        return [*named, *(slot for _, carried in self._containers for slot in carried.slots)]

    @property
    def _slots(self) -> list[Slot]:
        stored = [slot for _, slot in self._storages]
        return [*self._own, *self._carried, *stored, *self.lists.slots, *self._left]

    @property
    def states(self) -> list[Any]:
        """The variables of what is carried, as the body of the loop has them."""
        return [slot.var for slot in self._slots]

    @property
    def results(self) -> list[Any]:
        """What a step gives the next one."""
        return [slot.result for slot in self._slots]

    def initial(self) -> list[Any]:
        """What the first step gets; to be emitted before the loop."""
        values = [*self._exits.flags.values(), *leaves(self._exits.value)]
        models = [False if i < len(self._exits.flags) else v for i, v in enumerate(values)]
        blanks = [blank(self._program, model) for model in models]
        carried = self._slots[: len(self._slots) - len(self._left)]
        return [*(slot.initial for slot in carried), *blanks]

    def finish(self, exprs: Sequence[Any], surely: bool) -> Exits:
        """Let everything stand for what it is after the loop.

        Args:
            exprs: of the states after the last step.
            surely: whether there is a first step.

        Returns:
            How control leaves the loop.
        """
        program, slots = self._program, self._slots
        values = [slot.after(program, e) for slot, e in zip(slots, exprs)]
        program.builder.memory.relate((x, slot.leaf) for slot, x in zip(slots, values))
        after = iter(values)
        for _ in self._own:
            next(after)
        for name, carried in self._names.items():
            found = rebuilt(carried.before, after)
            self._freeze_after(name, carried, found, surely)
            self._scope.bind(name, found)
        for container, carried in self._containers:
            refill(container, rebuilt(carried.before, after))
        for storage, _ in self._storages:
            storage.expr, storage.version = next(after).made, object()
        self.lists.finish(after)
        self._freeze_appended(dict(zip(map(id, slots), values)))
        for name in self._changed:
            if name not in self._names:
                self._scope.bind(name, Unusable(partial(_undecided, name, self._span)))
        flags = {kind: next(after) for kind in self._exits.flags}
        return Exits(flags, rebuilt(self._exits.value, after), self._exits.node)

    # ------------------------------------------------------------ whose memory it is

    def _freeze_inside(self, name: str, carried: _Carried) -> None:
        """The first step's value may be seen elsewhere: then no step may write to it."""
        for slot, leaf in zip(carried.slots, leaves(carried.before)):
            if self._is_shared(name, leaf):
                slot.inside.storage.frozen = True

    def _freeze_after(self, name: str, carried: _Carried, found: Any, surely: bool) -> None:
        for slot, leaf, value in zip(carried.slots, leaves(carried.before), leaves(found)):
            if value.storage is None:
                continue
            shared = self._is_shared(name, leaf)
            moved = len(self._exchanged([slot])) > 1
            if shared and (moved or not surely or slot.result.same_as(slot.var)):
                leaf.storage.frozen = value.storage.frozen = True
            around = self._around(slot)
            if around is not None:
                around.frozen = value.storage.frozen = True

    def _appended(self) -> tuple[set[Storage], list[Slot]]:
        """The memory of what lists hold that grow, and the slots that may hand it on."""
        appended = memory_of(self.lists.held)
        same = [slot for slot in self._carried if memory_of([slot.leaf]) & appended]
        return appended, self._exchanged(same)

    def _freeze_appended(self, after: Mapping[int, Value]) -> None:
        """What a list holds stands in rows: writing to it would not show in what it was made of.

        Args:
            after: what slots give after the loop, by their identities.
        """
        appended, handed_on = self._appended()
        inner = [slot for slot in self._carried if _is_frozen(slot.leaf)]
        outside = [s for s in appended if s in self._base.state.memory or s.is_callers]
        each = [memory_of([tensor]) for tensor in self.lists.held]
        is_shared = outside or handed_on or sum(map(len, each)) > len(appended)
        rows = self.lists.slots if is_shared else []
        own = [after[id(slot)].storage for slot in (*inner, *handed_on, *rows)]
        for storage in (*outside, *own):
            if storage is not None:
                storage.frozen = True

    def _require_own(self, start: State, after: State) -> None:
        """Refuse a step that writes to what may, in a later step, be someone else's memory."""
        appended, handed_on = self._appended()
        appended |= memory_of(slot.inside for slot in handed_on)
        if appended & set(start.changed_memory(after)):
            what = "from step to step, a list holds it as it was"
            self._program.fail(errors.Mutation(self._span, what, "append a clone() of it"))
        hazards = [
            slot
            for name, carried in self._names.items()
            for slot, leaf in zip(carried.slots, leaves(carried.before))
            if self._is_shared(name, leaf) or self._around(slot) is not None
        ]
        storages = [getattr(slot.inside, "storage", None) for slot in self._exchanged(hazards)]
        before = self._base.state.memory
        written = {s for s in start.changed_memory(after) if s in before or s.is_callers}
        is_another = any(self._is_whole_of(x, written) for x in self._handed_on())
        if is_another or any(
            s is not None and start.held(s)[1] is not after.held(s)[1] for s in storages
        ):
            what = "from step to step it may be a part of another tensor, or one with another name"
            self._program.fail(errors.Mutation(self._span, what, "write to a clone() of it"))
        changed = start.changed_containers(after)
        if any(container is x for container in changed for x in self._inside):
            others = [
                container
                for name, carried in self._names.items()
                for container in containers_in({name: carried.before})
                if self._is_held(name, container)
            ]
            if others:
                what = "a list or dict that another name holds is changed from step to step"
                self._program.fail(errors.Mutation(self._span, what, "change a copy of it"))

    def _handed_on(self) -> list[Any]:
        """What names stand for when the first step begins, and when a step ends."""
        found = []
        for carried in self._names.values():
            found += [*leaves(carried.before), *(slot.leaf for slot in carried.slots)]
        return found

    def _is_whole_of(self, leaf: Any, storages: Collection[Storage]) -> bool:
        """Whether a tensor may be another name of all of some memory, and not of a part."""
        storage = storage_of(leaf)
        return storage is not None and any(
            is_known(s.meta.numel() == leaf.meta.numel())
            for s in storage.identities & set(storages)
        )

    def _exchanged(self, slots: Sequence[Slot]) -> list[Slot]:
        """The slots, and those that get what one of these had, or the other way round."""
        named = self._carried
        insides = {storage_of(slot.inside): slot for slot in named}
        pairs = [
            (slot, insides[other])
            for slot in named
            if (storage := storage_of(slot.leaf)) is not None
            for other in storage.identities
            if other in insides
        ]
        found = {id(slot): slot for slot in slots}
        for _ in named:
            for one, other in pairs:
                if id(one) in found or id(other) in found:
                    found |= {id(one): one, id(other): other}
        return list(found.values())

    def _around(self, slot: Slot) -> Storage | None:
        """The memory from outside of the loop that a step hands on a view of."""
        storage = getattr(slot.leaf, "storage", None)
        if storage is None:
            return None
        whole = storage if storage.part is None else storage.part.whole
        outside = whole in self._base.state.memory or whole.is_callers
        return whole if outside else None

    def _is_held(self, name: str, container: Container) -> bool:
        others = {
            f"{i} {known}": value
            for i, (scope, (names, _)) in enumerate(self._base.state.names.items())
            for known, value in names.items()
            if not (scope is self._scope and known == name)
        }
        return any(found is container for found in containers_in(others))

    def _is_shared(self, name: str, leaf: Any) -> bool:
        storage = getattr(leaf, "storage", None)
        if storage is None:
            return False
        others = [
            value
            for scope, (names, _) in self._base.state.names.items()
            for known, value in names.items()
            if not (scope is self._scope and known == name)
        ]
        owned = [*reachable(others), *self._program.parameters.values()]
        return any(value.storage is storage for value in owned)


_MOST_TRIES = 100
"""Of a step: each finds a name, a container or a tensor that is changed."""


def _is_frozen(leaf: Any) -> bool:
    storage = storage_of(leaf)
    return storage is not None and storage.frozen


def _undecided(name: str, loop: Span, span: Span) -> Diagnostic:
    path = f"it is bound only if the loop at line {loop.line} runs at least once"
    return errors.Undecided(span, name, path, "")


def _new(found: list[Any], known: list[Any]) -> list[Any]:
    return [item for item in found if not any(item is other for other in known)]
