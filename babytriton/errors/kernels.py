"""Messages about scalar kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from babytriton.diagnostics import Diagnostic

# ---------------------------------------------------------------- while compiling


@dataclass(frozen=True)
class KernelLanguage(Diagnostic):
    code = "BT030"
    title = "a kernel computes with numbers"
    label = "{what}"
    hint = "{instead}"
    what: str
    instead: str


@dataclass(frozen=True)
class MayBeUnbound(Diagnostic):
    code = "BT031"
    title = "`{name}` may have no value"
    label = "it is not assigned on every way here"
    hint = "give it a value before the branch or loop"
    name: str


@dataclass(frozen=True)
class IndexOutOfRange(Diagnostic):
    code = "BT032"
    title = "an index out of range"
    label = "{index} in dimension {dim} of `{tensor}`, which has size {size}"
    index: str
    dim: int
    tensor: str
    size: int


@dataclass(frozen=True)
class WrongIndex(Diagnostic):
    code = "BT033"
    title = "wrong index for `{tensor}`"
    label = "{why}"
    hint = "{instead}"
    tensor: str
    why: str
    instead: str


@dataclass(frozen=True)
class KernelReturns(Diagnostic):
    code = "BT034"
    title = "a kernel returns nothing"
    label = "its results are what it writes"
    hint = "write into a tensor argument: out[i] = ..."


@dataclass(frozen=True)
class ElementView(Diagnostic):
    code = "BT035"
    title = "`{name}` is an element of a tensor"
    label = "in plain torch this writes into the tensor, too"
    hint = "write {name} = {name} {sign} ..., or index the tensor itself"
    name: str
    sign: str


# ---------------------------------------------------------------- at the call


@dataclass(frozen=True)
class RunTimeDiagnostic(Diagnostic):
    """A message about what a kernel found when it ran: it has a line, and is Python's own error."""

    exception: ClassVar[type[Exception]]

    def error(self) -> Exception:
        """The exception to raise."""
        return self.exception(self.render())


@dataclass(frozen=True)
class KernelIndex(RunTimeDiagnostic):
    code = "BT120"
    title = "an index out of range"
    label = "index {index} in dimension {dim} of `{tensor}`, which has size {size}"
    exception = IndexError
    index: int
    dim: int
    tensor: str
    size: int


@dataclass(frozen=True)
class KernelDivision(RunTimeDiagnostic):
    code = "BT121"
    title = "an integer division by zero"
    label = "the divisor is 0"
    exception = ZeroDivisionError
