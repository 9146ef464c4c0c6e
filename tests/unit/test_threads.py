"""CPU kernels on torch's threads."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
import tvm

import babytriton as bt
from tests.unit.kernels import CPU


@bt.jit("cpu")
def scaled(x):
    return x * 2 + 1


LARGE = torch.arange(1 << 18, dtype=torch.float32).reshape(512, 512)


@pytest.fixture
def threads():
    """torch's number of threads, which is put back."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def count():
    return len(os.listdir("/proc/self/task"))


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="no /proc to count threads in")
def test_no_threads_but_torchs(threads):
    threads(3)
    LARGE * 2  # torch starts its own
    before = count()
    assert torch.equal(scaled(LARGE), LARGE * 2 + 1)
    assert count() == before


@pytest.mark.parametrize("number", [1, 2, 5])
def test_any_number_of_threads(threads, number):
    threads(number)
    assert torch.equal(scaled(LARGE), LARGE * 2 + 1)


@bt.jit("cpu", dynamic=True)
def of_any_size(x):
    return torch.softmax(x @ x * 2, -1)


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="no /proc to count threads in")
def test_a_little_work_wakes_no_threads(threads):
    given = [LARGE[:n, :n].contiguous() / (1 << 18) for n in (2, 7, 20, 512)]
    threads(11)  # more than any test before has started
    before = count()
    results = [of_any_size(x) for x in given[:-1]]
    assert count() == before
    results.append(of_any_size(given[-1]))
    assert count() > before
    for x, result in zip(given, results):
        torch.testing.assert_close(result, torch.softmax(x @ x * 2, -1))


def test_calls_from_several_threads_at_once(threads):
    threads(2)
    scaled(LARGE)
    wrong = []

    def work(offset):
        x = LARGE + offset
        for _ in range(20):
            if not torch.equal(scaled(x), x * 2 + 1):
                wrong.append(offset)

    workers = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


FORKED = """
import os, signal, threading, time
import torch
import babytriton as bt
from babytriton.runtime.executable import COMPILE_LOCK

torch.set_num_threads(1)
started = threading.Event()

@bt.jit("cpu")
def f(x):
    return x * 2 + 1

def compile_for_long():
    with COMPILE_LOCK:
        started.set()
        time.sleep(1)

threading.Thread(target=compile_for_long).start()
started.wait()
child = os.fork()
if child == 0:
    signal.alarm(60)
    x = torch.arange(6.0)
    os._exit(0 if torch.equal(f(x), x * 2 + 1) else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_a_process_forked_beside_a_compile_compiles(tmp_path: Path):
    path = tmp_path / "forked.py"
    path.write_text(FORKED)
    command = [sys.executable, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "0\n", done.stderr


def test_other_users_of_tvm_keep_its_threads():
    scaled(LARGE)

    @tvm.script.tirx.prim_func(s_tir=True)
    def barriers(x: tvm.script.tirx.Buffer((64,), "float32")):
        for i in tvm.script.tirx.parallel(64):
            with tvm.script.tirx.sblock("x"):
                v = tvm.script.tirx.axis.spatial(64, i)
                x[v] = tvm.script.tirx.float32(3)

    built = tvm.compile(barriers, target=CPU)
    x = torch.zeros(64)
    built(x)
    assert torch.equal(x, torch.full((64,), 3.0))
