"""``with`` blocks: those that mean nothing where no gradients are recorded, and no others."""

from __future__ import annotations

import ast
import contextlib
from typing import Any, NoReturn

import torch

from babytriton import errors
from babytriton.device import device
from babytriton.frontend.assignment import Assignments

_NO_GRADIENTS = (torch.no_grad, torch.inference_mode)
_NOTHING = (device, contextlib.nullcontext, torch.autograd.profiler.record_function)


class Contexts(Assignments):
    """Blocks under a context manager."""

    def visit_With(self, node: ast.With) -> None:
        self._enter(node, list(node.items))

    def _enter(self, node: ast.With, items: list[ast.withitem]) -> None:
        if not items:
            for statement in node.body:
                self.visit(statement)
            return
        item, *rest = items
        manager = self.visit(item.context_expr)
        entered = self._entered(item, manager)
        if item.optional_vars is not None:
            self.bind(item.optional_vars, entered)
        placement = self.program.builder.placement
        around = placement.block
        if isinstance(manager, device):
            with self.program.blaming(self.span(item.context_expr), "device", ()):
                placement.block = placement.find(manager.device)
        try:
            self._enter(node, rest)
        finally:
            placement.block = around

    def _entered(self, item: ast.withitem, manager: Any) -> Any:
        """What ``as`` binds, where the block means the same without its manager."""
        if isinstance(manager, contextlib.nullcontext):
            return manager.enter_result
        if isinstance(manager, (*_NO_GRADIENTS, *_NOTHING)):
            return manager
        if isinstance(manager, torch.autocast):
            if not manager._enabled:
                return manager
            return self._refuse(item, "cast where it is meant: x.to(torch.bfloat16)")
        if isinstance(manager, torch.enable_grad):
            return self._refuse(item, "leave it out: compiled functions record no gradients")
        if isinstance(manager, torch.device):
            return self._refuse(item, "say where to compute: with bt.device(...):")
        return self._refuse(item, "put it around the call of the compiled function")

    def _refuse(self, item: ast.withitem, instead: str) -> NoReturn:
        text = self.source.segment(item.context_expr)
        self.fail(errors.UnsupportedContext(self.span(item.context_expr), text, instead))
