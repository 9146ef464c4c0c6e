"""CUDA C++ of the user's, as functions of elements and as whole kernels."""

from __future__ import annotations

import functools
import hashlib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tvm import ir, relax, s_tir, te, tirx

from babytriton.ops.cuda_definitions import Definition, Parameter, functions, macros
from babytriton.ops.cuda_parameters import check_count, check_elements, check_pointers
from babytriton.ops.numerics import opmath
from babytriton.ops.primfunc import as_users
from babytriton.ops.refusals import Unavailable, Unsupported
from babytriton.ops.site import Site
from babytriton.ops.sizes import int64, is_symbolic
from babytriton.ops.value import Value
from babytriton.types import TensorType, dtype_of


@dataclass(frozen=True)
class Code:
    """Code that kernels may call.

    Attributes:
        name: the user's, of the function that they call.
        source: that defines it, and perhaps others.
        definition: of the function in the source.
    """

    name: str
    source: str
    definition: Definition

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Of the function."""
        return self.definition.parameters

    @functools.cached_property
    def told(self) -> tuple[Definition, ...]:
        """The function, its overloads and declarations; none where that takes a compiler."""
        of_user = macros(self.source)
        found = [
            one
            for one in functions(self.source, self.name)
            if (one.has_body or one.is_kernel or one.is_of_device)
            and one.is_kernel == self.definition.is_kernel
            and one.scope is None
        ]
        types = " ".join(x.type for one in found for x in one.parameters)
        is_open = re.search(r"#|\.\.\.", types) is not None
        is_open |= any(word in of_user for word in re.findall(r"\w+", types))
        return () if is_open else tuple(found)

    @property
    def bounds(self) -> tuple[int, ...]:
        """What a kernel says of its launch, in numbers; nothing where that takes a compiler."""
        found = (self.definition.bounds or "").split(",")
        return tuple(map(int, found)) if all(one.strip().isdecimal() for one in found) else ()


@dataclass(frozen=True)
class Given:
    """The arguments of a call.

    Attributes:
        values: in order, with those that the call leaves at their defaults.
        least: how many there are up to the last one that the call has itself.
        named: those that can only be given by name.
    """

    values: tuple[Any, ...]
    least: int
    named: Mapping[str, Any]

    def of(self, code: Code, results: int = 0) -> tuple[Any, ...]:
        """In the order of a function's parameters, of which results are the last.

        Defaults may be more than these, such as what Python's lambdas keep. What is given by name
        goes by the names of the parameters.

        Raises:
            Unavailable: no parameter has a name that is given.
        """
        parameters = [parameter.name for parameter in code.parameters]
        count = len(parameters) - results - len(self.named)
        found = self.values[: max(self.least, count)]
        places = {name: place for place, name in enumerate(parameters)}
        for name in self.named:
            if name not in places:
                raise Unavailable(f"no parameter is called `{name}`", "name one in the source so")
        return (*found, *(self.named[name] for name in sorted(self.named, key=places.__getitem__)))


CODES: dict[str, Code] = {}
"""Code by the name that kernels call it by while they are built."""

_AXES = ("x", "y", "z")

# What the CUDA C++ Programming Guide, "Compute Capabilities", allows along each of them.
_LIMITS = {"grid": ((1 << 31) - 1, 65535, 65535), "block": (1024, 1024, 64)}
_THREADS = 1024


def defined(source: str, name: str, definition: Definition | None = None) -> str:
    """Keep code for the kernels that will call it; the name to call it by."""
    found = definition or device_function(source, name)
    assert found is not None
    told = f"{found.is_kernel} {source}"
    own = f"{name}__{hashlib.sha256(told.encode()).hexdigest()[:16]}"
    CODES[own] = Code(name, source, found)
    return own


def device_function(source: str, name: str) -> Definition | None:
    """The device function that a source defines and is called by its name alone, if one is.

    One that says so by a macro alone is none where another says it in words.
    """
    found = [
        one
        for one in functions(source, name)
        if one.has_body and not one.is_kernel and one.scope is None
    ]
    return min(found, key=lambda one: (not one.is_of_device, one.depth), default=None)


def kernel(source: str, name: str) -> Definition | None:
    """The kernel of a name that a source defines; None without one, and of several."""
    found = [
        one
        for one in functions(source, name)
        if one.is_kernel and one.has_body and one.scope is None
    ]
    return found[0] if len(found) == 1 else None


def kernel_as_function(source: str, name: str) -> str:
    """The source with its kernel as a device function, which kernels may call."""
    found = [one for one in functions(source, name) if one.is_kernel]
    for one in reversed(found):
        start = one.name_at - len(one.head.lstrip())
        head = f"{one.template}\n" if one.template else ""
        head += "static __device__ __forceinline__ void "
        source = source[:start] + head + source[one.name_at :]
    return source


def build_function(site: Site, own: str, given: Given) -> Any:
    """An elementwise call of a device function, with numbers as they are and tensors broadcast.

    It takes and gives float for 16-bit floats, as all math on them is done.
    """
    if site.builder.device.type != "cuda":
        return NotImplemented
    args = given.of(CODES[own])
    _check_kinds(args)
    told = CODES[own].told
    if told:
        check_count(told, len(args))
    if sum(one.has_body for one in told) == 1:
        check_elements(CODES[own].parameters, args)
    if site.out is None:
        raise Unsupported("what it gives is not known")
    if not isinstance(site.out, torch.Tensor):
        raise Unavailable("its `cpu` gives no single tensor", "return one tensor from `cpu`")
    tensors = [arg for arg in args if isinstance(arg, Value)]
    shape = site.shape
    inputs = [
        x.expr
        if tuple(x.meta.shape) == tuple(shape)
        else site.emit(relax.op.broadcast_to(x.expr, [int64(n) for n in shape]))
        for x in tensors
    ]
    wide, narrow = dtype_of(opmath(site.dtype)).name, dtype_of(site.dtype).name
    wider = [dtype_of(opmath(x.meta.dtype)).name for x in tensors]

    numbers = _numbers(own, args, {*wider, wide})

    def element(values: Sequence[te.Tensor], *index: Any) -> Any:
        each = iter([value(*index).astype(dtype) for value, dtype in zip(values, wider)])
        operands = [next(each) if number is None else number for number in numbers]
        return tirx.call_pure_extern(wide, own, *operands).astype(narrow)

    return site.compute(CODES[own].name, shape, element, *inputs)


def build_kernel(
    site: Site,
    own: str,
    given: Given,
    grid: Callable[..., Any] | Any,
    block: Callable[..., Any] | Any,
) -> Any:
    """A call of a kernel: its parameters are the arguments, and then the results."""
    outs = site.out if isinstance(site.out, (tuple, list)) else (site.out,)
    args = given.of(CODES[own], len(outs))
    tensors = [arg for arg in args if isinstance(arg, Value)]
    if site.builder.device.type != "cuda":
        return NotImplemented
    _check_kinds(args)
    if site.out is None:
        raise Unsupported("what it gives is not known")
    if not all(isinstance(out, torch.Tensor) for out in outs):
        instead = "return a tensor, or a tuple of tensors, from `out` or `cpu`"
        raise Unavailable("its results are no tensors", instead)
    metas = [arg.meta if isinstance(arg, Value) else arg for arg in args]
    shapes = [size for x in (*outs, *(t.meta for t in tensors)) for size in x.shape]
    told = CODES[own].told
    if told:
        check_count(told, len(args), len(outs))
        check_pointers(CODES[own].parameters, args, outs)
    if any(is_symbolic(size) for size in (*shapes, *metas)):
        return NotImplemented
    if all(out.numel() == 0 for out in outs):
        return NotImplemented  # there is nothing to launch
    blocks, threads = _sizes("grid", grid, metas), _sizes("block", block, metas)
    types = [TensorType(tuple(out.shape), out.dtype) for out in outs]
    _check_bounds(own, threads)
    own_names = [parameter.name for parameter in CODES[own].parameters]
    own_names += [f"parameter{n}" for n in range(len(own_names), len(args) + len(outs))]
    parameters = [
        _parameter(name, arg.meta) for name, arg in zip(own_names, args) if isinstance(arg, Value)
    ]
    results = [_parameter(name, out) for name, out in zip(own_names[len(args) :], outs)]
    each = iter(parameters)
    numbers = _numbers(own, args, {x.ty.dtype for x in (*parameters, *results)})
    passed = [_address(next(each)) if number is None else number for number in numbers]
    passed += map(_address, results)
    body: tirx.Stmt = tirx.Evaluate(tirx.call_extern("void", own, *passed))
    extents = {
        f"{kind}.{axis}": size
        for kind, sizes in (("blockIdx", blocks), ("threadIdx", threads))
        for axis, size in zip(_AXES, sizes)
    }
    for tag, size in reversed(extents.items()):
        variable = tirx.Var(tag.replace(".", "_"), "int32")
        thread = tirx.IterVar(None, variable, tirx.IterVar.ThreadIndex, tag)
        zero, extent = tirx.const(0, "int32"), tirx.const(size, "int32")
        body = tirx.For(variable, zero, extent, tirx.ForKind.THREAD_BINDING, body, thread)
    regions = [tirx.BufferRegion(x, [ir.Range(0, n) for n in x.shape]) for x in parameters]
    written = [tirx.BufferRegion(x, [ir.Range(0, n) for n in x.shape]) for x in results]
    root = s_tir.SBlock([], regions, written, "root", body)
    whole = s_tir.SBlockRealize([], tirx.const(True, "bool"), root)
    function = tirx.PrimFunc([*parameters, *results], whole).with_attrs(
        {"tirx.noalias": True, "tirx.is_scheduled": True, "op_pattern": 8, "s_tir": True}
    )
    # Not the name of what it calls: kernels are launched by names that end so.
    name = re.sub("_kernel$", "_of_user", CODES[own].name)
    made = site.kernel(name, as_users(function), [t.expr for t in tensors], *types)
    if len(types) == 1:
        return made
    return [site.emit(relax.TupleGetItem(made, n)) for n in range(len(types))]


def _parameter(name: str, meta: torch.Tensor) -> tirx.Var:
    return tirx.decl_buffer([int64(n) for n in meta.shape], dtype_of(meta.dtype).name, name)


def _address(buffer: tirx.Var) -> ir.Expr:
    return tirx.address_of(tirx.BufferLoad(buffer, [int64(0) for _ in buffer.shape]))


def _check_kinds(args: Sequence[Any]) -> None:
    """Refuse arguments that are neither tensors nor numbers."""
    for n, arg in enumerate(args):
        if not isinstance(arg, Value | bool | int | float) and not is_symbolic(arg):
            raise Unavailable(f"argument {n + 1} is {arg!r}", "pass tensors and numbers alone")


def _numbers(own: str, args: Sequence[Any], dtypes: Iterable[Any]) -> list[ir.Expr | None]:
    """What is passed for arguments that are numbers; None for tensors.

    Floats are double where the parameter is, or any tensor; where it is of a template's type, that
    is the tensors'.
    """
    types = [parameter.type for parameter in CODES[own].parameters]
    is_wide = "float64" in map(str, dtypes)
    found: list[ir.Expr | None] = []
    for n, arg in enumerate(args):
        is_double = is_wide or (n < len(types) and re.search(r"\bdouble\b", types[n]) is not None)
        if isinstance(arg, Value):
            found.append(None)
        elif is_symbolic(arg):
            found.append(int64(arg))
        elif isinstance(arg, bool):
            found.append(tirx.const(arg, "bool"))
        elif isinstance(arg, int):
            found.append(tirx.const(arg, "int64"))
        else:
            found.append(tirx.const(arg, "float64" if is_double else "float32"))
    return found


def _check_bounds(own: str, threads: Sequence[int]) -> None:
    """Refuse blocks of more threads than a kernel is compiled for."""
    most = next(iter(CODES[own].bounds), None)
    if most is not None and math.prod(threads) > most:
        why = f"its block would be {tuple(threads)}"
        raise Unavailable(why, f"change `block`, or the `__launch_bounds__({most})` of it")


def _sizes(kind: str, sizes: Any, metas: Sequence[Any]) -> tuple[int, ...]:
    """What the user asked for along x, y and z.

    Args:
        kind: ``"grid"`` or ``"block"``.
        sizes: as the user gave it.
        metas: of the call's arguments.

    Raises:
        Unavailable: no GPU launches that.
    """
    found = sizes(*metas) if callable(sizes) else sizes
    whole = tuple(found) if isinstance(found, tuple | list) else (found,)
    limits = _LIMITS[kind]
    why = None
    if not all(isinstance(size, int) for size in whole):
        why = "its sizes are whole numbers"
    elif not 1 <= len(whole) <= len(limits):
        why = "it has one to three sizes"
    elif any(not 1 <= size <= limit for size, limit in zip(whole, limits)):
        why = f"its sizes are 1 to {', '.join(map(str, limits))}"
    elif kind == "block" and math.prod(whole) > _THREADS:
        why = f"it has at most {_THREADS} threads"
    if why is not None:
        raise Unavailable(f"its {kind} would be {whole}", f"change `{kind}`: {why}")
    return whole
