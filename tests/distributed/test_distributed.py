"""Compiled functions in two processes, which gloo connects."""

from __future__ import annotations

from tests.distributed import checks, spawning


def test_in_two_processes() -> None:
    """One test, as the processes are started once: it says which of the checks fail."""
    failures = spawning.failures(checks.__name__, list(checks.CHECKS))
    assert not any(failures.values()), "\n".join(
        f"{name}: {text}" for name, text in failures.items() if text
    )
