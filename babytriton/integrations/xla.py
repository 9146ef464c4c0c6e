"""Programs as a primitive of JAX, which is a call of XLA's that reads and writes XLA's memory.

A program is lowered when JAX traces, and compiled when JAX lowers for a platform: nothing is
compiled within a call.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from babytriton import errors
from babytriton.buffers import Program, callback
from babytriton.integrations import require
from babytriton.recording import Key
from babytriton.types import TensorType, dtype_of

jax: Any = require("jax", "as_jax", "jax")
jax_tvm_ffi: Any = require("jax_tvm_ffi", "as_jax", "jax-tvm-ffi")
batching: Any = require("jax.interpreters.batching", "as_jax", "jax")
extend: Any = require("jax.extend.core", "as_jax", "jax")
ffi: Any = require("jax.ffi", "as_jax", "jax")
mlir: Any = require("jax.interpreters.mlir", "as_jax", "jax")
partial_eval: Any = require("jax.interpreters.partial_eval", "as_jax", "jax")

TARGET = "babytriton"
"""What XLA calls, whichever the program: jax-tvm-ffi has place for a thousand targets in all."""

PLATFORMS = {"cpu": "cpu", "cuda": "gpu"}
"""The platforms that programs run on, and jax-tvm-ffi's names for them."""


class Call:
    """What a call of the primitive runs: one program, compiled for each platform it is on.

    Args:
        of: gives the program for a platform.
        platform: the one that JAX traces for, as far as one can tell.
        constants: a text for the values that the program has of its own.
        saves: the number of the first output that nothing but a way back reads.
    """

    def __init__(
        self, of: Callable[[str], Program], platform: str, constants: str, saves: int | None = None
    ) -> None:
        self._of = functools.cache(of)
        self._constants, self._saves = constants, saves
        self._platform = platform
        self._numbers: dict[str, int] = {}
        self._parts: dict[tuple[int, ...], Call] = {}
        self._jitted: Any = None

    def __repr__(self) -> str:
        return repr(self.program.lowered)

    @property
    def program(self) -> Program:
        """The program for the platform that JAX traces for."""
        return self._of(self._platform)

    @property
    def keys(self) -> list[Key]:
        """What each operand is."""
        return [key for key, _ in self.program.operands]

    def __call__(self, operands: Sequence[Any]) -> list[Any]:
        """Call it with arrays, in JAX's terms."""
        types = self.program.results
        if not types:
            return []
        saves = len(types) if self._saves is None else self._saves
        avals = [_aval(type, opaque=i >= saves) for i, type in enumerate(types)]
        found: list[Any] = PRIMITIVE.bind(*operands, call=self, avals=tuple(avals), batch=())
        return found

    def at_once(self, *operands: Any, **params: Any) -> Any:
        """Call it outside of jax.jit."""
        if self._jitted is None:
            bind = functools.partial(PRIMITIVE.bind, call=self)
            self._jitted = jax.jit(bind, static_argnames=("avals", "batch"))
        with jax.disable_jit(False):
            return self._jitted(*operands, **params)

    def with_outputs(self, numbers: tuple[int, ...]) -> Call:
        """The same with only some of its outputs."""
        if numbers not in self._parts:
            of = self._of
            self._parts[numbers] = Call(
                lambda platform: of(platform).with_outputs(numbers), self._platform, self._constants
            )
        return self._parts[numbers]

    def number(self, platform: str) -> int:
        """What XLA calls the program by on a platform, compiled and ready to run.

        Raises:
            RuntimeError: it cannot run there.
        """
        if platform not in self._numbers:
            program, here = self._of(platform), self.program
            if (program.operands, program.results) != (here.operands, here.results):
                # Only a way back knows: what it is handed was decided on when JAX traced.
                name, traced = program.lowered.name, self._platform
                why = f"it was traced for {traced}, where the way back is handed other tensors"
                instead = f"trace it within jax.default_device(jax.devices({platform!r})[0])"
                raise errors.OtherPlatform(None, name, platform, why, instead).error()
            digest = program.digest(self._constants)
            _ = program.compiled
            if jax.default_backend() in (platform, PLATFORMS[platform]):
                program.prepare()
            _register(platform)
            self._numbers[platform] = CALLS.add(program, digest)
        return self._numbers[platform]


