"""Programs as a virtual machine runs them: on the CPU, those that write much are left to one."""

from __future__ import annotations

import dataclasses
from unittest import mock

import babytriton as bt
from babytriton import running
from babytriton.runtime import direct


def by_machine(compiled: bt.Compiled) -> bt.Compiled:
    """The same program, which a virtual machine runs however little it writes."""
    found = dataclasses.replace(compiled)
    with mock.patch.object(running, "LARGE", 0), mock.patch.object(direct, "LARGE", 0):
        _ = found.runner
    return found
