"""One call of one row: what its ``build`` writes into."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from tvm import ir, relax, te, tirx
from tvm.ir import Type

from babytriton.ops import numerics
from babytriton.ops.functions import INJECTIVE, in_calls
from babytriton.ops.meta import meta_of
from babytriton.ops.sizes import int64, is_symbolic
from babytriton.ops.value import Value
from babytriton.types import TensorType, dtype_of, find_dtype

if TYPE_CHECKING:
    from babytriton.ops.builder import Builder


class Site:
    """One call of one row, for its ``build`` to write into.

    Attributes:
        out: torch's result of the call, with meta tensors; a tuple where there are several.
    """

    def __init__(self, builder: Builder, out: Any) -> None:
        self.builder = builder
        self.out = out

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the one result."""
        return _only(self.out).dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the one result."""
        return tuple(_only(self.out).shape)

    def expr(self, operand: Any, dtype: torch.dtype | None = None) -> relax.Expr:
        """An operand as Relax: a value, or a Python number as a constant.

        Args:
            operand: a :class:`Value` or a Python number.
            dtype: to cast to; a value's own, or the result's for a number, if not given.
        """
        if isinstance(operand, Value):
            return self.cast(operand.expr, dtype or operand.meta.dtype)
        return self.number(operand, dtype or self.dtype)

    def number(self, number: Any, dtype: torch.dtype) -> relax.Expr:
        """A Python number, or a symbolic size, as a tensor without dimensions."""
        name = dtype_of(dtype).name
        if not is_symbolic(number):
            return relax.const(number, name)
        return self.te("size", lambda: compute((), lambda: int64(number).astype(name), "size"))

    def cast(self, expr: relax.Expr, dtype: torch.dtype) -> relax.Expr:
        """``expr`` converted to ``dtype`` as ``Tensor.to`` converts."""
        expr = self.emit(expr) if isinstance(expr, relax.Call) else expr
        source = _torch_dtype(expr)
        if source == dtype:
            return expr
        if dtype == torch.bool:
            # Of NaN, TVM's own comparison says on the CPU that it is not unequal to 0.
            shape = expr.ty.shape
            return self.compute("bool", shape, lambda x, *i: numerics.is_true(x[0](*i)), expr)
        if source.is_floating_point and not dtype.is_floating_point and dtype_of(dtype).bits < 32:
            # Out-of-range floats wrap, as in C through a wide integer, instead of being poison.
            expr = self.emit(relax.op.astype(expr, "int64"))
        return self.emit(relax.op.astype(expr, dtype_of(dtype).name))

    def value(self, expr: relax.Expr, shape: Sequence[int], dtype: torch.dtype) -> Value:
        """An expression of a known type, to go on with in plain torch."""
        meta = meta_of(TensorType(tuple(shape), dtype), self.builder.symbols)
        return Value(self.builder, self.emit(expr), meta)

    def emit(self, expr: relax.Expr) -> relax.Var:
        """Bind a Relax expression to a variable."""
        return self.builder.emit(expr)

    def te(self, name: str, fn: Callable[..., Any], *inputs: relax.Expr) -> relax.Var:
        """Emit a tensor expression as one TensorIR function.

        Args:
            name: of the function, as it appears in kernels' names.
            fn: takes a ``te.Tensor`` for each input and returns one, or a list of them.
            inputs: Relax expressions of tensors.
        """
        return self.builder.emit_te(name, fn, *inputs)

    def kernel(
        self,
        name: str,
        function: tirx.PrimFunc,
        inputs: Sequence[relax.Expr],
        *types: TensorType,
    ) -> relax.Var:
        """Emit a call of a TensorIR function.

        Args:
            name: of the function, as it appears in kernels' names.
            function: its parameters are the inputs and then the results.
            inputs: Relax expressions of tensors.
            types: of the results; of several, the call gives a tuple.
        """
        # A global symbol would be that of the whole module, whatever the function is called in it.
        private = function.without_attr("global_symbol")
        return self.builder.emit_function(name, private, inputs, [relax_type(t) for t in types])

    def compute(
        self, name: str, shape: Sequence[int], body: Callable[..., Any], *inputs: relax.Expr
    ) -> relax.Var:
        """Emit one elementwise or gathering computation.

        Args:
            name: of the computation.
            shape: of its result.
            body: ``body(tensors, *indices)`` gives one element, where ``tensors`` are the
                inputs as ``te.Tensor``.
            inputs: Relax expressions of tensors.
        """

        def fn(*tensors: te.Tensor) -> te.Tensor:
            return compute(shape, lambda *index: body(tensors, *index), name)

        return self.te(name, fn, *inputs)

    def gather(
        self, name: str, shape: Sequence[int], body: Callable[..., Any], *inputs: relax.Expr
    ) -> relax.Var:
        """As :meth:`compute`, where inputs are read at places that other inputs hold."""

        def fn(*tensors: te.Tensor) -> te.Tensor:
            return compute(shape, lambda *index: body(tensors, *index), name)

        # TVM takes what reads at places it cannot foresee to be opaque, and fuses it with nothing.
        return self.builder.emit_te(name, fn, *inputs, attrs=INJECTIVE)


def compute(
    shape: Sequence[int],
    body: Callable[..., Any],
    name: str,
    notes: Mapping[str, Any] | None = None,
) -> te.Tensor:
    """``te.compute`` over a shape of sizes.

    FuseTIR refuses to join buffers whose shapes are int32 constants, which is what ``te.compute``
    makes of Python ints.

    Args:
        shape: of the result.
        body: gives an element.
        name: of the computation.
        notes: what its block is annotated with, which the body may still add to.
    """

    def element(*index: tirx.Var) -> Any:
        found = body(*index)
        is_element = isinstance(found, ir.Expr) and not isinstance(found, tirx.Reduce)
        return in_calls(found) if is_element else found

    return te.compute(tuple(int64(n) for n in shape), element, name=name, attrs=notes)


def relax_type(type: TensorType) -> Type:
    """A tensor type as Relax has it."""
    return relax.TensorType([int64(n) for n in type.shape], dtype_of(type.dtype).name)


def type_of(expr: relax.Expr) -> TensorType:
    """The tensor type that Relax infers for an expression."""
    sizes = (int(n) if isinstance(n, tirx.IntImm) else n for n in expr.ty.shape)
    return TensorType(tuple(sizes), _torch_dtype(expr))


def _torch_dtype(expr: relax.Expr) -> torch.dtype:
    found = find_dtype(str(expr.ty.dtype))
    assert found is not None
    return found.torch


def _only(out: Any) -> torch.Tensor:
    assert isinstance(out, torch.Tensor)
    return out
