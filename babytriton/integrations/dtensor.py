"""Compiled functions on DTensors: each process runs the program on its part of the tensors."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from babytriton import dividing, errors
from babytriton.frontend.signature import records
from babytriton.integrations.dtensor_planning import Candidates, Choice, Division, Placements
from babytriton.jit import JitFunction
from babytriton.ops.refusals import RANDOM
from babytriton.ops.trees import leaves_in
from babytriton.stages import Compiled
from babytriton.types import Dim, TensorType

LOG = logging.getLogger("babytriton.sharding")


def call(function: JitFunction, values: Sequence[Any]) -> Any:
    """Run a compiled function where an argument is a DTensor.

    Args:
        function: to run.
        values: of its parameters, in order.

    Returns:
        Its result, with DTensors for tensors.
    """
    if function.out == "numpy":
        raise errors.ArraysOfDTensors(None, function.__name__).error()
    plans = function.kept.setdefault("dtensor", {})
    key = _key(function, values)
    for plan in plans.get(key, ()):
        if plan.fits():
            return plan.run(values)
    plan = _plan(function, values)
    # To plan may find that the value of a float matters.
    plans.setdefault(_key(function, values), []).append(plan)
    return plan.run(values)


def _key(function: JitFunction, values: Sequence[Any]) -> Any:
    placed = [(x.device_mesh, x.placements) for x in leaves_in(values, DTensor)]
    return function.key_of(values), tuple(placed)


class _Program:
    """A compiled program, and what each process has of the tensors that it takes and gives.

    Args:
        compiled: the program.
        division: of the function.
        values: of its parameters, for a call.
    """

    def __init__(self, compiled: Compiled, division: Division, values: Sequence[Any]) -> None:
        self.compiled, self.division = compiled, division
        self.types = dividing.inputs(division.lowered)
        self.written = dividing.writes(division.lowered)
        self.divided = [name for names in division.names for name in names]
        self.inputs = [None if x is None else division.input(x) for x in self.types]
        self.gradients = [None if x is None else division.gradient(x) for x in self.types]
        given = [x for _, x in dividing.read(compiled, values)]
        self.sizes = _sizes(self.types, given)
        self.results = dividing.outputs(division.lowered, self.sizes)
        self.outputs = [division.output(i) for i in range(len(self.results))]


class _Plan:
    """How calls of a function with DTensors placed in a certain way are run.

    Args:
        function: to run.
        mesh: that the tensors are on.
        division: of the function; ``None`` where each process computes all of it.
        reasons: why sizes are not divided.
    """

    def __init__(
        self,
        function: JitFunction,
        mesh: DeviceMesh,
        division: Division | None,
        reasons: Sequence[str],
    ) -> None:
        self._function, self._mesh = function, mesh
        self._division, self._reasons = division, reasons
        self._program: _Program | None = None

    def fits(self) -> bool:
        """Whether what it was made for still holds outside of the function."""
        if self._division is None or self._program is None:
            return True
        return all(guard() for guard in self._program.compiled.guards)

    def run(self, values: Sequence[Any]) -> Any:
        """Run a call."""
        program = self._programmed(values)
        given = dividing.read(program.compiled, values)
        self._require_written_in_place(program, given)
        pairs = zip(given, program.inputs, program.gradients)
        local = [self._local(path, x, needed, grads) for (path, x), needed, grads in pairs]
        sizes = _sizes(program.types, local) if program.sizes else {}
        if 0 in [sizes[name] for name in program.divided]:
            outputs = self._nothing(program, local)
        else:
            outputs = program.compiled.runner.compute(local, sizes)
        placed = zip(outputs, program.outputs, program.results)
        whole = [distributed(x, self._mesh, placements, type) for x, placements, type in placed]
        return program.compiled.runner.result([x for _, x in given], whole, program.sizes)

    def _programmed(self, values: Sequence[Any]) -> _Program:
        """The program of a call."""
        known = self._program
        if self._division is not None:
            if known is None:
                compiled = self._division.lowered.compile()
                known = self._program = _Program(compiled, self._division, values)
            return known
        compiled = self._function.compiled_for(values)
        if known is None or known.compiled is not compiled:
            self._require_same_numbers(compiled)
            whole = Division(compiled.scheduled.lowered, ((),) * self._mesh.ndim, {})
            known = self._program = _Program(compiled, whole, values)
        return known

    def _local(
        self, path: str, value: Any, needed: Placements | None, grads: Placements | None
    ) -> Any:
        """What the program gets for an input: this process's part of a tensor."""
        if needed is None or not isinstance(value, torch.Tensor):
            return value
        _require_on(self._mesh, path, value)
        if not isinstance(value, DTensor):
            return value
        if not (value.requires_grad and torch.is_grad_enabled()):
            with torch.no_grad():  # which gives the tensor itself, and not a view to record
                if value.placements != needed:
                    value = value.redistribute(self._mesh, needed)
                return value.to_local()
        # It brings the gradient to how the tensor is placed, even if the tensor stays as it is.
        value = value.redistribute(self._mesh, needed)
        return value.to_local(grad_placements=grads)

    @staticmethod
    def _nothing(program: _Program, local: Sequence[Any]) -> Sequence[torch.Tensor]:
        """The outputs of a process that has no slices."""
        types = []
        for type, placements in zip(program.results, program.outputs):
            dims = {placed.dim for placed in placements if isinstance(placed, Shard)}
            shape = [0 if d in dims else n for d, n in enumerate(type.sizes)]
            types.append((shape, type.dtype))
        tensors = [x for x in local if isinstance(x, torch.Tensor)]
        apply: Callable[..., Sequence[torch.Tensor]] = _Nothing.apply
        return apply(types, *tensors)

    def _require_same_numbers(self, compiled: Compiled) -> None:
        """Refuse what would give other results in each process."""
        for fallback in compiled.fallbacks if self._mesh.size() > 1 else ():
            if fallback.reason == RANDOM:
                raise errors.RandomOnDTensors(None, self._function.__name__, str(fallback)).error()

    def _require_written_in_place(
        self, program: _Program, given: Sequence[tuple[str, Any]]
    ) -> None:
        """Refuse to write to a tensor that would have to be placed otherwise first."""
        for number in program.written:
            (path, value), needed = given[number], program.inputs[number]
            if needed is not None and isinstance(value, DTensor) and value.placements != needed:
                now, then = str(list(value.placements)), str(list(needed))
                why = "".join(f"; {reason}" for reason in self._reasons)
                raise errors.WrittenElsewhere(None, path, now, then, why).error()


