"""What carries compiled functions into other frameworks: a module each, known to no other part.

A module is loaded when it is first asked for, ``bt.integrations.transformers``, and may need a
package that babytriton does not.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from babytriton import errors
from babytriton.wrappers import WRAPPERS


def _on_dtensors() -> Any:
    return importlib.import_module(f"{__name__}.dtensor").call


WRAPPERS.register("torch.distributed.tensor", "DTensor", _on_dtensors)


def __getattr__(name: str) -> Any:
    try:
        return importlib.import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"{__name__}.{name}":
            raise
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None


def require(module: str, what: str, package: str) -> ModuleType:
    """Import a package that only some users have.

    Args:
        module: to import.
        what: needs it.
        package: what pip calls it.

    Raises:
        ImportError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
            raise
        raise errors.MissingPackage(None, what, module, package).error() from None
