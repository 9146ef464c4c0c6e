"""``with`` blocks: devices, what stops gradients, and what means nothing to a program."""

from __future__ import annotations

import ast
import contextlib
from typing import Any, NoReturn

import torch

from babytriton import errors
from babytriton.device import device
from babytriton.frontend.assignment import Assignments
from babytriton.frontend.control_flow import ControlFlow
from babytriton.frontend.exits import Exits

_NO_GRADIENTS = (torch.no_grad, torch.inference_mode)
_NOTHING = (device, contextlib.nullcontext, torch.autograd.profiler.record_function)


class Contexts(Assignments, ControlFlow):
    """Blocks under a context manager."""

    def visit_With(self, node: ast.With) -> Exits:
        return self._enter(node, list(node.items))

    def _enter(self, node: ast.With, items: list[ast.withitem]) -> Exits:
        if not items:
            return self.block(node.body)
        item, *rest = items
        manager = self.visit(item.context_expr)
        entered = self._entered(item, manager)
        if item.optional_vars is not None:
            self.bind(item.optional_vars, entered)
        if isinstance(manager, _NO_GRADIENTS):
            with self.program.builder.tape.switched(off=True):
                return self._enter(node, rest)
        if isinstance(manager, torch.autocast):
            dtype = manager.fast_dtype if manager._enabled else None
            with self.program.builder.autocast.within(manager.device, dtype):
                return self._enter(node, rest)
        if not isinstance(manager, device):
            return self._enter(node, rest)
        placement = self.program.builder.placement
        with self.program.blaming(self.span(item.context_expr), "device", ()):
            place = placement.find(manager.device)
        if place != placement.home:
            placement.span = placement.span or self.span(item.context_expr)
        with placement.within(place):
            return self._enter(node, rest)

    def _entered(self, item: ast.withitem, manager: Any) -> Any:
        """What ``as`` binds, where the block means the same without its manager."""
        if isinstance(manager, contextlib.nullcontext):
            return manager.enter_result
        if isinstance(manager, (*_NO_GRADIENTS, *_NOTHING, torch.autocast)):
            return manager
        if isinstance(manager, torch.enable_grad):
            return self._refuse(item, "leave it out: gradients are on, unless turned off")
        if isinstance(manager, torch.device):
            return self._refuse(item, "say where to compute: with bt.device(...):")
        return self._refuse(item, "put it around the call of the compiled function")

    def _refuse(self, item: ast.withitem, instead: str) -> NoReturn:
        text = self.source.segment(item.context_expr)
        self.fail(errors.UnsupportedContext(self.span(item.context_expr), text, instead))
