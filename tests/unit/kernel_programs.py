"""Kernels that tests run in several ways; each is plain Python, which says what is expected."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import babytriton as bt


@dataclass(frozen=True)
class Program:
    """A kernel, and the arguments it is tried on."""

    fn: Callable[..., None]
    arguments: tuple[Any, ...]

    def __str__(self) -> str:
        return self.fn.__name__

    def copies(self) -> tuple[Any, ...]:
        """Fresh arguments."""
        return tuple(x.clone() if isinstance(x, torch.Tensor) else x for x in self.arguments)

    def expected(self) -> tuple[Any, ...]:
        """The arguments after the plain Python function has run."""
        arguments = self.copies()
        self.fn(*arguments)
        return arguments


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(math.prod(shape) + len(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def ints(low: int, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(high)
    return torch.randint(low, high, shape, generator=generator).to(dtype)


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


SCALE = 3


def add(a, b, c):
    for i in bt.grid(len(a)):
        c[i] = a[i] + b[i]


def scaled(a, c, factor):
    for i, j in bt.grid(a.shape[0], a.shape[1]):
        c[i, j] = a[i, j] * factor + SCALE


def matmul(a, b, c):
    n, k = a.shape
    for i, j in bt.grid(n, b.shape[1]):
        c[i, j] = 0.0
        for p in range(k):
            c[i, j] += a[i, p] * b[p, j]


def flat_matmul(a, b, c):
    for i, j, p in bt.grid(a.shape[0], b.shape[1], a.shape[1]):
        c[i, j] += a[i, p] * b[p, j]


def gemv(a, x, y):
    n, m = a.shape
    for i in range(n):
        acc = 0.0
        for j in range(m):
            acc += a[i, j] * x[j]
        y[i] = acc


def softmax(x, y):
    n, m = x.shape
    for i in range(n):
        top = -math.inf
        for j in range(m):
            top = max(top, x[i, j])
        total = 0.0
        for j in range(m):
            total += torch.exp(x[i, j] - top)
        for j in range(m):
            y[i, j] = torch.exp(x[i, j] - top) / total


def stencil(a, b):
    n, m = a.shape
    for i in range(1, n - 1):
        for j in range(1, m - 1):
            b[i, j] = 0.2 * (a[i, j] + a[i - 1, j] + a[i + 1, j] + a[i, j - 1] + a[i, j + 1])


def padded_stencil(a, b):
    n = len(a)
    for i in range(n):
        left = a[i - 1] if i > 0 else 0.0
        right = a[i + 1] if i + 1 < n else 0.0
        b[i] = left + a[i] + right


def wrapping(a, b):
    for i in range(len(a)):
        b[i] = a[i - 2] + a[-1]


def histogram(x, h):
    for i in range(len(x)):
        h[x[i]] += 1


def mandelbrot(out):
    h, w = out.shape
    for i, j in bt.grid(h, w):
        cr, ci = -2.0 + 3.0 * j / w, -1.5 + 3.0 * i / h
        zr = zi = 0.0
        count = 0
        while count < 30 and zr * zr + zi * zi <= 4.0:
            zr, zi = zr * zr - zi * zi + cr, 2.0 * zr * zi + ci
            count += 1
        out[i, j] = count


def normalize(x, y):
    total = 0.0
    for i in range(len(x)):
        total += x[i]
    mean = total / len(x)
    for i in range(len(x)):
        y[i] = x[i] - mean


def first_large(x, out):
    n, m = x.shape
    for i in range(n):
        found = -1
        for j in range(m):
            if x[i, j] < 0:
                continue
            if x[i, j] > 1.0:
                found = j
                break
        else:
            found = m
        out[i] = found


def cumulative(x, y):
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            y[i, j] = x[i, j] + (y[i, j - 1] if j > 0 else 0.0)


def column_scan(x):
    for i in range(1, x.shape[0]):
        for j in range(x.shape[1]):
            x[i, j] += x[i - 1, j]


def triangular(a, b):
    for i in range(a.shape[0]):
        total = 0.0
        for j in range(i + 1):
            total += a[i, j]
        b[i] = total


def csr(starts, columns, values, x, y):
    for i in range(len(y)):
        total = 0.0
        for p in range(starts[i], starts[i + 1]):
            total += values[p] * x[columns[p]]
        y[i] = total


def backwards(a, b):
    n = len(a)
    for i in range(n - 1, -1, -1):
        b[n - 1 - i] = a[i]
    for i in range(1, n, 3):
        b[i] = -1


def masked_sum(x, out):
    for i in range(x.shape[0]):
        total = 0.0
        for j in range(x.shape[1]):
            if x[i, j] > 0:
                total += x[i, j]
        out[i] = total


def extremes(x, out):
    low = math.inf
    high = x[0, 0] * 1
    product = 1.0
    for i, j in bt.grid(x.shape[0], x.shape[1]):
        low = min(low, x[i, j])
        high = max(high, x[i, j])
        product *= 1 + x[i, j] / 8
    out[0] = low
    out[1] = high
    out[2] = product


def integer_division(a, b, out):
    for i in range(len(a)):
        out[i, 0] = a[i] // b[i]
        out[i, 1] = a[i] % b[i]
        out[i, 2] = (i - 4) // 3
        out[i, 3] = (i - 4) % 3
        out[i, 4] = (i - 4) // -3
        out[i, 5] = 7 % (i - 20)


def python_numbers(out):
    for i in range(out.shape[0]):
        out[i, 0] = i / 7
        out[i, 1] = round(i / 2)
        out[i, 2] = int(-i / 3) + int(i == 3)
        out[i, 3] = float(i) ** 0.5 + i**3
        out[i, 4] = abs(i - 3) + min(i, 4) - max(i, 2, 5)
        out[i, 5] = (i << 2) ^ (i & 5) | 8
        out[i, 6] = math.floor(i / 4) + math.ceil(i / 4) + math.hypot(i, 3)
        out[i, 7] = not i % 2
        out[i, 8] = 1 < i <= 4
        out[i, 9] = i and 7 - i
        out[i, 10] = (i > 2 and i < 5) or i == 7


def dtypes(h, i8, u8, i32, f64, out):
    for i in range(len(h)):
        out[i, 0] = h[i] * h[i] + 1
        out[i, 1] = i8[i] + i8[i]
        out[i, 2] = u8[i] + u8[i] - 300 % 7
        out[i, 3] = i32[i] * i32[i]
        out[i, 4] = f64[i] * h[i]
        out[i, 5] = i32[i] / 3
        out[i, 6] = i8[i] // 3 + i8[i] % 3
        out[i, 7] = (i8[i] > 0) + (u8[i] > 100)
        out[i, 8] = h[i].float() * h[i].double() + f64[i].int() + i8[i].item() * 100


def square(x):
    return x * x


def clamp(x, low=0.0, high=1.0):
    if x < low:
        return low
    elif x > high:
        return high
    return x


def find(row, value):
    for j in range(len(row)):
        if row[j] == value:
            return j
    return -1


def helpers(x, out, places):
    for i in range(x.shape[0]):
        out[i] = square(clamp(x[i, 0])) + clamp(x[i, 1], high=0.5)
        places[i] = find(x[i], x[i, 2])


def swap(a, b):
    for i in range(len(a)):
        a[i], b[i] = float(b[i]), float(a[i])


def collatz(x, steps):
    for i in range(len(x)):
        n = int(x[i])
        count = 0
        while True:
            if n == 1:
                break
            n = n // 2 if n % 2 == 0 else 3 * n + 1
            count += 1
        steps[i] = count


def bubble_sort(x):
    n = len(x)
    for i in range(n):
        for j in range(n - 1 - i):
            if x[j] > x[j + 1]:
                x[j], x[j + 1] = float(x[j + 1]), float(x[j])


def early_return(x, out):
    for i in range(len(x)):
        if x[i] > 1.5:
            out[0] = i
            return
    out[0] = -1


def gather(w, places, out):
    for i, j in bt.grid(len(places), w.shape[1]):
        out[i, j] = w[places[i], j] * 2


def flattened(x, out):
    n, m = x.shape
    for i in range(n):
        for j in range(m):
            out[i * m + j] = x[i, j]


def with_nan(x, out):
    top = -math.inf
    for i in range(len(x)):
        top = max(top, x[i])
        out[i + 1] = x[i] * 0.0
        out[len(x) + 1 + i] = x[i] - x[i]
    out[0] = top


def zero_dim(x, out):
    out[()] = x[()] * 2 + x.item()


def insertion_sort(x):
    for i in range(1, len(x)):
        key = float(x[i])
        j = i - 1
        while j >= 0 and x[j] > key:
            x[j + 1] = float(x[j])
            j -= 1
        x[j + 1] = key


def loop_variables(out):
    for i in range(5):
        out[i] = i
    out[5] = i
    for i in range(3):
        i += 2
        out[6 + i] = i


def no_iterations(out, n):
    k = 7
    for k in range(n):  # noqa: B007
        pass
    out[0] = k


def branch_outside(x, out):
    if x[0] > 0:
        out[0] = 1
    else:
        for i in range(len(x)):
            out[i] = 2
    if out[0] == 1 and x[1] < 100:
        out[1] = x[0]


def booleans(x, b, out):
    for i in range(len(x)):
        b[i] = x[i] > 0
        out[i] = not b[i]
        if (b[i] and x[i] < 1) or x[i] == 0:
            out[i] = 5


def reversed_in_place(a):
    n = len(a)
    for i in range(n):
        a[i] = float(a[n - 1 - i])


def decreasing(x, out):
    s = 10.0
    for i in range(len(x)):
        s -= x[i]
    out[0] = s
    p = 1
    for i in range(1, 6):
        p *= i
    out[1] = p
    m = 100
    for i in range(len(x)):
        m = min(m, i - 3)
    out[2] = m


def reads_the_last(x, o1, o2):
    for i in range(len(x)):
        o1[i] = x[i] * 2
        if i > 0:
            o2[i] = o1[i - 1] + 1


def ragged_breaks(n, out):
    for i in range(len(n)):
        c = 0
        for j in range(n[i], 5):
            if j == 3:
                break
            c += 1
        for _ in range(5, n[i], -2):
            c += 10
        for j, k in bt.grid(n[i], 3):
            if j + k > 3:
                break
            c += 100
        out[i] = c


def two_loops(x, y, out):
    n, m = x.shape
    for i in range(n):
        for j in range(m):
            y[i, j] = x[i, j] * x[i, j]
        for j in range(m):
            out[i] += y[i, j]


def layer_norm(x, y):
    n, m = x.shape
    for i in range(n):
        s = 0.0
        for j in range(m):
            s += x[i, j]
        mean = s / m
        v = 0.0
        for j in range(m):
            d = x[i, j] - mean
            v += d * d
        r = 1 / math.sqrt(v / m + 1e-5)
        for j in range(m):
            y[i, j] = (x[i, j] - mean) * r


def batched_matmul(a, b, c):
    for n in range(a.shape[0]):
        for i in range(a.shape[1]):
            for j in range(b.shape[2]):
                acc = 0.0
                for k in range(a.shape[2]):
                    acc += a[n, i, k] * b[n, k, j]
                c[n, i, j] = acc + 1


def column_sums(x, out):
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            out[j] += x[i, j]


def running_maximum(x, out):
    m = -1.0
    for i in range(len(x)):
        m = max(m, x[i])
        out[i] = m


def named_expressions(x, out):
    for i in range(len(x)):
        if (y := x[i] * 2) > 1:
            out[i] = y


def while_else(x, out):
    i = 0
    while i < len(x):
        if x[i] > 50:
            break
        i += 1
    else:
        out[0] = 99
    out[1] = i


def nested_breaks(x, out):
    for i in range(4):
        for j in range(4):
            if x[i, j] > 1:
                out[0] += 1
                break
            if x[i, j] < -1:
                continue
            out[1] += 1
        if out[0] > 2:
            break


def wave_front(a):
    n, m = a.shape
    for i in range(1, n):
        for j in range(1, m):
            a[i, j] = a[i - 1, j] + a[i, j - 1] + a[i - 1, j - 1]


def life(a, b):
    n, m = a.shape
    for i, j in bt.grid(n, m):
        c = 0
        for di in range(-1, 2):
            for dj in range(-1, 2):
                if di != 0 or dj != 0:
                    c += a[(i + di) % n, (j + dj) % m]
        b[i, j] = 1 if c == 3 or (c == 2 and a[i, j] == 1) else 0


def float_conditions(x, f, out):
    if f > 0.5:
        for i in range(len(x)):
            out[i] = x[i] * f
    for i in range(len(x)):
        if f < 2.0 and i > 0:
            out[i - 1] += f


def steps(x, out):
    for i in range(0, len(x), 3):
        out[i] = x[i]
    for i in range(len(x) - 2, 0, -2):
        out[i] += 1


def reduce_then_scan(x, out):
    for i in range(x.shape[0]):
        s = 0.0
        for j in range(x.shape[1]):
            s += x[i, j]
        run = 0.0
        for j in range(x.shape[1]):
            run += x[i, j] / s
            out[i, j] = run


def rows(x, out):
    n, m = len(x), len(x[0])
    for i in range(n):
        row = x[i]
        for j in range(m):
            out[i, j] = row[j] + row[-1] + len(row)


def windows(x, out):
    n = len(x)
    for i in range(n):
        for j in range(max(0, i - 1), min(n, i + 2)):
            out[i] += x[j]


def math_functions(x, out):
    for i in range(len(x)):
        v = abs(x[i]) + 0.5
        out[i, 0] = math.sqrt(v)
        out[i, 1] = math.log(v)
        out[i, 2] = math.sin(v)
        out[i, 3] = math.tanh(v)
        out[i, 4] = math.pow(v, 1.5)
        out[i, 5] = math.atan2(v, 2)
        out[i, 6] = math.erf(v)
        out[i, 7] = math.exp(-v)
        out[i, 8] = math.log(v, 2)
        out[i, 9] = math.isnan(v)
        out[i, 10] = math.floor(v)
        out[i, 11] = math.fmod(v, 0.3)
        out[i, 12] = math.expm1(v) + math.log1p(v) + math.log2(v) + math.log10(v)
        out[i, 13] = torch.sigmoid(x[i]) + torch.sqrt(v)


def bits(x, out):
    for i in range(len(x)):
        out[i, 0] = x[i] & 12 | 1
        out[i, 1] = x[i] ^ 255
        out[i, 2] = ~x[i]
        out[i, 3] = x[i] >> 1
        out[i, 4] = x[i] << 2


def generator(x, out):
    for i in range(len(x)):
        s = x[i]
        for _ in range(5):
            s = s * 1103515245 + 12345
        out[i] = s


def widening(x, out):
    for i in range(len(x)):
        v = 1
        if x[i] > 0:
            v = x[i]
        elif x[i] < -1:
            v = i
        out[i] = v * 2


def empty_ranges(x, out):
    for i in range(5, 2):
        out[i] = 1
    for i in range(len(x)):
        for _ in range(i, 0):
            out[0] = 9
        out[i] = x[i]


def unpacked_grid(x, out):
    for idx in bt.grid(x.shape[0], x.shape[1]):
        i, j = idx
        out[i, j] = x[idx]


N = 23
NAN = math.nan
PROGRAMS = (
    Program(add, (rand(N), rand(N), zeros(N))),
    Program(add, (ints(0, 99, N), rand(N), zeros(N, dtype=torch.float64))),
    Program(scaled, (rand(5, 7), zeros(5, 7), 1.5)),
    Program(scaled, (rand(5, 7), zeros(5, 7), 2)),
    Program(matmul, (rand(9, 5), rand(5, 7), rand(9, 7))),
    Program(matmul, (ints(-5, 5, 3, 4), ints(-5, 5, 4, 2), ints(-5, 5, 3, 2))),
    Program(flat_matmul, (rand(9, 5), rand(5, 7), rand(9, 7))),
    Program(flat_matmul, (rand(40, 33), rand(33, 45), rand(40, 45))),
    Program(gemv, (rand(13, 37), rand(37), zeros(13))),
    Program(gemv, (rand(13, 64, dtype=torch.float64), rand(64), zeros(13))),
    Program(softmax, (rand(7, 65), zeros(7, 65))),
    Program(stencil, (rand(17, 19), rand(17, 19))),
    Program(padded_stencil, (rand(N), zeros(N))),
    Program(wrapping, (rand(N), zeros(N))),
    Program(histogram, (ints(-4, 4, 100), zeros(4, dtype=torch.int32))),
    Program(histogram, (ints(0, 5, 40, dtype=torch.int32), zeros(5))),
    Program(mandelbrot, (zeros(13, 11, dtype=torch.int32),)),
    Program(normalize, (rand(77), zeros(77))),
    Program(first_large, (rand(20, 6), zeros(20, dtype=torch.int64))),
    Program(cumulative, (rand(6, 9), zeros(6, 9))),
    Program(column_scan, (rand(6, 9),)),
    Program(triangular, (rand(9, 9), zeros(9))),
    Program(
        csr,
        (torch.tensor([0, 2, 2, 5, 6]), ints(0, 5, 6), rand(6), rand(5), zeros(4)),
    ),
    Program(backwards, (rand(N), zeros(N))),
    Program(masked_sum, (rand(9, 21), zeros(9))),
    Program(extremes, (rand(9, 11), zeros(3))),
    Program(extremes, (ints(-50, 50, 5, 4, dtype=torch.int8), zeros(3))),
    Program(integer_division, (ints(-20, 20, 9), ints(1, 7, 9) * -1, zeros(9, 6))),
    Program(python_numbers, (zeros(9, 11, dtype=torch.float64),)),
    Program(
        dtypes,
        (
            rand(9, dtype=torch.float16),
            ints(-128, 127, 9, dtype=torch.int8),
            ints(0, 255, 9, dtype=torch.uint8),
            ints(-(2**31), 2**31 - 1, 9, dtype=torch.int32),
            rand(9, dtype=torch.float64),
            zeros(9, 9, dtype=torch.float64),
        ),
    ),
    Program(helpers, (rand(9, 4), zeros(9), zeros(9, dtype=torch.int64))),
    Program(swap, (rand(N), rand(N + 1)[1:].clone())),
    Program(collatz, (ints(1, 30, 11), zeros(11, dtype=torch.int16))),
    Program(bubble_sort, (rand(12),)),
    Program(early_return, (rand(30), zeros(1))),
    Program(early_return, (rand(3) / 9, zeros(1))),
    Program(gather, (rand(6, 5), ints(-6, 6, 8), zeros(8, 5))),
    Program(flattened, (rand(6, 5), zeros(30))),
    Program(with_nan, (torch.tensor([1.0, NAN, math.inf, 2.0]), zeros(9))),
    Program(with_nan, (torch.tensor([NAN, NAN]), zeros(5))),
    Program(zero_dim, (torch.tensor(2.5), torch.tensor(0.0))),
    Program(insertion_sort, (rand(9),)),
    Program(loop_variables, (zeros(12),)),
    Program(no_iterations, (zeros(1), 0)),
    Program(no_iterations, (zeros(1), 3)),
    Program(branch_outside, (rand(4).abs(), zeros(4))),
    Program(branch_outside, (-rand(4).abs(), zeros(4))),
    Program(booleans, (rand(9), zeros(9, dtype=torch.bool), zeros(9))),
    Program(reversed_in_place, (rand(8),)),
    Program(decreasing, (rand(9), zeros(3))),
    Program(reads_the_last, (rand(5), zeros(5), zeros(5))),
    Program(ragged_breaks, (ints(-3, 7, 8), zeros(8))),
    Program(two_loops, (rand(4, 5), zeros(4, 5), rand(4))),
    Program(layer_norm, (rand(5, 33), zeros(5, 33))),
    Program(batched_matmul, (rand(2, 3, 4), rand(2, 4, 5), zeros(2, 3, 5))),
    Program(column_sums, (rand(5, 6), rand(6))),
    Program(running_maximum, (rand(9), zeros(9))),
    Program(named_expressions, (rand(9), zeros(9))),
    Program(while_else, (rand(4), zeros(2))),
    Program(nested_breaks, (rand(4, 4), zeros(2))),
    Program(wave_front, (rand(5, 6),)),
    Program(life, (ints(0, 2, 6, 7), zeros(6, 7, dtype=torch.int64))),
    Program(float_conditions, (rand(7), 0.7, zeros(7))),
    Program(float_conditions, (rand(7), 2.7, zeros(7))),
    Program(steps, (rand(11), zeros(11))),
    Program(reduce_then_scan, (rand(3, 8).abs(), zeros(3, 8))),
    Program(rows, (rand(3, 4), zeros(3, 4))),
    Program(windows, (rand(7), zeros(7))),
    Program(math_functions, (rand(7, dtype=torch.float64), zeros(7, 14, dtype=torch.float64))),
    Program(math_functions, (rand(7), zeros(7, 14))),
    Program(bits, (ints(-9, 9, 7), zeros(7, 5))),
    Program(bits, (ints(0, 200, 7, dtype=torch.uint8), zeros(7, 5))),
    Program(generator, (ints(0, 2**30, 7, dtype=torch.int32), zeros(7, dtype=torch.int32))),
    Program(widening, (rand(9), zeros(9))),
    Program(empty_ranges, (rand(5), zeros(5))),
    Program(unpacked_grid, (rand(3, 4), zeros(3, 4))),
)
