"""Math functions of float32 by formulas that vectorize, in place of TVM's lowering to libm."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import tvm
import tvm_ffi
from tvm import IRModule, ir, tirx
from tvm.target import codegen
from tvm_ffi import StructuralKey

from babytriton.ops.primfunc import nodes
from babytriton.passes.cpu.formulas import FORMULAS, SMALL
from babytriton.passes.cpu.formulas.steps import Steps
from babytriton.passes.cpu.small_arguments import small_first
from babytriton.passes.intrinsics import dtype_of, function_name, rewrite
from babytriton.passes.statements import sequence

_Place = tuple[tirx.Var, Sequence[ir.Expr]]
"""An element of a buffer, by its indices."""

# What a call is named while TVM lowers the other intrinsics, which repeats their arguments.
_SET_ASIDE = "babytriton."


def _set_aside(call: ir.Call) -> ir.Expr:
    name, args = function_name(call), list(call.args)
    if name == "call_pure_extern":
        name, args = str(args[0].value).removesuffix("f"), args[1:]
    if name not in FORMULAS or not dtype_of(call).startswith("float32"):
        return call
    return tirx.call_pure_extern(dtype_of(call), _SET_ASIDE + name, *args)


def _name(call: ir.Call) -> str | None:
    """The function that was set aside; None for other calls."""
    name = str(call.args[0].value) if function_name(call) == "call_pure_extern" else ""
    return name.removeprefix(_SET_ASIDE) if name.startswith(_SET_ASIDE) else None


# What follows the name of a function whose argument is small.
_OF_SMALL = ".small"


def _small_form(call: ir.Call) -> tuple[ir.Call, ir.Expr] | None:
    name = _name(call)
    if name not in SMALL:
        return None
    _, is_beyond = SMALL[name]
    small = tirx.call_pure_extern(dtype_of(call), _SET_ASIDE + name + _OF_SMALL, *call.args[1:])
    return small, is_beyond(*call.args[1:])


def _formula(name: str) -> Callable[..., ir.Expr]:
    if name.endswith(_OF_SMALL):
        return SMALL[name.removesuffix(_OF_SMALL)][0]
    return FORMULAS[name]


def _selected(store: tirx.BufferStore) -> tirx.BufferStore:
    """The store with selections, as they were before TVM made conditions of them.

    It does so where one side reads memory; this may be read here, and vectors know no conditions.
    """
    safe = _safe_places(store)

    def selection(call: ir.Call) -> ir.Expr:
        if function_name(call) != "if_then_else" or not any(map(_name, nodes(call, ir.Call))):
            return call
        return tirx.Select(*call.args) if _runs_safely(call, safe) else call

    value = tvm_ffi.structural_map(store.value, (ir.Call, selection))
    if value is store.value:
        return store
    kept = dtype_of(store.buffer)
    if "bool" in dtype_of(value) and "bool" not in kept:  # In memory they are integers by now.
        kept = kept.partition("x")[0]
        value = tirx.Cast(f"{kept}{dtype_of(value).removeprefix('bool')}", value)
    return tirx.BufferStore(store.buffer, value, store.indices)


def _small_arguments_first(mod: IRModule) -> IRModule:
    """Kernels by the formulas for small arguments first, for processors that these are exact on."""
    functions = {
        var: tvm_ffi.structural_map(func, (tirx.For, lambda loop: small_first(loop, _small_form)))
        if isinstance(func, tirx.PrimFunc) and _has_feature(func, "fma", "neon")
        else func
        for var, func in mod.functions_items()
    }
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def _has_feature(func: tirx.PrimFunc, *names: str) -> bool:
    """Whether the processor that a kernel is for has one of some sets of instructions."""
    target = func.attrs.get("target") if func.attrs else None
    return target is not None and any(codegen.llvm_cpu_has_features(name, target) for name in names)


def _expand_formulas(mod: IRModule) -> IRModule:
    """Kernels with formulas in the place of the calls that were set aside."""
    functions = {}
    for var, func in mod.functions_items():
        if isinstance(func, tirx.PrimFunc):
            has_scaling = _has_feature(func, "avx512f")
            expand = partial(_expanded, has_scaling=has_scaling)
            func = tvm_ffi.structural_map(func, (tirx.BufferStore, expand))
        functions[var] = func
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def _expanded(store: tirx.BufferStore, has_scaling: bool) -> tirx.Stmt:
    """The store, after the steps of the formulas in its value."""
    statements: list[tirx.Stmt] = []
    computed: dict[StructuralKey, ir.Expr] = {}

    def expand(call: ir.Call) -> ir.Expr:
        name = _name(call)
        if name is None:
            return call
        key = StructuralKey(call)
        if key not in computed:
            steps = Steps(dtype_of(call).removeprefix("float32"), statements, has_scaling)
            computed[key] = _formula(name)(steps, *call.args[1:])
        return computed[key]

    if nodes(store.value, tirx.Let):  # whose names mean nothing outside
        return store
    # What runs under a condition may not run without it: it may read where nothing is.
    safe = _safe_places(store)

    def in_guard(call: ir.Call) -> ir.Expr:
        return _by_library(call) if _name(call) and not _runs_safely(call, safe) else call

    def outside(call: ir.Call) -> ir.Expr:
        is_guard = function_name(call) == "if_then_else"
        return tvm_ffi.structural_map(call, (ir.Call, in_guard)) if is_guard else call

    value = tvm_ffi.structural_map(store.value, (ir.Call, outside))
    value = tvm_ffi.structural_map(value, (ir.Call, expand))
    return sequence([*statements, tirx.BufferStore(store.buffer, value, store.indices)])


def _safe_places(store: tirx.BufferStore) -> list[_Place]:
    """What a store reads and writes under no condition."""
    return [(store.buffer, store.indices), *_read_always(store.value)]


def _runs_safely(expr: ir.Expr, safe: list[_Place]) -> bool:
    """Whether it may run where its condition does not hold."""
    loads = nodes(expr, ir.TensorLoad)
    return not _may_fail(expr) and all(_is_beside((x.source, x.indices), safe) for x in loads)


def _may_fail(expr: ir.Expr) -> bool:
    """Whether the expression divides integers by what may be 0."""
    divisions = (tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod)
    found = [node for kind in divisions for node in nodes(expr, kind)]
    return any(
        not str(node.ty.dtype).startswith("float") and not isinstance(node.b, tirx.IntImm)
        for node in found
    )


def _read_always(expr: ir.Expr) -> list[_Place]:
    """The elements that an expression reads under no condition."""
    found: list[_Place] = []

    def call(node: ir.Call) -> tvm_ffi.WalkResult | None:
        if function_name(node) != "if_then_else":
            return None
        found.extend(_read_always(node.args[0]))
        return tvm_ffi.WalkResult.SKIP

    def load(node: ir.TensorLoad) -> None:
        found.append((node.source, node.indices))

    tvm_ffi.structural_walk(expr, [(ir.Call, call), (ir.TensorLoad, load)], order="pre")
    return found


def _is_beside(place: _Place, others: list[_Place]) -> bool:
    """Whether it is in bounds if the others are: at the place of one, in a buffer as large."""
    buffer, indices = place
    return any(
        tvm_ffi.structural_equal(indices, known)
        and tvm_ffi.structural_equal(buffer.ty.shape, other.ty.shape)
        for other, known in others
    )


def _by_library(call: ir.Call) -> ir.Expr:
    """A function that was set aside, by the C library."""
    name = _name(call)
    if name is None:
        return call
    x = call.args[1]
    one = tirx.const(1, dtype_of(call))
    if name == "rsqrt":
        return one / tirx.sqrt(x)
    if name == "sigmoid":
        return one / (one + tirx.call_pure_extern(dtype_of(call), "expf", one * -1 * x))
    if name == "normcdf":
        of_root = tirx.call_pure_extern(dtype_of(call), "erff", x * math.sqrt(0.5))
        return (one + of_root) * 0.5
    return tirx.call_pure_extern(dtype_of(call), f"{name}f", *call.args[1:])


def _pass(kind: type, fn: Callable[[Any], Any], name: str) -> tvm.transform.Pass:
    def run(mod: IRModule, _: tvm.transform.PassContext) -> IRModule:
        return rewrite(mod, kind, fn)

    return tvm.transform.module_pass(run, opt_level=0, name=name)


def lower_intrinsics(others: tvm.transform.Pass) -> tvm.transform.Pass:
    """TVM's lowering of intrinsics, with the formulas in place of those that have one.

    For after TVM's handling of bfloat16, which does not know the formulas' steps.
    """
    return tvm.transform.Sequential(
        [
            _pass(ir.Call, _set_aside, "babytriton.SetFormulasAside"),
            others,
            _pass(tirx.BufferStore, _selected, "babytriton.Selections"),
            tvm.transform.module_pass(
                lambda mod, _: _small_arguments_first(mod),
                opt_level=0,
                name="babytriton.SmallArgumentsFirst",
            ),
            tvm.transform.module_pass(
                lambda mod, _: _expand_formulas(mod),
                opt_level=0,
                name="babytriton.ExpandFormulas",
            ),
            _pass(ir.Call, _by_library, "babytriton.CallLibrary"),
            tirx.transform.LowerIntrin(),
        ]
    )
