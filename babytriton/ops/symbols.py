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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
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
from babytriton.ops.sizes import SYMBOLIC, is_known
from babytriton.types import Dim


class _Printer(PythonPrinter):
    """Python as a person writes it: torch's own prints ``(-2) + n``."""

    _print_Add = StrPrinter._print_Add

    def _print_ToFloat(self, expr: sympy.Expr) -> str:
        return f"float({self._print(expr.args[0])})"

    def _print_OpaqueUnaryFn_sqrt(self, expr: sympy.Expr) -> str:
        return f"math.sqrt({self._print(expr.args[0])})"


_PRINTER = _Printer()
_DIVISIONS = (functions.FloorDiv, functions.Mod, functions.PythonMod)
_INVOLVED = 3
"""Divisions in one condition, beyond which torch may think about it for minutes."""

_LOGGERS = ("torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes")
_CONDITIONS = (sympy.core.relational.Relational, sympy.logic.boolalg.BooleanFunction)


@dataclass(frozen=True)
class Conditions:
    """What must hold of a call's sizes.

    Attributes:
        each: a condition as Python, and as a function of the sizes by name.
        hold: whether all of them hold, as a function of the sizes by name.
    """

    each: tuple[tuple[str, Callable[[Mapping[str, int]], bool]], ...]
    hold: Callable[[Mapping[str, int]], bool]

    def failing(self, sizes: Mapping[str, int]) -> str | None:
        """The first that does not hold."""
        return next((text for text, holds in self.each if not holds(sizes)), None)


