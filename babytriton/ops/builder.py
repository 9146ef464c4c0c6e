"""The one door to the IR: torch types a call, its row builds it, or torch itself runs it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from tvm import relax, te, tirx
from tvm.error import InternalError
from tvm.ir import PrimType, Type, Var
from tvm.relax.script import builder as R
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import ir as I

from babytriton.diagnostics import Span
from babytriton.ops.fallback import TORCH_CALL, Fallback, TorchCall
from babytriton.ops.functions import closed, from_te
from babytriton.ops.meta import meta_of, replace_tensors, tensors_of, typed
from babytriton.ops.refusals import RowError, Unsupported, refuse_mutation
from babytriton.ops.site import Site, relax_type
from babytriton.ops.sizes import constant, int64, is_symbolic, same_shape, symbolic_in
from babytriton.ops.table import Callee, Op
from babytriton.ops.trees import map_leaves
from babytriton.ops.value import NeedsConstant, Scalar, Value, values_in
from babytriton.types import Dim, TensorType, dtype_of, size_text

if TYPE_CHECKING:
    from babytriton.ops.symbols import Symbols

_NUMPY_NAMES = {"axis": "dim", "keepdims": "keepdim"}
"""NumPy's names of parameters, which torch takes everywhere; rows know torch's own."""

_OPAQUE = 8
"""FuseOps' number for operators that fuse with nothing."""


