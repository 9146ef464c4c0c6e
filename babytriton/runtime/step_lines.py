"""The Python that runs the steps of a program."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import singledispatchmethod

from babytriton.plan import (
    Allocation,
    Block,
    Branch,
    Call,
    Function,
    Kind,
    Launch,
    Loop,
    OutsideCall,
    all_of,
)
from babytriton.runtime.loop_buffers import buffers_of
from babytriton.runtime.rows_in_place import Rows, rows_of, telling
from babytriton.types import MemoryFormat


@dataclass(frozen=True)
class StepLines:
    """Writes the lines.

    Attributes:
        places: for some of what kernels write, the variable that has the memory for it.
        formats: how some of that lies, where it is not as contiguous tensors.
        addresses: for some tensors, a variable that holds where they lie; None where kernels take
            no addresses.
        on_gpu: whether kernels are given an address wherever they take one.
        kernel: gives a name to the kernel of a step that takes numbers as some of its arguments.
        only: those of which there is only an address.
        buffers: what has its memory from step to step of a loop, with the variable for the other
            half of it, where it has two that take turns.
    """

    places: Mapping[str, str]
    formats: Mapping[str, MemoryFormat]
    addresses: Mapping[str, str] | None
    on_gpu: bool
    kernel: Callable[[Launch, Sequence[int]], str]
    only: frozenset[str] = frozenset()
    buffers: Mapping[str, str | None] = field(default_factory=dict)

    def function(self, name: str, function: Function) -> Iterator[str]:
        """The definition of one of the program's functions."""
        yield f"def function_{name}({', '.join(function.parameters)}):"
        sizes = [f"{size} = {tensor}.shape[{axis}]" for size, tensor, axis in function.sizes]
        body = self.block(function.body)
        yield from indented([*sizes, *body, f"return {listed(function.body.results)}"])

    def block(self, block: Block, loop: Loop | None = None) -> Iterator[str]:
        """Steps in order, of which each lets go of what none after it needs.

        Args:
            block: the steps.
            loop: that they are the body of, if they are of one.
        """
        lines, rows = self, self._rows(block, loop)
        last = {name: n for n, step in enumerate(block.steps) for name in step.arguments}
        last |= dict.fromkeys(block.results, len(block.steps))
        for name, row in reversed(rows.rows.items()):
            last[row.of] = max(last[row.of], last.get(name, 0))
        mine = {name for step in block.steps for name in step.written} - lines.buffers.keys()
        for n, step in enumerate(block.steps):
            for output in rows.early.get(n, ()):
                yield lines._allocated(output.name, output)
            for name in (name for name, begin in rows.begin.items() if begin == n):
                row = rows.rows[name]
                offset = "" if row.offset == "0" else f" + {row.offset}"
                yield f"address_{name} = {lines._address(row.of)}{offset}"
                lines = lines._with_addresses([name])
            used = dict.fromkeys((*step.arguments, *step.written))
            used |= {row.of: None for name, row in rows.rows.items() if last.get(name, 0) == n}
            over = [x for x in used if x in mine - rows.only() and last.get(x, n) == n]
            if isinstance(step, Loop):
                needed = [name for name in step.written if last.get(name, n) > n]
                yield from lines._loop(step, needed, over)
            elif n not in rows.needless:
                yield from lines._step(step)
            if over:
                yield f"del {', '.join(over)}"

    def _rows(self, block: Block, loop: Loop | None = None) -> Rows:
        """The rows that a block's kernels take where they lie."""
        if self.addresses is None:
            return Rows()
        of_loop = loop is not None or bool(self.buffers)
        return rows_of(block, self.on_gpu, loop, self.only, of_loop)

    def _with_addresses(self, names: Sequence[str]) -> StepLines:
        """The same where of more tensors there is only an address."""
        addresses = {**(self.addresses or {}), **{name: f"address_{name}" for name in names}}
        return replace(self, addresses=addresses, only=self.only.union(names))

    def _address(self, name: str) -> str:
        """Where a tensor lies."""
        return (self.addresses or {}).get(name, f"{name}.data_ptr()")

    @singledispatchmethod
    def _step(self, step: object) -> Iterator[str]:
        raise AssertionError(step)

    @_step.register
    def _(self, step: Launch) -> Iterator[str]:
        for output in step.outputs:
            if output.name in self.only:
                continue
            if output.name in self.places:
                yield f"{output.name} = {self.places[output.name]}"
            elif output.name not in self.buffers:
                yield self._allocated(output.name, output)
            elif (other := self.buffers[output.name]) is not None:
                yield f"{output.name}, {other} = {other}, {output.name}"
        given = [*step.arguments, *step.written]
        told = [n for n, kind in enumerate(step.kinds) if self._is_told(given[n], kind)]
        if self.on_gpu and self.addresses is not None:
            tells = telling(step, self.only)
            assert tells is not None, "a GPU's kernel is given one tensor at least"
            told = [n for n in told if n != tells]
        arguments = [self._address(x) if n in told else x for n, x in enumerate(given)]
        yield f"{self.kernel(step, told)}({', '.join(arguments)})"

    def _is_told(self, name: str, kind: Kind) -> bool:
        """Whether a kernel is given the address of a tensor: a number is handed over faster."""
        if self.addresses is None or kind != Kind.ADDRESS:
            return False
        return self.on_gpu or name in self.addresses

    @_step.register
    def _(self, step: OutsideCall) -> Iterator[str]:
        results = f"{listed(step.written)} = " if step.written else ""
        yield f"{results}call_{step.function}({listed(step.arguments)})"

    @_step.register
    def _(self, step: Call) -> Iterator[str]:
        arguments = ", ".join(step.arguments)
        yield f"{listed(step.written)} = function_{step.function}({arguments})"

    @_step.register
    def _(self, step: Branch) -> Iterator[str]:
        condition = f"{step.condition}.item()" if step.of_tensor else step.condition
        yield f"if {condition}:"
        yield from indented(self._giving(step.then, step))
        yield "else:"
        yield from indented(self._giving(step.orelse, step))

    def _allocated(self, name: str, output: Allocation) -> str:
        shape, strides = _lying(output.shape, self.formats.get(output.name))
        given = f"{_tuple(shape)}, {_tuple(strides)}, dtype_{output.dtype.name}"
        return f"{name} = allocate({given})"

    def _loop(self, step: Loop, needed: Sequence[str], over: list[str]) -> Iterator[str]:
        """A loop.

        Args:
            step: the loop.
            needed: the states that are read after it.
            over: what is not needed after it; it takes from this what it lets go of itself.
        """
        rows = self._rows(step.body, step)
        first = {name: x for name, x in zip(step.written, step.initial) if x is not None}
        for name in rows.carried:
            yield f"address_{name} = {self._address(first[name])}"
        own = [name for name in first if name not in rows.carried]
        yield from _assigned(own, [first[name] for name in own])
        inside = {name for each in step.body.steps for name in each.arguments}
        kept = inside.union(step.body.results, (first[name] for name in rows.carried))
        early = [x for x in dict.fromkeys(first[name] for name in own) if x in over]
        early = [x for x in early if x not in kept]
        if early:
            yield f"del {', '.join(early)}"
        known = self._known_in(step)
        for name, address in known.items():
            yield f"{address} = {name}.data_ptr()"
        pairs = [(output, x) for output, x in buffers_of(step) if output.name not in rows.rows]
        others = {output.name: other for output, other in pairs}
        for output, other in pairs:
            yield from (self._allocated(name, output) for name in (output.name, other) if name)
        addresses = None if self.addresses is None else {**self.addresses, **known}
        lines = replace(self, addresses=addresses, buffers={**self.buffers, **others})
        body = list(lines._with_addresses(list(rows.carried))._giving(step.body, step))
        if step.again is None:
            yield f"for {step.number} in range({step.low}, {step.high}):"
            yield from indented(body)
        else:
            yield "while True:"
            again = f"if not {step.written[step.again]}.item():"
            yield from indented([*body, again, "    break"])
        for state in (state for state in rows.carried if state in needed):
            yield self._copied(step, state, rows, first[state])
        made = [name for pair in others.items() for name in pair if name]
        if made:
            yield f"del {', '.join(made)}"
        gone = {*early, *(state for state in rows.carried if state not in needed)}
        over[:] = [name for name in over if name not in gone]

    @staticmethod
    def _copied(loop: Loop, state: str, rows: Rows, first: str) -> str:
        """What the last step leaves in a row, as a tensor of its own."""
        name = rows.carried[state]
        launches = [step for step in loop.body.steps if isinstance(step, Launch)]
        shape = next(x.shape for step in launches for x in step.outputs if x.name == name)
        copied = f"copied({rows.rows[name].of}, address_{state}, {_tuple(shape)})"
        bounds = (loop.low, loop.high)
        if all(map(str.isdecimal, bounds)) and int(loop.low) < int(loop.high):
            return f"{state} = {copied}"
        return f"{state} = {copied} if {loop.low} < {loop.high} else {first}"

    def _known_in(self, loop: Loop) -> dict[str, str]:
        """Variables for where the tensors lie whose addresses all steps of a loop need."""
        if self.addresses is None:
            return {}
        steps = list(all_of(loop.body.steps))
        inside = {name for step in steps for name in step.written}
        states = {x for x, after in zip(loop.written, loop.body.results) if x != after}
        found: list[str] = []
        for step in steps:
            if not isinstance(step, Launch):
                continue
            if step.row is not None:
                found.append(step.row.of)
            if self.on_gpu:
                given, one = (*step.arguments, *step.written), telling(step, frozenset())
                pairs = enumerate(zip(given, step.kinds))
                found += [x for n, (x, kind) in pairs if kind == Kind.ADDRESS and n != one]
        unknown = [x for x in found if x not in inside | states and x not in self.addresses]
        return {name: f"address_{name}" for name in unknown}

    def _giving(self, block: Block, step: Branch | Loop) -> Iterator[str]:
        """A block of a step, whose results get the names of what that writes."""
        loop = step if isinstance(step, Loop) else None
        yield from self.block(block, loop)
        carried = self._rows(block, loop).carried
        pairs = [pair for pair in zip(step.written, block.results) if pair[0] not in carried]
        yield from _assigned([name for name, _ in pairs], [x for _, x in pairs])
        for state, name in carried.items():
            yield f"address_{state} = address_{name}"
        mine = {name for each in block.steps for name in each.written} - self.buffers.keys()
        over = [x for x in dict.fromkeys(block.results) if x in mine and x not in carried.values()]
        if over:
            yield f"del {', '.join(over)}"
        if not step.written and not block.steps:
            yield "pass"


