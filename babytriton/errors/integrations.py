"""Messages about other frameworks, and about what registers functions with them."""

from __future__ import annotations

from dataclasses import dataclass

from babytriton.diagnostics import Diagnostic
from babytriton.errors.calling import CallDiagnostic


@dataclass(frozen=True)
class MissingPackage(CallDiagnostic):
    code = "BT131"
    title = "{what} needs a package that is not installed"
    label = "there is no module `{module}`"
    hint = "pip install '{package}'"
    exception = ImportError
    what: str
    module: str
    package: str


# ---------------------------------------------------------------- operators of torch


@dataclass(frozen=True)
class OperatorName(CallDiagnostic):
    code = "BT150"
    title = "`{name}` is no name for an operator"
    label = "operators of torch are named `namespace::name`"
    exception = ValueError
    name: str


@dataclass(frozen=True)
class RegisteredTwice(CallDiagnostic):
    code = "BT151"
    title = "there is an operator `{name}` already"
    label = "torch keeps one operator of a name"
    hint = "take another name, or another namespace"
    exception = ValueError
    name: str


@dataclass(frozen=True)
class OperatorSchema(CallDiagnostic):
    code = "BT152"
    title = "`{name}` cannot be an operator of torch"
    label = "{why}"
    hint = "annotate parameters and result as torch.library.infer_schema wants them"
    name: str
    why: str


@dataclass(frozen=True)
class NoParameter(CallDiagnostic):
    code = "BT153"
    title = "`{name}` has no parameter `{parameter}`"
    label = "a result cannot be written there"
    exception = ValueError
    name: str
    parameter: str


@dataclass(frozen=True)
class ResultsDiffer(CallDiagnostic):
    code = "BT154"
    title = "`{name}` gives something else than it is declared to"
    label = "declared is {declared}, and the function returns {given}"
    hint = "annotate what the function returns: -> tuple[torch.Tensor, torch.Tensor]"
    name: str
    declared: str
    given: str


@dataclass(frozen=True)
class OwnGradientTraced(CallDiagnostic):
    code = "BT156"
    title = "`{function}`, which has a gradient of its own, cannot be traced with these results"
    label = "torch traces own gradients of functions that return a tensor, or a tuple of tensors"
    hint = "return these, or call the function outside of torch.compile and its like"
    exception = TypeError
    function: str


@dataclass(frozen=True)
class CapturedByOperator(CallDiagnostic):
    code = "BT157"
    title = "`{name}` reads a tensor that requires grad and is no argument of it"
    label = "torch cannot see that the operator depends on it"
    hint = "pass it as an argument"
    exception = RuntimeError
    name: str


@dataclass(frozen=True)
class ForwardMode(CallDiagnostic):
    code = "BT158"
    title = "`{name}` has no derivative in forward mode"
    label = "jvp, jacfwd and dual tensors ask for one"
    hint = "use reverse mode: torch.func.vjp, jacrev, or backward()"
    exception = RuntimeError
    name: str


@dataclass(frozen=True)
class UndeclaredWrite(CallDiagnostic):
    code = "BT155"
    title = "`{name}` writes to `{argument}`"
    label = "torch was told that it only reads it"
    hint = "library_op(..., mutates_args=[{argument!r}])"
    name: str
    argument: str


@dataclass(frozen=True)
class WrittenArray(CallDiagnostic):
    code = "BT132"
    title = "`{name}` is written to in place, and JAX's arrays never change"
    label = "`{function}` writes to it, as calls outside of JAX would see"
    hint = "write to {name}.clone() in the function, and return that"
    exception = ValueError
    name: str
    function: str


@dataclass(frozen=True)
class OtherPlatform(CallDiagnostic):
    code = "BT133"
    title = "`{function}` does not run on {platform}"
    label = "{why}"
    hint = "{instead}"
    exception = RuntimeError
    function: str
    platform: str
    why: str
    instead: str


@dataclass(frozen=True)
class RandomGradient(CallDiagnostic):
    code = "BT134"
    title = "a gradient of the gradient of `{function}` is asked for, and it draws random numbers"
    label = "its second gradient would draw others than the call did"
    hint = "make them outside, with jax.random, and pass them as an argument"
    exception = ValueError
    function: str


@dataclass(frozen=True)
class NotAModule(CallDiagnostic):
    code = "BT140"
    title = "argument `model`: a module of torch is expected"
    label = "{type} was given"
    hint = "pass the model itself, such as what `from_pretrained` gives"
    type: str


@dataclass(frozen=True)
class UnknownModel(CallDiagnostic):
    """A warning, since the model works as before."""

    code = "BT141"
    title = "`{name}` is not a class of models that is known, and was left as it is"
    label = "nothing in it was replaced"
    note = "the models of transformers that are known: {known}"
    hint = "call babytriton.jit on a function or a forward of its own"
    exception = UserWarning
    name: str
    known: str


@dataclass(frozen=True)
class KernelsVersion(CallDiagnostic):
    code = "BT142"
    title = "this version of `kernels` does not work with this one of transformers"
    label = "kernels {found} is installed"
    hint = "pip install 'kernels{wanted}'; or use bt.integrations.transformers.optimize"
    exception = ImportError
    found: str
    wanted: str


# ---------------------------------------------------------------- several processes


@dataclass(frozen=True)
class MixedTensors(CallDiagnostic):
    code = "BT160"
    title = "`{name}` is a plain tensor, and others are DTensors"
    label = "it is not known what part of the whole each process has in a plain tensor"
    hint = "use distribute_tensor({name}, mesh, [Replicate()]) if all processes have the same"
    name: str


@dataclass(frozen=True)
class OtherMesh(CallDiagnostic):
    code = "BT161"
    title = "`{name}` is on another device mesh than others"
    label = "it is on {given}, and others are on {mesh}"
    hint = "the DTensors of a call are all on one mesh"
    exception = ValueError
    name: str
    given: str
    mesh: str


@dataclass(frozen=True)
class WrittenElsewhere(CallDiagnostic):
    code = "BT162"
    title = "`{name}` is written to in place, and must be placed otherwise first"
    label = "it is placed {given}, and the function needs {needed}{why}"
    hint = "pass {name}.redistribute(placements={needed}), and use that afterwards"
    exception = ValueError
    name: str
    given: str
    needed: str
    why: str


@dataclass(frozen=True)
class RandomOnDTensors(CallDiagnostic):
    code = "BT163"
    title = "`{function}` draws random numbers, and is called with DTensors"
    label = "each process would draw others: {call}"
    hint = "draw them apart, as with torch.distributed.tensor.rand, and pass them as a DTensor"
    exception = RuntimeError
    function: str
    call: str


@dataclass(frozen=True)
class ArraysOfDTensors(CallDiagnostic):
    code = "BT164"
    title = "`{function}` gives NumPy's arrays, and is called with DTensors"
    label = "of a result that is divided among processes, none has the whole"
    hint = 'leave out out="numpy", and call full_tensor() on results'
    function: str


@dataclass(frozen=True)
class CapturedDTensor(CallDiagnostic):
    code = "BT165"
    title = "`{name}` is a DTensor, and no argument is"
    label = "it is not known what part of the whole each process has in a plain tensor"
    hint = "pass DTensors on its mesh, as distribute_tensor and DTensor.from_local make them"
    name: str


@dataclass(frozen=True)
class DistributedModule(Diagnostic):
    code = "BT166"
    title = "torch.distributed takes part in calls of `{module}`"
    label = "it gathers, divides or sends tensors before and after, which is not compiled"
    hint = "compile the module's forward, as a method with @jit, or the functions that it calls"
    module: str
