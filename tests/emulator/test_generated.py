"""TVM's own kernels run on the emulator, and what is wrong with one shows."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from . import ORDERS, Order, available_gpu, install, launches, missing, run, thread_order
from .generated import Rewrite, Schedule, compiled, cuda_source, matmul, scheduled, softmax

pytestmark = pytest.mark.skipif(available_gpu() is None, reason=missing() or "")
emulated_only = pytest.mark.skipif(available_gpu() == "real", reason="there is a real GPU")


@emulated_only
def test_installing_again_changes_nothing() -> None:
    install()
    install()
    import tvm

    assert tvm.cuda(0).exist
    assert tvm.cuda(0).compute_version == "9.0"


@emulated_only
def test_install_after_tvm_was_imported() -> None:
    """Whoever imports TVM first must not decide whether the tests can run."""
    program = (
        "import tvm; assert not tvm.cuda(0).exist\n"
        "from tests.emulator import install; install(); assert tvm.cuda(0).exist"
    )
    repository = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", program], cwd=repository, check=True)


def test_softmax(order: Order) -> None:
    x = torch.randn(4, 1000)
    [y] = run(compiled(softmax()), "main", [x])
    torch.testing.assert_close(y, x.softmax(-1))


@emulated_only
def test_launches_are_counted() -> None:
    executable = compiled(softmax())
    before = launches()
    run(executable, "main", [torch.randn(4, 1000)])
    assert launches() == before + 1


DTYPES = [
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool,
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_travels(dtype: torch.dtype) -> None:
    """Through nested tuples too, with an argument that is a view off its tensor's alignment."""
    from tvm import relax

    name = str(dtype).removeprefix("torch.")

    def swap(x: Any, y: Any) -> Any:
        return relax.Tuple([relax.op.permute_dims(y), relax.Tuple([relax.op.permute_dims(x)])])

    x, y = (torch.arange(13)[1:].reshape(3, 4) % 2).to(dtype), torch.ones(2, 5).to(dtype)
    executable = compiled(scheduled(swap, ((3, 4), name), ((2, 5), name)))
    first, second = run(executable, "main", [x, y])
    assert torch.equal(first, y.t())
    assert torch.equal(second, x.t())


def orders_that_fail(executable: Any, inputs: list[torch.Tensor], expected: torch.Tensor) -> str:
    """The initials of the orders in which the result is wrong."""
    failed = ""
    for order in ORDERS:
        with thread_order(order, seed=1):
            [result] = run(executable, "main", inputs)
        if not torch.allclose(result, expected, rtol=1e-3, atol=1e-5 * expected.abs().max().item()):
            failed += order[0]
    return failed


def without_barrier(number: int) -> Rewrite:
    def rewrite(source: str) -> str:
        pieces = source.split("__syncthreads();")
        before, after = pieces[: number + 1], pieces[number + 1 :]
        return "__syncthreads();".join(before) + "__syncthreads();".join(after)

    return rewrite


@emulated_only
@pytest.mark.parametrize(
    ("make", "shapes", "reference", "caught"),
    [
        # Barriers 1 and 4 stand between a write and a read by the same thread: nothing needs them.
        (
            softmax,
            [(4, 1000)],
            lambda x: x.softmax(-1),
            {0: "f", 1: "", 2: "rs", 3: "fs", 4: "", 5: "rs"},
        ),
        (matmul, [(64, 96), (96, 64)], torch.matmul, {0: "frs", 1: "frs"}),
    ],
    ids=["softmax", "matmul"],
)
def test_a_dropped_barrier_is_caught(
    make: Callable[[], Schedule],
    shapes: list[tuple[int, ...]],
    reference: Callable[..., torch.Tensor],
    caught: dict[int, str],
) -> None:
    """`caught`: for each barrier of the kernel, the orders in which its absence shows."""
    module = make()
    generator = torch.Generator().manual_seed(0)
    # Large: a softmax that subtracts a wrong maximum is then wrong too, for it overflows.
    inputs = [100 * torch.randn(shape, generator=generator) for shape in shapes]
    whole = compiled(module)
    assert orders_that_fail(whole, inputs, reference(*inputs)) == ""
    barriers = cuda_source(whole).count("__syncthreads();")
    found = {
        number: orders_that_fail(
            compiled(module, without_barrier(number)), inputs, reference(*inputs)
        )
        for number in range(barriers)
    }
    assert found == caught


@emulated_only
def test_tvm_reports_a_failed_launch() -> None:
    def diverge(source: str) -> str:
        return source.replace("__syncthreads();", "if (threadIdx.x) __syncthreads();", 1)

    with pytest.raises(Exception, match="divergent barrier: of 256 threads, 255 wait"):
        run(compiled(softmax(), diverge), "main", [torch.randn(4, 1000)])


@emulated_only
def test_a_reduction_of_bytes_needs_lockstep() -> None:
    """TVM leaves out the barriers within a warp where it cannot shuffle."""
    from tvm import relax

    executable = compiled(scheduled(lambda x: relax.op.sum(x, axis=1), ((3, 70), "int8")))
    x = torch.ones(3, 70, dtype=torch.int8)
    for order in ORDERS:
        with thread_order(order):
            assert run(executable, "main", [x])[0].tolist() == [70, 70, 70]
    with thread_order("fixed", lockstep=False):
        assert run(executable, "main", [x])[0].tolist() != [70, 70, 70]
