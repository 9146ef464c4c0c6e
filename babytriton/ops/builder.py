"""The one door to the IR: torch types a call, its row builds it, or torch itself runs it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from tvm import relax, te
from tvm.ir import PrimType, Var
from tvm.relax.script import builder as R
from tvm.script.ir_builder import IRBuilder

from babytriton.diagnostics import Span
from babytriton.ops.fallback import TORCH_CALL, Fallback, TorchCall
from babytriton.ops.meta import replace_tensors, tensors_of, typed
from babytriton.ops.placement import Placement
from babytriton.ops.refusals import RowError, Unsupported, refuse_mutation
from babytriton.ops.site import Site, relax_type, type_of
from babytriton.ops.table import Callee, Op
from babytriton.ops.value import NeedsConstant, Scalar, Value, map_values, values_in
from babytriton.targets import Target
from babytriton.types import TensorType

_NUMPY_NAMES = {"axis": "dim", "keepdims": "keepdim"}
"""NumPy's names of parameters, which torch takes everywhere; rows know torch's own."""


class Builder:
    """Emits a program, one torch call at a time, into the open Relax function.

    Args:
        table: the row of each torch callable.
        device: the device the program is called on.
        target: what it is compiled for there.
    """

    def __init__(self, table: Mapping[Callee, Op], device: torch.device, target: Target) -> None:
        self.table = table
        self.device = device
        """Where the call that is being emitted runs."""
        self.placement = Placement(device, target)
        self.span: Span | None = None
        """The user's expression being compiled."""
        self.fallbacks: list[Fallback] = []
        self.on_torch_call: Callable[[TorchCall], None] = lambda call: None
        """Told of each fallback as its parameter is declared."""
        self.rows: list[Op] = []
        """Every row that built Relax, in order of use."""
        self.is_pure = True
        """Whether the program does nothing but compute its results."""
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
        """
        refuse_mutation(fn, kwargs)
        if self._depth:
            return self._call(fn, args, kwargs)
        place = self.placement.of_call(fn, args, kwargs, values_in((args, kwargs)))
        before, self.device = self.device, place or self.placement.home
        try:
            args, kwargs = map_values(
                (args, kwargs), lambda value: self.placement.moved(value, self.device)
            )
            return self._call(fn, args, kwargs)
        finally:
            self.device = before

    def _call(self, fn: Callee, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if fn in (torch.Tensor.cpu, torch.Tensor.cuda):
            # A meta tensor has no numbers to copy there.
            fn, args, kwargs = torch.Tensor.to, (args[0], self.device), {}
        op = self.table.get(fn)
        values = values_in((args, kwargs))
        self._check_scalars(fn, op, values)
        result = typed(self.device, fn, args, kwargs)
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
        if not values:
            built = [self._placed(expr) for expr in built]
        wrapped = iter([Value(self, expr, meta) for expr, meta in zip(built, metas)])
        return replace_tensors(result, lambda _: next(wrapped))

    def _placed(self, expr: relax.Expr) -> relax.Expr:
        """A result that was made of nothing, and so by no operand's device."""
        if self._depth or self.device == self.placement.home or expr.ty.vdevice is not None:
            return expr
        return R.emit(relax.op.to_vdevice(expr, self.placement.vdevice(self.device)))

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
        typed(self.device, lambda other: fn(value.meta.clone(), other), (operand,), {})

    def argument(self, name: str, type: TensorType) -> Value:
        """Declare a tensor parameter of the program."""
        return Value(self, R.arg(name, relax_type(type)), type.meta())

    def float_argument(self, name: str, argument: str, sample: float) -> Scalar:
        """Declare a Python float parameter, kept variable at run time.

        Args:
            name: of the parameter.
            argument: what the user calls it, for asking that it be constant.
            sample: the value it has at this call.
        """
        number = R.arg(name, PrimType("float64"))
        expr = self.emit_te("number", lambda x: te.compute((), lambda: x, name=name), number)
        return Scalar(self, expr, sample, frozenset([argument]))

    def emit_te(
        self,
        name: str,
        fn: Callable[..., te.Tensor],
        *inputs: relax.Expr,
        attrs: Mapping[str, Any] | None = None,
    ) -> relax.Var:
        """Emit a tensor expression as one TensorIR function, under a name of its own."""
        unique = self.unique(name)
        return R.emit(R.emit_te(fn, *inputs, primfunc_name_hint=unique, primfunc_attrs=attrs))

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
            reason = getattr(fn, "why", "not in the operator table")
        elif op.why is not None:
            reason = op.why
        else:
            try:
                return self._build_row(op, args, kwargs, result, metas)
            except Unsupported as unsupported:
                reason = str(unsupported)
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
        try:
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
        for expr, meta in zip(exprs, metas):
            if type_of(expr) != TensorType.of(meta):
                raise RowError(
                    f"row {op.name} gave {type_of(expr)}, torch gives {TensorType.of(meta)}"
                )
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
        call = TorchCall(fn, args, kwargs, tuple(TensorType.of(meta) for meta in metas))
        operands = self._operands(call, f"torch_{name}_{len(self.fallbacks)}")
        self.fallbacks.append(Fallback(name, reason, self.span))
        types = [self.placement.annotated(relax_type(type), self.device) for type in call.results]
        results = R.emit(
            relax.op.call_pure_packed(TORCH_CALL, *operands, ty_args=[relax.TupleType(types)])
        )
        return [R.emit(relax.TupleGetItem(results, i)) for i in range(len(types))]

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
        args, kwargs = map_values((args, kwargs), lambda value: value)
        operands = self._operands(TorchCall(fn, args, kwargs, ()), self.unique(name))
        # Unlike call_pure_packed, no pass may remove this call or move it past another.
        R.emit(relax.Call(relax.ExternFunc(TORCH_CALL), operands, ty_args=[relax.TupleType([])]))
        self.is_pure = False

    def _operands(self, call: TorchCall, name: str) -> list[relax.Expr]:
        """What the packed function of a call takes: the call, a parameter, and its values."""
        parameter = R.arg(name, relax.ObjectType())
        self.on_torch_call(call)
        return [parameter, *(value.expr for value in values_in((call.args, call.kwargs)))]


def _storage(meta: torch.Tensor) -> int:
    return int(meta.untyped_storage()._cdata)


def _bound(part: Any) -> relax.Expr:
    """What a row built, as a variable; one that hands an operand through stays that operand."""
    expr = part.expr if isinstance(part, Value) else part
    return expr if isinstance(expr, Var) else R.emit(expr)
