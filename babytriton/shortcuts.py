"""A call that a program was found for -> a function that runs the calls like it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import torch

from babytriton.frontend.lowering import Output, Returned
from babytriton.frontend.program import Computed, Hidden
from babytriton.frontend.signature import (
    ConstSpec,
    DictSpec,
    FloatSpec,
    Parameters,
    SequenceSpec,
    Spec,
    TensorSpec,
)
from babytriton.ops import autocast
from babytriton.ops.fallback import TorchCall
from babytriton.running import Runner
from babytriton.runtime.attempts import MISSED, Attempt, NoShortcut
from babytriton.runtime.interop import packed, readable
from babytriton.types import Size, TensorType


class _Variable(str):
    """An expression for an argument, where its value would be."""


def shortcut(
    runner: Runner, parameters: Parameters, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any] | None:
    """What runs calls like one, of its arguments by position: it gives the result, or ``MISSED``.

    Those given by name follow the others, in the order of the call. None where such calls are to
    be looked at each time.

    Args:
        runner: of the program for the call.
        parameters: of the function.
        args, kwargs: of the call.
    """
    given = {_Variable(f"a{i}"): x for i, x in enumerate((*args, *kwargs.values()))}
    names = tuple(given)
    try:
        # Which parameter each argument is for, and what the others are by default.
        bound = parameters.bind(names[: len(args)], dict(zip(kwargs, names[len(args) :])))
        if any(default is each for default in parameters.changeable for each in bound):
            raise NoShortcut
        maker = _Maker(runner, Attempt(names), given)
        for spec, argument in zip(runner.signature.specs, bound):
            maker.argument(spec, argument)
        return maker.function()
    except NoShortcut:
        return None


class Shortened:
    """A program that is called in one way only, each time with its leaves.

    Args:
        runner: of the program.
        parameters: a name for each leaf.
    """

    def __init__(self, runner: Runner, parameters: Parameters) -> None:
        self._runner, self._parameters = runner, parameters
        self._attempt: Callable[..., Any] = lambda *leaves: MISSED
        self._calls = 0

    def __call__(self, leaves: Sequence[Any]) -> Any:
        result = self._attempt(*leaves)
        if result is MISSED:
            result = self._runner(leaves)
            self._calls += 1
            if is_worth_a_shortcut(self._calls):
                made = shortcut(self._runner, self._parameters, tuple(leaves), {})
                self._attempt = made or self._attempt
        return result


def is_worth_a_shortcut(calls: int) -> bool:
    """Whether one is to be made after so many calls without: ever more rarely.

    Some calls have none, and others more than are kept.
    """
    return calls.bit_count() == 1


class _Maker:
    """Writes the function.

    Args:
        runner: of the program.
        attempt: to write to.
        given: the arguments of the call, by their variables.
    """

    def __init__(self, runner: Runner, attempt: Attempt, given: Mapping[_Variable, Any]) -> None:
        self._runner, self._attempt, self._given = runner, attempt, given
        self._program = runner.program
        self._leaves: list[str] = []
        """A variable for each tensor and float of the call."""
        self._tensors: dict[str, torch.Tensor] = {}
        """The call's tensors, by their variables."""
        self._shapes: dict[str, Sequence[Size]] = {}
        """The shapes of those that have symbolic sizes."""
        self._given_as: list[str] = []
        """For each parameter of the program, the variable for what the call gives."""
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
            self._value(spec, self._given[bound], bound)
        elif isinstance(spec, (SequenceSpec, DictSpec)):
            items = bound.values() if isinstance(bound, dict) else bound
            for item, each in zip(spec.items, items):
                self.argument(item, each)
        elif isinstance(spec, FloatSpec):
            self._leaves.append(self._attempt.know("default", bound))
        elif not isinstance(spec, ConstSpec):
            raise NoShortcut

    def function(self) -> Callable[..., Any]:
        """The function, of all arguments."""
        attempt, program, names = self._attempt, self._program, self._runner.names
        unreadable = attempt.tensors(self._tensors, self._shapes) | self._outside()
        if not self._tensors:
            raise NoShortcut  # what torch is set to shows in how it looks at tensors
        self._given_as = [
            self._leaves[input] if isinstance(input, int) else name
            for name, input in zip(names, program.inputs)
        ]
        if program.sizes is not None:
            attempt.sizes(self._shapes, program.sizes.smallest)
            if program.sizes.conditions.each:
                hold = attempt.know("hold", program.sizes.conditions.hold)
                attempt.require(f"{hold}({attempt.by_name()})")
        self._keep_apart(unreadable)
        for name, input, given in zip(names, program.inputs, self._given_as):
            if isinstance(input, Computed):
                attempt.write(f"{name} = {self._number(input)}")
            elif given in unreadable:
                attempt.write(f"{name} = {attempt.know('readable', readable)}({given})")
            elif given != name:
                attempt.write(f"{name} = {given}")
        output = self._run(unreadable)
        for write in program.writes:
            attempt.write(f"{self._given_as[write.input]}.copy_({output(write.index)})")
        return attempt.function(self._result(program.result, output), program.devices[0])

    def _keep_apart(self, unreadable: Set[str]) -> None:
        """Require that what is written to shares no memory with what is read."""
        tensors = [x for x in self._given_as if x in self._tensors]
        for write in self._program.writes:
            if any(x in self._shapes for x in unreadable):
                raise NoShortcut
            written = self._given_as[write.input]
            others = [x for x in tensors if x != written]
            self._attempt.apart(written, others, self._tensors)

    def _value(self, spec: Spec, value: Any, place: str) -> None:
        """Require a value like the given one; its tensors and floats are leaves."""
        attempt = self._attempt
        if isinstance(spec, TensorSpec):
            if not isinstance(value, torch.Tensor):
                raise NoShortcut  # a box, or an array
            self._tensor(self._leaf(place), value, spec.type)
            return
        attempt.require(f"type({place}) is {attempt.know('kind', type(value))}")
        if isinstance(spec, FloatSpec):
            # An argument of a kernel, where other values are part of the program.
            self._leaf(place)
        elif isinstance(spec, ConstSpec):
            if isinstance(value, float):  # NaN is not equal to itself, and 0.0 equals -0.0
                place, value = f"{place}.hex()", value.hex()
            attempt.require(f"{place} == {attempt.know('value', value)}")
        elif type(value) is dict:
            keys = tuple(value)
            attempt.require(f"tuple({place}) == {attempt.know('keys', keys)}")
            for item, key in zip(spec.items, keys):
                self._value(item, value[key], f"{place}[{attempt.know('key', key)}]")
        elif type(value) in (tuple, list) or hasattr(value, "_fields"):
            attempt.require(f"len({place}) == {len(value)}")
            for i, item in enumerate(spec.items):
                self._value(item, value[i], f"{place}[{i}]")
        else:
            raise NoShortcut

    def _leaf(self, place: str) -> str:
        """A variable for a tensor or float of the call."""
        name = place if place in self._given else f"leaf{len(self._leaves)}"
        if name != place:
            self._attempt.write(f"{name} = {place}")
        self._leaves.append(name)
        return name

    def _tensor(self, name: str, tensor: torch.Tensor, type: TensorType) -> None:
        self._tensors[name] = tensor
        if type.dims:
            self._shapes[name] = type.shape

    def _outside(self) -> set[str]:
        """Read the tensors from outside the function, and require that all there is as it was.

        Returns:
            Those that kernels cannot read as they are.
        """
        pairs = zip(self._runner.names, self._program.inputs)
        hidden = {name: input for name, input in pairs if isinstance(input, Hidden)}
        # The tensors' own guards ask what is asked of all at once.
        places = {id(input.place) for input in hidden.values()}
        others = [guard for guard in self._program.guards if id(guard.place) not in places]
        self._attempt.hold(
            {name: input.place.read for name, input in hidden.items()},
            [(guard.place.read, guard.holds) for guard in others],
        )
        for name, input in hidden.items():
            self._tensor(name, input.place.read(), input.type)
        return self._attempt.tensors({x: self._tensors[x] for x in hidden}, self._shapes)

    def _run(self, unreadable: Set[str]) -> Callable[[int], str]:
        """Run the program, and give an expression for each of its outputs."""
        attempt, runner = self._attempt, self._runner
        direct = runner.direct
        if direct is not None and runner.differentiated is None:
            attempt.share(direct.known)
            pairs = zip(runner.names, self._given_as)
            lines, outputs = direct.lines(
                {n: attempt.shapes[x] for n, x in pairs if x in attempt.shapes}
            )
            attempt.write(*lines)
            return outputs.__getitem__
        if unreadable and runner.differentiated is not None:
            raise NoShortcut  # gradients are those of the tensors, and not of copies
        inputs = zip(runner.names, self._program.inputs)
        attempt.share({x: packed(input) for x, input in inputs if isinstance(input, TorchCall)})
        run, parameters = attempt.know("run", runner.unchecked), ", ".join(runner.names)
        attempt.write(f"outputs = {run}([{parameters}], {attempt.by_name()})")
        return lambda i: f"outputs[{i}]"

    def _number(self, number: Computed) -> str:
        return f"{self._attempt.know('number', number.of)}({self._attempt.by_name()})"

    def _result(self, structure: Any, output: Callable[[int], str]) -> str:
        """An expression for a result, or a part of one."""
        if isinstance(structure, Output):
            return f"{output(structure.index)}{'.item()' if structure.is_float else ''}"
        if isinstance(structure, Returned):
            return self._given_as[structure.input]
        if isinstance(structure, Computed):
            return self._number(structure)
        know = self._attempt.know
        if isinstance(structure, dict):
            parts = [f"{know('key', k)}: {self._result(x, output)}" for k, x in structure.items()]
            return f"{{{', '.join(parts)}}}"
        if not isinstance(structure, (tuple, list)):
            return know("value", structure)
        items = ", ".join(self._result(item, output) for item in structure)
        if isinstance(structure, list):
            return f"[{items}]"
        if hasattr(structure, "_fields"):
            return f"{know('kind', type(structure))}({items})"
        whole = f"({items},)" if items else "()"
        return whole if type(structure) is tuple else f"{know('kind', type(structure))}({whole})"
