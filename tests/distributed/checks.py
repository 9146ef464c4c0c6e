"""All checks that the processes run, in one go: to start them takes longer than most checks."""

from __future__ import annotations

from tests.distributed import dtensors, training

CHECKS = {**dtensors.CHECKS, **training.CHECKS}
