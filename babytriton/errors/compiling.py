"""Messages about the user's code, raised while it is compiled."""

from __future__ import annotations

from dataclasses import dataclass

from babytriton.diagnostics import CompileError, Diagnostic, Span


@dataclass(frozen=True)
class UnsupportedSyntax(Diagnostic):
    code = "BT001"
    title = "unsupported syntax"
    label = "`{node}` is not in the language"
    hint = "{instead}"
    node: str
    instead: str = ""


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
class TensorCondition(Diagnostic):
    code = "BT005"
    title = "the truth of {operand} decides what Python does"
    label = "{why}"
    hint = "{instead}"
    operand: str
    why: str = "its value is known only at run time"
    instead: str = "use torch.where, torch.maximum or torch.minimum, or test it with if"


@dataclass(frozen=True)
class DataDependent(Diagnostic):
    code = "BT006"
    title = "`{what}` needs the numbers in a tensor"
    label = "they are known only at run time"
    hint = "{instead}"
    what: str
    instead: str = "keep it a tensor, or compute it outside and pass it as an argument"

    @classmethod
    def of_call(cls, span: Span, name: str, instead: str | None = None) -> DataDependent:
        """Of a call of one of torch's functions."""
        instead = instead or _WITHOUT_NUMBERS.get(name)
        return cls(span, name) if instead is None else cls(span, name, instead)


_WITHOUT_NUMBERS = {
    "getitem": "torch.where(mask, a, b) keeps the size, and x[mask].sum() adds up what a mask "
    "selects; x[i + torch.arange(n)] has a known length",
    "bincount": "torch.zeros(n).index_add(0, x, torch.ones(len(x))) counts up to a known number",
}
"""What to write in place of functions whose results have as many elements as numbers say."""


@dataclass(frozen=True)
class Mutation(Diagnostic):
    code = "BT007"
    title = "cannot write to a tensor here"
    label = "{what}"
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
    label = "this is a tensor of {dtype}"
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
    title = "calls nest too deep"
    label = "`{function}` is call {depth} inside the others"
    hint = "calls are inlined while compiling: call fewer functions from each other"
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
    title = "this {type} may not change"
    label = "it was made outside the function, or is another name's on some paths"
    hint = "copy it first: list(values) or dict(values)"
    type: str


@dataclass(frozen=True)
class OtherDevice(Diagnostic):
    code = "BT018"
    title = "a tensor on another device"
    label = "there are no kernels for `{wanted}`"
    hint = "leave it out, or name the CPU or a CUDA device"
    wanted: str


@dataclass(frozen=True)
class MixedDevices(Diagnostic):
    code = "BT063"
    title = "`{op}` of tensors on several devices"
    label = "they are on {devices}"
    hint = "move one with .to(), or say where it runs: with bt.device(...):"
    op: str
    devices: str


@dataclass(frozen=True)
class DevicesInControlFlow(Diagnostic):
    code = "BT064"
    title = "another device beside branches and loops of the run time"
    label = "this goes to another device"
    hint = "put the branch or loop, or the part for the other device, in a function of its own"


@dataclass(frozen=True)
class Recursion(Diagnostic):
    code = "BT060"
    title = "recursion without an end"
    label = "{cycle}, {depth} calls deep"
    hint = (
        "recursion is unrolled while compiling: let constants end it within {depth} calls, or loop"
    )
    cycle: str
    depth: int


@dataclass(frozen=True)
class UnsupportedContext(Diagnostic):
    code = "BT061"
    title = "unsupported `with` block"
    label = "`{manager}` has no meaning in a compiled function"
    hint = "{instead}"
    manager: str
    instead: str


@dataclass(frozen=True)
class OutsideEffect(Diagnostic):
    code = "BT062"
    title = "`{function}` cannot be compiled"
    label = "{why}"
    hint = "{instead}"
    function: str
    why: str
    instead: str


@dataclass(frozen=True)
class Undecided(Diagnostic):
    """A name that is bound on some of the paths that lead to where it is read."""

    code = "BT019"
    title = "`{name}` may not be defined here"
    label = "{path}"
    note = "{where}"
    hint = "give it a value before"
    name: str
    path: str
    where: str


@dataclass(frozen=True)
class Unmerged(Diagnostic):
    """A value that is of different types on the paths that lead to where it is needed."""

    code = "BT020"
    title = "{what} is of two types here"
    label = "{first} or {second}, as {why}"
    note = "{where}"
    hint = "give both the same type, shape and dtype"
    what: str
    first: str
    second: str
    why: str
    where: str = ""

    @staticmethod
    def at_condition(span: Span) -> str:
        """Why there are two types, for a condition that stands there."""
        return f"the condition at line {span.line} is true or false"


@dataclass(frozen=True)
class LoopCarried(Diagnostic):
    code = "BT021"
    title = "{what} changes its type from step to step"
    label = "it is {before} when a step begins, and {after} when it ends"
    note = "the loop is compiled as one, as {why}"
    hint = "give it the same shape and dtype before the loop and in it"
    what: str
    before: str
    after: str
    why: str


@dataclass(frozen=True)
class CannotIterate(Diagnostic):
    code = "BT022"
    title = "cannot loop over this"
    label = "{what}"
    hint = "loop over a range, a tensor, a tuple, a list, or enumerate, zip and reversed of these"
    what: str


@dataclass(frozen=True)
class Unavailable(Diagnostic):
    code = "BT040"
    title = "`{function}` cannot be part of the program"
    label = "{why}"
    hint = "{instead}"
    function: str
    why: str
    instead: str


@dataclass(frozen=True)
class NoGradient(Diagnostic):
    code = "BT065"
    title = "`{name}` has no gradient"
    label = "a gradient is asked for, and it flows through here"
    note = "{why}"
    hint = "detach() what needs none, call under torch.no_grad(), or register a gradient for it"
    name: str
    why: str


@dataclass(frozen=True)
class RowFailed(Diagnostic):
    code = "BT041"
    title = "the row registered for `{function}` failed"
    label = "{why}"
    function: str
    why: str


@dataclass(frozen=True)
class RaisedApart(Diagnostic):
    code = "BT023"
    title = "`raise` where the run decides whether it is reached"
    label = "a kernel cannot raise {kind}"
    hint = "assert what must hold: a tensor is then checked at each call"
    kind: str


@dataclass(frozen=True)
class NotPure(Diagnostic):
    code = "BT024"
    title = "this is computed where Python may not compute it"
    label = "it changes something, or prints"
    note = (
        "where a tensor decides, both sides of `and` and `or` are computed, and so is a loop's test"
    )
    hint = "do it in a statement of its own, or nest two ifs"


@dataclass(frozen=True)
class Internal(Diagnostic):
    code = "BT900"
    title = "a bug in babytriton"
    label = "{stage} failed: {why}"
    hint = "please report it with the function that shows it"
    stage: str
    why: str


def internal(stage: str, error: BaseException) -> Exception:
    """What to raise for a failure that is not the user's.

    A message of ours that has come through TVM, from a compiler that it called, stays as it is.
    """
    _, start, message = str(error).partition("error[BT")
    if start:
        return RuntimeError(start + message)
    lines = str(error).strip().splitlines() or [""]
    return CompileError(Internal(None, stage, f"{type(error).__name__}: {lines[-1]}"))
