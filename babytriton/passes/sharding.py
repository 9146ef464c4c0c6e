"""Whether a program computes each slice of its tensors by itself, so that processes may share them.

A program has a symbolic size `n`. If every kernel stores slice `q` of what has such a dimension
from slice `q` of what it reads, and neither `q` nor `n` is used for anything else, then the program
on some of the slices gives those slices of the results. That is what is proven here, for the very
program that then runs on each process's part: all values of `q` and `n` are symbols in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, relax, s_tir, sym, tirx
from tvm.ir import IRModule
from tvm.s_tir.dlight.analysis.common_analysis import get_sblockrealize

from babytriton.ops.primfunc import nodes
from babytriton.passes.bindings import CALL_TIR
from babytriton.passes.blocks import open_kernel
from babytriton.passes.pipeline import LEGALIZE
from babytriton.targets import Target, tvm_target


@dataclass(frozen=True)
class Part:
    """The dimension of a tensor that a process has some slices of.

    Attributes:
        dim: its number.
        factor: how many elements of it are one slice.
    """

    dim: int
    factor: int


class Whole(Exception):
    """A size cannot be divided among processes.

    Attributes:
        why: in words.
        line: of the user's code, "file:line"; empty where none is known.
    """

    def __init__(self, why: str, line: str = "") -> None:
        super().__init__(why)
        self.why, self.line = why, line

    @property
    def text(self) -> str:
        """In words, with the line."""
        return f"{self.why} ({self.line})" if self.line else self.why


def divide(
    mod: IRModule, entry: str, target: Target, size: str, multiples: Mapping[str, int | None]
) -> list[Part | None]:
    """What of each output belongs to a slice, where each slice is computed by itself.

    Args:
        mod: the program, as it was lowered.
        entry: the name of its function.
        target: what it is compiled for.
        size: the name of the symbolic size that is divided.
        multiples: of the program's parameters that are computed from that size, by their names,
            how many times the size they are; ``None`` for another function of it.

    Returns:
        For each output its part; ``None`` for one that no slice has a part in.

    Raises:
        Whole: slices depend on each other, or on how many there are.
    """
    with tvm_target(target):
        mod = tvm.transform.Sequential(LEGALIZE)(mod)
    return _Program(mod, mod[entry], size, multiples).outputs()


class _Program:
    """A program, and the size in it that is divided."""

    def __init__(
        self,
        mod: IRModule,
        function: relax.Function,
        size: str,
        multiples: Mapping[str, int | None],
    ) -> None:
        self._mod, self._function = mod, function
        self._total = tirx.Var(size, "int64")
        self._multiples = {size: 1, **multiples}
        self._done: set[tuple[Any, ...]] = set()
        self._line = ""

    def outputs(self) -> list[Part | None]:
        """Look at all bindings."""
        for block in self._function.body.blocks:
            for binding in block.bindings:
                span = getattr(binding.value, "span", None)
                self._line = "" if span is None else f"{span.source_name.name}:{span.line}"
                self._look(binding)
        self._line = ""
        body = self._function.body.body
        fields = body.fields if isinstance(body, relax.Tuple) else [body]
        return [self._part(field.ty) for field in fields]

    def _look(self, binding: relax.Binding) -> None:
        value = binding.value
        if isinstance(value, ir.Call) and value.op == CALL_TIR:
            self._kernel(value)
        elif isinstance(value, (ir.Var, relax.Tuple, relax.TupleGetItem, ir.Constant)):
            return
        elif self._is_touched(value) or self._is_touched(binding.var):
            raise Whole(_OPAQUE, self._line)

    def _is_touched(self, expr: relax.Expr) -> bool:
        """Whether an expression depends on what is divided."""
        names = {var.name for var in nodes(expr, ir.Var)}
        free = [] if isinstance(expr, ir.Var) else relax.analysis.free_vars(expr)
        types = [expr.ty, *(var.ty for var in free)]
        names |= {var.name for type in types for var in _variables(type)}
        return not names.isdisjoint(self._multiples)

    def _part(self, type: ir.Type) -> Part | None:
        """What a slice has of a tensor, or of each of several alike."""
        if not isinstance(type, relax.TensorType) or type.shape is None:
            if {var.name for var in _variables(type)}.isdisjoint(self._multiples):
                return None
            raise Whole(_OPAQUE, self._line)
        return self._part_of([self._in_slices(n) for n in type.shape])

    def _in_slices(self, expr: Any) -> Any:
        """An expression of the program's sizes in terms of the one that is divided."""
        meanings = {}
        for var in nodes(expr, ir.Var):
            if var.name in self._multiples:
                times = self._multiples[var.name]
                if times is None:
                    raise Whole(_NUMBER, self._line)
                meanings[var] = self._total * times
        return _substituted(expr, meanings)

    def _part_of(self, shape: Sequence[Any]) -> Part | None:
        """What a slice has of a tensor with a shape in terms of the divided size."""
        found = [(i, self._factor(n)) for i, n in enumerate(shape)]
        parts = [Part(i, factor) for i, factor in found if factor]
        if len(parts) > 1:
            raise Whole(_TWICE, self._line)
        return parts[0] if parts else None

    def _factor(self, extent: Any) -> int:
        """How many times the divided size an extent is; 0 for another size.

        Raises:
            Whole: it depends on that in another way.
        """
        if not _has(extent, self._total):
            return 0
        analyzer = sym.Analyzer()
        analyzer.bind(self._total, _ANY_NUMBER)
        times = analyzer.simplify(tirx.floordiv(extent, self._total))
        if isinstance(times, tirx.IntImm):
            rest = analyzer.simplify(extent - self._total * times)
            if isinstance(rest, tirx.IntImm) and int(rest) == 0:
                return int(times)
        raise Whole(_NUMBER, self._line)

    # ------------------------------------------------------------ kernels

    def _kernel(self, call: ir.Call) -> None:
        func = self._mod[call.args[0]]
        given = list(call.args[1].fields) if isinstance(call.args[1], relax.Tuple) else []
        results = call.ty_args[0]
        types = list(results.fields) if isinstance(results, relax.TupleType) else [results]
        params = list(func.params)
        more = list(call.args[2].values) if len(call.args) > 2 else []
        if len(params) != len(given) + len(types) + len(more):
            raise Whole(_OPAQUE, self._line)
        types = [*(x.ty for x in given), *types]
        inside: dict[Any, Any] = {}
        for param, type in zip(params, types):
            if isinstance(type, relax.TensorType):
                self._bind(inside, param.shape, type.shape)
        scalars = [pair for pair in zip(params, given) if not hasattr(pair[0], "shape")]
        for param, scalar in (*scalars, *zip(params[len(types) :], more)):
            inside[param] = self._in_slices(scalar)
        if not any(_has(n, self._total) for n in inside.values()):
            return
        key = (call.args[0].name_hint, *map(str, inside.values()))
        if key not in self._done:
            self._blocks(func, inside)
            self._done.add(key)

    def _bind(self, inside: dict[Any, Any], own: Sequence[Any], given: Sequence[Any]) -> None:
        """Note what the sizes of a kernel's parameter are in the program."""
        for size, actual in zip(own, given):
            if isinstance(size, ir.Var):
                inside[size] = self._in_slices(actual)

    def _blocks(self, func: tirx.PrimFunc, inside: Mapping[Any, Any]) -> None:
        opened = open_kernel(func)
        if opened is None:
            raise Whole(_OPAQUE, self._line)
        sch, infos = opened
        own = sch.mod["main"].body.block.alloc_buffers
        shapes = [n for buffer in (*_buffers(func), *own) for n in buffer.shape]
        if any(var not in inside for n in shapes for var in nodes(n, ir.Var)):
            raise Whole(_OPAQUE, self._line)
        for info in infos:
            realize = get_sblockrealize(sch, info.block_rv)
            loops = [sch.get(loop) for loop in sch.get_loops(info.block_rv)]
            self._block(realize, loops, inside)

    def _block(
        self, realize: s_tir.SBlockRealize, loops: Sequence[tirx.For], inside: Mapping[Any, Any]
    ) -> None:
        """Look whether a block stores its own slice from its own slices, for each slice."""
        block = realize.block
        own = tirx.Var("own", "int64")
        analyzer = sym.Analyzer()
        analyzer.bind(self._total, _ANY_NUMBER)
        analyzer.bind(own, ir.Range.from_min_extent(0, self._total))
        meanings = dict(inside)
        axes = 0
        for axis, value in zip(block.iter_vars, realize.iter_values):
            extent = _substituted(axis.dom.extent, inside)
            factor = self._factor(extent)
            if not factor:
                analyzer.bind(axis.var, ir.Range.from_min_extent(axis.dom.min, extent))
                continue
            if axis.iter_type != tirx.IterVar.DataPar:
                raise Whole(_REDUCED, self._line)
            over = [loop.extent for loop in loops if loop.loop_var.same_as(value)]
            if not over or not analyzer.can_prove_equal(_substituted(over[0], inside), extent):
                raise Whole(_ACROSS, self._line)
            axes += 1
            slice: Any = own
            if factor > 1:
                rest = tirx.Var("rest", "int64")
                analyzer.bind(rest, ir.Range.from_min_extent(0, factor))
                slice = own * factor + rest
            meanings[axis.var] = slice
        nested = block.match_buffers or nodes(block.body, s_tir.SBlockRealize)
        if axes > 1:
            raise Whole(_TWICE, self._line)
        if nested or not _is_true(realize.predicate):
            raise Whole(_OPAQUE, self._line)
        for loop in nodes(block.body, tirx.For):
            start, extent = (_substituted(x, meanings) for x in (loop.min, loop.extent))
            analyzer.bind(loop.loop_var, ir.Range.from_min_extent(start, extent))
        for part in (block.init, block.body):
            if part is not None:
                self._statement(part, own, meanings, analyzer)
        stores = [x.buffer for part in (block.init, block.body) for x in _stores(part)]
        for buffer in stores if axes else ():
            is_private = any(buffer.same_as(other) for other in block.alloc_buffers)
            shape = [_substituted(n, inside) for n in buffer.shape]
            if not is_private and self._part_of(shape) is None:
                raise Whole(_REDUCED, self._line)

    def _statement(
        self, part: Any, own: tirx.Var, meanings: Mapping[Any, Any], analyzer: sym.Analyzer
    ) -> None:
        """Look whether a statement uses slices as it may."""
        for access in (*nodes(part, ir.TensorLoad), *nodes(part, tirx.BufferStore)):
            buffer = access.source if isinstance(access, ir.TensorLoad) else access.buffer
            found = self._part_of([_substituted(n, meanings) for n in buffer.shape])
            for dim, index in enumerate(access.indices):
                at = analyzer.simplify(_substituted(_without_loads(index), meanings))
                if found is not None and found.dim == dim:
                    at = self._rest(at, own, found.factor, analyzer)
                self._require_free(own, at)
        # What is neither read nor a place is a number, a condition or a bound.
        others = tvm_ffi.structural_map(
            _without_loads(part), (tirx.BufferStore, lambda store: tirx.Evaluate(store.value))
        )
        for var in nodes(others, ir.Var):
            if hasattr(var, "shape"):
                raise Whole(_OPAQUE, self._line)
            self._require_free(own, meanings.get(var, var))

    def _rest(self, at: Any, own: tirx.Var, factor: int, analyzer: sym.Analyzer) -> Any:
        """Where in its slice an index is.

        Raises:
            Whole: it may be in another one.
        """
        rest = analyzer.simplify(at - own * factor)
        if isinstance(at, tirx.FloorMod) and self._factor(analyzer.simplify(at.b)) == factor:
            # The remainder by the size of all slices, of what is inside that anyway.
            rest = analyzer.simplify(at.a - own * factor)
        if not analyzer.can_prove(tirx.all(rest >= 0, rest < factor)):
            raise Whole(_ACROSS, self._line)
        return rest

    def _require_free(self, own: tirx.Var, *exprs: Any) -> None:
        for expr in exprs:
            if _has(expr, own):
                raise Whole(_ACROSS, self._line)
            if _has(expr, self._total):
                raise Whole(_NUMBER, self._line)


