"""Fusion beyond TVM's: of kernels that go over the same rows, or over the same points.

TVM fuses what feeds a reduction, but not what reads it: a softmax written by hand is three kernels.
Where all of them work row by row on the same rows, each row can pass through all of them at once.
Nor does it fuse kernels that read the same tensor, such as those of two gradients: they become one
that reads it once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import ir, relax, s_tir, tirx
from tvm.ir import IRModule
from tvm.relax.expr import _update_type

from babytriton.passes import lines
from babytriton.passes.bindings import CALL_TIR, elements, is_tensor, read_by
from babytriton.passes.blocks import of_shape, plain_blocks
from babytriton.passes.names import of_parts, without_endings
from babytriton.passes.partial_writes import is_box
from babytriton.passes.scheduling import is_scheduled

_LONGEST = 60  # letters of a kernel's name
_LEFT_OUT = 3  # of the kernels of a group that no schedule takes as it is, at most
_MOST_BLOCKS = 64  # of a kernel: schedules take longer for each there is


@dataclass(frozen=True)
class Kind:
    """A kind of work that kernels can do together.

    Attributes:
        fits: whether the blocks of several kernels are such work.
        accepts: whether there is a schedule for a kernel of them.
        side_by_side: whether kernels that read nothing of each other fit, if they read the same.
    """

    fits: Callable[[Sequence[s_tir.SBlock]], bool]
    accepts: Callable[[tirx.PrimFunc], bool]
    side_by_side: bool = False


def fuse_kernels(mod: IRModule, kinds: Sequence[Kind]) -> IRModule:
    """Kernels that do one kind of work, one after the other or on the same tensor -> one kernel.

    Args:
        mod: a program of calls of fused, unscheduled kernels.
        kinds: of work, those first that are looked for first.
    """
    if "vdevice" in mod.global_infos:
        return mod  # Which kernel is on which device is not known yet.
    for kind in kinds:
        for name in _functions(mod):
            for number in range(len(_blocks_of(mod, name))):
                mod = _fused(mod, name, number, kind)
    return mod


def _functions(mod: IRModule) -> list[str]:
    return [var.name_hint for var, f in mod.functions_items() if isinstance(f, relax.Function)]


def _blocks_of(mod: IRModule, name: str) -> list[relax.BindingBlock]:
    """The blocks of a function; none of one that nothing calls any more, which TVM leaves out."""
    is_there = name in _functions(mod)
    return list(mod[name].body.blocks) if is_there else []


def _fused(mod: IRModule, name: str, number: int, kind: Kind) -> IRModule:
    """The program with the kernels of one block of a function fused."""
    block = mod[name].body.blocks[number]
    if not isinstance(block, relax.DataflowBlock):
        return mod
    var = mod.get_global_var(name)
    units = _units(mod, block)
    waiting = [_tries(group) for group in _groups(units, kind)]
    while waiting:
        found, kernels = _with_groups(mod, var, number, units, [tries[0] for tries in waiting])
        accepted = [kind.accepts(found[kernel]) for kernel in kernels]
        if all(accepted):
            return found
        waiting = [tries[not fits :] for tries, fits in zip(waiting, accepted)]
        waiting = [tries for tries in waiting if tries]
    return mod


def _tries(group: list[int]) -> list[list[int]]:
    """A group, and what is left of it without those that run last, or those that run first.

    One of these may be what is too much: nothing else of the group needs the last, and the first
    needs nothing else of it.
    """
    counts = range(1, min(_LEFT_OUT, len(group) - 2) + 1)
    return [group, *(group[:-n] for n in counts), *(group[n:] for n in counts)]


@dataclass(frozen=True)
class _Unit:
    """The call of a kernel with the bindings of its single results; or any other binding.

    Attributes:
        bindings: the call first.
        needs: the numbers of all units that must run before.
        direct: of those whose results it reads.
        shares: of those that read a tensor that it reads, as large as what it goes over.
        blocks: the kernel's, in which parameters and sizes have one name in all units; empty for
            others.
    """

    bindings: tuple[relax.Binding, ...]
    needs: frozenset[int]
    direct: frozenset[int]
    shares: frozenset[int] = frozenset()
    blocks: tuple[s_tir.SBlock, ...] = ()

    @property
    def is_end(self) -> bool:
        """Whether it writes a part of a tensor: what reads all of that does so from memory."""
        return any(map(is_box, self.blocks))


def _units(mod: IRModule, block: relax.DataflowBlock) -> list[_Unit]:
    """The units of a block, in an order in which they can run."""
    parts: list[list[relax.Binding]] = []
    home: dict[relax.Var, int] = {}  # the unit that binds a variable
    for binding in block.bindings:
        value = binding.value
        source = home.get(value.tuple_value) if isinstance(value, relax.TupleGetItem) else None
        if source is not None and _is_kernel(parts[source][0]):
            parts[source].append(binding)
        else:
            source = len(parts)
            parts.append([binding])
        home[binding.var] = source

    names: dict[ir.Var, tirx.Var] = {}
    readers: dict[relax.Var, list[int]] = {}
    units: list[_Unit] = []
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
        blocks = _blocks(mod, bindings, names)
        shares = frozenset(n for var in _largest(bindings) for n in readers.get(var, ()))
        for var in _largest(bindings) if blocks else ():
            readers.setdefault(var, []).append(len(units))
        units.append(_Unit(tuple(bindings), needs, frozenset(direct), shares, blocks))
    return units


def _largest(bindings: Sequence[relax.Binding]) -> list[relax.Var]:
    """The largest of the tensors that a kernel reads."""
    if not _is_kernel(bindings[0]):
        return []
    given = [var for var in bindings[0].value.args[1].fields if isinstance(var, relax.Var)]
    sizes = {var: elements(var) for var in given if is_tensor(var)}
    return [var for var, size in sizes.items() if size == max(sizes.values()) and size > 1]


def _is_kernel(binding: relax.Binding) -> bool:
    """Whether the binding calls a kernel, of sizes that its tensors tell."""
    call = binding.value
    return (
        isinstance(binding, relax.VarBinding)
        and isinstance(call, ir.Call)
        and call.op == CALL_TIR
        and len(call.args) == 2
        and all(isinstance(given, (relax.Var, ir.GenericConst)) for given in call.args[1].fields)
    )


def _blocks(
    mod: IRModule, bindings: Sequence[relax.Binding], names: dict[ir.Var, tirx.Var]
) -> tuple[s_tir.SBlock, ...]:
    """The blocks of the kernel that is called, if it is nothing but blocks in plain loops.

    Args:
        mod: has the kernel.
        bindings: of the unit.
        names: what stands for each tensor and size of the program in all kernels; is added to.
    """
    if not _is_kernel(bindings[0]):
        return ()
    call = bindings[0].value
    func = mod[call.args[0]]
    found = [] if is_scheduled(func) else plain_blocks(func)
    arguments = list(call.args[1].fields)
    results = [bindings[0].var]
    if isinstance(call.ty_args[0], ir.TupleType):
        parts = {binding.value.index: binding.var for binding in bindings[1:]}
        count = len(call.ty_args[0].fields)
        results = [parts.get(n) for n in range(count)]
    own: dict[tirx.Var, tirx.Var] = {}
    pairs = list(zip(func.params, [*arguments, *results]))
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


def _groups(units: list[_Unit], kind: Kind) -> list[list[int]]:
    """The numbers of the units to fuse, in running order; only groups of two and more."""
    groups = [frozenset([number]) for number in range(len(units))]
    tried: set[frozenset[int]] = set(groups)
    before: list[frozenset[int]] = []
    while groups != before:  # A unit may fit a group that was made after it was looked at.
        before = list(groups)
        for number, unit in enumerate(units):
            beside = unit.shares if kind.side_by_side and unit.blocks else ()
            direct = unit.direct if unit.blocks else ()
            for other in [*sorted(direct, reverse=True), *sorted(beside, reverse=True)]:
                joint = groups[number] | groups[other]
                if joint not in tried and _fits(units, joint, groups, kind):
                    for member in joint:
                        groups[member] = joint
                tried.add(joint)
    return [sorted(group) for group in dict.fromkeys(groups) if len(group) > 1]


def _fits(
    units: list[_Unit], joint: frozenset[int], groups: list[frozenset[int]], kind: Kind
) -> bool:
    """Whether the units can work together, and nothing must run between them."""
    if not all(units[n].blocks for n in joint):
        return False
    ends = {n for n in joint if units[n].is_end}
    if any(units[n].direct & ends for n in joint):
        return False
    before: set[int] = set()
    more = frozenset().union(*(units[n].needs for n in joint)) - joint
    while more:
        before |= more
        # A group runs as a whole: also what its other members need comes before.
        together = frozenset().union(*(groups[n] for n in more))
        more = together.union(*(units[n].needs for n in together)) - joint - before
    if any(units[n].needs & joint for n in before):
        return False
    blocks = [block for n in sorted(joint) for block in units[n].blocks]
    return len(blocks) <= _MOST_BLOCKS and kind.fits(blocks)


def _with_groups(
    mod: IRModule, var: ir.GlobalVar, number: int, units: list[_Unit], groups: list[list[int]]
) -> tuple[IRModule, list[ir.GlobalVar]]:
    """The program with each group as one kernel; and these kernels, in the order of the groups."""
    builder = relax.BlockBuilder(mod)
    func = mod[var]
    made: dict[int, ir.GlobalVar] = {}  # by the first member of the group
    covered: dict[ir.GlobalVar, list[str]] = {}
    bindings: list[relax.Binding] = []
    for part in _order(units, groups):
        inside = [binding for n in part for binding in units[n].bindings]
        if len(part) == 1:
            bindings += inside
            continue
        outside = [b for n, unit in enumerate(units) if n not in part for b in unit.bindings]
        read = {var for binding in outside for var in read_by(binding)}
        results = [
            binding.var
            for binding in inside
            if binding.var in read or not isinstance(binding.var, relax.DataflowVar)
        ]
        bound = {binding.var for binding in inside}
        arguments = [
            *(
                var
                for var in dict.fromkeys(v for b in inside for v in read_by(b))
                if var not in bound
            ),
            *_constants(inside),
        ]
        kernel = builder.add_func(_function(inside, arguments, results), _name(inside))
        parts = [binding.value.args[0] for binding in inside if _is_kernel(binding)]
        covered[kernel] = [line for other in parts for line in lines.of_kernel(mod[other])]
        bindings += _calling(kernel, arguments, results)
        made[part[0]] = kernel
    blocks = list(func.body.blocks)
    blocks[number] = relax.DataflowBlock(bindings)
    body = relax.SeqExpr(blocks, func.body.body)
    builder.update_func(
        var, relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs, func.span)
    )
    whole = relax.transform.Normalize()(of_parts(builder.get()))
    found = without_endings(relax.transform.FuseTIR()(whole))
    found = lines.attached(found, {kernel.name_hint: texts for kernel, texts in covered.items()})
    kernels = [made[group[0]] for group in groups]
    return found, [found.get_global_var(kernel.name_hint) for kernel in kernels]


def _constants(bindings: Sequence[relax.Binding]) -> list[ir.GenericConst]:
    """The tensors that kernels read and that are known while compiling, each once."""
    calls = [binding.value for binding in bindings if _is_kernel(binding)]
    given = [argument for call in calls for argument in call.args[1].fields]
    return list(dict.fromkeys(x for x in given if isinstance(x, ir.GenericConst)))


def _order(units: list[_Unit], groups: list[list[int]]) -> list[list[int]]:
    """The units in an order in which they can run, those of a group together."""
    group_of = {n: group for group in groups for n in group}
    waiting = list(
        {id(part): part for n in range(len(units)) for part in [group_of.get(n, [n])]}.values()
    )
    done: set[int] = set()
    order: list[list[int]] = []
    while waiting:
        ready = next(p for p in waiting if all(units[n].needs <= done | set(p) for n in p))
        waiting.remove(ready)
        done.update(ready)
        order.append(ready)
    return order


def _function(
    bindings: list[relax.Binding], arguments: list[relax.Expr], results: list[relax.Var]
) -> relax.Function:
    """The bindings as a function that becomes one kernel."""
    names: dict[relax.Expr, relax.Var] = {
        x: relax.Var(x.name if isinstance(x, relax.Var) else "constant", x.ty) for x in arguments
    }

    def named(expr: relax.Expr) -> relax.Expr:
        return names.get(expr, expr)

    inner = []
    for binding in bindings:
        value = tvm_ffi.structural_map(binding.value, [(ir.Var, named), (ir.GenericConst, named)])
        kind = relax.Var if binding.var in results else relax.DataflowVar
        names[binding.var] = kind(binding.var.name, binding.var.ty)
        inner.append(relax.VarBinding(names[binding.var], value))
    given = [names[var] for var in results]
    result = given[0] if len(given) == 1 else relax.Tuple(given)
    body = relax.SeqExpr([relax.DataflowBlock(inner)], result)
    func = relax.Function([names[var] for var in arguments], body, result.ty, True)
    return relax.utils.copy_with_new_vars(func.with_attr("Primitive", True))


def _calling(
    kernel: ir.GlobalVar, arguments: list[relax.Expr], results: list[relax.Var]
) -> list[relax.Binding]:
    call = relax.Call(kernel, arguments)
    # TVM would infer a type without the sizes that no argument's shape tells.
    if len(results) == 1:
        _update_type(call, results[0].ty)
        return [relax.VarBinding(results[0], call)]
    whole = relax.DataflowVar("rows", relax.TupleType([var.ty for var in results]))
    _update_type(call, whole.ty)
    parts = [relax.TupleGetItem(whole, n) for n in range(len(results))]
    return [
        relax.VarBinding(whole, call),
        *(relax.VarBinding(var, part) for var, part in zip(results, parts)),
    ]


def _name(bindings: list[relax.Binding]) -> str:
    calls = [binding.value for binding in bindings if _is_kernel(binding)]
    names = [call.args[0].name_hint.removeprefix("fused_") for call in calls]
    return f"fused_{'_'.join(names)}"[:_LONGEST].rstrip("_")