class Symbols(ShapeEnv):
    """The symbolic sizes of one program.

    Attributes:
        mode: torch's fake tensors, whose shapes may have these sizes.
        variables: the variable of each size in the IR, by the size's name or as it is computed.
        declare: gives a variable to a size that is computed.
    """

    declare: Callable[[torch.SymInt], tirx.Var]

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
        self._of_one: list[torch.SymInt] = []
        """Sizes with variables that are computed to be 1 for those compiled with."""
        self._in_row = False

    def size(self, dim: Dim) -> Any:
        """The size of a name, for torch to compute with."""
        if dim.name not in self._sizes:
            source = ConstantSource(dim.name)
            symbol = self.create_symbol(dim.sample, source, dynamic_dim=DimDynamic.DYNAMIC)
            self._names[symbol] = dim.name
            self._samples[dim.name] = dim.sample
            self.variables[dim.name] = tirx.Var(re.sub(r"\W+", "_", dim.name), "int64")
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
        if sum(isinstance(x, _DIVISIONS) for x in sympy.preorder_traversal(orig_expr)) > _INVOLVED:
            self.fix(orig_expr)
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

        What is computed from sizes and is 1 is of constants then: by its variable, kernels would
        not know that it broadcasts.

        Raises:
            Related: it has.
        """
        for size in self._of_one:
            if is_known(size == 1):
                self.fix(size)
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

    def fix(self, number: Any) -> None:
        """Make constants of the sizes that a number depends on."""
        for symbol in sorted(_expr(number).free_symbols, key=str):
            super().evaluate_expr(symbol, self._samples[self._names[symbol]])

    def divides(self, size: torch.SymInt) -> bool:
        """Whether a size is computed by division."""
        return bool(_expr(size).atoms(*_DIVISIONS))

    def divided(self, number: Any, by: Any) -> tuple[Any, Any]:
        """Quotient and remainder of numbers that may be symbolic, whatever the sizes are.

        The quotient takes what can be divided without a rest, so that the remainder may be greater
        than what it is divided by, where sizes do not tell.
        """
        dividend, divisor = (sympy.expand(_expr(n)) for n in (number, by))
        exact = sympy.cancel(dividend / divisor)
        if _is_whole(exact):
            return self._number(exact), 0
        quotients = [sympy.cancel(term / divisor) for term in sympy.Add.make_args(dividend)]
        whole = [sympy.floor(q) if q.is_Rational else q for q in quotients]
        quotient = sympy.Add(*(q for q in whole if _is_whole(q)))
        rest = sympy.expand(dividend - quotient * divisor)
        if not is_known(self._number(rest) >= 0):
            quotient, rest = quotient - 1, rest + divisor
        return self._number(quotient), self._number(rest)

    def bounds(self, size: torch.SymInt) -> list[Any]:
        """Sizes that are no less than one: what it is the least of, or itself."""
        expr = _expr(size)
        parts = expr.args if isinstance(expr, (sympy.Min, functions.Min)) else (expr,)
        return [self._number(part) for part in parts]

    def _number(self, expr: sympy.Expr) -> Any:
        return int(expr) if expr.is_Integer else self.create_symintnode(expr, hint=None)

    def text(self, number: Any) -> str:
        """A symbolic number in the names of its sizes, as Python."""
        return self._source(number, self._names)

    def named(self, message: str) -> str:
        """A message of torch's, with the names of sizes in place of torch's own."""
        names = {str(symbol): name for symbol, name in self._names.items()}
        return re.sub(r"\bs\d+\b", lambda found: names.get(found[0], found[0]), message)

    def conditions(self) -> Conditions:
        """What must hold of a call's sizes for this to be its program."""
        # In torch's order: a condition may divide by what one before it says is not zero.
        found = list(dict.fromkeys(guard.expr for guard in self.guards))
        each = tuple((self.text(expr), self.function(expr)) for expr in found)
        return Conditions(each, self.function(*found) if found else lambda sizes: True)

    def function(self, *numbers: Any) -> Callable[[Mapping[str, int]], Any]:
        """A symbolic number, or whether conditions hold, as a function of the sizes by name."""
        exprs = [_expr(number) for number in numbers]
        symbols = sorted(set().union(*(expr.free_symbols for expr in exprs)), key=str)
        # Under names of ours: a size may be called `max`.
        names = {symbol: f"_{i}" for i, symbol in enumerate(symbols)}
        source = " and ".join(f"({self._source(expr, names)})" for expr in exprs)
        computed = eval(
            f"lambda {', '.join(names.values())}: {source}", {"math": math, "torch": torch}
        )
        sizes = [self._names[symbol] for symbol in symbols]
        return lambda given: computed(*[given[name] for name in sizes])

    def _source(self, number: Any, names: Mapping[sympy.Symbol, str]) -> str:
        expr = _expr(number)
        renamed = {
            symbol: sympy.Symbol(names[symbol], integer=True, positive=True)
            for symbol in expr.free_symbols
            if symbol in names
        }
        return str(_PRINTER.doprint(expr.xreplace(renamed)))

    def expr(self, size: torch.SymInt) -> tirx.PrimExpr:
        """A symbolic integer in the IR: a constant, or a variable.

        A size that is computed from others has a variable of its own, which each call is given.
        FuseTIR mixes up the variables of a shape such as ``(n + m,)``.
        """
        expr = _expr(size)
        if isinstance(expr, sympy.Integer):
            return tirx.IntImm("int64", int(expr))
        text = self.text(size)
        if text not in self.variables:
            self.variables[text] = self.declare(size)
            if self.sample(size) == 1:
                self._of_one.append(size)
        return self.variables[text]


def _is_whole(expr: sympy.Expr) -> bool:
    """Whether nothing is divided by anything: of ``n - 5/4`` itself there is no denominator."""
    return bool(sympy.denom(sympy.together(expr)) == 1)


def _expr(number: Any) -> Any:
    """The expression of a symbolic number, in which equal sizes look equal.

    torch leaves a minimum of ``n`` and ``n - 1``, the length of ``x[:-1]``, as it is.
    """
    expr = number.node.expr if isinstance(number, SYMBOLIC) else number
    for theirs, simplified in ((functions.Min, sympy.Min), (functions.Max, sympy.Max)):
        if isinstance(expr, sympy.Basic) and expr.has(theirs):
            expr = expr.replace(theirs, simplified)
    return expr
