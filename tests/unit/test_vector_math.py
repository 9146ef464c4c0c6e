"""The CPU's float32 functions against float64, over float32's whole range, and as vector code."""

from __future__ import annotations

import ctypes
import math
import platform
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tvm

import babytriton as bt
from babytriton.passes.cpu.formulas import FORMULAS
from babytriton.passes.lowering import LOWERING

STRIDE = 427  # of the 2**32 bit patterns: ten million of them
SPECIAL = torch.tensor(
    [
        *(0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 3.0, -3.0, 2.5, -2.5),
        *(float("inf"), -float("inf"), float("nan"), 1e-45, -1e-45, 1e-38, -1e-38, 3e38, -3e38),
        *(88.72283, 88.72284, -87.33655, -103.97208, -103.97209, 16777216.0, -1 + 2**-24),
        *(89.415, 89.416, 128.0, 127.99999, -149.0, -149.5, -150.0, 8.0, 1000.0, 1e15),
    ]
)


def exp(x: torch.Tensor) -> torch.Tensor:
    return torch.exp(x)


def exp2(x: torch.Tensor) -> torch.Tensor:
    return torch.exp2(x)


def expm1(x: torch.Tensor) -> torch.Tensor:
    return torch.expm1(x)


def log(x: torch.Tensor) -> torch.Tensor:
    return torch.log(x)


def log1p(x: torch.Tensor) -> torch.Tensor:
    return torch.log1p(x)


def log2(x: torch.Tensor) -> torch.Tensor:
    return torch.log2(x)


def log10(x: torch.Tensor) -> torch.Tensor:
    return torch.log10(x)


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(x)


def rsqrt(x: torch.Tensor) -> torch.Tensor:
    return torch.rsqrt(x)


def tanh(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x)


def sinh(x: torch.Tensor) -> torch.Tensor:
    return torch.sinh(x)


def cosh(x: torch.Tensor) -> torch.Tensor:
    return torch.cosh(x)


def asinh(x: torch.Tensor) -> torch.Tensor:
    return torch.asinh(x)


def acosh(x: torch.Tensor) -> torch.Tensor:
    return torch.acosh(x)


def atanh(x: torch.Tensor) -> torch.Tensor:
    return torch.atanh(x)


def erf(x: torch.Tensor) -> torch.Tensor:
    return torch.erf(x)


def erfc(x: torch.Tensor) -> torch.Tensor:
    return torch.erfc(x)


def normcdf(x: torch.Tensor) -> torch.Tensor:
    return (1 + torch.erf(x * math.sqrt(0.5))) * 0.5


def sin(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x)


def cos(x: torch.Tensor) -> torch.Tensor:
    return torch.cos(x)


def tan(x: torch.Tensor) -> torch.Tensor:
    return torch.tan(x)


def asin(x: torch.Tensor) -> torch.Tensor:
    return torch.asin(x)


def acos(x: torch.Tensor) -> torch.Tensor:
    return torch.acos(x)


def atan(x: torch.Tensor) -> torch.Tensor:
    return torch.atan(x)