def distributed(
    local: torch.Tensor, mesh: DeviceMesh, placements: Placements, type: TensorType
) -> DTensor:
    """A result, of what each process has of it.

    Args:
        local: what this one has.
        mesh: the processes.
        placements: how it is placed there.
        type: of the whole.
    """
    shape = torch.Size(type.sizes)
    stride = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
    found = DTensor.from_local(local, mesh, placements, run_check=False, shape=shape, stride=stride)
    # It brings the gradient to how the result is placed, so that it has a gradient in turn.
    return found.redistribute(mesh, placements) if found.requires_grad else found


class _Nothing(torch.autograd.Function):
    """The outputs of a program without elements; gradients of its inputs are zero."""

    @staticmethod
    def forward(ctx: Any, types: Sequence[Any], *tensors: torch.Tensor) -> Any:
        ctx.save_for_backward(*tensors)
        device = tensors[0].device
        found = tuple(torch.empty(shape, dtype=dtype, device=device) for shape, dtype in types)
        ctx.mark_non_differentiable(*(x for x in found if not x.is_floating_point()))
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        needed = ctx.needs_input_grad[1:]
        pairs = zip(ctx.saved_tensors, needed)
        return (None, *(torch.zeros_like(x) if is_needed else None for x, is_needed in pairs))


def _plan(function: JitFunction, values: Sequence[Any]) -> _Plan:
    mesh = _mesh(function, values)
    found = Candidates(function, values)
    for path, x in found.named():
        _require_on(mesh, path, x)
    tensors = [(x, type) for x, type in found.tensors() if isinstance(x, DTensor)]
    chosen = [Choice(found, mesh, number, tensors).names() for number in range(mesh.ndim)]
    division = found.division(mesh, chosen) if any(chosen) else None
    reasons = found.reasons()
    for reason in reasons:
        LOG.info("%s: %s", function.__name__, reason)
    return _Plan(function, mesh, division, reasons)


def _mesh(function: JitFunction, values: Sequence[Any]) -> DeviceMesh:
    """The one mesh that all tensors of a call are on."""
    named = [
        (path, x) for name, value in zip(function.names, values) for path, x in _leaves(name, value)
    ]
    mesh: DeviceMesh = next(x.device_mesh for _, x in named if isinstance(x, DTensor))
    for path, x in named:
        _require_on(mesh, path, x)
    return mesh


def _require_on(mesh: DeviceMesh, path: str, tensor: torch.Tensor) -> None:
    """Refuse a tensor that is not on a mesh, but for a number that is the same everywhere."""
    if not isinstance(tensor, DTensor):
        if tensor.ndim or records(tensor):
            raise errors.MixedTensors(None, path).error()
    elif tensor.device_mesh != mesh:
        raise errors.OtherMesh(None, path, _shape(tensor.device_mesh), _shape(mesh)).error()


def _leaves(path: str, value: Any) -> list[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        return [(path, value)]
    if isinstance(value, (tuple, list)):
        return [leaf for i, x in enumerate(value) for leaf in _leaves(f"{path}[{i}]", x)]
    if isinstance(value, dict):
        return [leaf for key, x in value.items() for leaf in _leaves(f"{path}[{key!r}]", x)]
    return []


def _sizes(types: Sequence[TensorType | None], values: Sequence[Any]) -> dict[str, int]:
    """The symbolic sizes, of tensors that have them."""
    pairs = [(type, x) for type, x in zip(types, values) if type is not None]
    return {
        dim.name: n
        for type, x in pairs
        for dim, n in zip(type.shape, x.shape)
        if isinstance(dim, Dim)
    }


def _shape(mesh: DeviceMesh) -> str:
    """The dimensions of a mesh, with their names."""
    names = mesh.mesh_dim_names or ("",) * mesh.ndim
    each = [f"{name}={n}" if name else str(n) for name, n in zip(names, mesh.shape)]
    return f"a mesh of {' by '.join(each)}"
