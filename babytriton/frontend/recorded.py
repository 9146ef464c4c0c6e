"""What tensors say of how torch records them: attributes that their types do not tell."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from babytriton import errors
from babytriton.frontend.captures import Guard, Place
from babytriton.frontend.known import grad_of
from babytriton.frontend.program import Hidden
from babytriton.ops.value import NeedsConstant, Value

if TYPE_CHECKING:
    from babytriton.frontend.codegen import CodeGenerator

_OTHERS = ("_base", "_grad_fn", "_version", "output_nr")
"""What programs have no answer to, and meta tensors would give a wrong one."""

ATTRIBUTES = frozenset(("grad", "grad_fn", "is_leaf", "requires_grad", *_OTHERS))
"""Those that the meta tensors of a program have otherwise than the tensors they stand for."""

_GRAD = "pass it as an argument of its own, such as f(x, x.grad)"


def attribute(at: CodeGenerator, node: ast.AST, value: Value, name: str) -> Any:
    """One of these attributes of a tensor of the program."""
    if name in _OTHERS:
        at.fail(errors.UnsupportedSyntax(at.span(node), name, "read it outside the function"))
    if name == "grad_fn":
        if not attribute(at, node, value, "is_leaf"):
            instead = "ask for is_leaf or requires_grad"
            at.fail(errors.UnsupportedSyntax(at.span(node), name, instead))
        return None
    number = at.program.input_of(value)
    if number is None:
        # Made by the program: torch records it where gradients flow through it.
        follows = value.requires_grad
        return {"requires_grad": follows, "is_leaf": not follows, "grad": None}[name]
    input = at.program.inputs[number]
    if isinstance(input, Hidden):
        return _of_hidden(at, input.place, name)
    return _of_argument(at, node, value, at.program.path_of(number), name)


def _of_hidden(at: CodeGenerator, place: Place, name: str) -> Any:
    """An attribute of a tensor from outside the function, which is watched."""
    captures, tensor = at.program.captures, place.read()
    path = f"{place.path}.{name}"
    if name == "grad":
        return captures.lift(Place(path, lambda: grad_of(place.read())), grad_of(tensor))
    found = getattr(tensor, name)
    there = Place(path, lambda: getattr(place.read(), name))
    captures.watch((id(tensor), name), Guard.of_object(there, found, str(found)))
    return found


def _of_argument(at: CodeGenerator, node: ast.AST, value: Value, path: str, name: str) -> Any:
    if name == "requires_grad" and value.requires_grad:
        return True
    known = at.program.known.get(path)
    found = None if known is None else getattr(known, name)
    if found is None:
        raise NeedsConstant(frozenset(f"{each}.{name}" for each in _beside(at, path)))
    if name == "grad":
        if found:
            at.fail(errors.UnsupportedSyntax(at.span(node), f"{path}.grad", _GRAD))
        return None
    return found


def _beside(at: CodeGenerator, path: str) -> Iterator[str]:
    """The tensors of the same parameter, of which the same is likely to be asked."""
    parameter = path.partition("[")[0]
    for input, each, _ in at.program.types:
        if isinstance(input, int) and each.partition("[")[0] == parameter:
            yield each
