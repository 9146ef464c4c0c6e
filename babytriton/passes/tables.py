"""Tensors that depend on no argument, and are no tables: kernels that read them compute them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import tvm_ffi
from tvm import IRModule, ir, relax, s_tir, tirx

from babytriton.ops.primfunc import nodes
from babytriton.passes.bindings import (
    calls_kernel,
    elements,
    is_tensor,
    read_by,
    replaced,
    with_blocks,
)
from babytriton.passes.blocks import plain_blocks
from babytriton.passes.intrinsics import function_name
from babytriton.passes.patterns import fuses_with_values
from babytriton.passes.scheduling import is_scheduled

SMALL = 1 << 14
"""Elements up to which a tensor is a table where kernels read it that would not be one with it."""

_LONGEST = (
    8  # Kernels of one element after the other that take about as long as a load from memory.
)

_SHARE = 8  # Elements for each of those of a table that something larger is computed from.

_Variables = Mapping[relax.Var, relax.Expr]


def known_in(function: relax.Function) -> set[relax.Var]:
    """The results of kernels that are known while compiling."""
    found: set[relax.Var] = set()
    for block in function.body.blocks:
        for binding in block.bindings if isinstance(block, relax.DataflowBlock) else ():
            if calls_kernel(binding) and all(x in found for x in read_by(binding)):
                found.add(binding.var)
    return found


class Computed:
    """The large tensors of a function that are computed from nothing, in short.

    Args:
        mod: has the kernels.
        function: of the program.
        large: elements that a large tensor has at least.
        shares: whether what several kernels read is a table all the same.

    Attributes:
        sources: the calls that these begin with, by parameters that are to stand for them.
    """

    def __init__(self, mod: IRModule, function: relax.Function, large: int, shares: bool) -> None:
        self._mod, self._function, self._large, self._shares = mod, function, large, shares
        self._known: dict[relax.Var, relax.Expr] = {}
        """What computes a tensor from others here, or from nothing."""
        self._uniform: set[relax.Var] = set()
        """Those that are filled with one number."""
        self._lengths: dict[relax.Var, int] = {}
        """How many kernels do so, one after the other."""
        self._places: dict[relax.Var, relax.Var] = {}
        """The parameter for each tensor that is computed from nothing."""
        self.sources: dict[relax.Var, relax.Expr] = {}
        self._constant = known_in(function)
        self._readers: Counter[relax.Var] = Counter()
        """How many kernels that are not read a tensor."""
        for block in function.body.blocks:
            for binding in block.bindings if isinstance(block, relax.DataflowBlock) else ():
                self._learn(binding)
                if binding.var not in self._constant:
                    self._readers.update(read_by(binding))

    def hidden(self) -> relax.Function:
        """The function with parameters for what such tensors begin with, so that none is known.

        Those are tables all the same that would be one with none of the kernels that read them, if
        they are small.
        """
        function = self._function
        blocks = []
        for block in function.body.blocks:
            bindings: list[relax.Binding] = []
            for binding in block.bindings:
                if isinstance(block, relax.DataflowBlock) and binding.var not in self._constant:
                    binding = self._with_its_own(binding, bindings)
                bindings.append(binding)
            blocks.append(type(block)(bindings))
        return with_blocks(function, blocks, [*function.params, *self.sources])

    def _learn(self, binding: relax.Binding) -> None:
        """Take note of what computes a tensor in short, of others that are so computed."""
        if not calls_kernel(binding) or not isinstance(binding.var, relax.DataflowVar):
            return
        given = binding.value.args[1].fields
        if not is_tensor(binding.var) or not all(self._is_read(x, binding.var) for x in given):
            return
        own = [x for x in given if x in self._known]
        if len(given) and not own:
            return
        length = 1 + max((self._lengths[x] for x in own), default=0)
        kernel = self._mod[binding.value.args[0]]
        blocks = [] if is_scheduled(kernel) else plain_blocks(kernel)
        if any(map(_fills, blocks)):
            self._uniform.add(binding.var)
        elif own and self._uniform.issuperset(given) and not any(map(_tells_places, blocks)):
            return  # What is made of one number is a number, as exact as a kernel makes it.
        if blocks and length <= _LONGEST and all(map(_is_short, blocks)):
            self._known[binding.var], self._lengths[binding.var] = binding.value, length

    def _is_read(self, given: relax.Expr, var: relax.Var) -> bool:
        """Whether a tensor that others are computed from is computed, or a much smaller table."""
        is_table = given in self._constant and is_tensor(given)
        return given in self._known or (is_table and elements(given) * _SHARE <= elements(var))

    def _with_its_own(self, binding: relax.Binding, before: list[relax.Binding]) -> relax.Binding:
        """A binding that reads large tensors which are computed for it alone.

        Args:
            binding: any.
            before: to which that is added.
        """
        made: dict[relax.Var, relax.Var] = {}
        for var in read_by(binding):
            if var not in self._known or (self._shares and self._readers[var] > 1):
                continue
            if var in self._uniform and elements(var) < SMALL:
                continue  # `uniform.py`
            if elements(var) >= (self._large if self._fuses(binding) else SMALL):
                self._compute(var, made, before)
        read = {var: made[var] for var in read_by(binding) if var in made}
        return _reading(binding, binding.var, read)

    def _fuses(self, binding: relax.Binding) -> bool:
        """Whether what reads a tensor here is a kernel that may compute it."""
        return calls_kernel(binding) and fuses_with_values(self._mod[binding.value.args[0]])

    def _compute(
        self, var: relax.Var, made: dict[relax.Var, relax.Var], before: list[relax.Binding]
    ) -> None:
        """Bind another variable to what a tensor is, computed once more."""
        if var in made:
            return
        call = self._known[var]
        for given in call.args[1].fields:
            if given in self._known:
                self._compute(given, made, before)
        if not call.args[1].fields:
            place = self._places.setdefault(var, relax.Var(var.name, var.ty))
            self.sources[place], made[var] = call, place
            return
        value = replaced(call, made)
        made[var] = relax.DataflowVar(var.name, var.ty)
        before.append(relax.VarBinding(made[var], value))


def _fills(block: s_tir.SBlock) -> bool:
    """Whether a block stores one number in all places."""
    return isinstance(getattr(block.body, "value", None), (tirx.IntImm, tirx.FloatImm))


def _tells_places(block: s_tir.SBlock) -> bool:
    """Whether what a block stores depends on where, but for what it reads there."""
    if not isinstance(block.body, tirx.BufferStore):
        return True
    axes = {axis.var for axis in block.iter_vars}
    value = tvm_ffi.structural_map(
        block.body.value, (ir.TensorLoad, lambda load: tirx.const(0, load.ty.dtype))
    )
    return not axes.isdisjoint(nodes(value, ir.Var))


def _is_short(block: s_tir.SBlock) -> bool:
    """Whether a block compares, chooses, or adds up, for each of its points.

    A sum of 64 bits that wraps around is long on the CPU, where it shifts (`ops/wrapping.py`).
    """
    if not isinstance(block.body, tirx.BufferStore) or block.init is not None:
        return False
    calls, shifts = nodes(block.body.value, ir.Call), nodes(block.body.value, tirx.RShift)
    return not shifts and all(function_name(call) == "if_then_else" for call in calls)


def _reading(binding: relax.Binding, var: relax.Var, made: _Variables) -> relax.Binding:
    """A binding of a variable to what others make of it."""
    if not isinstance(binding, relax.VarBinding):
        return binding
    return relax.VarBinding(var, replaced(binding.value, made), binding.span)


def shown(function: ir.BaseFunc, sources: Mapping[relax.Var, relax.Expr]) -> ir.BaseFunc:
    """The function that computes what it was given, for each kernel that reads it."""
    if not sources:
        return function
    count = len(function.params) - len(sources)
    calls = dict(zip(function.params[count:], sources.values()))
    blocks = []
    for block in function.body.blocks:
        bindings: list[relax.Binding] = []
        for binding in block.bindings:
            read = [x for x in dict.fromkeys(read_by(binding)) if x in calls]
            made = {x: relax.DataflowVar(x.name, x.ty) for x in read}
            bindings += [relax.VarBinding(var, calls[param]) for param, var in made.items()]
            bindings.append(_reading(binding, binding.var, made))
        blocks.append(type(block)(bindings))
    return with_blocks(function, blocks, function.params[:count])
