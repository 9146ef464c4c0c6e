"""Gradients of every row of the table on the CPU target, against torch's, in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import babytriton as bt
from tests.conformance.sample import Sample, Tensor
from tests.conformance.samples import SAMPLES


def _smooth(sample: Sample) -> Sample:
    """The sample without NaN and infinities, which have no gradients to compare."""
    inputs = [replace(x, special=False) if isinstance(x, Tensor) else x for x in sample.inputs]
    return replace(sample, inputs=tuple(inputs))


CASES = [
    pytest.param(_smooth(sample), id=f"{sample.op}-{i}")
    for i, sample in enumerate(SAMPLES)
    if torch.float64 in sample.dtypes
]


def _recording(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Copies of arguments, of which the floats require grad."""

    def own(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return x.detach().clone().requires_grad_(x.is_floating_point())
        return type(x)(map(own, x)) if isinstance(x, (tuple, list)) else x

    return tuple(map(own, arguments))


def _results(found: Any) -> list[torch.Tensor]:
    if isinstance(found, torch.Tensor):
        return [found]
    if isinstance(found, (tuple, list)):
        return [tensor for item in found for tensor in _results(item)]
    return []


def _total(tensors: list[Any], like: list[torch.Tensor], generator: Any = None) -> torch.Tensor:
    """A random sum of tensors, some of which may not be there; the same for all of ``like``."""
    generator = generator or torch.Generator().manual_seed(0)
    drawn = [torch.rand(x.shape, generator=generator, dtype=x.dtype) for x in like]
    pairs = [(x, y) for x, y in zip(tensors, drawn) if x is not None and x.requires_grad]
    return sum(((x * y).sum() for x, y in pairs), torch.zeros(()))


def _gradients(
    fn: Any, arguments: tuple[Any, ...], second: bool = True
) -> tuple[list[Any], list[Any] | None]:
    """The gradients of a random sum of the results, and of a random sum of these, if there are."""
    given = _recording(arguments)
    inputs = [x for x in _results(given) if x.requires_grad]
    results = [x for x in _results(fn(*given)) if x.requires_grad]
    generator = torch.Generator().manual_seed(0)
    if not results:
        return [None] * len(inputs), None
    first = torch.autograd.grad(
        _total(results, results, generator), inputs, create_graph=True, allow_unused=True
    )
    if not second or not any(x is not None and x.requires_grad for x in first):
        return list(first), None
    return list(first), list(
        torch.autograd.grad(_total(list(first), inputs, generator), inputs, allow_unused=True)
    )


def _check(ours: list[Any], torchs: list[Any], dtype: torch.dtype) -> None:
    assert len(ours) == len(torchs)
    rtol, atol = (1e-7, 1e-9) if dtype == torch.float64 else (1e-5, 1e-6)
    for one, other in zip(ours, torchs):
        # Where nothing flows back, either may say so by None or by zeros.
        one = torch.zeros_like(other) if one is None and other is not None else one
        other = torch.zeros_like(one) if other is None and one is not None else other
        if one is not None:
            torch.testing.assert_close(one, other, rtol=rtol, atol=atol, equal_nan=True)


# Of 2 to the power of a negative integer, torch's gradient takes the integer part.
WRONG_IN_TORCH = {"ldexp"}

TOGETHER = 8
FIRST = list({case.values[0].op: case for case in reversed(CASES)}.values())
"""The first sample of each row."""


@pytest.mark.parametrize("start", range(0, len(FIRST), TOGETHER))
def test_first_order(start: int) -> None:
    """As one program: most of the time that a small program takes is what all share."""
    samples, drawn, expected = [], [], []
    for case in FIRST[start : start + TOGETHER]:
        sample: Any = case.values[0]
        arguments = sample.arguments(torch.float64)
        if sample.op not in WRONG_IN_TORCH and not _is_refused_by_torch(sample, arguments):
            samples.append(sample)
            drawn.append(arguments)
            expected.append(_gradients(sample.fn, arguments, False)[0])
    functions = [sample.fn for sample in samples]

    def program(*drawn: tuple[Any, ...]) -> Any:
        return [fn(*arguments) for fn, arguments in zip(functions, drawn)]

    given = [_recording(arguments) for arguments in drawn]
    found = bt.jit("cpu")(program)(*given)
    results = [[x for x in _results(part) if x.requires_grad] for part in found]
    sums = [_total(part, part) for part in results]
    inputs = [[x for x in _results(part) if x.requires_grad] for part in given]
    flat = [x for part in inputs for x in part]
    total = sum((x for x in sums if x.requires_grad), torch.zeros(()))
    grads = torch.autograd.grad(total, flat, allow_unused=True) if total.requires_grad else ()
    each = iter(grads or [None] * len(flat))
    for sample, part, theirs, arguments in zip(samples, inputs, expected, drawn):
        try:
            _check([next(each) for _ in part], theirs, _dtype(sample, arguments))
        except AssertionError as error:
            raise AssertionError(f"{sample.op} of {sample.inputs}: {error}") from error


def _is_refused_by_torch(sample: Sample, arguments: tuple[Any, ...]) -> bool:
    try:
        _gradients(sample.fn, arguments, False)
    except RuntimeError:
        return True
    return False


def _dtype(sample: Sample, arguments: tuple[Any, ...]) -> torch.dtype:
    """The least precise dtype of the results: some samples give the dtype to compute in."""
    dtypes = [x.dtype for x in _results(sample.fn(*arguments)) if x.is_floating_point()]
    return min(dtypes, key=lambda dtype: torch.finfo(dtype).bits, default=torch.float64)


@pytest.mark.exhaustive
@pytest.mark.parametrize("sample", CASES)
def test_matches_torch(sample: Sample) -> None:
    """The gradient, and its gradient."""
    arguments = sample.arguments(torch.float64)
    compiled = bt.jit("cpu")(sample.fn)
    if sample.op in WRONG_IN_TORCH:
        given = _recording(arguments)
        assert torch.autograd.gradcheck(compiled, given, fast_mode=True)
        assert torch.autograd.gradgradcheck(compiled, given, fast_mode=True)
        return
    try:
        expected = _gradients(sample.fn, arguments)
    except RuntimeError:
        try:  # of some, torch has no gradient of the gradient
            expected = _gradients(sample.fn, arguments, False)
        except RuntimeError as error:
            pytest.skip(f"torch has no gradient: {error}")
    found = _gradients(compiled, arguments, expected[1] is not None)
    dtype = _dtype(sample, arguments)
    _check(found[0], expected[0], dtype)
    if expected[1] is not None:
        # Of what does not depend on the inputs, torch's may be zeros that say that they do.
        _check(found[1] or [None] * len(expected[1]), expected[1], dtype)


@pytest.mark.exhaustive
@pytest.mark.parametrize("sample", CASES)
def test_own_rows_have_own_gradients(sample: Sample) -> None:
    given = _recording(sample.arguments(torch.float64))
    lowered = bt.jit("cpu")(sample.fn).lower(*given)
    if lowered.lowering.gradient is not None and not lowered.fallbacks:
        assert lowered.backward.fallbacks == ()
