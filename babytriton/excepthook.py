"""Python's excepthook, kept from before TVM is loaded, which puts its own in the place.

A user's uncaught error would then be printed without its message.
"""

from __future__ import annotations

import sys

BEFORE_TVM = sys.excepthook
