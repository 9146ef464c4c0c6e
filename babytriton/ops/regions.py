"""Parts of a program that run under a condition, or many times.

Each part becomes a private function of the program: TVM fuses operators inside functions, and not
inside the branches of an If. What a part uses from around it becomes its last parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

from tvm import relax
from tvm.ir import GlobalVar, PrimType, Var
from tvm.relax.script import builder as R
from tvm.relax.utils import copy_with_new_vars
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import ir as I

from babytriton.ops.reverse.regions import BranchStep
from babytriton.ops.reverse.tape import Step

if TYPE_CHECKING:
    from babytriton.ops.builder import Builder


WAY_BACK = "babytriton.way_back"
"""An attribute of functions that run parts of a program again, for their gradients."""


class Region:
    """What is emitted inside a ``with`` block is kept apart from the program around it.

    Attributes:
        blocks: what was emitted.
        steps: of that, what gradients flow through.
        draws: whether it draws random numbers.
    """

    def __init__(self) -> None:
        self.blocks: Sequence[relax.BindingBlock] = ()
        self.steps: Sequence[Step] = ()
        self.draws = False
        self._frame = R.SeqExpr()

    def __enter__(self) -> Region:
        self._frame.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Closed in any case: TVM takes an open frame for its own mistake.
        self._frame.__exit__(None, None, None)
        self.blocks = self._frame.binding_blocks

    def before(self, other: Region) -> Region:
        """Both regions as one, this one first."""
        joined = Region()
        joined.blocks = [*self.blocks, *other.blocks]
        joined.steps = [*self.steps, *other.steps]
        joined.draws = self.draws or other.draws
        return joined


Part = tuple[Region, Sequence[relax.Expr]]
"""A region and its results."""


class Regions:
    """Emits branches and loops into the open Relax function.

    Args:
        builder: of the program.
    """

    def __init__(self, builder: Builder) -> None:
        self._builder = builder
        self.used = False
        """Whether the program has such parts."""
        self.counts: dict[Var, relax.Expr] = {}
        """By tensors that hold numbers of steps, how these are stored."""
        self._is_back = False

    @contextmanager
    def part(self) -> Iterator[Region]:
        """Inside, what is emitted becomes a region."""
        builder, draws = self._builder, self._builder.draws
        with Region() as region, builder.views.apart(), builder.tape.part() as steps:
            yield region
        region.steps, region.draws = steps, builder.draws > draws

    @contextmanager
    def way_back(self) -> Iterator[None]:
        """Inside, functions are for gradients: what they run again has no other effect."""
        before, self._is_back = self._is_back, True
        try:
            yield
        finally:
            self._is_back = before

    def branch(
        self,
        condition: relax.Expr,
        then: Part,
        orelse: Part,
    ) -> list[Var]:
        """Run one of two regions.

        Args:
            condition: a bool tensor without dimensions.
            then: the region for a true condition, and its results.
            orelse: the region for a false one, and as many results of the same types.

        Returns:
            The results of the region that ran.
        """
        if not then[1]:
            self.branch(condition, (then[0], [nothing()]), (orelse[0], [nothing()]))
            return []
        calls = [
            self.define(name, [], *part).call([])
            for name, part in (("then", then), ("orelse", orelse))
        ]
        with R.If(condition) as chosen:
            with R.Then():
                emit_as("branch", calls[0])
            with R.Else():
                emit_as("branch", calls[1])
        results = fields(chosen.var, len(then[1]))
        if self._builder.tape.running:
            step = BranchStep.of(self._builder, condition, (then, orelse), results)
            self._builder.tape.note(step)
        return results

    def define(
        self, name: str, parameters: Sequence[Var], region: Region, results: Sequence[relax.Expr]
    ) -> Function:
        """A function of a region; what that uses from around it follows the parameters."""
        region = self._counting(region, relax.Tuple(results), parameters)
        free = free_in(region, relax.Tuple(results), parameters)
        types = relax.TupleType([result.ty for result in results])
        function = self._new(name, [*parameters, *free], types, free)
        function.define(region, relax.Tuple(results))
        return function

    def _counting(self, region: Region, result: relax.Expr, bound: Sequence[Var]) -> Region:
        """A region that is given the numbers of steps around it as such, and stores them itself."""
        used = [var for var in free_in(region, result, bound) if var in self.counts]
        if not used:
            return region
        first = Region()
        # The same variables once more: those of a function become others, as it is defined.
        stored = [relax.VarBinding(var, self.counts[var]) for var in used]
        first.blocks = [relax.BindingBlock(stored)]
        return first.before(region)

    def declare(
        self, name: str, parameters: Sequence[Var], body: Function, *others: Function
    ) -> Function:
        """A function that calls others and itself, and passes on what they need."""
        free = list(body.free)
        for var in (var for other in others for var in other.free):
            if not _is_in(free, var):
                free.append(var)
        return self._new(name, [*parameters, *free], body.results, free)

    def _new(
        self, name: str, parameters: Sequence[Var], results: relax.TupleType, free: Sequence[Var]
    ) -> Function:
        self.used = True
        name, is_pure = self._builder.unique(name), self._builder.effects == 0
        own = [var for var in parameters if not _is_in(free, var)]
        sizes = [var for var in free if isinstance(var.ty, PrimType)]
        others = [var for var in free if not isinstance(var.ty, PrimType)]
        taken = [*own, *others]
        if sizes:  # As a shape: what its numbers are is known where types are derived from calls.
            taken.append(Var("sizes", relax.ShapeType(sizes)))
        empty = relax.Function.create_empty(taken, results, is_pure=is_pure)
        variable = I.decl_function(name, empty)
        return Function(variable, name, taken, results, free, is_pure, self._is_back)


@dataclass(frozen=True)
class Function:
    """A private function of the program; its last parameters are what it uses from around it."""

    variable: GlobalVar
    name: str
    parameters: Sequence[Var]
    results: relax.TupleType
    free: Sequence[Var]
    is_pure: bool
    is_back: bool

    def define(self, region: Region, result: relax.Expr) -> None:
        body = relax.SeqExpr(region.blocks, result)
        function = relax.Function(list(self.parameters), body, self.results, self.is_pure)
        function = function.with_attr(WAY_BACK, True) if self.is_back else function
        # A variable belongs to one function, and these are those of the function around.
        I.def_function(self.name, copy_with_new_vars(function))

    def call(self, arguments: Sequence[relax.Expr]) -> relax.Call:
        sizes = [var for var in self.free if isinstance(var.ty, PrimType)]
        others = [var for var in self.free if not isinstance(var.ty, PrimType)]
        shape = [relax.ShapeExpr(sizes)] if sizes else []
        return relax.Call(self.variable, [*arguments, *others, *shape])


def free_in(region: Region, result: relax.Expr, bound: Sequence[Var]) -> list[Var]:
    """What a region and its result use from around them."""
    body = relax.SeqExpr(region.blocks, result)
    # Those sizes that only types tell are none of its expressions.
    used = [*bound, *(var for var in relax.analysis.free_vars(body) if not _is_in(bound, var))]
    tensors = [var for var in used if not isinstance(var.ty, PrimType)]
    whole = relax.Function(tensors, body, relax.AnyType(), is_pure=False)
    sizes = relax.analysis.free_symbolic_vars(whole)
    return [*used[len(bound) :], *(size for size in sizes if not _is_in(used, size))]


def _is_in(known: Sequence[Var], var: Var) -> bool:
    return any(var.same_as(each) for each in known)


def nothing() -> relax.Expr:
    """The result of what has none: TVM's virtual machine finds no register for an empty tuple."""
    return relax.const(False, "bool")


def emit_as(name: str, expr: relax.Expr) -> Var:
    """Emit under a name: what both branches of an If bind last must have the same one."""
    found = R.emit(expr)
    IRBuilder.name(name, found)
    return found


def fields(result: Var, count: int) -> list[Var]:
    """The parts of a tuple."""
    return [R.emit(relax.TupleGetItem(result, i)) for i in range(count)]
