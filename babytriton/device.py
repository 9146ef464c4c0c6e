"""``device``: the block whose operations run on another device than the rest of a function."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

_KINDS = ("cpu", "cuda")


class device(TorchFunctionMode):
    """What is computed under ``with device("gpu"):`` is computed there, and its operands moved.

    A compiled function places the kernels of the block on the device. In plain Python, the
    tensors that a torch function is given inside the block are moved to it.

    Args:
        device: ``"cpu"``, ``"gpu"`` (another name for ``"cuda"``), ``"cuda:1"``, or a
            ``torch.device`` of these.

    Raises:
        TypeError: it is neither a name nor a ``torch.device``.
        ValueError: there are no kernels for such a device.
    """

    def __init__(self, device: str | torch.device) -> None:
        super().__init__()
        if not isinstance(device, (str, torch.device)):
            raise TypeError(f"device must be a name or a torch.device, not {device!r}")
        kind, colon, index = str(device).partition(":")
        kind = "cuda" if kind == "gpu" else kind
        if kind not in _KINDS or (colon and not index.isdigit()):
            raise ValueError(f"unknown device {str(device)!r}: expected 'cpu', 'gpu' or 'cuda:0'")
        self.device = torch.device(kind + colon + index)

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        args, kwargs = tree_map_only(
            torch.Tensor, lambda x: x.to(self.device), (tuple(args), kwargs or {})
        )
        with torch.device(self.device):
            return func(*args, **kwargs)

    def __repr__(self) -> str:
        return f"device({str(self.device)!r})"
