"""Two processes that run checks, each of which all of them take part in."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

PROCESSES = 2
SECONDS = 240
"""Until which the processes must be done: one that waits for another does so forever."""

Checks = Mapping[str, Callable[[int], None]]


def failures(module: str, names: list[str]) -> dict[str, str]:
    """Run checks of a module in several processes; what went wrong, by the check's name.

    Args:
        module: which has ``CHECKS``, functions of the process's number by name.
        names: of the checks.

    Returns:
        By name: nothing where both processes found what they should, else what they found. Where
        one did not, also how each process ended and what it said.
    """
    with tempfile.TemporaryDirectory() as folder:
        processes = [_started(module, names, folder, rank) for rank in range(PROCESSES)]
        try:
            for process in processes:
                process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            pass
        finally:
            for process in processes:
                process.kill()
                process.wait()
        found = {}
        for name in names:
            texts = [Path(folder, f"{name}.{rank}") for rank in range(PROCESSES)]
            each = [path.read_text() if path.exists() else "it did not end" for path in texts]
            found[name] = "\n".join(filter(None, each))
        if any(found.values()):
            for rank, process in enumerate(processes):
                said = Path(folder, f"said.{rank}").read_text()
                found[f"process {rank}"] = f"ended with {process.returncode}, having said:\n{said}"
        return found


def _started(module: str, names: list[str], folder: str, rank: int) -> subprocess.Popen[bytes]:
    """One of the processes; what it says goes to a file, with the stack where it crashes."""
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.distributed.spawning"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with open(Path(folder, f"said.{rank}"), "wb") as said:
        return subprocess.Popen(
            [*command, module, folder, str(rank), *names],
            env=environment,
            cwd=Path(__file__).parents[2],
            stdout=said,
            stderr=subprocess.STDOUT,
        )


def main(module: str, folder: str, rank: int, names: list[str]) -> None:
    """Run checks in this process, which is one of several."""
    import importlib

    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    checks: Checks = importlib.import_module(module).CHECKS
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=PROCESSES)
    for name in names:
        text = ""
        torch.manual_seed(0)
        try:
            checks[name](rank)
        except Exception:
            text = f"in process {rank}:\n{traceback.format_exc()}"
        Path(folder, f"{name}.{rank}").write_text(text)
        if text:
            # The other process may wait for this one, and not be in the same check.
            os._exit(1)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:])
