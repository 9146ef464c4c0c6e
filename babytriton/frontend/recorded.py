"""What tensors say of how torch records them: attributes that their types do not tell."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from babytriton import errors
from babytriton.frontend.captures import Guard, Place
from babytriton.frontend.known import grad_of
from babytriton.frontend.program import Hidden
from babytriton.ops.value import NeedsConstant, Value

if TYPE_CHECKING:
    from babytriton.frontend.codegen import CodeGenerator

ATTRIBUTES = frozenset(
    ("_base", "_grad_fn", "_version", "grad", "grad_fn", "is_leaf", "output_nr", "requires_grad")
)
"""Those that meta tensors, which stand for tensors while a program is compiled, have otherwise."""

_GRAD = "pass it as an argument of its own, such as f(x, x.grad)"


def attribute(at: CodeGenerator, node: ast.AST, value: Value, name: str) -> Any:
    """One of these attributes of a tensor of the program."""
    if name not in _ASKED:
        at.fail(errors.UnsupportedSyntax(at.span(node), name, "read it outside the function"))
    number = at.program.input_of(value)
    if number is None:
        # Made by the program: torch records it where gradients flow through it.
        is_leaf = not value.requires_grad
        found = {"requires_grad": not is_leaf, "is_leaf": is_leaf, "grad": None, "grad_fn": None}
        return _function(at, node, is_leaf) if name == "grad_fn" else found[name]
    input = at.program.inputs[number]
    if isinstance(input, Hidden):
        return _of_hidden(at, node, input.place, name)
    return _of_argument(at, node, value, at.program.path_of(number), name)


def _of_hidden(at: CodeGenerator, node: ast.AST, place: Place, name: str) -> Any:
    """An attribute of a tensor from outside the function, which is watched."""
    captures, tensor = at.program.captures, place.read()
    if name != "grad":
        asked = "is_leaf" if name == "grad_fn" else name
        found = _ASKED[asked](tensor)
        there = Place(f"{place.path}.{asked}", lambda: _ASKED[asked](place.read()))
        captures.watch((id(tensor), asked), Guard.of_object(there, found, str(found)))
        return _function(at, node, found) if name == "grad_fn" else found
    return captures.lift(
        Place(f"{place.path}.grad", lambda: grad_of(place.read())), grad_of(tensor)
    )


def _of_argument(at: CodeGenerator, node: ast.AST, value: Value, path: str, name: str) -> Any:
    if name == "requires_grad" and value.requires_grad:
        return True
    known = at.program.known.get(path)
    if known is None:
        raise NeedsConstant(frozenset((path,)))
    if name == "grad":
        if known.has_grad:
            at.fail(errors.UnsupportedSyntax(at.span(node), f"{path}.grad", _GRAD))
        return None
    if name == "grad_fn":
        return _function(at, node, known.is_leaf)
    return known.is_leaf if name == "is_leaf" else known.requires_grad


def _function(at: CodeGenerator, node: ast.AST, is_leaf: bool) -> None:
    """``grad_fn``, which leaves have none of, and which programs have nothing to stand for."""
    if not is_leaf:
        instead = "ask for is_leaf or requires_grad"
        at.fail(errors.UnsupportedSyntax(at.span(node), "grad_fn", instead))


_ASKED: dict[str, Callable[[torch.Tensor], Any]] = {
    "requires_grad": lambda tensor: tensor.requires_grad,
    "is_leaf": lambda tensor: tensor.is_leaf,
    "grad": grad_of,
    "grad_fn": lambda tensor: tensor.grad_fn,
}
