"""Names beyond torch: TensorIR functions, Relax's library, and rows that user code registered."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from babytriton.frontend.captures import Guard, Place
from babytriton.ops import library, tensorir

if TYPE_CHECKING:
    from babytriton.frontend.codegen import CodeGenerator


def is_beyond_torch(fn: Any) -> bool:
    """Whether it is a TensorIR function, or a function of ``tvm.relax.op``."""
    return tensorir.is_prim_func(fn) or library.is_library_function(fn)


def call(
    at: CodeGenerator, node: ast.AST, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Compile a call of such a function."""
    builder = at.program.builder
    name = at.source.segment(node.func) if isinstance(node, ast.Call) else type(fn).__name__
    with at.program.blaming(at.span(node), name, (args, kwargs)):
        if library.is_library_function(fn):
            found = library.call_library(builder, fn, args, kwargs)
            builder.note_unknown(name, (args, kwargs), found)
            return found
        result, written = tensorir.call_by_name(builder, name, fn, args, kwargs)
        builder.note_unknown(name, (args, kwargs), (result, [new for _, new in written]))
        for tensor, contents in written:
            builder.call(torch.Tensor.copy_, (tensor, contents), {})
        return result


@contextlib.contextmanager
def rows_of(at: CodeGenerator, fn: Any) -> Iterator[None]:
    """Compile with the operator table of a compiled function, which is inlined."""
    builder, rows = at.program.builder, fn.__babytriton_rows__
    version, outer = rows.version, builder.table
    place = Place(f"the rows registered for {fn.__name__}", lambda: rows.version)
    at.program.captures.guards.append(Guard(place, lambda now: now == version))
    builder.table = rows.table
    try:
        yield
    finally:
        builder.table = outer
