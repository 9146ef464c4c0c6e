"""Programs that are one kernel: what a call must know to launch it without a virtual machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import ir, relax, tirx
from tvm.ir import IRModule


@dataclass(frozen=True)
class SingleKernel:
    """The one kernel of a program.

    Attributes:
        name: of its TensorIR function.
        arguments: the program's parameters that it takes, by number, in its order.
        outputs: the shape and dtype of each tensor that it writes, in its order.
        results: the program's outputs, each by the number of the tensor among ``outputs``.
    """

    name: str
    arguments: tuple[int, ...]
    outputs: tuple[tuple[tuple[int, ...], str], ...]
    results: tuple[int, ...]


def single_kernel(mod: IRModule, entry: str) -> SingleKernel | None:
    """The kernel of a program that calls one kernel, of sizes that are known, and nothing else.

    Args:
        mod: a program of kernels, as ``fuse_and_schedule`` gives it.
        entry: the program's function.
    """
    function = mod[entry]
    body = function.body
    bindings = [binding for block in body.blocks for binding in block.bindings]
    if not bindings or not isinstance(body.body, relax.Tuple):
        return None
    first, *others = bindings
    call = first.value
    if not isinstance(first, relax.VarBinding) or not _is_kernel_call(call):
        return None
    arguments = _numbers(call.args[1].fields, list(function.params))
    outputs = _outputs(call)
    # The kernel's own results, by the variables that the program gives them.
    produced = {first.var: 0} if len(outputs or ()) == 1 else {}
    for binding in others:
        value = binding.value
        if not isinstance(value, relax.TupleGetItem) or value.tuple_value != first.var:
            return None
        produced[binding.var] = value.index
    results = tuple(produced.get(result, -1) for result in body.body.fields)
    if arguments is None or outputs is None or -1 in results:
        return None
    return SingleKernel(call.args[0].name_hint, arguments, outputs, results)


def _is_kernel_call(value: Any) -> bool:
    return (
        isinstance(value, ir.Call)
        and value.op == ir.Op.get("relax.call_tir")
        and len(value.args) == 2  # a third holds sizes
        and isinstance(value.args[1], relax.Tuple)
    )


def _numbers(arguments: Any, parameters: list[Any]) -> tuple[int, ...] | None:
    """The numbers of the arguments among the parameters; None if one is something else."""
    numbers = [next((i for i, p in enumerate(parameters) if p == x), None) for x in arguments]
    return tuple(n for n in numbers if n is not None) if None not in numbers else None


def _outputs(call: Any) -> tuple[tuple[tuple[int, ...], str], ...] | None:
    """The shape and dtype of each result; None where a size is known at the call alone."""
    (types,) = call.ty_args
    types = types.fields if isinstance(types, ir.TupleType) else [types]
    found = []
    for type in types:
        if not all(isinstance(n, tirx.IntImm) for n in type.shape):
            return None
        found.append((tuple(int(n) for n in type.shape), str(type.dtype)))
    return tuple(found)
