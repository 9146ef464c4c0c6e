"""Python's syntax that has no meaning in a compiled function, and what to write instead."""

from __future__ import annotations

import ast

_ASYNC = "leave async and await out: a compiled call does not wait for anything"
_INSTEAD: dict[str, tuple[str, str]] = {
    "Try": (
        "try",
        "leave it out: a compiled function does not catch errors; handle them around its call",
    ),
    "Match": ("match", "use if and elif"),
    "Yield": ("yield", "collect the values in a list and return it"),
    "ClassDef": ("class", "define the class outside the function"),
    "Global": ("global", "return the new value, and assign it outside"),
    "Nonlocal": ("nonlocal", "return the new value from the inner function"),
    "AsyncFunctionDef": ("async def", "write def: a compiled call does not wait for anything"),
    "Await": ("await", _ASYNC),
    "AsyncFor": ("async for", _ASYNC),
    "AsyncWith": ("async with", _ASYNC),
}
_INSTEAD["TryStar"] = _INSTEAD["Try"]
_INSTEAD["YieldFrom"] = _INSTEAD["Yield"]


def described(node: ast.AST) -> tuple[str, str]:
    """What a user calls a piece of syntax, and what to write instead of it."""
    kind = type(node).__name__
    return _INSTEAD.get(kind, (kind, ""))
