"""CUDA C++ of the user's, as functions of elements and as whole kernels."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tvm import ir, relax, s_tir, te, tirx

from babytriton.ops.numerics import opmath
from babytriton.ops.primfunc import as_users
from babytriton.ops.refusals import Unavailable
from babytriton.ops.site import Site
from babytriton.ops.sizes import int64, is_symbolic
from babytriton.ops.value import Value
from babytriton.types import TensorType, dtype_of


@dataclass(frozen=True)
class Code:
    """Code that kernels may call.

    Attributes:
        name: the user's, of the function that they call.
        source: in which it is called by another name, which no other code has.
    """

    name: str
    source: str


CODES: dict[str, Code] = {}
"""Code by the name that kernels call it by while they are built."""

_AXES = ("x", "y", "z")

# What the CUDA C++ Programming Guide, "Compute Capabilities", allows along each of them.
_LIMITS = {"grid": ((1 << 31) - 1, 65535, 65535), "block": (1024, 1024, 64)}
_THREADS = 1024


def defined(source: str, name: str) -> str:
    """Keep code for the kernels that will call it; the name to call it by."""
    own = f"{name}__{hashlib.sha256(source.encode()).hexdigest()[:16]}"
    CODES[own] = Code(name, re.sub(rf"\b{name}\b", own, source).strip())
    return own


@dataclass(frozen=True)
class Called:
    """The code that a program's kernels call.

    Attributes:
        names: what each is called in the program: as the user calls it, and numbered where several
            of one name are called, or a variable has the name.
    """

    names: Mapping[str, str]

    @classmethod
    def of(cls, kernels: str) -> Called:
        """That which some text calls."""
        names: dict[str, str] = {}
        taken = set(re.findall(r"\w+", re.sub(r"//.*", "", kernels)))
        for own in re.findall(r"\b\w+__[0-9a-f]{16}(?=\()", kernels):
            if own in CODES and own not in names:
                name, number = CODES[own].name, 1
                while name in taken:
                    number += 1
                    name = f"{CODES[own].name}_{number}"
                names[own] = name
                taken.add(name)
        return cls(names)

    def source(self, kernels: str = "") -> str:
        """The code, to stand before the kernels; without that which their text has itself."""
        missing = [x for x, name in self.names.items() if not is_device_function(kernels, name)]
        return self.named("".join(f"{CODES[own].source}\n\n" for own in missing))

    def named(self, text: str) -> str:
        """A text with the program's names."""
        for own, name in self.names.items():
            text = re.sub(rf"\b{own}\b", name, text)
        return text


def is_device_function(source: str, name: str) -> bool:
    """Whether the source defines a device function of the name."""
    return re.search(rf"__device__[^;{{]*\b{name}\s*\([^;{{]*\)\s*{{", source) is not None


def kernel_as_function(source: str, name: str) -> str | None:
    """The source with its kernel as a device function, which kernels may call; None without one."""
    head = r'(?:extern\s+"C"\s+)?__global__\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?void\s+'
    head += rf"(?:__launch_bounds__\s*\([^)]*\)\s*)?{name}\s*\("
    found, count = re.subn(head, f"static __device__ __forceinline__ void {name}(", source)
    return found if count == 1 else None


def build_function(site: Site, own: str, args: Sequence[Any]) -> Any:
    """An elementwise call of a device function, with numbers as they are and tensors broadcast.

    It takes and gives float for 16-bit floats, as all math on them is done.
    """
    if site.builder.device.type != "cuda":
        return NotImplemented
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

    def element(values: Sequence[te.Tensor], *index: Any) -> Any:
        given = iter([value(*index).astype(dtype) for value, dtype in zip(values, wider)])
        operands = [next(given) if isinstance(arg, Value) else _number(arg) for arg in args]
        return tirx.call_pure_extern(wide, own, *operands).astype(narrow)

    return site.compute(CODES[own].name, shape, element, *inputs)


def build_kernel(
    site: Site,
    own: str,
    args: Sequence[Any],
    grid: Callable[..., Any] | Any,
    block: Callable[..., Any] | Any,
) -> Any:
    """A call of a kernel: its parameters are the arguments, and then the results."""
    outs = site.out if isinstance(site.out, (tuple, list)) else (site.out,)
    tensors = [arg for arg in args if isinstance(arg, Value)]
    metas = [arg.meta if isinstance(arg, Value) else arg for arg in args]
    shapes = [size for x in (*outs, *(t.meta for t in tensors)) for size in x.shape]
    if site.builder.device.type != "cuda" or any(is_symbolic(size) for size in shapes):
        return NotImplemented
    if all(out.numel() == 0 for out in outs):
        return NotImplemented  # there is nothing to launch
    blocks, threads = _sizes("grid", grid, metas), _sizes("block", block, metas)
    types = [TensorType(tuple(out.shape), out.dtype) for out in outs]
    parameters = [
        _parameter(f"argument{n}", arg.meta) for n, arg in enumerate(args) if isinstance(arg, Value)
    ]
    results = [_parameter(f"result{n}", out) for n, out in enumerate(outs)]
    given = iter(parameters)
    passed = [_address(next(given)) if isinstance(arg, Value) else _number(arg) for arg in args] + [
        _address(result) for result in results
    ]
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


def _number(value: Any) -> ir.Expr:
    if isinstance(value, bool):
        return tirx.const(value, "bool")
    return tirx.const(value, "int64" if isinstance(value, int) else "float32")


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
    whole = (found,) if isinstance(found, int) else tuple(int(n) for n in found)
    limits = _LIMITS[kind]
    why = None
    if not 1 <= len(whole) <= len(limits):
        why = "it has one to three sizes"
    elif any(not 1 <= size <= limit for size, limit in zip(whole, limits)):
        why = f"its sizes are 1 to {', '.join(map(str, limits))}"
    elif kind == "block" and math.prod(whole) > _THREADS:
        why = f"it has at most {_THREADS} threads"
    if why is not None:
        raise Unavailable(f"its {kind} would be {whole}", f"change `{kind}`: {why}")
    return whole
