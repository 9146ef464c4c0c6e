"""Sizes that are known only at the call, as torch and TVM see them.

torch stays the type checker: its fake tensors compute with the sizes, and its ShapeEnv writes down
each condition on them that a result depends on. Those are the guards of the program.

Imported only for programs with such sizes: what it needs of torch takes a second to import.
"""

from __future__ import annotations

import contextlib
import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import sympy
import torch
from sympy.printing.str import StrPrinter
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.utils._sympy import functions
from torch.utils._sympy.printers import PythonPrinter
from tvm import tirx

from babytriton.ops.refusals import Related, Unsupported
from babytriton.ops.sizes import SYMBOLIC
from babytriton.types import Dim


class _Printer(PythonPrinter):
    """Python as a person writes it: torch's own prints ``(-2) + n``."""

    _print_Add = StrPrinter._print_Add


_PRINTER = _Printer()
_LOGGERS = ("torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes")
_CONDITIONS = (sympy.core.relational.Relational, sympy.logic.boolalg.BooleanFunction)


@dataclass(frozen=True)
class Condition:
    """What must hold of a call's sizes: in words, and as a function of the sizes by name."""

    text: str
    holds: Callable[[Mapping[str, int]], bool]


class Symbols(ShapeEnv):
    """The symbolic sizes of one program.

    Attributes:
        mode: torch's fake tensors, whose shapes may have these sizes.
        variables: the variable of each size in the IR, by the size's name.
    """

    def __init__(self) -> None:
        # Sizes that happen to be equal are still two sizes.
        super().__init__(
            duck_shape=False, allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False
        )
        self.mode = FakeTensorMode(shape_env=self, allow_non_fake_inputs=True)
        self.variables: dict[str, tirx.Var] = {}
        self._sizes: dict[str, Any] = {}
        self._names: dict[sympy.Symbol, str] = {}
        self._samples: dict[str, int] = {}
        self._in_row = False

    def size(self, dim: Dim) -> Any:
        """The size of a name, for torch to compute with."""
        if dim.name not in self._sizes:
            source = ConstantSource(dim.name)
            symbol = self.create_symbol(dim.sample, source, dynamic_dim=DimDynamic.DYNAMIC)
            self._names[symbol] = dim.name
            self._samples[dim.name] = dim.sample
            self.variables[dim.name] = tirx.Var(dim.name, "int64")
            self._sizes[dim.name] = self.create_symintnode(symbol, hint=dim.sample, source=source)
        return self._sizes[dim.name]

    @contextlib.contextmanager
    def row(self) -> Iterator[None]:
        """A row is being built, which may ask how sizes compare, and not for their numbers."""
        before, self._in_row = self._in_row, True
        try:
            yield
        finally:
            self._in_row = before

    def evaluate_expr(self, orig_expr: Any, *args: Any, **kwargs: Any) -> Any:
        """Torch's decision about a symbolic number, which becomes a guard.

        Raises:
            Unsupported: a row asks for the number itself.
        """
        if isinstance(orig_expr, _CONDITIONS) or not orig_expr.free_symbols:
            return super().evaluate_expr(orig_expr, *args, **kwargs)
        if self._in_row:
            raise Unsupported("a symbolic size")
        if not orig_expr.is_integer:
            # A guard on a float would compare roundings: the sizes it comes from are constants.
            self.fix(orig_expr)
        return super().evaluate_expr(orig_expr, *args, **kwargs)

    def require_unrelated(self) -> None:
        """Start over where torch has found sizes to be equal or constant.

        Raises:
            Related: it has.
        """
        found: dict[str, str | int] = {}
        for symbol, name in self._names.items():
            other = self.replace(symbol)
            if other != symbol and other in self._names:
                found[name] = self._names[other]
            elif other.is_Integer:
                found[name] = int(other)
        if found:
            raise Related(found)

    @contextlib.contextmanager
    def typing(self) -> Iterator[None]:
        """torch computes with fake tensors inside."""
        loggers = [logging.getLogger(name) for name in _LOGGERS]
        before = [logger.disabled for logger in loggers]
        for logger in loggers:
            logger.disabled = True  # what they say, we say as a message
        try:
            # The dispatcher knows symbolic sizes where torch's kernels in C++ do not.
            with enable_python_dispatcher(), self.mode:
                yield
        finally:
            for logger, disabled in zip(loggers, before):
                logger.disabled = disabled

    def sample(self, number: Any) -> Any:
        """What a symbolic number is for the sizes that the program is compiled with."""
        return self.function(number)(self._samples)

    def require_computable(self, sizes: Sequence[torch.SymInt]) -> None:
        """Make constants of sizes that kernels cannot compute.

        Raises:
            Related: torch has found sizes to be equal or constant, or these are constant now.
        """
        for size in sizes:
            try:
                self.expr(size)
            except Unsupported:
                self.fix(size)
        self.require_unrelated()

    def fix(self, number: Any) -> None:
        """Make constants of the sizes that a number depends on."""
        for symbol in sorted(_expr(number).free_symbols, key=str):
            super().evaluate_expr(symbol, self._samples[self._names[symbol]])

    def text(self, number: Any) -> str:
        """A symbolic number in the names of its sizes, as Python."""
        return self._source(number, self._names)

    def named(self, message: str) -> str:
        """A message of torch's, with the names of sizes in place of torch's own."""
        names = {str(symbol): name for symbol, name in self._names.items()}
        return re.sub(r"\bs\d+\b", lambda found: names.get(found[0], found[0]), message)

    def conditions(self) -> tuple[Condition, ...]:
        """What must hold of a call's sizes for this to be its program."""
        found = dict.fromkeys(guard.expr for guard in self.guards)
        return tuple(Condition(self.text(expr), self.function(expr)) for expr in found)

    def function(self, number: Any) -> Callable[[Mapping[str, int]], Any]:
        """A symbolic number, or a condition, as a function of the sizes by name."""
        symbols = sorted(_expr(number).free_symbols, key=str)
        # Under names of ours: a size may be called `max`.
        source = self._source(number, {symbol: f"_{i}" for i, symbol in enumerate(symbols)})
        parameters = ", ".join(f"_{i}" for i in range(len(symbols)))
        computed = eval(f"lambda {parameters}: {source}", {"math": math, "torch": torch})
        names = [self._names[symbol] for symbol in symbols]
        return lambda sizes: computed(*[sizes[name] for name in names])

    def _source(self, number: Any, names: Mapping[sympy.Symbol, str]) -> str:
        expr = _expr(number)
        renamed = {
            symbol: sympy.Symbol(names[symbol], integer=True, positive=True)
            for symbol in expr.free_symbols
            if symbol in names
        }
        return str(_PRINTER.doprint(expr.xreplace(renamed)))

    def expr(self, number: Any) -> tirx.PrimExpr:
        """A symbolic integer as an expression of the IR.

        Raises:
            Unsupported: it is computed in a way that kernels have no integers for.
        """
        expr = _expr(number)
        if isinstance(expr, sympy.Symbol):
            return self.variables[self._names[expr]]
        if isinstance(expr, sympy.Integer):
            return tirx.IntImm("int64", int(expr))
        for kind, make in _MAKE.items():
            if isinstance(expr, kind):
                return make([self.expr(arg) for arg in expr.args])
        raise Unsupported("a symbolic size")


def _expr(number: Any) -> Any:
    return number.node.expr if isinstance(number, SYMBOLIC) else number


def _power(args: Sequence[Any]) -> tirx.PrimExpr:
    base, exponent = args
    if not isinstance(exponent, tirx.IntImm) or int(exponent) < 1:
        raise Unsupported("a symbolic size")
    return reduce(lambda x, y: x * y, [base] * int(exponent))


_MAKE: dict[Any, Callable[[Sequence[Any]], tirx.PrimExpr]] = {
    sympy.Add: lambda args: reduce(lambda x, y: x + y, args),
    sympy.Mul: lambda args: reduce(lambda x, y: x * y, args),
    sympy.Pow: _power,
    functions.PowByNatural: _power,
    functions.FloorDiv: lambda args: tirx.floordiv(*args),
    functions.CleanDiv: lambda args: tirx.floordiv(*args),
    functions.Mod: lambda args: tirx.floormod(*args),
    functions.PythonMod: lambda args: tirx.floormod(*args),
    functions.Max: lambda args: reduce(tirx.max, args),
    functions.Min: lambda args: reduce(tirx.min, args),
}
"""How each function of sympy's and torch's is computed on sizes."""