class Calls:
    """The programs that XLA may call, by numbers: they stay, as XLA's code does.

    A number is the same in another process that lowers the same, so that JAX's cache of compiled
    code finds it there.
    """

    def __init__(self) -> None:
        self._programs: dict[int, Program] = {}
        self._lock = threading.Lock()

    def add(self, program: Program, first: int) -> int:
        """A number for a program, which is compiled: the first that no other has."""
        with self._lock:
            number = next(n for n in itertools.count(first) if n not in self._programs)
            self._programs[number] = program
        return number

    def run(self, number: int, *tensors: Any) -> None:
        """Run a program on tensors in XLA's memory: those it reads, and then those it writes."""
        self._programs[number].run(*tensors)


CALLS = Calls()


@functools.cache
def _register(platform: str) -> None:
    """Let XLA call programs on a platform."""
    jax_tvm_ffi.register_ffi_target(
        TARGET,
        callback(CALLS.run),
        ["attrs.program", "args", "rets"],
        PLATFORMS[platform],
        pass_owned_tensor=True,  # others have no DLPack
    )


def _aval(type: TensorType, opaque: bool) -> Any:
    """The type of an output in JAX's terms, which has 64 bits only where they are enabled.

    Args:
        type: of it.
        opaque: whether nothing but a program reads it: its words may then be halves of elements.
    """
    dtype = jax.numpy.dtype(dtype_of(type.dtype).name)
    if dtype == jax.dtypes.canonicalize_dtype(dtype):
        return jax.core.ShapedArray(type.sizes, dtype)
    if opaque:
        return jax.core.ShapedArray((*type.sizes, 2), jax.numpy.uint32)
    return jax.core.ShapedArray(type.sizes, jax.dtypes.canonicalize_dtype(dtype))


def _batched(
    operands: Sequence[Any], dims: Sequence[int | None], *, batch: tuple[int, ...], **params: Any
) -> tuple[Any, Any]:
    """A call for a batch: the dimension of it goes first, of size 1 where there is none."""
    size = next(x.shape[d] for x, d in zip(operands, dims) if d is not None)
    moved = [
        jax.numpy.expand_dims(x, 0) if d is None else jax.numpy.moveaxis(x, d, 0)
        for x, d in zip(operands, dims)
    ]
    found = PRIMITIVE.bind(*moved, batch=(size, *batch), **params)
    return found, [0] * len(found)


def _without_unused(used: list[bool], equation: Any) -> tuple[list[bool], Any]:
    """A call without the outputs that nothing reads."""
    inputs = [True] * len(equation.invars)
    if not any(used):
        return [False] * len(inputs), None
    call, numbers = equation.params["call"], tuple(i for i, x in enumerate(used) if x)
    if all(used) or not call.program.is_pure:
        return inputs, equation
    avals = tuple(equation.params["avals"][i] for i in numbers)
    params = {**equation.params, "call": call.with_outputs(numbers), "avals": avals}
    return inputs, equation.replace(outvars=[equation.outvars[i] for i in numbers], params=params)


def _lowered(platform: str, context: Any, *operands: Any, call: Call, **_: Any) -> Any:
    effect = not call.program.is_pure
    rule = ffi.ffi_lowering(TARGET, has_side_effect=effect)
    # Not a text: of long ones, jax-tvm-ffi hands on other bytes.
    number = np.int64(call.number(platform))
    return rule(context, *operands, program=number)


def _refused(context: Any, *_: Any, call: Call, **__: Any) -> Any:
    platform = context.module_context.platforms[0]
    name = call.program.lowered.name
    why, instead = "programs are compiled for cpu and cuda", "move the arrays to one of these"
    raise errors.OtherPlatform(None, name, platform, why, instead).error()


PRIMITIVE: Any = extend.Primitive("babytriton")
PRIMITIVE.multiple_results = True
PRIMITIVE.def_abstract_eval(
    lambda *_, call, avals, batch: [x.update(shape=(*batch, *x.shape)) for x in avals]
)
PRIMITIVE.def_impl(lambda *operands, call, **params: call.at_once(*operands, **params))
batching.primitive_batchers[PRIMITIVE] = _batched
partial_eval.dce_rules[PRIMITIVE] = _without_unused
mlir.register_lowering(PRIMITIVE, _refused)
for _platform in PLATFORMS:
    mlir.register_lowering(PRIMITIVE, functools.partial(_lowered, _platform), platform=_platform)