_OPAQUE = "what runs there cannot be looked into"
_NUMBER = "the size is used as a number"
_ACROSS = "places are combined, or told apart"
_TWICE = "one tensor has two dimensions of this size"
_REDUCED = "places are reduced to one"
_ANY_NUMBER = ir.Range.from_min_extent(1, 1 << 30)


def _stores(part: Any) -> list[Any]:
    return [] if part is None else nodes(part, tirx.BufferStore)


def _buffers(func: tirx.PrimFunc) -> list[Any]:
    """The parameters that are tensors."""
    return [param for param in func.params if hasattr(param, "shape")]


def _variables(type: Any) -> list[Any]:
    """The variables in a type."""
    if isinstance(type, relax.TupleType):
        return [var for field in type.fields for var in _variables(field)]
    return [var for n in (getattr(type, "shape", None) or ()) for var in nodes(n, ir.Var)]


def _without_loads(root: Any) -> Any:
    """An expression or statement with something unknown in the place of what is read."""
    return tvm_ffi.structural_map(
        root, (ir.TensorLoad, lambda load: tirx.Var("read", str(load.ty.dtype)))
    )


def _substituted(expr: Any, meanings: Mapping[Any, Any]) -> Any:
    if isinstance(expr, int) or not meanings:
        return expr
    return tvm_ffi.structural_map(expr, (ir.Var, lambda var: meanings.get(var, var)))


def _has(expr: Any, var: tirx.Var) -> bool:
    return not isinstance(expr, int) and any(x.same_as(var) for x in nodes(expr, ir.Var))


def _is_true(predicate: Any) -> bool:
    return isinstance(predicate, tirx.IntImm) and bool(int(predicate))
