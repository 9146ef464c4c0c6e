"""CUDA C++ of the user's, as functions of elements and as whole kernels."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from tvm import ir, relax, s_tir, te, tirx

from babytriton.ops.numerics import opmath
from babytriton.ops.site import Site
from babytriton.ops.sizes import int64, is_symbolic
from babytriton.ops.value import Value
from babytriton.types import TensorType, dtype_of

SOURCES: dict[str, str] = {}
"""Code by the name that kernels call it by. A name keeps its code: another one gets another name,
so that programs which were compiled before stay right."""

_AXES = ("x", "y", "z")


def device_code(kernels: str) -> str:
    """The code that kernels call, in the order it was given."""
    return "".join(
        f"{source.strip()}\n\n"
        for name, source in SOURCES.items()
        if re.search(rf"\b{name}\(", kernels)
    )


def defined(source: str, name: str) -> str:
    """Keep code for the kernels that will call it; the name to call it by."""
    own, number = name, 1
    while SOURCES.get(own, source) != source:
        number += 1
        own = f"{name}_{number}"
        source = re.sub(rf"\b{name}\b", own, source) if number == 2 else source
        source = re.sub(rf"\b{name}_{number - 1}\b", own, source)
    SOURCES[own] = source
    return own


def is_device_function(source: str, name: str) -> bool:
    """Whether the source defines a device function of the name."""
    return re.search(rf"__device__[^;{{]*\b{name}\s*\([^;{{]*\)\s*{{", source) is not None


def kernel_as_function(source: str, name: str) -> str | None:
    """The source with its kernel as a device function, which kernels may call; None without one."""
    head = r'(?:extern\s+"C"\s+)?__global__\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?void\s+'
    head += rf"(?:__launch_bounds__\s*\([^)]*\)\s*)?{name}\s*\("
    found, count = re.subn(head, f"static __device__ __forceinline__ void {name}(", source)
    return found if count == 1 else None


def build_function(site: Site, name: str, args: Sequence[Any]) -> Any:
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
        return tirx.call_pure_extern(wide, name, *operands).astype(narrow)

    return site.compute(name, shape, element, *inputs)


def build_kernel(
    site: Site,
    name: str,
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
    types = [TensorType(tuple(out.shape), out.dtype) for out in outs]
    parameters = [
        _parameter(f"argument{n}", arg.meta) for n, arg in enumerate(args) if isinstance(arg, Value)
    ]
    results = [_parameter(f"result{n}", out) for n, out in enumerate(outs)]
    given = iter(parameters)
    passed = [_address(next(given)) if isinstance(arg, Value) else _number(arg) for arg in args] + [
        _address(result) for result in results
    ]
    body: tirx.Stmt = tirx.Evaluate(tirx.call_extern("void", name, *passed))
    extents = {
        f"{kind}.{axis}": size
        for kind, sizes in (("blockIdx", grid), ("threadIdx", block))
        for axis, size in zip(_AXES, _sizes(sizes, metas))
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
    made = site.kernel(name, function, [t.expr for t in tensors], *types)
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


def _sizes(sizes: Any, metas: Sequence[Any]) -> tuple[int, ...]:
    found = sizes(*metas) if callable(sizes) else sizes
    whole = (found,) if isinstance(found, int) else tuple(int(n) for n in found)
    assert len(whole) <= len(_AXES)
    assert math.prod(whole) > 0
    return whole
