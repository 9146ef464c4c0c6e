"""The catalogue: every message a user can see, a class each.

``BT0xx`` are raised while compiling and point at a line; ``BT1xx`` are raised at the call's guard
and name an argument; ``BT2xx`` are about devices and tools; ``BT900`` is a bug of this package.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from babytriton.diagnostics import CompileError, Diagnostic

# ---------------------------------------------------------------- while compiling


@dataclass(frozen=True)
class UnsupportedSyntax(Diagnostic):
    code = "BT001"
    title = "unsupported syntax"
    label = "`{node}` is not in the language"
    node: str


@dataclass(frozen=True)
class UndefinedName(Diagnostic):
    code = "BT002"
    title = "undefined name"
    label = "`{name}` is not defined here"
    name: str


@dataclass(frozen=True)
class OperandsDoNotFit(Diagnostic):
    code = "BT003"
    title = "`{op}` cannot take these arguments"
    label = "{operands}"
    note = "{why}"
    op: str
    operands: str
    why: str


@dataclass(frozen=True)
class ControlFlow(Diagnostic):
    code = "BT004"
    title = "control flow is not supported"
    label = "`{statement}` cannot be compiled yet"
    hint = "{instead}"
    statement: str
    instead: str


@dataclass(frozen=True)
class TensorCondition(Diagnostic):
    code = "BT005"
    title = "a tensor decides what Python does"
    label = "the value of {operand} is known only at run time"
    hint = "use torch.where, torch.maximum, torch.minimum, or torch.logical_and, _or and _not"
    operand: str


@dataclass(frozen=True)
class DataDependent(Diagnostic):
    code = "BT006"
    title = "`{what}` needs the numbers in a tensor"
    label = "they are known only at run time"
    hint = "keep it a tensor, or compute it outside and pass it as an argument"
    what: str


@dataclass(frozen=True)
class Mutation(Diagnostic):
    code = "BT007"
    title = "writing into a tensor is not supported"
    label = "`{what}` changes a tensor in place"
    hint = "{instead}"
    what: str
    instead: str


@dataclass(frozen=True)
class WrongArguments(Diagnostic):
    code = "BT008"
    title = "wrong arguments for `{function}`"
    label = "{why}"
    function: str
    why: str


@dataclass(frozen=True)
class PythonError(Diagnostic):
    code = "BT009"
    title = "Python raises {kind} here"
    label = "{why}"
    kind: str
    why: str


@dataclass(frozen=True)
class UnsupportedDtype(Diagnostic):
    code = "BT010"
    title = "unsupported dtype"
    label = "this gives a tensor of {dtype}"
    hint = "kernels hold float64, float32, float16, bfloat16, int64 to int8, uint8 and bool"
    dtype: str


@dataclass(frozen=True)
class NoSource(Diagnostic):
    code = "BT011"
    title = "no source for `{function}`"
    label = "its Python source cannot be found"
    hint = "define it in a file or a notebook cell; a function made by exec has no source to read"
    function: str


@dataclass(frozen=True)
class UnsupportedResult(Diagnostic):
    code = "BT012"
    title = "unsupported result"
    label = "this returns {type}"
    hint = "return tensors, numbers, strings, None, or tuples, lists and dicts of these"
    type: str


@dataclass(frozen=True)
class CannotUnpack(Diagnostic):
    code = "BT013"
    title = "cannot unpack"
    label = "{given} values for {wanted} names"
    given: int
    wanted: str


@dataclass(frozen=True)
class TooDeep(Diagnostic):
    code = "BT014"
    title = "`{function}` calls itself without end"
    label = "more than {depth} functions are inlined into each other here"
    function: str
    depth: int


@dataclass(frozen=True)
class UnsupportedCall(Diagnostic):
    code = "BT015"
    title = "`{function}` cannot be called on a tensor of the program"
    label = "{why}"
    hint = "{instead}"
    function: str
    why: str
    instead: str


@dataclass(frozen=True)
class NoAttribute(Diagnostic):
    code = "BT016"
    title = "no attribute `{name}`"
    label = "{owner} has no attribute `{name}`"
    owner: str
    name: str


@dataclass(frozen=True)
class CapturedContainer(Diagnostic):
    code = "BT017"
    title = "a captured {type} would change"
    label = "it was created outside the function"
    hint = "copy it first: list(values) or dict(values)"
    type: str


@dataclass(frozen=True)
class OtherDevice(Diagnostic):
    code = "BT018"
    title = "a tensor on another device"
    label = "`{wanted}` is asked for, the function runs on `{given}`"
    hint = "leave device= out, or pass x.device"
    wanted: str
    given: str


@dataclass(frozen=True)
class Internal(Diagnostic):
    code = "BT900"
    title = "a bug in babytriton"
    label = "{stage} failed: {why}"
    hint = "please report it with the function that shows it"
    stage: str
    why: str


# ---------------------------------------------------------------- at the call


@dataclass(frozen=True)
class CallDiagnostic(Diagnostic):
    """A message about how a compiled function was called: it has an argument, not a line."""

    span: None
    exception: ClassVar[type[Exception]] = TypeError

    def error(self) -> Exception:
        """The exception to raise."""
        return self.exception(self.render())


@dataclass(frozen=True)
class ArgumentType(CallDiagnostic):
    code = "BT101"
    title = "argument `{name}`: unsupported type"
    label = "{type} was given"
    hint = "{instead}"
    name: str
    type: str
    instead: str = "pass tensors, numbers, strings, None, or tuples, lists and dicts of these"


@dataclass(frozen=True)
class ArgumentDtype(CallDiagnostic):
    code = "BT102"
    title = "argument `{name}`: wrong dtype"
    label = "expected {expected}, got {given}"
    name: str
    expected: str
    given: str


@dataclass(frozen=True)
class ArgumentShape(CallDiagnostic):
    code = "BT103"
    title = "argument `{name}`: wrong shape"
    label = "expected {expected}, got {given}"
    exception = ValueError
    name: str
    expected: str
    given: str


@dataclass(frozen=True)
class ArgumentDevice(CallDiagnostic):
    code = "BT104"
    title = "`{name}`: wrong device"
    label = "the function runs on {expected}, the tensor is on {given}"
    hint = 'move it with {name}.to("{expected}"), or jit for the device of the inputs'
    exception = ValueError
    name: str
    expected: str
    given: str


@dataclass(frozen=True)
class ArgumentLayout(CallDiagnostic):
    code = "BT105"
    title = "argument `{name}`: unsupported layout"
    label = "a {layout} tensor was given"
    hint = "pass {name}.to_dense()"
    name: str
    layout: str


@dataclass(frozen=True)
class ArgumentRequiresGrad(CallDiagnostic):
    code = "BT106"
    title = "`{name}` requires grad"
    label = "the compiled function has no gradient, the result would be cut off from it"
    hint = "pass {name}.detach(), or call under torch.no_grad()"
    exception = ValueError
    name: str


@dataclass(frozen=True)
class ArgumentValue(CallDiagnostic):
    code = "BT107"
    title = "argument `{name}`: another value than compiled for"
    label = "compiled for {expected}, got {given}"
    exception = ValueError
    name: str
    expected: str
    given: str


@dataclass(frozen=True)
class BadCall(CallDiagnostic):
    code = "BT108"
    title = "`{function}` cannot be called so"
    label = "{why}"
    function: str
    why: str


@dataclass(frozen=True)
class ArgumentMeta(CallDiagnostic):
    code = "BT109"
    title = "`{name}` has no data"
    label = "a meta tensor was given"
    hint = "meta tensors serve for lower(); call with real ones"
    exception = ValueError
    name: str


@dataclass(frozen=True)
class Autocast(CallDiagnostic):
    code = "BT111"
    title = "`{function}` cannot run under autocast"
    label = "compiled functions keep the dtypes they are written in"
    hint = "call it under torch.autocast(..., enabled=False), and cast inside where it is meant"
    exception = RuntimeError
    function: str


@dataclass(frozen=True)
class CapturedChanged(CallDiagnostic):
    code = "BT112"
    title = "`{name}` is another than `{function}` was compiled for"
    label = "it is read from outside the function, and has changed since"
    hint = "call the jitted function, which compiles again, or compile again with lower()"
    exception = ValueError
    name: str
    function: str


@dataclass(frozen=True)
class NamedSize(CallDiagnostic):
    code = "BT110"
    title = "argument `{name}`: a size without a number"
    label = "{size!r} in {given} may be any size"
    hint = "pass a tensor, or a Tensor whose sizes are numbers"
    exception = ValueError
    name: str
    size: str
    given: str


@dataclass(frozen=True)
class SizesDiffer(CallDiagnostic):
    code = "BT128"
    title = "argument `{name}`: another size for `{size}`"
    label = "`{size}` is {given} in dimension {dim} of `{name}`, "
    label += "and {other} in dimension {other_dim} of `{other_name}`"
    exception = ValueError
    name: str
    size: str
    given: int
    dim: int
    other: int
    other_name: str
    other_dim: int


@dataclass(frozen=True)
class OtherSizes(CallDiagnostic):
    code = "BT129"
    title = "sizes that this was not compiled for"
    label = "it holds where {condition}, and now {given}"
    hint = "call the jitted function, which compiles again, or lower() for such sizes"
    exception = ValueError
    condition: str
    given: str


# ---------------------------------------------------------------- devices and tools


@dataclass(frozen=True)
class NoDevice(CallDiagnostic):
    code = "BT201"
    title = "no GPU to run `{function}` on"
    label = "{found}"
    hint = "lower, schedule, compile and source work without one; calling does not"
    exception = RuntimeError
    function: str
    found: str


@dataclass(frozen=True)
class UnknownSource(CallDiagnostic):
    code = "BT202"
    title = "no source of kind {kind!r}"
    label = "a function for {target} has {known}"
    exception = ValueError
    kind: str
    target: str
    known: str


@dataclass(frozen=True)
class MissingTool(CallDiagnostic):
    code = "BT203"
    title = "{tool} was not found"
    label = "it is needed for {purpose}"
    hint = "pip install {package}"
    exception = RuntimeError
    tool: str
    purpose: str
    package: str


@dataclass(frozen=True)
class ToolFailed(CallDiagnostic):
    code = "BT204"
    title = "{tool} failed"
    label = "{output}"
    exception = RuntimeError
    tool: str
    output: str


@dataclass(frozen=True)
class NothingCompiled(CallDiagnostic):
    code = "BT205"
    title = "`{function}` was not compiled yet"
    label = "there is nothing to show"
    hint = "call it first, or give example arguments: {function}.source(x)"
    exception = RuntimeError
    function: str


def internal(stage: str, error: BaseException) -> CompileError:
    """What to raise for a failure that is not the user's."""
    lines = str(error).strip().splitlines() or [""]
    return CompileError(Internal(None, stage, f"{type(error).__name__}: {lines[-1]}"))