class Builder:
    """Emits a program, one torch call at a time, into the open Relax function.

    Args:
        table: the row of each torch callable.
        device: the device the program runs on.
        symbols: the sizes that are known only at the call, where there are any.
    """

    def __init__(
        self, table: Mapping[Callee, Op], device: torch.device, symbols: Symbols | None = None
    ) -> None:
        self.table = table
        self.device = device
        self.symbols = symbols
        self.span: Span | None = None
        """The user's expression being compiled."""
        self.fallbacks: list[Fallback] = []
        self.on_torch_call: Callable[[TorchCall], None] = lambda call: None
        """Told of each fallback as its parameter is declared."""
        self.on_number: Callable[[torch.SymFloat], Scalar] = constant
        """Declares a parameter for a float that is computed from symbolic sizes at the call."""
        self.rows: list[Op] = []
        """Every row that built Relax, in order of use."""
        self._depth = 0
        self.names: dict[str, int] = {}
        """How many more functions of the program would have had each name."""
        self._aliases: dict[int, list[torch.Tensor]] = {}

    def call(self, fn: Callee, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Emit a call of a torch callable.

        Args:
            fn: a function, or a method or property of ``torch.Tensor``.
            args: values and Python objects, nested in tuples, lists and dicts.
            kwargs: likewise.

        Returns:
            The result with a :class:`Value` for each tensor; a Python object where torch gives
            one.

        Raises:
            IllTyped: torch refuses the arguments.
            Mutation: the call is in place.
            NeedsConstant: a run-time float stands where a constant must.
            Related: symbolic sizes turn out to be equal, or constant.
        """
        refuse_mutation(fn, kwargs)
        if self.symbols is not None and symbolic_in((args, kwargs)):
            return self._call_with_numbers(fn, args, kwargs)
        return self._call(fn, args, kwargs)

    def _call_with_numbers(self, fn: Callee, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call with numbers that depend on symbolic sizes: floats, where they may, as inputs."""
        kinds = (torch.SymFloat, torch.SymBool)
        op = self.table.get(fn)
        if op is not None and op.scalars:
            given = map_leaves((args, kwargs), torch.SymFloat, self.on_number)
            try:
                return self._call(fn, *map_leaves(given, torch.SymBool, constant))
            except NeedsConstant as needed:
                if needed.arguments:  # of the user's: not, or not only, our numbers
                    raise
        return self._call(fn, *map_leaves((args, kwargs), kinds, constant))

    def _call(self, fn: Callee, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if fn is torch.Tensor.cpu:
            # A meta tensor has no numbers to copy there.
            fn, args = torch.Tensor.to, (*args, "cpu")
        op = self.table.get(fn)
        values = values_in((args, kwargs))
        self._check_scalars(fn, op, values)
        result = typed(self.device, self.symbols, fn, args, kwargs)
        if self.symbols is not None:
            self.symbols.require_unrelated()
        metas = tensors_of(result)
        if not metas:
            if values and all(isinstance(v, Scalar) for v in values):
                return self._scalar_result(fn, args, kwargs, values, result)
            return result
        for value in values:
            # Methods such as contiguous() return the tensor itself.
            if result is value.meta:
                return value
        for meta in metas if self._depth == 0 else ():
            self._aliases.setdefault(_storage(meta), []).append(meta)
        built = self._build(op, fn, args, kwargs, result, metas)
        wrapped = iter([Value(self, expr, meta) for expr, meta in zip(built, metas)])
        return replace_tensors(result, lambda _: next(wrapped))

    def name(self, name: str, value: Value) -> None:
        """Give a value the name that the user's code gives it."""
        IRBuilder.name(name, value.expr)

    def has_views(self, value: Value) -> bool:
        """Whether the user's code holds another tensor in the memory of this one."""
        return len(self._aliases.get(_storage(value.meta), ())) > 1

    def check_in_place(self, fn: Callee, value: Value, operand: Any) -> None:
        """Let torch say whether ``fn``, such as ``operator.iadd``, may write into ``value``.

        Raises:
            IllTyped: the result has another shape, or a dtype that cannot be cast back.
        """
        typed(
            self.device, self.symbols, lambda other: fn(value.meta.clone(), other), (operand,), {}
        )

    def argument(self, name: str, type: TensorType) -> Value:
        """Declare a tensor parameter of the program."""
        meta = meta_of(type, self.symbols)
        return Value(self, R.arg(name, relax_type(TensorType.of(meta))), meta)

    def float_argument(self, name: str, argument: str | None, sample: float) -> Scalar:
        """Declare a Python float parameter, kept variable at run time.

        Args:
            name: of the parameter.
            argument: what the user calls it, for asking that it be constant; ``None`` where it is
                computed from sizes.
            sample: the value it has at this call.
        """
        number = R.arg(name, PrimType("float64"))
        # FuseOps takes a float for a size, where a kernel needs sizes of its caller as well.
        attrs = None if self.symbols is None else {"op_pattern": _OPAQUE}
        expr = self.emit_te(
            "number", lambda x: te.compute((), lambda: x, name=name), number, attrs=attrs
        )
        return Scalar(self, expr, sample, frozenset([argument] if argument else []))

    def size_argument(self, name: str) -> tirx.Var:
        """Declare a parameter for a size that each call computes."""
        return R.arg(name, PrimType("int64"))

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
        """Emit a call of a TensorIR function, under a name of its own.

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
            function = function.with_attr("op_pattern", _OPAQUE)
        variable = I.decl_function(self.unique(name), function)
        out = types if len(types) > 1 else types[0]
        return R.emit(relax.call_tir(variable, [*inputs, *sizes], out_ty=out))

    def unique(self, name: str) -> str:
        """A name for a TensorIR function; relax refuses a second one instead of renaming it."""
        count = self.names[name] = self.names.get(name, -1) + 1
        return f"{name}_{count}" if count else name

    def _check_scalars(self, fn: Callee, op: Op | None, values: list[Value]) -> None:
        scalars = [value for value in values if isinstance(value, Scalar)]
        if scalars and not (op is not None and op.scalars):
            raise NeedsConstant(frozenset().union(*(s.arguments for s in scalars)))

    def _scalar_result(
        self,
        fn: Callee,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        values: list[Value],
        sample: Any,
    ) -> Scalar:
        """Arithmetic among Python floats, which stays a Python float of the run time."""
        arguments = frozenset().union(
            *(value.arguments for value in values if isinstance(value, Scalar))
        )
        # Python raises on division by zero and overflow where a kernel would not.
        total = (operator.add, operator.sub, operator.mul, operator.neg, operator.pos)
        if fn not in total or not isinstance(sample, float):
            raise NeedsConstant(arguments)
        meta = torch.empty((), dtype=torch.float64, device="meta")
        (expr,) = self._build(self.table.get(fn), fn, args, kwargs, meta, [meta])
        return Scalar(self, expr, sample, arguments)

    def _build(
        self,
        op: Op | None,
        fn: Callee,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        metas: list[torch.Tensor],
    ) -> list[relax.Expr]:
        operands = [value.meta for value in values_in((args, kwargs))]
        if any(meta.numel() == 0 for meta in (*operands, *metas)):
            reason = "a tensor without elements"
        elif op is None:
            reason = "not in the operator table"
        elif op.why is not None:
            reason = op.why
        else:
            try:
                return self._build_row(op, args, kwargs, result, metas)
            except Unsupported as unsupported:
                reason = str(unsupported)
            except (TypeError, InternalError):
                # Rows are written for Python ints, and so is TVM: a row that was not made for
                # symbolic sizes stumbles over the first one.
                if not any(map(is_symbolic, _sizes(operands, metas))):
                    raise
                reason = "a symbolic size"
        return self._call_torch(fn, args, kwargs, metas, reason)

    def _build_row(
        self,
        op: Op,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        metas: list[torch.Tensor],
    ) -> list[relax.Expr]:
        # Where ``out`` is given at all, it is None: anything else is a mutation.
        kwargs = {_NUMPY_NAMES.get(k, k): value for k, value in kwargs.items() if k != "out"}
        self._depth += 1
        in_row = nullcontext() if self.symbols is None else self.symbols.row()
        try:
            with in_row:
                if op.build is not None:
                    built = op.build(Site(self, result), *args, **kwargs)
                else:
                    assert op.decompose is not None
                    built = op.decompose(*args, **kwargs)
        finally:
            self._depth -= 1
        parts = list(built) if isinstance(built, (tuple, list)) else [built]
        exprs = [_bound(part) for part in parts]
        if len(exprs) != len(metas):
            raise RowError(f"row {op.name} gave {len(exprs)} results, torch gives {len(metas)}")
        exprs = [_checked(op, expr, meta) for expr, meta in zip(exprs, metas)]
        self.rows.append(op)
        operands = [value.expr for value in values_in((args, kwargs))]
        return [self._own(expr, meta, operands) for expr, meta in zip(exprs, metas)]

    def _own(self, expr: relax.Expr, meta: torch.Tensor, operands: list[relax.Expr]) -> relax.Expr:
        """A copy, where a row hands an operand through and torch gives memory of its own."""
        if meta._is_view() or not any(expr.same_as(operand) for operand in operands):
            return expr
        return self.emit_te(
            "copy", lambda x: te.compute(x.shape, lambda *i: x(*i), name="copy"), expr
        )

    def _call_torch(
        self,
        fn: Callee,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        metas: list[torch.Tensor],
        reason: str,
    ) -> list[relax.Expr]:
        name = getattr(fn, "__name__", type(fn).__name__)
        values = values_in((args, kwargs))
        scalars = [value for value in values if isinstance(value, Scalar)]
        if scalars:
            raise NeedsConstant(frozenset().union(*(s.arguments for s in scalars)))
        if "device" in kwargs:
            kwargs = kwargs | {"device": self.device}
        elif not values:
            # A factory such as torch.rand: its tensors belong on the program's device.
            kwargs = kwargs | {"device": self.device}
        types = tuple(TensorType.of(meta) for meta in metas)
        sizes = {size_text(n): n for n in symbolic_in((args, kwargs, [t.shape for t in types]))}
        held_args, held_kwargs = map_leaves((args, kwargs), torch.SymInt, _as_dim)
        call = TorchCall(
            fn,
            held_args,
            held_kwargs,
            tuple(TensorType(map_leaves(t.shape, torch.SymInt, _as_dim), t.dtype) for t in types),
            tuple(sizes),
        )
        parameter = R.arg(f"torch_{name}_{len(self.fallbacks)}", relax.ObjectType())
        self.on_torch_call(call)
        self.fallbacks.append(Fallback(name, reason, self.span))
        results = R.emit(
            relax.op.call_pure_packed(
                TORCH_CALL,
                parameter,
                *map(int64, sizes.values()),
                *(value.expr for value in values),
                ty_args=[relax.TupleType([relax_type(type) for type in types])],
            )
        )
        return [R.emit(relax.TupleGetItem(results, i)) for i in range(len(types))]


def _storage(meta: torch.Tensor) -> int:
    return int(meta.untyped_storage()._cdata)


def _sizes(*tensors: Sequence[torch.Tensor]) -> list[Any]:
    return [n for metas in tensors for meta in metas for n in meta.shape]


def _as_dim(size: torch.SymInt) -> Dim:
    return Dim(size_text(size), 2)


def _checked(op: Op, expr: relax.Expr, meta: torch.Tensor) -> relax.Expr:
    """What a row built, held against torch's type of it."""
    type = TensorType.of(meta)
    if str(expr.ty.dtype) == dtype_of(meta.dtype).name and expr.ty.ndim == meta.ndim:
        if same_shape(expr.ty.shape, meta.shape):
            return expr
        if any(map(is_symbolic, meta.shape)):
            # Sizes that Relax has computed are none of ours: this compares them at the call.
            return R.emit_match_cast(expr, relax_type(type))
    raise RowError(f"row {op.name} gave {expr.ty}, torch gives {type}")


def _bound(part: Any) -> relax.Expr:
    """What a row built, as a variable; one that hands an operand through stays that operand."""
    expr = part.expr if isinstance(part, Value) else part
    return expr if isinstance(expr, Var) else R.emit(expr)
