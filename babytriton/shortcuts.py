"""A call that a program was found for -> a function that runs the calls like it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from babytriton.containers import PLAIN, DictKind, is_named_tuple
from babytriton.frontend.known import grad_of
from babytriton.frontend.lowering import Output, Returned, Selected, Write
from babytriton.frontend.objects import test_of
from babytriton.frontend.parameters import Parameters
from babytriton.frontend.program import Computed, Hidden
from babytriton.frontend.signature import (
    ConstSpec,
    DictSpec,
    FloatSpec,
    ObjectSpec,
    SequenceSpec,
    Spec,
    TensorSpec,
)
from babytriton.ops import autocast
from babytriton.ops.fallback import TorchCall
from babytriton.ops.registry import Registry
from babytriton.running import Runner
from babytriton.runtime import interop
from babytriton.runtime.attempts import MISSED, Attempt, NoShortcut
from babytriton.types import MemoryFormat, Size, TensorType

_LOG = logging.getLogger(__name__)

KEPT = 4
"""How many shortcuts are tried: more would take longer than they save."""

_NOTHING: Mapping[str, Any] = {}
"""No arguments by name."""


def is_worth_a_shortcut(calls: int) -> bool:
    """Whether one is to be made after so many calls without: ever more rarely.

    Some calls have none, and others more than are kept.
    """
    return calls.bit_count() == 1


Shortcut = Callable[[Sequence[Any], Mapping[str, Any]], Any]
"""Of a call's arguments by position and by name: it gives the result, or ``MISSED``."""


@dataclass(frozen=True)
class Moment:
    """What programs depend on besides the arguments, as it was when one was looked for.

    Attributes:
        registry: the operator table.
        changes: how often it had been added to.
        dtype: torch's default.
    """

    registry: Registry
    changes: int
    dtype: torch.dtype

    @classmethod
    def now(cls, registry: Registry) -> Moment:
        return cls(registry, registry.changes, torch.get_default_dtype())


def shortcut(
    runner: Runner,
    parameters: Parameters,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    moment: Moment | None = None,
) -> Shortcut | None:
    """What runs calls like one; None where such calls are to be looked at each time.

    Args:
        runner: of the program for the call.
        parameters: of the function.
        args, kwargs: of the call.
        moment: of the call; None where the program serves all.
    """
    given = {_Variable(f"a{i}"): x for i, x in enumerate((*args, *kwargs.values()))}
    names = tuple(given)
    positional, named = names[: len(args)], dict(zip(kwargs, names[len(args) :]))
    try:
        # Which parameter each argument is for, and what the others are by default.
        bound = parameters.bind(positional, named)
        attempt = Attempt(positional, named)
        if moment is not None:
            attempt.require(
                f"{attempt.know('registry', moment.registry)}.changes == {moment.changes}",
                f"{attempt.know('default', torch.get_default_dtype)}() is "
                f"{attempt.know('dtype', moment.dtype)}",
            )
        maker = _Maker(runner, attempt, given)
        for spec, argument, default in zip(runner.signature.specs, bound, parameters.defaults):
            if argument is default and _may_change(default):
                raise NoShortcut
            maker.argument(spec, argument)
        return maker.function()
    except NoShortcut:
        return None
    except Exception:
        # The call itself has been run, and must not fail for the sake of others.
        _LOG.debug("no shortcut", exc_info=True)
        return None


def newest_first(kept: tuple[Shortcut, ...], newest: Shortcut) -> tuple[Shortcut, ...]:
    """The shortcuts that are tried from now on."""
    return newest, *kept[: KEPT - 1]


class Shortened:
    """A program whose calls take shortcuts.

    Args:
        run: runs a call that has none, of its arguments by position and by name.
        make: a shortcut for a call that has been run, if there is one.
    """

    def __init__(
        self,
        run: Callable[[Sequence[Any], Mapping[str, Any]], Any],
        make: Callable[[Sequence[Any], Mapping[str, Any]], Shortcut | None],
    ) -> None:
        self._run, self._make = run, make
        self._attempts: tuple[Shortcut, ...] = ()
        self._calls = 0

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any] = _NOTHING) -> Any:
        for attempt in self._attempts:
            result = attempt(args, kwargs)
            if result is not MISSED:
                return result
        result = self._run(args, kwargs)
        self._calls += 1
        if is_worth_a_shortcut(self._calls):
            made = self._make(args, kwargs)
            if made is not None:
                self._attempts = newest_first(self._attempts, made)
        return result


