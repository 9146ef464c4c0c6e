"""Messages about how a compiled function was called, and what it finds while it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from babytriton.diagnostics import Diagnostic

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
    instead: str = (
        "pass tensors, numbers, strings, None, functions, modules, objects of classes, "
        "or tuples, lists and dicts of these"
    )


@dataclass(frozen=True)
class ReadOnlyArray(CallDiagnostic):
    code = "BT118"
    title = "argument `{name}` is written to in place"
    label = "the array is read-only, or lies backwards in memory: torch has no tensor for it"
    hint = "pass a copy of it"
    exception = ValueError
    name: str


@dataclass(frozen=True)
class MixedArrays(CallDiagnostic):
    code = "BT117"
    title = "argument `{name}`: another kind of array"
    label = "{kind} was given, and {other_kind} for `{other}`"
    hint = "give all arrays of a call as one kind"
    name: str
    other: str
    kind: str
    other_kind: str


@dataclass(frozen=True)
class NoArrayDtype(CallDiagnostic):
    code = "BT167"
    title = "a result cannot be an array of NumPy's"
    label = "it is {dtype}, which NumPy does not have"
    hint = 'cast it, as by .float(), or give out="torch"'
    dtype: str


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
class ArgumentSubclass(CallDiagnostic):
    code = "BT136"
    title = "argument `{name}` is no plain tensor"
    label = "{kind} has a __torch_function__ of its own, which kernels do not call"
    hint = "pass {name}.as_subclass(torch.Tensor)"
    name: str
    kind: str


@dataclass(frozen=True)
class ArgumentExpanded(CallDiagnostic):
    code = "BT135"
    title = "argument `{name}` is not expanded"
    label = "the program was compiled for one whose elements are the same along axes {axes}"
    hint = "lower the function with such a tensor, or call the function itself"
    exception = ValueError
    name: str
    axes: str


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
    hint = "pass {name}.{dense}"
    name: str
    layout: str
    dense: str = "to_dense()"


@dataclass(frozen=True)
class ArgumentRequiresGrad(CallDiagnostic):
    code = "BT106"
    title = "`{name}` requires grad"
    label = "a kernel has no gradient, what it writes would be cut off from it"
    hint = "use {name}.detach(), or call under torch.no_grad()"
    exception = ValueError
    name: str


@dataclass(frozen=True)
class WrittenRequiresGrad(CallDiagnostic):
    code = "BT116"
    title = "`{name}` is written to in place, and gradients flow through it"
    label = "a compiled function writes only to tensors that have no gradient"
    hint = "write to {name}.clone() and return that, or call under torch.no_grad()"
    exception = RuntimeError
    name: str


@dataclass(frozen=True)
class NothingRequiresGrad(CallDiagnostic):
    code = "BT115"
    title = "`{name}` was compiled without gradients"
    label = "no argument of it and no captured tensor requires grad"
    hint = "lower it for arguments that require grad"
    exception = ValueError
    name: str


@dataclass(frozen=True)
class NoGradientOfSizes(CallDiagnostic):
    code = "BT137"
    title = "`{name}`: the gradient of its gradient depends on what its sizes are"
    label = "it was compiled for any, and would have to be for these alone: {sizes}"
    hint = "`bt.jit(dynamic=False)` compiles for each size alone"
    exception = RuntimeError
    name: str
    sizes: str


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
    label = "{kind} was given"
    hint = "{instead}"
    exception = ValueError
    name: str
    kind: str = "a meta tensor"
    instead: str = "meta tensors serve for lower(); call with real ones"


@dataclass(frozen=True)
class OtherAutocast(CallDiagnostic):
    code = "BT119"
    title = "`{function}` was compiled for another setting of torch.autocast"
    label = "it was {then}, and is {now}"
    hint = "call the jitted function, which compiles again"
    exception = RuntimeError
    function: str
    then: str
    now: str


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
class SharedMemory(CallDiagnostic):
    code = "BT113"
    title = "argument `{name}` shares memory with `{other}`"
    label = "the function writes to `{name}`, and reads both as tensors of their own"
    hint = "pass {other}.clone()"
    exception = ValueError
    name: str
    other: str


@dataclass(frozen=True)
class SharedElements(CallDiagnostic):
    code = "BT123"
    title = "several elements of argument `{name}` lie in one place of memory"
    label = (
        "the function writes to it, and each element can hold a number of its own only in a copy"
    )
    note = "its shape is {shape}, and its strides are {strides}"
    hint = "pass {name}.clone(), and use that afterwards"
    exception = ValueError
    name: str
    shape: str
    strides: str


@dataclass(frozen=True)
class NotContiguous(CallDiagnostic):
    code = "BT114"
    title = "argument `{name}` is not contiguous"
    label = "the function writes to it and reshapes it, which gives a view if it is contiguous"
    note = "its strides are {strides}"
    hint = "pass {name}.contiguous(), and use that afterwards"
    exception = ValueError
    name: str
    strides: str


@dataclass(frozen=True)
class LayoutMatters(CallDiagnostic):
    code = "BT111"
    title = "argument `{name}` is not contiguous"
    label = "what the function computes, or writes to, depends on how its arguments lie in memory"
    note = "its strides are {strides}"
    hint = "pass {name}.contiguous(), or write to a .clone() of what was reshaped"
    exception = ValueError
    name: str
    strides: str


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
class BadRegistration(CallDiagnostic):
    code = "BT125"
    title = "register: argument `{name}`"
    label = "{why}"
    name: str
    why: str


# ---------------------------------------------------------------- while running


@dataclass(frozen=True)
class AssertionFailed(Diagnostic):
    code = "BT130"
    title = "an assertion does not hold"
    label = "{why}"
    why: str

    def error(self) -> AssertionError:
        """The exception to raise."""
        return AssertionError(self.render())


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
