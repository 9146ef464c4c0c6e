"""How scheduled kernels will be launched."""

from __future__ import annotations

import re

import tvm_ffi
from tvm import IRModule, ir, tirx

from babytriton.ops.primfunc import nodes
from babytriton.passes.bindings import in_order_of_calls
from babytriton.passes.launch_names import of_launch
from babytriton.plan import KernelLaunch

_AXES = ("x", "y", "z")


def launches_of(mod: IRModule) -> tuple[KernelLaunch, ...]:
    """The launches of each function's kernels, in order."""
    return tuple(
        _launch(func, name, place, kernel)
        for name, func in in_order_of_calls(mod).items()
        for place, kernel in enumerate(kernels_of(func))
    )


def tensors_of(mod: IRModule) -> dict[str, list[tirx.Var]]:
    """By the kernel's name, what it reads, and what it writes: of each its function's own first."""
    return {
        of_launch(name, place): _tensors(func, kernel)
        for name, func in in_order_of_calls(mod).items()
        for place, kernel in enumerate(kernels_of(func))
    }


def scalars_of(mod: IRModule) -> dict[str, list[tirx.Var]]:
    """By the kernel's name, the numbers that calls give its function, but for sizes of tensors."""
    return {
        of_launch(name, place): _scalars(func, kernel)
        for name, func in in_order_of_calls(mod).items()
        for place, kernel in enumerate(kernels_of(func))
    }


def _scalars(func: tirx.PrimFunc, kernel: tirx.For) -> list[tirx.Var]:
    used = set(nodes(kernel.body, ir.Var))
    told = {
        var
        for param in func.params
        if isinstance(param.ty, tirx.BufferType)
        for size in param.ty.shape
        for var in nodes(size, ir.Var)
    }
    return [
        param
        for param in func.params
        if isinstance(param.ty, ir.PrimType) and param in used and param not in told
    ]


def numbers_of(mod: IRModule) -> dict[str, dict[str, str]]:
    """By the kernel's name, the numbers that its function computes for it, and how."""
    return {
        of_launch(name, place): _numbers(func, kernel)
        for name, func in in_order_of_calls(mod).items()
        for place, kernel in enumerate(kernels_of(func))
    }


def _numbers(func: tirx.PrimFunc, kernel: tirx.For) -> dict[str, str]:
    inside = {bind.var for bind in nodes(kernel, tirx.Bind)}
    told = [bind for bind in nodes(func.body, tirx.Bind) if bind.var not in inside]
    used = set(nodes(kernel.body, ir.Var))
    return {bind.var.name: str(extent_of(bind.value)) for bind in told if bind.var in used}


def _tensors(func: tirx.PrimFunc, kernel: tirx.For) -> list[tirx.Var]:
    written = {store.buffer for store in nodes(kernel, tirx.BufferStore)}
    used = {*written, *(load.source for load in nodes(kernel, ir.TensorLoad))}
    params = list(func.params)

    def place(tensor: tirx.Var) -> tuple[bool, int, str]:
        own = params.index(tensor) if tensor in params else len(params)
        return tensor in written, own, tensor.name

    return sorted((x for x in used if x.scope() == "global"), key=place)


def kernels_of(func: tirx.PrimFunc) -> list[tirx.For]:
    """The outermost loops over indices of a GPU: TVM makes a kernel of each."""
    found: list[tirx.For] = []

    def visit(loop: tirx.For) -> tvm_ffi.WalkResult | None:
        if loop.thread_binding is None:
            return None
        found.append(loop)
        return tvm_ffi.WalkResult.SKIP

    tvm_ffi.structural_walk(func.body, [(tirx.For, visit)], order="pre")
    return found


def _launch(func: tirx.PrimFunc, function: str, place: int, kernel: tirx.For) -> KernelLaunch:
    told = {bind.var: bind.value for bind in nodes(func.body, tirx.Bind)}
    extents: dict[str, int | str] = {}
    for loop in nodes(kernel, tirx.For):
        if loop.thread_binding is not None:
            extent = tvm_ffi.structural_map(loop.extent, (ir.Var, lambda var: told.get(var, var)))
            extents[str(loop.thread_binding.thread_tag)] = extent_of(extent)
    grid, block = (_sizes(extents, kind) for kind in ("blockIdx", "threadIdx"))
    return KernelLaunch(of_launch(function, place), function, grid, block)


def extent_of(extent: ir.Expr) -> int | str:
    """A number, or the text of an expression of sizes that calls tell."""
    if isinstance(extent, tirx.IntImm):
        return int(extent)
    if isinstance(extent, tirx.Cast):
        return extent_of(extent.value)
    # Of sizes, which are not negative, both are one.
    extent = tvm_ffi.structural_map(extent, (tirx.Div, lambda x: tirx.floordiv(x.a, x.b)))
    return re.sub(r"T\.int64\((-?\d+)\)|T\.(?:Cast\(\"int64\", (\w+)\))?", r"\1\2", str(extent))


def _sizes(extents: dict[str, int | str], kind: str) -> tuple[int | str, ...]:
    """Along x, y and z, up to the last that is not 1."""
    sizes = [extents.get(f"{kind}.{axis}", 1) for axis in _AXES]
    while len(sizes) > 1 and sizes[-1] == 1:
        sizes.pop()
    return tuple(sizes)