def _assigned(names: Sequence[str], values: Sequence[str]) -> Iterator[str]:
    """Names for values, where these have other ones."""
    pairs = [(name, value) for name, value in zip(names, values) if name != value]
    if pairs:
        names, values = zip(*pairs)
        yield f"{', '.join(names)} = {', '.join(values)}"


def indented(lines: Iterator[str] | Sequence[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def listed(items: Sequence[str]) -> str:
    return f"[{', '.join(items)}]"


def _tuple(items: Sequence[int | str]) -> str:
    return f"({', '.join(map(str, items))}{',' if len(items) == 1 else ''})"


def _strides(shape: Sequence[int | str]) -> list[str]:
    """Of a contiguous tensor, in elements."""
    sizes = [max(size, 1) if isinstance(size, int) else f"({size} or 1)" for size in shape]
    return [" * ".join(map(str, sizes[i + 1 :])) or "1" for i in range(len(shape))]


def _lying(
    memory: Sequence[int | str], format: MemoryFormat | None
) -> tuple[Sequence[int | str], list[str]]:
    """The shape and the strides of a tensor, of the shape of what is in its memory."""
    strides = _strides(memory)
    if format is None:
        return memory, strides
    return [memory[n] for n in format.inverse], [strides[n] for n in format.inverse]
