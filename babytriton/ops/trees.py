"""Leaves in nested tuples, lists, dicts and slices, as arguments of torch calls are nested."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from babytriton.containers import sequence
from babytriton.types import Dim

Kinds = type | tuple[type, ...]


def leaves_in(tree: Any, kinds: Kinds) -> list[Any]:
    """The leaves of some kinds, in order."""
    if isinstance(tree, kinds):
        return [tree]
    if isinstance(tree, list):  # of one of the program's, what it has by itself
        return [leaf for item in list.__iter__(tree) for leaf in leaves_in(item, kinds)]
    if isinstance(tree, tuple):
        return [leaf for item in tree for leaf in leaves_in(item, kinds)]
    if isinstance(tree, dict):
        return [leaf for item in tree.values() for leaf in leaves_in(item, kinds)]
    if isinstance(tree, slice):
        return leaves_in((tree.start, tree.stop, tree.step), kinds)
    return []


def map_leaves(tree: Any, kinds: Kinds, fn: Callable[[Any], Any]) -> Any:
    """The same tree with ``fn`` applied to each leaf of some kinds."""
    if isinstance(tree, kinds):
        return fn(tree)
    if isinstance(tree, (tuple, list)):
        return _like_sequence(tree, [map_leaves(item, kinds, fn) for item in tree])
    if isinstance(tree, dict):
        return {key: map_leaves(item, kinds, fn) for key, item in tree.items()}
    if isinstance(tree, slice):
        return slice(*(map_leaves(x, kinds, fn) for x in (tree.start, tree.stop, tree.step)))
    return tree


def _like_sequence(like: tuple[Any, ...] | list[Any], items: list[Any]) -> Any:
    if isinstance(like, list):
        return items
    # A torch.Size has numbers alone, and not what stands for one.
    is_plain = type(like) is torch.Size and leaves_in(items, Dim)
    return tuple(items) if is_plain else sequence(type(like), items)
