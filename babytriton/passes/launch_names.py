"""The names of what a GPU runs: those of the functions that launch it."""

from __future__ import annotations

import re

import tvm_ffi
from tvm import IRModule, ir

END = "_kernel"
"""What the names of kernels end in: those of the user's functions are taken."""


def of_launch(function: str, place: int) -> str:
    """The name of a function's kernel, by its place among those of the function."""
    return function.removesuffix(END) + END + (f"_{place}" if place else "")


def launcher_of(kernel: str) -> str:
    """The name of the function that a kernel was taken out of, by TVM's name for that."""
    return re.sub(rf"{END}(_\d+)?$", "", kernel)


_LAUNCHED = re.compile(rf"({END}){END}((?:_\d+)?)$")


def of_launches(mod: IRModule) -> IRModule:
    """What the GPU runs, by the names of the kernels: TVM has added an ending of its own."""
    functions = {}
    for var, func in mod.functions_items():
        name = _shorter(var.name_hint)
        functions[ir.GlobalVar(name)] = func.with_attr("global_symbol", name)
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def launching(mod: IRModule) -> IRModule:
    """What launches kernels, by those names."""

    def of_text(text: ir.StringImm) -> ir.StringImm:
        name = _shorter(text.value)
        return text if name == text.value else ir.StringImm(name)

    functions = {
        var: tvm_ffi.structural_map(func, (ir.StringImm, of_text))
        for var, func in mod.functions_items()
    }
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def _shorter(name: str) -> str:
    return _LAUNCHED.sub(r"\1\2", name)
