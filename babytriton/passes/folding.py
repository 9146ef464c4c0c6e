"""Constant folding: what depends on no argument is computed while compiling, but for large tables.

A causal mask that compares an `arange` with itself would be a table in memory, as large as what it
masks. Kernels have their indices at hand: what only compares, chooses from, or does sums of these
stays a part of what reads it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from tvm import IRModule, ir, relax, s_tir, tirx

from babytriton.ops.primfunc import nodes
from babytriton.passes.alike import Alike
from babytriton.passes.bindings import (
    CALL_TIR,
    elements,
    is_tensor,
    read_by,
    replaced,
    with_arguments,
)
from babytriton.passes.blocks import plain_blocks
from babytriton.passes.duplicates import same_as_before
from babytriton.passes.intrinsics import function_name
from babytriton.passes.scheduling import is_scheduled

LARGE = 1 << 14
"""Elements from which on a tensor is no table."""

LONGEST = 8
"""Kernels of one element after the other that take about as long as a load from memory."""

_Variables = Mapping[relax.Var, relax.Var]


def fold_constants(mod: IRModule) -> IRModule:
    """The program with constants for what is known while compiling.

    Args:
        mod: of calls of kernels that are not fused yet.
    """
    functions = dict(mod.functions_items())
    hidden: dict[str, dict[relax.Var, relax.Expr]] = {}
    for var, function in mod.functions_items():
        if isinstance(function, relax.Function):
            functions[var] = function = _each_once(mod, function)
            tables = _Tables(mod, function)
            found = tables.hidden()
            if tables.sources:
                functions[var], hidden[var.name_hint] = found, tables.sources
    if not hidden:
        mod = IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)
        return relax.transform.FoldConstant()(mod)
    kernels = {call.args[0]: mod[call.args[0]] for x in hidden.values() for call in x.values()}
    mod = IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)
    mod = relax.transform.FoldConstant()(relax.transform.DeadCodeElimination()(mod))
    functions = {
        var: _shown(function, hidden.get(var.name_hint, {}))
        for var, function in mod.functions_items()
    }
    functions |= kernels  # which nothing called meanwhile
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def _each_once(mod: IRModule, function: relax.Function) -> relax.Function:
    """The function with one binding for each small tensor that is known while compiling.

    The layers of a network have one mask, and TVM compiles what computes it for each anew.
    """
    folded = _folded(function)

    def is_small(var: relax.Var) -> bool:
        is_inside = var in folded and isinstance(var, relax.DataflowVar)
        return is_inside and is_tensor(var) and elements(var) < LARGE

    parts = [[x for x in block.bindings if is_small(x.var)] for block in function.body.blocks]
    called = dict.fromkeys(binding.value.args[0] for part in parts for binding in part)
    kernels = same_as_before(mod, called)
    same: dict[relax.Var, relax.Var] = {}
    for part in parts:
        alike: Alike[relax.Var] = Alike()
        for binding in part:
            kernel, *given = replaced(binding.value, same).args
            value = with_arguments(binding.value, [kernels.get(kernel, kernel), *given])
            first = alike.first(value, binding.var)
            if not first.same_as(binding.var):
                same[binding.var] = first
    if not same:
        return function
    blocks = [
        type(block)([x for x in block.bindings if x.var not in same])
        for block in function.body.blocks
    ]
    return relax.Function(
        function.params,
        replaced(relax.SeqExpr(blocks, function.body.body), same),
        *(function.ret_ty, function.is_pure, function.attrs, function.span),
    )


def _folded(function: relax.Function) -> set[relax.Var]:
    """The results of kernels that are known while compiling."""
    found: set[relax.Var] = set()
    for block in function.body.blocks:
        for binding in block.bindings if isinstance(block, relax.DataflowBlock) else ():
            if _is_kernel(binding) and all(x in found for x in read_by(binding)):
                found.add(binding.var)
    return found


class _Tables:
    """The large tensors of a function that are computed from nothing, in short.

    Args:
        mod: has the kernels.
        function: of the program.

    Attributes:
        sources: the calls that these begin with, by parameters that are to stand for them.
    """

    def __init__(self, mod: IRModule, function: relax.Function) -> None:
        self._mod, self._function = mod, function
        self._known: dict[relax.Var, relax.Expr] = {}
        """What computes a tensor from others here, or from nothing."""
        self._lengths: dict[relax.Var, int] = {}
        """How many kernels do so, one after the other."""
        self._places: dict[relax.Var, relax.Var] = {}
        """The parameter for each tensor that is computed from nothing."""
        self.sources: dict[relax.Var, relax.Expr] = {}
        self._folded = _folded(function)
        self._readers: Counter[relax.Var] = Counter()
        """How many kernels that are not read a tensor."""
        for block in function.body.blocks:
            for binding in block.bindings if isinstance(block, relax.DataflowBlock) else ():
                self._learn(binding)
                if binding.var not in self._folded:
                    self._readers.update(read_by(binding))

    def hidden(self) -> relax.Function:
        """The function with parameters for what such tensors begin with, so that none is known.

        Those are tables all the same that several kernels read, which would not be one with each.
        """
        function = self._function
        blocks = []
        for block in function.body.blocks:
            bindings: list[relax.Binding] = []
            for binding in block.bindings:
                if isinstance(block, relax.DataflowBlock) and binding.var not in self._folded:
                    binding = self._with_its_own(binding, bindings)
                bindings.append(binding)
            blocks.append(type(block)(bindings))
        return relax.Function(
            [*function.params, *self.sources],
            relax.SeqExpr(blocks, function.body.body),
            *(function.ret_ty, function.is_pure, function.attrs, function.span),
        )

    def _learn(self, binding: relax.Binding) -> None:
        """Take note of what computes a tensor in short, of others that are so computed."""
        if not _is_kernel(binding) or not isinstance(binding.var, relax.DataflowVar):
            return
        given = binding.value.args[1].fields
        if not is_tensor(binding.var) or not all(x in self._known for x in given):
            return
        length = 1 + max((self._lengths[x] for x in given), default=0)
        kernel = self._mod[binding.value.args[0]]
        blocks = [] if is_scheduled(kernel) else plain_blocks(kernel)
        if blocks and length <= LONGEST and all(map(_is_short, blocks)):
            self._known[binding.var], self._lengths[binding.var] = binding.value, length

    def _with_its_own(self, binding: relax.Binding, before: list[relax.Binding]) -> relax.Binding:
        """A binding that reads large tensors which are computed for it alone.

        Args:
            binding: any.
            before: to which that is added.
        """
        made: dict[relax.Var, relax.Var] = {}
        for var in read_by(binding):
            if var in self._known and elements(var) >= LARGE and self._readers[var] == 1:
                self._compute(var, made, before)
        read = {var: made[var] for var in read_by(binding) if var in made}
        return _reading(binding, binding.var, read)

    def _compute(
        self, var: relax.Var, made: dict[relax.Var, relax.Var], before: list[relax.Binding]
    ) -> None:
        """Bind another variable to what a tensor is, computed once more."""
        if var in made:
            return
        call = self._known[var]
        for given in call.args[1].fields:
            self._compute(given, made, before)
        if not call.args[1].fields:
            place = self._places.setdefault(var, relax.Var(var.name, var.ty))
            self.sources[place], made[var] = call, place
            return
        value = replaced(call, made)
        made[var] = relax.DataflowVar(var.name, var.ty)
        before.append(relax.VarBinding(made[var], value))


def _is_kernel(binding: relax.Binding) -> bool:
    call = getattr(binding, "value", None)
    return isinstance(call, ir.Call) and call.op == CALL_TIR and len(call.args) == 2


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


def _shown(function: ir.BaseFunc, sources: Mapping[relax.Var, relax.Expr]) -> ir.BaseFunc:
    """The function that computes what it was given, in each block that reads it."""
    if not sources:
        return function
    count = len(function.params) - len(sources)
    calls = dict(zip(function.params[count:], sources.values()))
    blocks = []
    for block in function.body.blocks:
        read = {var for binding in block.bindings for var in read_by(binding)}
        made = {x: relax.DataflowVar(x.name, x.ty) for x in calls if x in read}
        first = [relax.VarBinding(var, calls[param]) for param, var in made.items()]
        rest = [_reading(binding, binding.var, made) for binding in block.bindings]
        blocks.append(type(block)([*first, *rest]))
    return relax.Function(
        function.params[:count],
        relax.SeqExpr(blocks, function.body.body),
        *(function.ret_ty, function.is_pure, function.attrs, function.span),
    )
