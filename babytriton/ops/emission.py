"""What is emitted into a program whatever it means: expressions, TensorIR functions, effects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from tvm import ir, relax, te, tirx
from tvm.ir import PrimType, Type
from tvm.relax.script import builder as R
from tvm.script.ir_builder import ir as I

from babytriton.diagnostics import Span
from babytriton.ops.counted import Counted
from babytriton.ops.fallback import TORCH_CALL, TorchCall
from babytriton.ops.functions import closed, from_te
from babytriton.ops.meta import meta_of
from babytriton.ops.placement import Placement
from babytriton.ops.sizes import SYMBOLIC, constant
from babytriton.ops.trees import map_leaves
from babytriton.ops.value import values_in
from babytriton.ops.views import Views
from babytriton.targets import Target
from babytriton.types import TensorType

if TYPE_CHECKING:
    from babytriton.ops.symbols import Symbols

OPAQUE = 8
"""FuseOps' number for operators that fuse with nothing."""


class Emission:
    """Emits into the open Relax function.

    Args:
        device: the device the program is called on.
        target: what it is compiled for there.
        symbols: the sizes that are known only at the call, where there are any.
    """

    def __init__(self, device: torch.device, target: Target, symbols: Symbols | None) -> None:
        self.symbols = symbols
        self.target = target
        self.device = device
        """Where the call that is being emitted runs."""
        self.span: Span | None = None
        """The user's expression being compiled."""
        self.placement = Placement(device, target)
        self.on_torch_call: Callable[[TorchCall], None] = lambda call: None
        """Told of each fallback as its parameter is declared."""
        self.names: dict[str, int] = {}
        """The names of the program's functions, and the number each was given last."""
        self.effects = 0
        """How many calls the program makes for what they do, and not for a result."""
        self.views = Views()
        """Which of the program's tensors lie in the memory of others."""
        self.counted = Counted()
        """Which of them count along an axis."""
        self.bindings: dict[relax.Var, relax.Expr] = {}
        """What each variable stands for that is computed."""
        self.functions: dict[ir.GlobalVar, tirx.PrimFunc] = {}
        """The program's TensorIR functions."""

    def meta(self, type: TensorType) -> torch.Tensor:
        """A contiguous tensor of a type that has no storage."""
        return meta_of(type, self.symbols)

    def emit(self, expr: relax.Expr, place: ir.Span | None = None) -> relax.Var:
        """Bind a Relax expression, which is of the user's line or another place, to a variable."""
        if place is None and (at := self.span) is not None:
            place = ir.Span(ir.SourceName(at.path), at.line, at.end_line, at.column, at.end_column)
        if isinstance(expr, relax.Call) and place is not None:
            expr = relax.Call(expr.op, expr.args, expr.attrs, expr.ty_args, place)
        undone = self.views.undone(expr) if isinstance(expr, relax.Call) else None
        expr = expr if undone is None else undone
        found = R.emit(expr)
        self.views.note(found, expr)
        self.counted.note(found, expr)
        self.bindings[found] = expr
        return found

    def emit_te(
        self,
        name: str,
        fn: Callable[..., te.Tensor],
        *inputs: relax.Expr,
        attrs: Mapping[str, Any] | None = None,
    ) -> relax.Var:
        """Emit a tensor expression as one TensorIR function, under a name of its own."""
        function, given, types = from_te(fn, inputs, attrs)
        return self.emit_function(name, function, given, types)

    def emit_function(
        self, name: str, function: tirx.PrimFunc, inputs: Sequence[relax.Expr], types: list[Type]
    ) -> relax.Var:
        """Emit a call of a TensorIR function, under a name of its own: :meth:`called`."""
        return self.emit(self.called(name, function, inputs, types))

    def called(
        self, name: str, function: tirx.PrimFunc, inputs: Sequence[relax.Expr], types: list[Type]
    ) -> relax.Call:
        """Add a TensorIR function to the program, under a name of its own, and call it.

        Args:
            name: of the function.
            function: its parameters are the inputs and then the results.
            inputs: Relax expressions of tensors and numbers.
            types: of the results; of several, the call gives a tuple.
        """
        variables = () if self.symbols is None else self.symbols.variables.values()
        function, sizes = closed(function, len(inputs), variables)
        if sizes:
            # FuseTIR mixes them up.
            function = function.with_attr("op_pattern", OPAQUE)
        variable = I.decl_function(self.unique(name), function)
        self.functions[variable] = function
        if inputs:  # what is made of nothing is made where it is read
            types = [self.placement.annotated(type, self.device) for type in types]
        out = types if len(types) > 1 else types[0]
        return relax.call_tir(variable, [*inputs, *sizes], out_ty=out)

    def unique(self, name: str) -> str:
        """A name for a TensorIR function; relax refuses a second one instead of renaming it."""
        found = name
        while found in self.names:
            self.names[name] = count = self.names.get(name, 0) + 1
            found = f"{name}_{count}"
        self.names.setdefault(found, 0)
        return found

    def size_argument(self, name: str) -> tirx.Var:
        """Declare a parameter for a size that each call computes."""
        return R.arg(name, PrimType("int64"))

    def float_parameter(self, name: str) -> ir.Var:
        """Declare a parameter for a float."""
        return R.arg(name, PrimType("float64"))

    def effect(
        self, name: str, fn: Callable[..., None], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Emit a call for what it does: at each run, in the order of the program.

        Args:
            name: of the call.
            fn: takes the arguments, with real tensors and strings for the values and texts.
            args: values, texts and Python objects, nested in tuples, lists and dicts.
            kwargs: likewise.
        """
        # As they are now: a list among them may grow before the program runs.
        args, kwargs = map_leaves((args, kwargs), SYMBOLIC, constant)
        exprs = [value.expr for value in values_in((args, kwargs))]
        operands = self.torch_operands(TorchCall(fn, args, kwargs, ()), self.unique(name), exprs)
        # Unlike call_pure_packed, no pass may remove this call or move it past another.
        R.emit(relax.Call(relax.ExternFunc(TORCH_CALL), operands, ty_args=[relax.TupleType([])]))
        self.effects += 1

    def torch_operands(
        self, call: TorchCall, name: str, exprs: Sequence[relax.Expr]
    ) -> list[relax.Expr]:
        """What the packed function of a call takes: the call, a parameter, and what it reads."""
        parameter = R.arg(name, relax.ObjectType())
        self.on_torch_call(call)
        return [parameter, *exprs]
