"""The units of a program that passes over kernels work on: a call with what it gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import tvm_ffi
from tvm import ir, relax, s_tir, tirx
from tvm.ir import IRModule

from babytriton.passes.bindings import CALL_TIR, elements, is_tensor, read_by
from babytriton.passes.blocks import of_shape, plain_blocks
from babytriton.passes.partial_writes import is_box
from babytriton.passes.scheduling import is_scheduled
from babytriton.passes.step_numbers import is_number

_NEAREST = 4  # of the kernels before that read as little, so many are looked at
_READERS = 16  # and of those that read the same tensor


def functions(mod: IRModule) -> list[str]:
    return [var.name_hint for var, f in mod.functions_items() if isinstance(f, relax.Function)]


def blocks_of(mod: IRModule, name: str) -> list[relax.BindingBlock]:
    """The blocks of a function; none of one that nothing calls any more, which TVM leaves out."""
    is_there = name in functions(mod)
    return list(mod[name].body.blocks) if is_there else []


@dataclass(frozen=True)
class Unit:
    """The call of a kernel with the bindings of its single results; or any other binding.

    Attributes:
        bindings: the call first.
        needs: the numbers of all units that must run before.
        direct: of those whose results it reads.
        shares: of the nearest that read a tensor that it reads, as large as what it goes over;
            and of those that read as little as it does.
        blocks: the kernel's, in which parameters and sizes have one name in all units; empty for
            others.
    """

    bindings: tuple[relax.Binding, ...]
    needs: frozenset[int]
    direct: frozenset[int]
    shares: frozenset[int] = frozenset()
    blocks: tuple[s_tir.SBlock, ...] = ()

    @property
    def kernel(self) -> ir.GlobalVar:
        """The kernel that is called."""
        return self.bindings[0].value.args[0]

    @property
    def arguments(self) -> list[relax.Expr]:
        """What the kernel is given."""
        return list(self.bindings[0].value.args[1].fields)

    @property
    def results(self) -> list[relax.Var | None]:
        """What the kernel gives; None for what nothing reads."""
        type = self.bindings[0].value.ty_args[0]
        if not isinstance(type, ir.TupleType):
            return [self.bindings[0].var]
        parts = {binding.value.index: binding.var for binding in self.bindings[1:]}
        return [parts.get(n) for n in range(len(type.fields))]

    @property
    def is_end(self) -> bool:
        """Whether it writes a part of a tensor: what reads all of that does so from memory."""
        return any(map(is_box, self.blocks))


def units_of(mod: IRModule, block: relax.DataflowBlock, little: int = 0) -> list[Unit]:
    """The units of a block, in an order in which they can run.

    Args:
        mod: the program.
        block: of one of its functions.
        little: how many numbers a kernel may read to go side by side with any that reads as many.
    """
    parts: list[list[relax.Binding]] = []
    home: dict[relax.Var, int] = {}  # the unit that binds a variable
    for binding in block.bindings:
        value = binding.value
        source = home.get(value.tuple_value) if isinstance(value, relax.TupleGetItem) else None
        if source is not None and is_kernel(parts[source][0]):
            parts[source].append(binding)
        else:
            source = len(parts)
            parts.append([binding])
        home[binding.var] = source

    names: dict[ir.Var, tirx.Var] = {}
    readers: dict[relax.Var, list[int]] = {}
    of_little: dict[int, list[int]] = {}  # by how many numbers they read
    units: list[Unit] = []
    last: set[int] = set()  # the call before, of those whose order is the program's
    for bindings in parts:
        direct = {home[var] for binding in bindings for var in read_by(binding) if var in home}
        direct.discard(len(units))
        before = set(direct)
        call = bindings[0].value
        if isinstance(call, ir.Call) and call.op != CALL_TIR:  # such as one of torch's generators
            before |= last
            last = {len(units)}
        needs = frozenset(before.union(*(units[n].needs for n in before)))
        largest = _largest(bindings)
        shares = {n for var in largest for n in readers.get(var, ())[-_READERS:]}
        count = elements(largest[0]) if largest else 0
        beside = of_little.setdefault(count, []) if 0 < count <= little else []
        shares.update(beside[-_NEAREST:])
        unit = Unit(tuple(bindings), needs, frozenset(direct), frozenset(shares))
        unit = replace(unit, blocks=_blocks(mod, unit, names))
        if unit.blocks:
            beside.append(len(units))
            for var in largest:
                readers.setdefault(var, []).append(len(units))
        units.append(unit)
    return units


def _largest(bindings: Sequence[relax.Binding]) -> list[relax.Var]:
    """The largest of the tensors that a kernel reads."""
    if not is_kernel(bindings[0]):
        return []
    given = [var for var in bindings[0].value.args[1].fields if isinstance(var, relax.Var)]
    sizes = {var: elements(var) for var in given if is_tensor(var)}
    return [var for var, size in sizes.items() if size == max(sizes.values()) and size > 1]


def is_kernel(binding: relax.Binding) -> bool:
    """Whether the binding calls a kernel, of sizes that its tensors tell."""
    call = binding.value
    return (
        isinstance(binding, relax.VarBinding)
        and isinstance(call, ir.Call)
        and call.op == CALL_TIR
        and len(call.args) == 2
        and all(isinstance(given, (relax.Var, ir.GenericConst)) for given in call.args[1].fields)
    )


def _blocks(mod: IRModule, unit: Unit, names: dict[ir.Var, tirx.Var]) -> tuple[s_tir.SBlock, ...]:
    """The blocks of the kernel that is called, if it is nothing but blocks in plain loops.

    Args:
        mod: has the kernel.
        unit: of the call.
        names: what stands for each tensor and size of the program in all kernels; is added to.
    """
    if not is_kernel(unit.bindings[0]):
        return ()
    func = mod[unit.kernel]
    found = [] if is_scheduled(func) or is_number(func) else plain_blocks(func)
    own: dict[tirx.Var, tirx.Var] = {}
    pairs = list(zip(func.params, [*unit.arguments, *unit.results]))
    pairs = [(param, var) for param, var in pairs if isinstance(var, relax.Var)]
    for param, var in pairs:
        for size, given in zip(param.ty.shape, var.ty.shape) if is_tensor(var) else ():
            if isinstance(size, ir.Var) and isinstance(given, ir.Var):
                own[size] = names.setdefault(given, size)
    sizes = dict(own)
    for param, var in pairs:
        own[param] = names.setdefault(var, _of_sizes(param, sizes))
    for block in found:
        for region in (*block.reads, *block.writes):
            own.setdefault(region.source, _of_sizes(region.source, sizes))
    return tuple(
        tvm_ffi.structural_map(block, (ir.Var, lambda var: own.get(var, var))) for block in found
    )


def _of_sizes(buffer: tirx.Var, sizes: Mapping[tirx.Var, tirx.Var]) -> tirx.Var:
    """A buffer with other variables for its sizes, if it has any of them."""
    if not isinstance(buffer.ty, tirx.BufferType):
        return buffer
    before = list(buffer.ty.shape)
    shape = [sizes.get(n, n) if isinstance(n, ir.Var) else n for n in before]
    if all(new is old for new, old in zip(shape, before)):
        return buffer
    return ir.Var(buffer.name, of_shape(buffer.ty, shape))
