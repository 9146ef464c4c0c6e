"""What fits the parameters of a user's CUDA C++, as far as their types tell without a compiler."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from babytriton.ops.cuda_definitions import Definition, Parameter
from babytriton.ops.refusals import Unavailable
from babytriton.ops.sizes import is_symbolic
from babytriton.ops.value import Value
from babytriton.types import dtype_of

# What says nothing of what a type holds.
_QUALIFIERS = re.compile(
    r"\b(?:const|volatile|__restrict__|__restrict|restrict|__grid_constant__|"
    r"(?:cuda::)?std::(?=\w))\b|\[\[[^\]]*\]\]"
)
_BITS = {"char": 8, "short": 16, "int": 32, "long": 64, "longlong": 64}
_FLOATS = {
    "float": ("float", 32),
    "double": ("float", 64),
    "half": ("float", 16),
    "__half": ("float", 16),
    "nv_bfloat16": ("bfloat", 16),
    "__nv_bfloat16": ("bfloat", 16),
}
_LANES = re.compile(r"(u?)(char|short|int|long|longlong|float|double)([1-4])")
_SIZED = re.compile(r"(u?)int(8|16|32|64)_t")
_SHORT = {
    "uint": (False, 32),
    "uchar": (False, 8),
    "ushort": (False, 16),
    "ulong": (False, 64),
    "size_t": (False, 64),
    "ptrdiff_t": (True, 64),
}
_HALVES = {
    **dict.fromkeys(("half2", "__half2"), ("float", 16)),
    **dict.fromkeys(("nv_bfloat162", "__nv_bfloat162"), ("bfloat", 16)),
}

# What our kernels call the types of tensors that C++ has other names for as well.
_OURS = {
    *("float", "double", "half", "__half", "nv_bfloat16", "__nv_bfloat16", "int", "short"),
    *("bool", "uchar", "unsigned char", "ushort", "unsigned short", "uint", "unsigned int"),
    *("unsigned", "signed char", "int8_t", "uint8_t", "int64_t", "uint64_t", "void"),
}

_POINTER = "its parameters are the arguments, tensors as pointers, and then a pointer per result"


@dataclass(frozen=True)
class Numbers:
    """What a type of C++ holds.

    Attributes:
        kind: ``"bool"``, ``"int"``, ``"uint"``, ``"float"`` or ``"bfloat"``.
        bits: of each number.
        lanes: how many there are.
    """

    kind: str
    bits: int
    lanes: int = 1

    @classmethod
    def of(cls, type: str) -> Numbers | None:
        """What a type holds that is neither a pointer nor a reference; None where that is open."""
        plain = _words(type)
        if plain in _FLOATS:
            return cls(*_FLOATS[plain])
        if plain in _HALVES:
            return cls(*_HALVES[plain], lanes=2)
        if plain == "bool":
            return cls("bool", 1)
        if plain in _SHORT:
            signed, bits = _SHORT[plain]
            return cls("int" if signed else "uint", bits)
        if sized := _SIZED.fullmatch(plain):
            return cls(f"{sized[1]}int", int(sized[2]))
        if vector := _LANES.fullmatch(plain):
            kind = "float" if vector[2] in ("float", "double") else f"{vector[1]}int"
            bits = {"float": 32, "double": 64, **_BITS}[vector[2]]
            return cls(kind, bits, int(vector[3]))
        found = plain.split()
        rest = [word for word in found if word not in ("signed", "unsigned", "int")]
        width = "".join(rest) or ("int" if found else "")
        if width not in _BITS:
            return None
        return cls("uint" if "unsigned" in found else "int", _BITS[width])

    @classmethod
    def of_tensor(cls, dtype: torch.dtype) -> Numbers:
        """What the elements of a tensor are."""
        if dtype == torch.bool:
            return cls("bool", 1)
        kind = re.sub(r"\d.*", "", dtype_of(dtype).name)
        return cls(kind, dtype_of(dtype).bits)

    @property
    def is_whole(self) -> bool:
        """Whether these have no fractions."""
        return self.kind in ("bool", "int", "uint")

    @property
    def range(self) -> tuple[int, int]:
        """The least and the largest, of whole numbers."""
        if self.kind == "int":
            return -(1 << (self.bits - 1)), (1 << (self.bits - 1)) - 1
        return 0, (1 << self.bits) - 1

    def hold(self, number: int) -> bool:
        """Whether a whole number is one of these."""
        least, largest = self.range
        return not self.is_whole or least <= number <= largest

    def hold_all(self, others: Numbers) -> bool:
        """Whether each of some numbers is one of these; floats are rounded."""
        return not self.is_whole or (others.is_whole and all(map(self.hold, others.range)))


def _words(type: str) -> str:
    return " ".join(_QUALIFIERS.sub(" ", type).split())


def pointee(type: str) -> str | None:
    """What a pointer points to; None if the type is no pointer, or one to a pointer."""
    return type.partition("*")[0].strip() if type.count("*") == 1 else None


def cast(parameter: Parameter) -> str | None:
    """The type that an address of ours needs to be cast to, for a parameter; None for none."""
    inner = pointee(parameter.type)
    if inner is None or _words(inner) in _OURS or Numbers.of(inner) is None:
        return None
    return f"{' '.join(inner.split())}*"


def check_count(definitions: Sequence[Definition], arguments: int, results: int = 0) -> None:
    """Refuse calls of more or fewer parameters than any of some functions has.

    Raises:
        Unavailable: there are as many.
    """
    given = arguments + results
    for definition in definitions:
        least = sum(not parameter.has_default for parameter in definition.parameters)
        if least <= given <= len(definition.parameters):
            return
    count = len(definitions[0].parameters)
    what = _counted(arguments, "argument")
    if definitions[0].is_kernel:
        what += f" and {_counted(results, 'result')}"
        raise Unavailable(f"it takes {_counted(count, 'parameter')}, for {what}", _POINTER)
    why = f"it takes {_counted(count, 'parameter')}, and the call gives {what}"
    raise Unavailable(why, "give the function in the source the parameters of `cpu`")


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def check_elements(parameters: Sequence[Parameter], args: Sequence[Any]) -> None:
    """Refuse what the parameters of a function of elements would cut.

    Raises:
        Unavailable: an argument may not fit.
    """
    for n, (parameter, arg) in enumerate(zip(parameters, args)):
        numbers, own = Numbers.of(parameter.type), _named(parameter, n)
        if "*" in parameter.type or (numbers is not None and numbers.lanes > 1):
            why = f"{own}, and it is called with one element at a time"
            raise Unavailable(why, "take numbers, or make it a kernel: bt.cuda_kernel")
        if numbers is None:
            continue
        if not isinstance(arg, Value):
            check_number(parameter, n, arg)
        elif not numbers.hold_all(Numbers.of_tensor(arg.meta.dtype)):
            lost = "lose their fractions" if arg.meta.dtype.is_floating_point else "not fit"
            why = f"{own}, and the elements of argument {n + 1}, of {_dtype(arg)}, may {lost}"
            raise Unavailable(why, "change its type in the source, or convert the tensor")


def check_number(parameter: Parameter, n: int, arg: Any) -> None:
    """Refuse a number that a parameter would cut.

    Raises:
        Unavailable: it does not fit.
    """
    numbers = Numbers.of(parameter.type)
    if numbers is None or not numbers.is_whole or is_symbolic(arg) or isinstance(arg, bool):
        return
    if isinstance(arg, float) and not arg.is_integer():
        why = f"{_named(parameter, n)}, and {arg!r} would lose its fraction"
        raise Unavailable(why, "make it a float in the source, or pass a whole number")
    if isinstance(arg, int | float) and not numbers.hold(int(arg)):
        least, largest = numbers.range
        why = f"{_named(parameter, n)}, which holds {least} to {largest}, and not {arg!r}"
        raise Unavailable(why, "change its type in the source, or pass a number that fits")


def check_pointers(
    parameters: Sequence[Parameter], args: Sequence[Any], outs: Sequence[torch.Tensor]
) -> None:
    """Refuse what does not fit the parameters of a kernel, and arguments that it may write to.

    Raises:
        Unavailable: so it is.
    """
    for n, (parameter, x) in enumerate(zip(parameters, (*args, *outs))):
        meta = x.meta if isinstance(x, Value) else x
        is_result, is_tensor = n >= len(args), isinstance(meta, torch.Tensor)
        given = f"result {n - len(args) + 1}" if is_result else f"argument {n + 1}"
        inner, own = pointee(parameter.type), _named(parameter, n)
        if inner is None:
            if is_tensor and Numbers.of(parameter.type) is not None:
                raise Unavailable(f"{own}, and {given} is a tensor, of {_dtype(meta)}", _POINTER)
            if not is_tensor:
                check_number(parameter, n, meta)
            continue
        if not is_tensor:
            raise Unavailable(f"{own}, and {given} is {_told(meta)}", _POINTER)
        is_constant = re.search(r"\bconst\b", inner) is not None
        if is_result and is_constant:
            raise Unavailable(f"{own}, and {given} is to be written there", _POINTER)
        if not is_result and not is_constant:
            why = f"{own}, by which {given} may be overwritten"
            instead = f"make it `const {inner}*`: arguments are read, and results come last"
            raise Unavailable(why, instead)
        numbers, elements = Numbers.of(inner), Numbers.of_tensor(meta.dtype)
        if numbers is None:
            continue
        if (numbers.kind, numbers.bits) != (elements.kind, elements.bits):
            instead = "change its type in the source, or convert the tensor"
            raise Unavailable(f"{own}, and {given} is of {_dtype(meta)}", instead)
        if not is_symbolic(meta.numel()) and meta.numel() % numbers.lanes:
            instead = "take pointers to single numbers, and cast them in the kernel"
            raise Unavailable(f"{own}, and {given} has {meta.numel()} elements", instead)


def _named(parameter: Parameter, n: int) -> str:
    return f"{_name(parameter, n)} is of type {' '.join(parameter.type.split())}"


def _name(parameter: Parameter, n: int) -> str:
    return f"`{parameter.name}`" if parameter.name else f"parameter {n + 1}"


def _dtype(tensor: Any) -> str:
    meta = tensor.meta if isinstance(tensor, Value) else tensor
    return str(meta.dtype).removeprefix("torch.")


def _told(value: Any) -> str:
    return "a size" if is_symbolic(value) else repr(value)
