"""Runs a function compiled for CUDA: on the emulator, or on a GPU where there is one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import tvm
import tvm_ffi
from torch.utils.dlpack import from_dlpack

import babytriton as bt
from babytriton.frontend.kernel.program import UNTOUCHED
from babytriton.frontend.program import Computed, Cotangent, Hidden
from babytriton.frontend.signature import leaves_of
from babytriton.kernel_stages import raise_first
from babytriton.ops.fallback import TorchCall
from babytriton.passes.gradient import Parameter
from babytriton.passes.orders import formats_of_results
from babytriton.running import filled
from babytriton.runtime import interop
from babytriton.runtime.dispatch import fill
from tests.emulator import emulator

ARCH = bt.Target("cuda").resolved().arch
"""Of the GPU that there is; ``"sm_80"`` on the emulator."""

TARGET = bt.Target("cuda", arch=ARCH)


def call(compiled: bt.Compiled, arguments: tuple[Any, ...]) -> Any:
    """The result of a function compiled for CUDA, on CPU tensors, which it may write to."""
    if emulator.available_gpu() == "real":
        moved: list[tuple[torch.Tensor, torch.Tensor]] = []

        def to_gpu(x: torch.Tensor) -> torch.Tensor:
            moved.append((x, x.cuda()))
            return moved[-1][1]

        result = compiled(*fill(arguments, to_gpu, (torch.Tensor,)))
        for x, there in moved:
            if there._version:
                x.copy_(there)
        return fill(result, lambda x: x.cpu(), (torch.Tensor,))
    lowering = compiled.scheduled.lowered.lowering
    bound = compiled.scheduled.lowered.parameters.bind(arguments, {})
    leaves = leaves_of(bound, compiled.signature.static, compiled.signature.names)
    sizes = {} if lowering.sizes is None else lowering.sizes.of(leaves)
    assert sizes is not None
    parameters = [_parameter(input, leaves, sizes) for input in lowering.inputs]
    outputs = _run(compiled, parameters)
    for write in lowering.writes:
        interop.write(parameters[write.input], outputs[write.index])
    return filled(lowering.result, parameters, outputs, sizes)


def gradients(
    compiled: bt.Compiled, arguments: tuple[Any, ...], grads: dict[int, torch.Tensor]
) -> list[torch.Tensor | None]:
    """The gradients of a function compiled for CUDA, by its halves, on CPU tensors.

    Args:
        compiled: the function, for arguments that require grad.
        arguments: of it.
        grads: of its differentiable outputs, by their numbers.

    Returns:
        The gradient of each argument that requires grad, in order.
    """
    if emulator.available_gpu() == "real":
        return _by_autograd(compiled, arguments, grads)
    lowered = compiled.scheduled.lowered
    assert lowered.halves is not None
    how = lowered.halves.division
    bound = lowered.parameters.bind(arguments, {})
    leaves = leaves_of(bound, compiled.signature.static, compiled.signature.names)
    parameters = [_parameter(input, leaves, {}) for input in lowered.lowering.inputs]
    given = [x.detach() if isinstance(x, torch.Tensor) else x for x in parameters]
    outputs = _run(compiled, given)
    saved: list[Any] = []
    for source in how.sources:
        if isinstance(source, Cotangent):
            saved.append(grads[source.output])
        else:
            of = given if isinstance(source, Parameter) else outputs
            saved.append(of[source.number])
    back = compiled.backward
    inputs = back.scheduled.lowered.lowering.inputs
    found = _run(back, [_parameter(input, saved, {}) for input in inputs])
    return [None if n is None else found[n] for n in how.outputs]


def _by_autograd(
    compiled: bt.Compiled, arguments: tuple[Any, ...], grads: dict[int, torch.Tensor]
) -> list[torch.Tensor | None]:
    """The gradients as torch asks for them, of tensors on the GPU."""
    inputs: list[torch.Tensor] = []

    def to_gpu(x: torch.Tensor) -> torch.Tensor:
        moved = x.detach().cuda().requires_grad_(x.requires_grad)
        if x.requires_grad:
            inputs.append(moved)
        return moved

    outputs: list[torch.Tensor] = []
    result = compiled(*fill(arguments, to_gpu, (torch.Tensor,)))
    fill(result, outputs.append, (torch.Tensor,))
    asked = [outputs[n] for n in grads]
    given = [grad.cuda() for grad in grads.values()]
    found = torch.autograd.grad(asked, inputs, given, allow_unused=True)
    return [None if x is None else x.cpu() for x in found]


def _run(compiled: bt.Compiled, parameters: list[Any]) -> list[torch.Tensor]:
    """The outputs of a program, of tensors that lie as they may."""
    lowering, executable = compiled.scheduled.lowered.lowering, compiled.executable
    given = list(parameters)
    for i, x in enumerate(parameters):
        if isinstance(x, torch.Tensor):
            lying = lowering.formats.get(i)
            given[i] = interop.readable(interop.in_memory(x, lying), lying)
    outputs = emulator.run(executable.vm_executable, executable.entry, given)
    for i, lying in formats_of_results(compiled.scheduled.mod, executable.entry).items():
        outputs[i] = lying.turned(outputs[i])
    return outputs


def _parameter(input: Any, leaves: list[Any], sizes: dict[str, int]) -> Any:
    if isinstance(input, Computed):
        return input.of(sizes)
    if isinstance(input, Hidden):
        return input.place.read()
    if isinstance(input, TorchCall):
        return _on_host(input)
    return leaves[input]


def _on_host(call: TorchCall) -> Any:
    """A fallback for the emulated device, whose memory torch knows nothing of."""

    if "device" in call.kwargs:
        call = replace(call, kwargs={**call.kwargs, "device": "cpu"})

    def run(*arguments: Any) -> Any:
        device = tvm.cuda(0)
        host = [x if isinstance(x, int) else x.copyto(tvm.cpu()) for x in arguments]
        results = call([x if isinstance(x, int) else from_dlpack(x) for x in host])
        aligned = [x.clone(memory_format=torch.contiguous_format) for x in results]
        return tvm_ffi.convert([tvm.runtime.from_dlpack(x).copyto(device) for x in aligned])

    return tvm_ffi.convert(run)


def call_kernel(compiled: bt.CompiledKernel, arguments: tuple[Any, ...]) -> list[Any]:
    """The arguments of a scalar kernel compiled for CUDA, CPU tensors, after it has run."""
    if emulator.available_gpu() == "real":
        moved = [x.cuda() if isinstance(x, torch.Tensor) else x for x in arguments]
        compiled(*moved)
        return [x.cpu() if isinstance(x, torch.Tensor) else x for x in moved]
    lowering = compiled.scheduled.lowered.lowering
    device = tvm.cuda(0)
    leaves = leaves_of(arguments, frozenset(), compiled.signature.names)
    own = [torch.empty(type.shape, dtype=type.dtype) for type in lowering.workspaces]
    own.append(torch.full((max(1, len(lowering.faults)),), UNTOUCHED))
    given = [x.place.read() if isinstance(x, Hidden) else leaves[x] for x in lowering.inputs]
    moved = [_on_device(x, device) for x in given]
    memory = [_on_device(x, device) for x in own]
    for launch in compiled.steps:
        function = compiled.executable.vm_executable[launch.name]
        function(*(read(moved, memory) for read in launch.read))
    raise_first(lowering.faults, memory[-1].numpy().tolist())
    found = [x.numpy() if isinstance(x, tvm.runtime.Tensor) else x for x in moved]
    results = iter(torch.from_numpy(x) if hasattr(x, "shape") else x for x in found)
    return [next(results) if isinstance(x, (torch.Tensor, float)) else x for x in arguments]


def _on_device(value: Any, device: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    host = value.detach().contiguous().clone()
    return tvm.runtime.from_dlpack(host).copyto(device)
