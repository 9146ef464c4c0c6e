"""``BABYTRITON_DUMP``: every stage of every compile as files."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from pathlib import Path

# What the files of the kinds of source are called.
_ENDINGS = {"ast": "ast", "python": "py", "relax": "relax", "tir": "tir", "llvm": "ll", "asm": "s"}
_ENDINGS["cuda"] = "cu"

# What follows from the others, and from the machine.
_MACHINE = ("llvm", "asm")


def dump(
    folder: Path, name: str, signature: str, kinds: Iterable[str], source: Callable[[str], str]
) -> Path:
    """Write a program's sources to a folder of their own within one.

    The folder's name tells the function, and its signature and stages by a hash: the same program
    writes the same files each time. Kinds that need tools beyond this package are left out.

    Args:
        folder: made if it is not there.
        name: of the function.
        signature: and target, as a text.
        kinds: of source that there are.
        source: gives the source of a kind.

    Returns:
        The program's folder.

    Raises:
        OSError: files cannot be written there; its text names the variable.
    """
    texts = {kind: source(kind) for kind in kinds if kind in _ENDINGS}
    told = [text for kind, text in texts.items() if kind not in _MACHINE]
    digest = hashlib.sha256("\n".join([signature, *told]).encode()).hexdigest()[:8]
    own = folder / f"{re.sub(r'[^A-Za-z0-9_]+', '_', name)}-{digest}"
    try:
        own.mkdir(parents=True, exist_ok=True)
        (own / "signature.txt").write_text(f"{signature}\n")
        for kind, text in texts.items():
            (own / f"{kind}.{_ENDINGS[kind]}").write_text(text)
    except OSError as error:
        why = f"BABYTRITON_DUMP={folder}: {error.strerror}"
        raise type(error)(error.errno, why, error.filename) from None
    return own
