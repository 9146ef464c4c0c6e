"""Placement of kernels on the devices of a program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import ir, relax, tirx
from tvm.ir import IRModule
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.target import Target

from babytriton.passes.bindings import CALL_TIR

PORTABLE = ("metal", "opencl", "webgpu", "rocm")
"""The kinds of target that are given source alone."""

KINDS = {"llvm": "cpu", **{kind: kind for kind in ("cuda", *PORTABLE)}}
"""Our name for each of TVM's kinds of target."""

_TARGET = "target"
_TO_VDEVICE = ir.Op.get("relax.to_vdevice")


def place(mod: IRModule) -> IRModule:
    """Give each kernel the target of the device that its operands are on.

    Values cross between devices in calls of ``to_vdevice``, and nowhere else. What has no
    operands is computed on the first device, and moved to where it is needed.
    """
    return _mutated(mod, _Placement)


def cross_once(mod: IRModule) -> IRModule:
    """Let a value that several operators need on another device cross once."""
    return _mutated(mod, _Crossings)


def by_target(mod: IRModule, home: Target) -> list[tuple[Target, IRModule]]:
    """The kernels of each target."""
    groups: dict[str, tuple[Target, dict[ir.GlobalVar, tirx.PrimFunc]]] = {}
    for var, func in mod.functions_items():
        if isinstance(func, tirx.PrimFunc):
            own = (func.attrs or {}).get(_TARGET) or home
            groups.setdefault(str(own), (own, {}))[1][var] = func
    return [(target, IRModule(functions)) for target, functions in groups.values()]


def _mutated(mod: IRModule, kind: Callable[[IRModule], Any]) -> IRModule:
    if "vdevice" not in mod.global_infos:
        return mod
    infos = mod.global_infos
    rewriter = kind(mod)
    for var, func in mod.functions_items():
        if isinstance(func, relax.Function):
            rewriter.builder_.update_func(var, rewriter.visit_expr(func))
    found = rewriter.builder_.get()
    found.update_global_info("vdevice", list(infos["vdevice"]))
    return relax.transform.DeadCodeElimination()(found)


class _Rewriter(PyExprMutator):
    """Knows what has crossed to which device in the block that it is in."""

    def __init__(self, mod: IRModule) -> None:
        super().__init__(mod)
        self._mod = mod
        self._crossed: dict[tuple[relax.Var, str], relax.Expr] = {}

    def visit_binding_block_(self, block: relax.BindingBlock) -> relax.BindingBlock:
        # What is bound in a block may not be used outside.
        around, self._crossed = self._crossed, {}
        found = super().visit_binding_block_(block)
        self._crossed = around
        return found

    def visit_dataflow_block_(self, block: relax.DataflowBlock) -> relax.BindingBlock:
        around, self._crossed = self._crossed, {}
        found = super().visit_dataflow_block_(block)
        self._crossed = around
        return found

    def _cross(self, value: relax.Expr, device: relax.VDevice) -> relax.Expr:
        """A value on another device; within a block it crosses once."""
        key = (value, _name(device))
        if key not in self._crossed:
            self._crossed[key] = self.builder_.emit(relax.op.to_vdevice(value, device))
        return self._crossed[key]


class _Crossing(_Rewriter):
    """Shares the transfers of a value."""

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        call = binding.value
        if not isinstance(call, relax.Call) or call.op != _TO_VDEVICE:
            super().visit_var_binding_(binding)
            return
        crossed = self._cross(self.visit_expr(call.args[0]), call.attrs.dst_vdevice)
        self.set_var_remap(binding.var, crossed)


class _Placing(_Rewriter):
    """Writes the devices down that calls of kernels leave their results on."""

    def __init__(self, mod: IRModule) -> None:
        super().__init__(mod)
        self._home = mod.global_infos["vdevice"][0]
        self._kernels: dict[tuple[str, str], ir.GlobalVar] = {}
        self._claimed: dict[str, str] = {}

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        if call.op != CALL_TIR:
            return call
        operands = list(call.args[1].fields)
        device = next((x for x in map(_device_of, operands) if x is not None), self._home)
        kernel = self._kernel(call.args[0], device)
        types = list(call.ty_args)
        if _name(device) != _name(self._home):
            operands = [self._at(x, device) for x in operands]
            types = [_on(type, device) for type in types]
        args = [kernel, relax.Tuple(operands), *call.args[2:]]
        return relax.Call(call.op, args, call.attrs, types, call.span)

    def _at(self, operand: relax.Expr, device: relax.VDevice) -> relax.Expr:
        found = _device_of(operand)
        same = found is not None and _name(found) == _name(device)
        return operand if same else self._cross(operand, device)

    def _kernel(self, kernel: ir.GlobalVar, device: relax.VDevice) -> ir.GlobalVar:
        """A kernel for one device, of which the same computation on another is a copy."""
        key = (kernel.name_hint, _name(device))
        if key not in self._kernels:
            func = self._mod[kernel]
            if _name(device) != _name(self._home):
                func = func.with_attr(_TARGET, device.target)
            if self._claimed.setdefault(kernel.name_hint, key[1]) == key[1]:
                self.builder_.update_func(kernel, func)
                self._kernels[key] = kernel
            else:
                name = f"{kernel.name_hint}_on_{KINDS[device.target.kind.name]}"
                self._kernels[key] = self.builder_.add_func(func, name)
        return self._kernels[key]


# TVM's decorator makes classes that cannot be inherited from.
_Crossings, _Placement = mutator(_Crossing), mutator(_Placing)


def _name(device: relax.VDevice) -> str:
    return f"{device.target.kind.name}:{device.vdevice_id}"


def _device_of(value: relax.Expr) -> relax.VDevice | None:
    return getattr(value.ty, "vdevice", None)


def _on(type: Any, device: relax.VDevice) -> Any:
    if isinstance(type, relax.TupleType):
        return relax.TupleType([_on(field, device) for field in type.fields])
    return relax.TensorType(type.shape, type.dtype, device)