class _Variable(str):
    """An expression for an argument, where its value would be."""


def _may_change(default: Any) -> bool:
    """Whether a parameter's default may be another at the next call."""
    if isinstance(default, tuple):
        return any(map(_may_change, default))
    return isinstance(default, (list, dict, torch.Tensor))


class _Maker:
    """Writes the function.

    First come the arguments, by :meth:`argument`, then all else, by :meth:`function`. Both raise
    ``NoShortcut`` where calls are to be looked at each time.

    Args:
        runner: of the program.
        attempt: to write to.
        arguments: of the call, by their variables.
    """

    def __init__(
        self, runner: Runner, attempt: Attempt, arguments: Mapping[_Variable, Any]
    ) -> None:
        self._runner, self._attempt, self._arguments = runner, attempt, arguments
        self._program = runner.program
        self._leaves: list[str] = []
        """A variable for each leaf of the call: its tensors and floats."""
        self._tensors: dict[str, torch.Tensor] = {}
        """What the variables for tensors stand for at this call."""
        self._shapes: dict[str, Sequence[Size]] = {}
        """The shapes of those that have symbolic sizes."""
        self._formats: dict[str, MemoryFormat] = {}
        """How those lie of which the program takes what is in memory."""
        if runner.signature.autocast:
            state = attempt.know("state", runner.signature.autocast)
            attempt.require(f"{attempt.know('autocast', autocast.state)}() == {state}")

    def argument(self, spec: Spec, bound: Any) -> None:
        """Require of an argument what the program depends on.

        Args:
            spec: what the program takes.
            bound: the argument's variable, the default in place of it, or several of these: a tuple
                for ``*args``, a dict for ``**kwargs``.
        """
        if isinstance(bound, _Variable):
            self._value(spec, self._arguments[bound], bound)
        elif isinstance(spec, (SequenceSpec, DictSpec)):
            items = bound.values() if isinstance(bound, dict) else bound
            for item, each in zip(spec.items, items):
                self.argument(item, each)
        elif isinstance(spec, FloatSpec):
            self._leaves.append(self._attempt.know("default", bound))
        elif not isinstance(spec, (ConstSpec, ObjectSpec)):
            raise NoShortcut

    def function(self) -> Shortcut:
        """The function, once all arguments are looked at."""
        attempt, program, names = self._attempt, self._program, self._runner.names
        for i, known in program.formats.items():
            input = program.inputs[i]
            if isinstance(input, int):
                self._formats[self._leaves[input]] = known
        unreadable = attempt.require_tensors(self._tensors, self._shapes, self._formats)
        self._require_known()
        outside = self._outside()
        tensors = {name: self._tensors[name] for name in outside}
        unreadable |= attempt.require_tensors(tensors, self._shapes, self._formats)
        if not self._tensors:
            raise NoShortcut  # what torch is set to shows in how it looks at tensors
        if program.sizes is not None:
            attempt.require_sizes(self._shapes, program.sizes.smallest)
            if program.sizes.conditions.each:
                hold = attempt.know("hold", program.sizes.conditions.hold)
                attempt.require(f"{hold}({attempt.sizes()})")
        hidden = iter(outside)
        values = [
            self._leaves[input]
            if isinstance(input, int)
            else next(hidden)
            if isinstance(input, Hidden)
            else self._number(input)
            if isinstance(input, Computed)
            else None
            for input in program.inputs
        ]
        self._keep_apart(values, unreadable)
        for i, (name, value) in enumerate(zip(names, values)):
            if value is None:
                continue
            # Gradients are those of the tensors, and not of what is in their memory.
            itself = self._runner.differentiated or self._runner.is_by_address(i)
            format = None if itself and value not in unreadable else self._formats.get(value)
            taken = attempt.memory(value, format)
            if value in unreadable:
                as_given = attempt.know("format", format)
                taken = f"{attempt.know('readable', interop.readable)}({taken}, {as_given})"
            attempt.write(f"{name} = {taken}")
        output = self._turned(self._run(values, unreadable))
        for each in program.writes:
            target = str(values[each.input])
            self._write(each, target, output(each.index), target not in unreadable)
        result = self._result(program.result, values, output)
        return attempt.function(result, program.devices[0])

    def _turned(self, output: Callable[[int], str]) -> Callable[[int], str]:
        """Expressions for the outputs of the program, of those for what it gives of them."""
        formats = self._runner.formats
        if not formats:
            return output
        turns = {i: self._attempt.know("turned", format.turned) for i, format in formats.items()}
        return lambda i: f"{turns[i]}({output(i)})" if i in turns else output(i)

    def _value(self, spec: Spec, value: Any, place: str) -> None:
        """Require a value like the given one; its tensors and floats are leaves."""
        attempt = self._attempt
        if isinstance(spec, TensorSpec):
            if not isinstance(value, torch.Tensor):
                raise NoShortcut  # a box, or an array
            self._tensor(self._leaf(place), value, spec.type)
            return
        if isinstance(spec, ObjectSpec):
            attempt.require(test_of(value, place, attempt.know))
            return
        attempt.require(f"type({place}) is {attempt.know('kind', type(value))}")
        if isinstance(spec, FloatSpec):
            # An argument of a kernel, where other values are part of the program.
            self._leaf(place)
        elif isinstance(spec, ConstSpec):
            if isinstance(value, float):  # NaN is not equal to itself, and 0.0 equals -0.0
                place, value = f"{place}.hex()", value.hex()
            attempt.require(f"{place} == {attempt.know('value', value)}")
        elif type(value) is dict and all(type(key) in (str, int) for key in value):
            keys = tuple(value)
            attempt.require(f"tuple({place}) == {attempt.know('keys', keys)}")
            for item, key in zip(spec.items, keys, strict=True):
                self._value(item, value[key], f"{place}[{attempt.know('key', key)}]")
        elif type(value) in (tuple, list) or is_named_tuple(value):
            attempt.require(f"len({place}) == {len(value)}")
            for i, (item, each) in enumerate(zip(spec.items, value, strict=True)):
                self._value(item, each, f"{place}[{i}]")
        else:
            raise NoShortcut

    def _leaf(self, place: str) -> str:
        """A variable for a tensor or float of the call."""
        name = place if place in self._arguments else f"leaf{len(self._leaves)}"
        if name != place:
            self._attempt.write(f"{name} = {place}")
        self._leaves.append(name)
        return name

    def _tensor(self, name: str, tensor: torch.Tensor, expected: TensorType) -> None:
        if not expected.covers(TensorType.of(tensor)):
            raise NoShortcut  # another thread has changed what the call was given
        self._tensors[name] = tensor
        if expected.dims:
            self._shapes[name] = expected.shape

    def _require_known(self) -> None:
        """Require of tensors what is asked of them, and not by torch's guards of all."""
        signature = self._runner.signature
        names = {leaf.path: name for leaf, name in zip(signature.leaves(), self._leaves)}
        for each in signature.known:
            if each.is_leaf is not None:
                self._attempt.require(f"{names[each.path]}.is_leaf is {each.is_leaf}")
            if each.grad is not None:
                of = self._attempt.know("grad_of", grad_of)
                test = "is not" if each.grad else "is"
                self._attempt.require(f"{of}({names[each.path]}) {test} None")

    def _outside(self) -> list[str]:
        """Read the tensors from outside the function, and require that all there is as it was.

        Returns:
            A variable for each of them.
        """
        inputs = enumerate(self._program.inputs)
        found = [(i, input) for i, input in inputs if isinstance(input, Hidden)]
        hidden = {f"outside{n}": input for n, (_, input) in enumerate(found)}
        for name, (i, _) in zip(hidden, found):
            if i in self._program.formats:
                self._formats[name] = self._program.formats[i]
        # The tensors' own guards ask what is asked of all at once.
        places = {id(input.place) for input in hidden.values()}
        others = [guard for guard in self._program.guards if id(guard.place) not in places]
        know = self._attempt.know
        self._attempt.require_outside(
            {name: input.place.expression(know) for name, input in hidden.items()},
            [guard.test(know) for guard in others],
        )
        for name, input in hidden.items():
            self._tensor(name, input.place.read(), input.type)
        return list(hidden)

    def _keep_apart(self, values: Sequence[str | None], unreadable: set[str]) -> None:
        """Require that what is written to shares no memory with what is read."""
        if not self._program.writes:
            return
        if any(name in self._shapes for name in unreadable):
            raise NoShortcut
        tensors = [name for name in values if name in self._tensors]
        if len(set(tensors)) < len(tensors):
            raise NoShortcut
        written = {name for write in self._program.writes if (name := values[write.input])}
        self._attempt.require_apart(written, tensors, self._tensors)

    def _run(self, values: Sequence[str | None], unreadable: set[str]) -> Callable[[int], str]:
        """Run the program, and give an expression for each of its outputs.

        Args:
            values: a variable for what the call gives each parameter of the program.
            unreadable: those of which the parameter is a copy.
        """
        attempt, runner = self._attempt, self._runner
        direct = runner.direct
        if direct is not None and runner.differentiated is None:
            # What is in memory has a shape of its own.
            shapes = {
                name: attempt.shapes[value]
                for name, value in zip(runner.names, values)
                if value in attempt.shapes and value not in self._formats
            }
            addresses = {
                name: attempt.addresses[value]
                for name, value in zip(runner.names, values)
                if value in attempt.addresses
            }
            lines, outputs = direct.lines(shapes, addresses)
            attempt.share(direct.known)  # with what these lines are the first to use
            attempt.write(*lines)
            return outputs.__getitem__
        if unreadable and runner.differentiated is not None:
            raise NoShortcut  # gradients are those of the tensors, and not of copies
        inputs = zip(runner.names, self._program.inputs)
        attempt.share(
            {x: interop.packed(input) for x, input in inputs if isinstance(input, TorchCall)}
        )
        run, parameters = attempt.know("run", runner.unchecked), ", ".join(runner.names)
        attempt.write(f"outputs = {run}([{parameters}], {attempt.sizes()})")
        return lambda i: f"outputs[{i}]"

    def _write(self, write: Write, target: str, new: str, is_read: bool) -> None:
        """Write what the program gives to a tensor, if it was not written there already.

        Args:
            write: which output goes to which input.
            target: the tensor's variable.
            new: an expression for the output.
            is_read: whether the kernels are given the tensor itself, and no copy.
        """
        attempt, direct = self._attempt, self._runner.direct
        if not is_read or direct is None or not direct.writes_in_place(write.index):
            attempt.write(f"{attempt.know('write', interop.write)}({target}, {new})")
        elif not self._tensors[target].is_inference():
            bump = attempt.know("increment_version", torch.autograd.graph.increment_version)
            attempt.write(f"{bump}({target})")

    def _number(self, number: Computed) -> str:
        sizes = self._attempt.sizes()
        return f"{self._attempt.know('number', number.of)}({sizes})"

    def _result(
        self, structure: Any, values: Sequence[str | None], output: Callable[[int], str]
    ) -> str:
        """An expression for a result, or a part of one."""
        if isinstance(structure, Output):
            return f"{output(structure.index)}{'.item()' if structure.is_float else ''}"
        if isinstance(structure, Returned):
            return f"{values[structure.input]}"
        if isinstance(structure, Computed):
            return self._number(structure)
        know = self._attempt.know
        if isinstance(structure, Selected):
            places = (structure.whole, structure.mask)
            whole, mask = (self._result(place, values, output) for place in places)
            return f"{know('selected', structure.of)}({whole}, {mask})"
        if not isinstance(structure, (tuple, list, dict)):
            return know("value", structure)
        items = structure.values() if isinstance(structure, dict) else structure
        parts = [self._result(item, values, output) for item in items]
        if isinstance(structure, dict):
            pairs = [f"{know('key', key)}: {part}" for key, part in zip(structure, parts)]
            made, kind = f"{{{', '.join(pairs)}}}", DictKind.of(structure)
            return made if kind == PLAIN else f"{know('make', kind.make)}({made})"
        if isinstance(structure, list):
            return f"[{', '.join(parts)}]"
        if is_named_tuple(structure):
            return f"{know('kind', type(structure))}({', '.join(parts)})"
        whole = f"({', '.join(parts)},)" if parts else "()"
        return whole if type(structure) is tuple else f"{know('kind', type(structure))}({whole})"
