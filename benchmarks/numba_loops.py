"""Functions of benchmarks/cases.py as a user of Numba writes them: loops, rows in parallel."""

from __future__ import annotations

import math

import numba
import numpy as np

parallel = numba.njit(parallel=True, error_model="numpy")


@parallel
def add(a, b):
    return a + b


@parallel
def chain(a, b, c):
    out = np.empty_like(a)
    for i in numba.prange(a.size):
        y = a[i] * b[i] + c[i]
        gelu = y * np.float32(0.5) * (np.float32(1) + math.erf(y * np.float32(0.70710678)))
        out[i] = gelu / (np.float32(1) + math.exp(-a[i]))
    return out


@parallel
def swiglu(a, b):
    out = np.empty_like(a)
    for i in numba.prange(a.shape[0]):
        for j in range(a.shape[1]):
            out[i, j] = a[i, j] / (np.float32(1) + math.exp(-a[i, j])) * b[i, j]
    return out


@parallel
def relu_sum(a, b):
    return np.maximum(a + b, np.float32(0))


@parallel
def leaky(x):
    return np.where(x > 0, x, x * np.float32(0.1))


@parallel
def exp(x):
    return np.exp(x)


@parallel
def log(x):
    return np.log(x * x)


@parallel
def tanh(x):
    return np.tanh(x)


@parallel
def erf(x):
    out = np.empty_like(x)
    for i in numba.prange(x.size):
        out[i] = math.erf(x[i])
    return out


@parallel
def sin(x):
    return np.sin(x)


@parallel
def power(x, y):
    return np.abs(x) ** y


@parallel
def bias(x, b):
    return x + b


@parallel
def add_transposed(a, b):
    return a + b.T


@parallel
def transposed(x):
    out = np.empty((x.shape[1], x.shape[0]), x.dtype)
    for i in numba.prange(out.shape[0]):
        for j in range(out.shape[1]):
            out[i, j] = x[j, i]
    return out


@parallel
def softmax(x):
    out = np.empty_like(x)
    for i in numba.prange(x.shape[0]):
        top = x[i].max()
        total = np.float32(0)
        for j in range(x.shape[1]):
            out[i, j] = math.exp(x[i, j] - top)
            total += out[i, j]
        for j in range(x.shape[1]):
            out[i, j] /= total
    return out


softmax_by_hand = softmax


@parallel
def logsumexp(x):
    out = np.empty(x.shape[0], x.dtype)
    for i in numba.prange(x.shape[0]):
        top = x[i].max()
        total = np.float32(0)
        for j in range(x.shape[1]):
            total += math.exp(x[i, j] - top)
        out[i] = math.log(total) + top
    return out


@parallel
def log_softmax(x):
    out = np.empty_like(x)
    for i in numba.prange(x.shape[0]):
        top = x[i].max()
        total = np.float32(0)
        for j in range(x.shape[1]):
            total += math.exp(x[i, j] - top)
        shift = math.log(total) + top
        for j in range(x.shape[1]):
            out[i, j] = x[i, j] - shift
    return out


@parallel
def layer_norm(x, w, b):
    out = np.empty_like(x)
    n = x.shape[1]
    for i in numba.prange(x.shape[0]):
        mean = x[i].sum() / n
        squares = np.float32(0)
        for j in range(n):
            squares += (x[i, j] - mean) * (x[i, j] - mean)
        scale = 1 / math.sqrt(squares / n + 1e-5)
        for j in range(n):
            out[i, j] = (x[i, j] - mean) * scale * w[j] + b[j]
    return out


@parallel
def rms_norm(x, w):
    out = np.empty_like(x)
    n = x.shape[1]
    for i in numba.prange(x.shape[0]):
        squares = np.float32(0)
        for j in range(n):
            squares += x[i, j] * x[i, j]
        scale = 1 / math.sqrt(squares / n + 1e-6)
        for j in range(n):
            out[i, j] = x[i, j] * scale * w[j]
    return out


@parallel
def relu_of_norm(a, b):
    out = np.empty_like(a)
    n = a.shape[1]
    for i in numba.prange(a.shape[0]):
        row = a[i] + b[i]
        mean = row.sum() / n
        squares = np.float32(0)
        for j in range(n):
            squares += (row[j] - mean) * (row[j] - mean)
        scale = 1 / math.sqrt(squares / n + 1e-5)
        for j in range(n):
            out[i, j] = max((row[j] - mean) * scale, 0)
    return out


@parallel
def variance(x):
    out = np.empty(x.shape[0], x.dtype)
    n = x.shape[1]
    for i in numba.prange(x.shape[0]):
        mean = x[i].sum() / n
        squares = np.float32(0)
        for j in range(n):
            squares += (x[i, j] - mean) * (x[i, j] - mean)
        out[i] = squares / (n - 1)
    return out


@parallel
def argmax(x):
    out = np.empty(x.shape[0], np.int64)
    for i in numba.prange(x.shape[0]):
        out[i] = x[i].argmax()
    return out


@parallel
def cross_entropy(x, t):
    loss = np.empty(x.shape[0], x.dtype)
    for i in numba.prange(x.shape[0]):
        top = x[i].max()
        total = np.float32(0)
        for j in range(x.shape[1]):
            total += math.exp(x[i, j] - top)
        loss[i] = math.log(total) + top - x[i, t[i]]
    return loss.mean()


@parallel
def total(x):
    return x.sum()


@parallel
def row_sums(x):
    out = np.empty(x.shape[0], x.dtype)
    for i in numba.prange(x.shape[0]):
        out[i] = x[i].sum()
    return out


@parallel
def column_sums(x):
    return x.sum(0)


@parallel
def cumsum(x):
    out = np.empty_like(x)
    for i in numba.prange(x.shape[0]):
        total = np.float32(0)
        for j in range(x.shape[1]):
            total += x[i, j]
            out[i, j] = total
    return out


@parallel
def matmul(x, w):
    return np.dot(x, w)


@parallel
def dense(x, w, b):
    out = np.dot(x, w)
    for i in numba.prange(out.shape[0]):
        for j in range(out.shape[1]):
            y = out[i, j] + b[j]
            out[i, j] = y * np.float32(0.5) * (np.float32(1) + math.erf(y * np.float32(0.70710678)))
    return out