def power(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.pow(x, y)


def atan2(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.atan2(y, x)


def hypot(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.hypot(x, y)


# The largest error allowed, in units in the last place.
UNARY = [
    *((fn, 4) for fn in (exp, exp2, expm1, log, log1p, log2, log10, sigmoid, rsqrt)),
    *((fn, 4) for fn in (sinh, cosh, asinh, acosh, atanh, sin, cos, tan, asin, acos, atan)),
    *((fn, 6) for fn in (erf, erfc, tanh)),
]
BINARY = [(power, 4), (atan2, 4), (hypot, 1)]


def check(found: torch.Tensor, exact: torch.Tensor, limit: float) -> None:
    """Assert that a float32 result is within so many ulp of a float64 one, ends included."""
    nearest = exact.float()
    finite = torch.isfinite(nearest) & torch.isfinite(found)
    same = (nearest == found) | (nearest.isnan() & found.isnan())
    assert bool((finite | same).all())
    size = nearest.abs()
    ulp = torch.nextafter(size, torch.tensor(float("inf"))).double() - size.double()
    errors = ((found.double() - exact).abs() / ulp)[finite]
    assert float(errors.max()) <= limit
    zero = (nearest == 0) & (found == 0)
    assert torch.equal(torch.signbit(found[zero]), torch.signbit(nearest[zero]))


@pytest.mark.parametrize(("fn", "limit"), UNARY)
def test_ten_million_numbers(fn: Callable[[torch.Tensor], torch.Tensor], limit: float) -> None:
    bits = torch.arange(-(2**31), 2**31, STRIDE).to(torch.int32)
    x = torch.cat([bits.view(torch.float32), SPECIAL])
    assert x.numel() > 10_000_000
    check(bt.jit("cpu")(fn)(x), fn(x.double()), limit)


@pytest.mark.parametrize("fn", [normcdf, F.gelu])
def test_ten_million_numbers_of_the_normal_distribution(fn: Any) -> None:
    """Where it is about 0, digits are missing: it is the rest of a half, as torch computes it."""
    bits = torch.arange(-(2**31), 2**31, STRIDE).to(torch.int32)
    x = torch.cat([bits.view(torch.float32), SPECIAL])
    jitted = bt.jit("cpu")(lambda x: F.gelu(x)) if fn is F.gelu else bt.jit("cpu")(fn)
    found, exact = jitted(x), fn(x.double())
    assert "normcdf" in jitted.compiled_for((x,)).source("tir")
    nearest = exact.float()
    finite = torch.isfinite(nearest)
    assert torch.equal(found[~finite].isnan(), nearest[~finite].isnan())
    size = x.abs().clamp(min=1).double() if fn is F.gelu else torch.ones_like(exact)
    errors = (found.double() - exact).abs() / size
    assert float(errors[finite].max()) <= 4 * 2.0**-24
    far = x.abs() > 6
    assert bool(((found == nearest) | (nearest.abs() < 1e-8))[far & finite].all())


@pytest.mark.parametrize(
    ("fn", "limit"),
    [(fn, limit) for fn, limit in UNARY if fn in (exp, exp2, expm1, erfc, sinh, cosh)],
)
def test_exponentials_without_an_instruction_that_scales(fn: Any, limit: float) -> None:
    """Processors with AVX-512 have one."""
    bits = torch.arange(-(2**31), 2**31, STRIDE).to(torch.int32)
    x = torch.cat([bits.view(torch.float32), SPECIAL])
    jitted = bt.jit(bt.Target("cpu", arch="haswell"))(fn)
    assert "vscalef" not in jitted.lower(x).compile().source("asm")
    check(jitted(x), fn(x.double()), limit)


@pytest.mark.parametrize("fn", [sin, cos, tan])
def test_small_and_large_arguments_side_by_side(fn: Any) -> None:
    """Small ones are computed by other formulas, unless a large one is near."""
    quarters = (torch.arange(-333_000, 333_000).double() * (torch.pi / 2)).float()
    near = [torch.nextafter(quarters, torch.tensor(end)) for end in (-torch.inf, torch.inf)]
    x = torch.cat([quarters, *near, torch.tensor([2.0**19, -(2.0**19)])])
    compiled = bt.jit("cpu")(fn)
    check(compiled(x), fn(x.double()), 4)
    for place, large in ((0, 1e30), (70_000, -1e9), (-1, torch.inf), (5_000, torch.nan)):
        x[place] = large
    check(compiled(x), fn(x.double()), 4)


def sines(x: torch.Tensor, times: int) -> torch.Tensor:
    for _ in range(times):
        x = torch.sin(x) * 1.5
    return x


def test_functions_of_functions_are_computed_once() -> None:
    """Also for asking whether their arguments are small: of each, all before it is an argument."""
    x = torch.linspace(-20, 20, 400)
    texts = []
    for times in (5, 10):
        fn = bt.jit("cpu")(sines)
        exact = sines(x.double(), times)
        torch.testing.assert_close(fn(x, times).double(), exact, rtol=1e-4, atol=1e-4)
        texts.append(fn.lower(x, times).compile().source("llvm"))
    assert len(texts[1]) < 2.5 * len(texts[0])


def test_sines_of_rows_with_what_reads_them() -> None:
    def turned(x: torch.Tensor, angle: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return x * torch.cos(angle) + torch.sin(angle * scale) * scale

    generator = torch.Generator().manual_seed(0)
    x, angle = (torch.randn(37, 129, generator=generator) for _ in range(2))
    scale = torch.tensor([[1.0], [1e4], [1e9]]).repeat(13, 1)[:37]
    within_float32 = (angle * scale).double()
    exact = x.double() * torch.cos(angle.double()) + torch.sin(within_float32) * scale.double()
    found = bt.jit("cpu")(turned)(x, angle, scale).double()
    torch.testing.assert_close(found, exact, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("fn", "limit"), BINARY)
def test_ten_million_pairs(fn: Callable[..., torch.Tensor], limit: float) -> None:
    generator = torch.Generator().manual_seed(0)
    count = 3_400_000

    def uniform(low: float, high: float) -> torch.Tensor:
        return torch.rand(count, generator=generator) * (high - low) + low

    any_bits = torch.randint(-(2**31), 2**31, (count,), generator=generator)
    bases = [any_bits.to(torch.int32).view(torch.float32), uniform(0, 10), -uniform(0, 10)]
    exponents = [uniform(-20, 20), uniform(-40, 40), uniform(-20, 20).round()]
    pairs = torch.cartesian_prod(SPECIAL, SPECIAL)
    x, y = torch.cat([*bases, pairs[:, 0]]), torch.cat([*exponents, pairs[:, 1]])
    assert x.numel() > 10_000_000
    check(bt.jit("cpu")(fn)(x, y), fn(x.double(), y.double()), limit)
    check(bt.jit("cpu")(fn)(y.abs(), x), fn(y.abs().double(), x.double()), limit)


def test_remainders_are_exact() -> None:
    """As the C library's: torch has no digits, or none at all, where quotients are large."""

    def remainders(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.fmod(x, y), torch.remainder(x, y)

    generator = torch.Generator().manual_seed(0)
    any_bits = torch.randint(-(2**31), 2**31, (2, 500_000), generator=generator)
    any_x, any_y = any_bits.to(torch.int32).view(torch.float32)
    near = torch.randn(2, 500_000, generator=generator) * torch.tensor([[100.0], [1.0]])
    pairs = torch.cartesian_prod(SPECIAL, SPECIAL)
    compiled = bt.jit("cpu")(remainders)
    for x, y in ((any_x, any_y), (near[0], near[1]), (near[0].round(), near[1].round()), pairs.T):
        found, positive = compiled(x.contiguous(), y.contiguous())
        with np.errstate(invalid="ignore"):
            exact = torch.from_numpy(np.fmod(x.numpy(), y.numpy()))
        torch.testing.assert_close(found, exact, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(found.signbit()[~exact.isnan()], exact.signbit()[~exact.isnan()])
        opposite = (exact * y.sign() < 0) & (y != 0)
        moved = torch.where(opposite, exact + y, exact)
        torch.testing.assert_close(positive, moved, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("fn", [fn for fn, _ in UNARY])
def test_half_precision_goes_through_float32(fn: Any, dtype: torch.dtype) -> None:
    bits = torch.arange(-(2**15), 2**15).to(torch.int16)
    x = bits.view(dtype)
    found, exact = bt.jit("cpu")(fn)(x), fn(x.double())
    # Rounded twice, to float32 first: half an ulp, and now and then the neighbour of a tie.
    torch.testing.assert_close(
        found.double(),
        exact.to(dtype).double(),
        rtol=torch.finfo(dtype).eps,
        atol=torch.finfo(dtype).smallest_normal,
        equal_nan=True,
    )


MACHINES = {
    "AVX2": ({"mcpu": "haswell"}, r"v\w+p[sd]\s.*%ymm"),
    "AVX-512": ({"mcpu": "skylake-avx512"}, r"v\w+p[sd]\s.*%[yz]mm"),
    "NEON": ({"mcpu": "neoverse-n1", "mtriple": "aarch64-linux-gnu"}, r"fmul\s+v\d+\.[24][sd]"),
}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("fn", [*(fn for fn, _ in UNARY + BINARY), normcdf])
def test_loops_become_vector_code(fn: Any, machine: str) -> None:
    options, vector = MACHINES[machine]
    shapes = [bt.Tensor((4096,), "float32")] * (2 if fn in dict(BINARY) else 1)
    scheduled = bt.jit("cpu")(fn).lower(*shapes).schedule()
    target = tvm.target.Target({"kind": "llvm", **options})
    built = tvm.compile(scheduled.mod, target=target, tir_pipeline=LOWERING)
    (kernels,) = built.mod.imports
    assembly = str(kernels.inspect_source("s"))
    used = re.findall(vector, assembly) or re.findall(r"fdiv\s+v\d+\.[24][sd]", assembly)
    assert used
    called = set(re.findall(r"(?:callq?|bl)\s+(\w+)", assembly))
    assert not called & {f"{name}{suffix}" for name in FORMULAS for suffix in ("", "f")}
    assert "ldexpf" not in called
    assert "Mismatched" not in assembly  # no code that checks arguments, which calls have done


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_bounds_keep_signs_of_zero_and_nan(dtype: torch.dtype) -> None:
    def bounded(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ends = x.clamp(min=0.0), x.clamp(max=0.0), x.clamp(min=-0.0), x.clamp(max=-0.0)
        return x.clamp(-0.5, 0.75), torch.clamp(x, max=float("nan")), F.hardtanh(x), *ends

    x = torch.cat([torch.linspace(-2, 2, 101), SPECIAL]).to(dtype)
    for found, exact in zip(bt.jit("cpu")(bounded)(x), bounded(x)):
        torch.testing.assert_close(found, exact, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(
            torch.signbit(found) & ~found.isnan(), torch.signbit(exact) & ~exact.isnan()
        )


def test_sines_of_matrices_take_the_short_way() -> None:
    """TVM has names for indices there."""

    def turned(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return torch.sin(x * scale)

    x, scale = torch.randn(37, 1001), torch.rand(37, 1)
    jitted = bt.jit("cpu", dynamic=False)(turned)
    assert "is_large" in jitted.lower(x, scale).compile().source("llvm")
    check(jitted(x, scale), torch.sin((x * scale).double()), 4)


@pytest.mark.parametrize("number", [0.3, -7.0])
def test_remainders_take_the_short_way(number: float) -> None:
    """They select by their own value, of which TVM makes a condition."""

    def reduced(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x % number, x // number, x % y, x // y

    x, y = torch.randn(37, 1001) * 100, torch.randn(37, 1001)
    jitted = bt.jit("cpu", dynamic=False)(reduced)
    assert "is_large" in jitted.lower(x, y).compile().source("llvm")
    for found, exact in zip(jitted(x, y), reduced(x, y)):
        torch.testing.assert_close(found, exact, rtol=0, atol=0)


def test_conversions_to_bfloat16_round() -> None:
    """Also where the number is converted back at once."""

    def there_and_back(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        near = x.bfloat16()
        return near, near.float(), x - x.to(torch.bfloat16).float(), near.double()

    bits = torch.arange(-(2**31), 2**31, 9973).to(torch.int32)
    halves = (torch.arange(2**16) << 16).add(2**15).to(torch.int32)  # as near to two
    x = torch.cat([bits, halves]).view(torch.float32)
    x = torch.cat([x, SPECIAL])
    for found, exact in zip(bt.jit("cpu")(there_and_back)(x), there_and_back(x)):
        torch.testing.assert_close(found, exact, rtol=0, atol=0, equal_nan=True)


FE_UNDERFLOW = {"x86_64": 16, "aarch64": 8}.get(platform.machine())


@pytest.mark.skipif(FE_UNDERFLOW is None, reason="the number of C's FE_UNDERFLOW is not known here")
@pytest.mark.parametrize("fn", [exp, exp2, sigmoid])
def test_exponentials_that_are_zero_do_not_underflow(fn: Any) -> None:
    """Of results that are rounded to 0 some processors take fifteen times as long."""
    library = ctypes.CDLL(None)
    jitted = bt.jit("cpu")(fn)

    def underflows(number: float) -> bool:
        x = torch.full((64,), number)
        jitted(x)
        library.feclearexcept(FE_UNDERFLOW)
        assert jitted(x).eq(0).all() == (number < -160)
        return bool(library.fetestexcept(FE_UNDERFLOW))

    assert underflows(-95.3 if fn is not exp2 else -140.3)
    for number in (-160.5, -1e9, -math.inf):
        assert not underflows(number)


def test_bools_that_wait_in_memory_for_others() -> None:
    """Which targets count is asked beside their logarithms, in vectors of bools."""

    def loss(x, t):
        return torch.nn.functional.cross_entropy(x, t)

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4096, 1024, generator=generator)
    t = torch.randint(0, 1024, (4096,), generator=generator)
    torch.testing.assert_close(bt.jit("cpu")(loss)(x, t).double(), loss(x.double(), t))


@pytest.mark.parametrize("arch", ["haswell", "icelake-server"])
def test_vectors_of_formulas_run_side_by_side(arch: str) -> None:
    """Each instruction of a formula waits for the one before; those of other vectors do not."""
    lowered = bt.jit(bt.Target("cpu", arch=arch))(sigmoid).lower(torch.rand(4096))
    assert lowered.compile().source("asm").count("vdivps") > 1
