"""Small numbers that are turned over on the GPU: 4 bytes a thread on both sides, where they fit."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F

import babytriton as bt
from babytriton.runtime import cuda
from tests.conformance import gpu
from tests.emulator import emulator
from tests.unit.test_gpu_programs import check, compiled, rules

pytestmark = pytest.mark.skipif(
    emulator.available_gpu() is None, reason=emulator.missing() or "no GPU"
)

WORDS = {
    torch.float32: "float2",
    torch.int32: "int2",
    torch.float16: "half2",
    torch.bfloat16: "nv_bfloat162",
    torch.int16: "short2",
    torch.int8: "int",
    torch.uint8: "uint",
    torch.bool: "uint",
}
"""What a thread moves at once."""


def turned(x):
    return (x.T.contiguous(),)


def values(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    x = torch.randint(-100, 100, shape, generator=torch.Generator().manual_seed(0))
    return x > 0 if dtype == torch.bool else x.abs().to(dtype)


def moved(code: str) -> list[str]:
    """The types of vectors that threads read from memory and write to it."""
    code = re.sub("//.*", "", code)
    return re.findall(r"\*\((?:const )?(\w+)\*\)\((?!\w+_tile)\w+ ", code)


@pytest.mark.parametrize("dtype", WORDS, ids=str)
@pytest.mark.parametrize("shape", [(1284, 1412), (128, 13900), (16384, 128)], ids=str)
def test_words(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x = values(*shape, dtype=dtype)
    program = compiled(turned, x)
    assert rules(turned, x) == {"Transposed"}
    assert moved(program.source()) == [WORDS[dtype]] * 2
    for order in emulator.ORDERS[:2]:
        with emulator.thread_order(order, lockstep=False):
            assert torch.equal(gpu.call(program, (x,))[0], x.T)


@pytest.mark.parametrize(
    ("shape", "word"),
    [
        ((1282, 1412), "char2"),  # twos where there are no fours
        ((704, 704), "char2"),  # too few tiles of fours
        ((96, 8192), "char2"),  # less than a tile of fours
        ((1283, 1412), None),
        ((1284, 1413), None),
        ((320, 320), None),
        ((30, 60000), None),
    ],
    ids=str,
)
def test_as_many_as_fit(shape: tuple[int, int], word: str | None) -> None:
    x = values(*shape, dtype=torch.int8)
    program = compiled(turned, x)
    assert moved(program.source()) == ([word] * 2 if word else [])
    assert torch.equal(gpu.call(program, (x,))[0], x.T)


def test_banks() -> None:
    """Of what a warp has in shared memory at once, words lie in as many banks as it has threads."""
    code = compiled(turned, values(16384, 4096)).source()
    assert "(x_tile + part * 2112 + step * 528 + thread_y * 66 + thread * 2)" in code
    assert "x_tile[lane * 2112 + thread * 66 + step * 8 + thread_y]" in code
    for warp in range(8):
        puts = {(warp * 66 + thread * 2) // 2 % 32 for thread in range(32)}
        takes = {(thread * 66 + warp) // 2 % 32 for thread in range(32)}
        assert len(puts) == len(takes) == 32


def test_with_what_comes_before_and_after() -> None:
    def mixed(x, y, z, row, column):
        return (torch.where(x.T > 50, y * 2, x.T - z.T) * row + column,)

    args = (
        *(values(1000, 646), values(646, 1000), values(1000, 646)),
        *(values(1000) / 128, values(646, 1) / 128),
    )
    program = compiled(mixed, *args)
    assert rules(mixed, *args) == {"Transposed"}
    # Two that are turned over, two that are not, and the result.
    assert moved(program.source()) == ["half2"] * 5
    check(mixed, *args, within=3e-3, program=program)


def test_of_several_dtypes() -> None:
    """As many as a thread moves of the largest numbers."""

    def scaled(x, s):
        return x.T.half() * s, x.T.double()

    x, s = values(1284, 1412, dtype=torch.int8), values(1412, 1) / 128
    program = compiled(scaled, x, s)
    assert set(moved(program.source())) == {"char2", "half2"}
    check(scaled, x, s, within=1e-3, program=program)


def test_pairs_of_the_longest_numbers() -> None:
    def both(x):
        return x.T.half(), x.T.float()

    x = values(1284, 1412, dtype=torch.int8)
    program = compiled(both, x)
    assert set(moved(program.source())) == {"char2", "half2", "float2"}
    check(both, x, within=0, program=program)


def test_of_each_matrix() -> None:
    def layers(x):
        return x.transpose(1, 2).contiguous(), x.permute(2, 1, 0) + 1

    x = values(66, 130, 70)
    assert moved(compiled(layers, x).source()) == ["half2"] * 4
    check(layers, x, within=0)


@pytest.mark.parametrize(("width", "words"), [(645, 0), (648, 2)])
def test_lines_that_begin_at_odd_places_are_read_one_by_one(width: int, words: int) -> None:
    def part(x):
        return (x.T[:644] + 1,)

    x = values(802, width)
    assert rules(part, x) == {"Transposed"}
    assert moved(compiled(part, x).source()) == ["half2"] * words
    check(part, x, within=0)


def test_parts_of_what_is_in_memory() -> None:
    """Of lines that begin anywhere, and of such that begin at whole words."""
    for whole, count in ((1001, 0), (1002, 2)):
        x = values(704, whole)[:, :704]
        program = compiled(turned, x)
        assert len(moved(program.source())) == count
        assert torch.equal(gpu.call(program, (x,))[0], x.T)


def test_padding_is_asked_for_by_each_element() -> None:
    def padded(x):
        return (F.pad(x.T, (2, 4, 3, 1)) + 1,)

    check(padded, values(802, 646), within=0)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8], ids=str)
def test_machine_code(arch: str, dtype: torch.dtype) -> None:
    """All loads of a thread are on the way before it waits for any."""
    if not cuda.has_compiler():
        pytest.skip("no compiler for CUDA: nvcc, or nvidia-cuda-nvrtc")
    x = torch.empty(16384, 4096, dtype=dtype, device="meta")
    program = bt.jit(target=bt.Target("cuda", arch=arch))(turned).lower(x).compile()
    (launch,) = program.launches
    assert launch.registers is not None
    assert launch.registers <= 40
    assert launch.spilled == 0
    code = re.findall(r"\b(LDG|STS|LDS|STG)\b", program.source("sass"))
    count = 32 // 8 * 4 // dtype.itemsize
    assert code.count("LDG") == code.count("STS") == count
    assert code.count("STG") == count
    assert code[:count] == ["LDG"] * count
