"""``check``: a compiled function or operator against its own plain Python function."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from babytriton.integrations.torch_library import LibraryOp
from babytriton.jit import JitFunction
from babytriton.ops.generators import Generators
from babytriton.ops.trees import leaves_in
from babytriton.testing.samples import Sample, layouts, samples_of, sizes

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
"""What samples of floats are tried in beside their own."""


@dataclass(frozen=True)
class Checked:
    """What was checked.

    Attributes:
        passed: the checks that passed.
        skipped: those that do not apply, each with the reason.
    """

    passed: tuple[str, ...]
    skipped: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        lines = [f"passed   {name}" for name in self.passed]
        lines += [f"skipped  {name}: {why}" for name, why in self.skipped]
        return "\n".join(lines)


class _SkippedError(Exception):
    """A check does not apply; the message says why."""


def check(
    op: LibraryOp | JitFunction,
    samples: Iterable[Any],
    *,
    dtypes: Sequence[torch.dtype] = DTYPES,
    reference: Callable[..., Any] | None = None,
) -> Checked:
    """Check an operator, or a compiled function, against torch.

    Each sample is tried as it is, in each dtype, in other memory layouts, and with odd sizes and
    sizes of 1 where the plain function takes them. So are its gradients, where floats have any.
    Of an operator the in-place variant is tried too, and all that ``torch.library.opcheck`` asks.

    What is expected is computed in float64 by the plain function. A number may differ by the
    tolerances of ``torch.testing.assert_close`` for its dtype, by twice of what the plain function
    itself differs by in that dtype there, and by four times the median of that. Of functions that
    draw random numbers, from the same seed, the plain function in the dtype is expected.

    Args:
        op: what is checked.
        samples: a list of arguments: each a tuple, a :class:`Sample`, or the one argument.
        dtypes: to try samples of floats in, beside their own.
        reference: the plain function; by default that of ``op``.

    Returns:
        What was checked.

    Raises:
        AssertionError: it lists all that differs.
        TypeError, ValueError: there are no samples, or ``op`` is not compiled.
    """
    if not isinstance(op, (LibraryOp, JitFunction)):
        raise TypeError(f"op must be a compiled function or operator, not {type(op).__name__}")
    plain = reference or op.fn
    passed, skipped, failed = [], [], []
    for name, run in _checks(op, plain, samples_of(samples), dtypes):
        try:
            run()
            passed.append(name)
        except _SkippedError as why:
            skipped.append((name, str(why)))
        except Exception as error:
            failed.append(f"{name}: {type(error).__name__}: {error}")
    if failed:
        count = f"{len(failed)} of {len(failed) + len(passed)} checks of {op.__name__} failed"
        raise AssertionError("\n\n".join([count, *failed]))
    return Checked(tuple(passed), tuple(skipped))


def _checks(
    op: Any, plain: Callable[..., Any], samples: Sequence[Sample], dtypes: Sequence[torch.dtype]
) -> Iterator[tuple[str, Callable[[], None]]]:
    for sample in samples:
        name = sample.name
        yield name, partial(_results, op, plain, sample)
        yield f"{name}, gradients", partial(_gradients, op, plain, sample)
        for dtype in dtypes if sample.dtype is not None else ():
            if dtype != sample.dtype:
                short, other = str(dtype).removeprefix("torch."), sample.to(dtype)
                yield f"{name}, {short}", partial(_results, op, plain, other)
                yield f"{name}, {short}, gradients", partial(_gradients, op, plain, other)
        for what, other in layouts(sample):
            yield f"{name}, {what}", partial(_results, op, plain, other)
            yield f"{name}, {what}, gradients", partial(_gradients, op, plain, other)
        for what, other in sizes(sample):
            yield f"{name}, {what}", partial(_resized, _results, op, plain, other)
            yield f"{name}, {what}, gradients", partial(_resized, _gradients, op, plain, other)
        if isinstance(op, LibraryOp):
            yield f"{name}, opcheck", partial(_opcheck, op, sample)
            if op.inplace is not None:
                yield f"{name}, in place", partial(_in_place, op, op.inplace, sample)
                yield f"{name}, in place, opcheck", partial(_opcheck, op.inplace, sample)


def _results(op: Any, plain: Callable[..., Any], sample: Sample) -> None:
    calls = [sample.copied(), sample.copied(), _widened(sample)]
    found, drawn = [], []
    for fn, call in zip((op, plain, plain), calls):
        with torch.no_grad(), _seeded(sample) as generators:
            found.append(leaves_in(fn(*call.args, **call.kwargs), torch.Tensor))
            drawn.append(generators.have_moved())
    if any(drawn):  # in float64, torch may draw others
        found[2], calls[2] = found[1], calls[1]
    _compare("result", found[0], found[1], found[2])
    ours, theirs, exact = (call.tensors() for call in calls)
    _compare("argument", ours, theirs, exact)


@contextlib.contextmanager
def _seeded(sample: Sample) -> Iterator[Generators]:
    """Inside, random numbers are the same each time."""
    with torch.random.fork_rng(devices={x.device for x in sample.tensors() if x.is_cuda}):
        torch.manual_seed(0)
        yield Generators.now(sample.tensors())


def _gradients(op: Any, plain: Callable[..., Any], sample: Sample) -> None:
    calls = [sample.copied(requires_grad=True) for _ in range(2)]
    calls.append(_widened(sample).copied(requires_grad=True))
    found: list[Any] = []
    draws = False
    for fn, call in zip((op, plain, plain), calls):
        try:
            with _seeded(sample) as generators:
                results = leaves_in(fn(*call.args, **call.kwargs), torch.Tensor)
                draws = draws or generators.have_moved()
        except RuntimeError as error:
            if (fn is plain and "in-place" in str(error)) or "BT116" in str(error):
                raise _SkippedError("it writes to an argument") from None
            raise
        outputs = [x for x in results if x.requires_grad]
        if not outputs:
            raise _SkippedError("no result has a gradient")
        generator = torch.Generator().manual_seed(0)
        grads = [
            torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x.device, x.dtype)
            for x in outputs
        ]
        inputs = [x for x in call.tensors() if x.requires_grad]
        found.append(torch.autograd.grad(outputs, inputs, grads, materialize_grads=True))
    _compare("gradient", found[0], found[1], found[1 if draws else 2])


def _resized(run: Callable[..., None], op: Any, plain: Callable[..., Any], sample: Sample) -> None:
    tried = sample.copied()
    try:
        plain(*tried.args, **tried.kwargs)
    except Exception as error:  # the function does not take such sizes
        raise _SkippedError(" ".join(str(error).split())[:100]) from None
    run(op, plain, sample)


def _in_place(op: LibraryOp, variant: LibraryOp, sample: Sample) -> None:
    ours, theirs = sample.copied(), sample.copied()
    with torch.no_grad():
        written = variant(*ours.args, **ours.kwargs)
        expected = op(*theirs.args, **theirs.kwargs)
    written, expected = (leaves_in(x, torch.Tensor) for x in (written, expected))
    _compare("written", written, expected, [x.double() for x in expected])
    for tensor in written:
        if not any(tensor is x for x in ours.tensors()):
            raise AssertionError("it returns another tensor than the one that it wrote to")


def _opcheck(op: LibraryOp, sample: Sample) -> None:
    writes = op.overload._schema.is_mutable
    call = sample.copied(requires_grad=not writes)
    torch.library.opcheck(op.overload, call.args, dict(call.kwargs))


def _widened(sample: Sample) -> Sample:
    """The sample in float64, where that says more."""
    return sample.each(
        lambda x: x.detach().double() if x.is_floating_point() else x.detach().clone()
    )


def _compare(
    what: str,
    found: Sequence[torch.Tensor],
    plain: Sequence[torch.Tensor],
    exact: Sequence[torch.Tensor],
) -> None:
    """Hold tensors against those of the plain function, in their dtype and in float64."""
    if len(found) != len(plain):
        raise AssertionError(f"{len(found)} tensors, and the plain function gives {len(plain)}")
    for i, (ours, theirs, right) in enumerate(zip(found, plain, exact)):
        name = f"{what} {i}"
        if (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
            types = f"{tuple(ours.shape)} {ours.dtype}, not {tuple(theirs.shape)} {theirs.dtype}"
            raise AssertionError(f"{name} is {types}")
        if not ours.is_floating_point():
            if not torch.equal(ours, theirs):
                raise AssertionError(f"{name} is {ours}, and should be {theirs}")
            continue
        right = right.double()
        own = (theirs.double() - right).abs().nan_to_num(0, 0, 0)
        rtol, atol = _TOLERANCES[ours.dtype]
        # A large number may not excuse others.
        usual = 4 * own.median() if own.numel() else 0
        allowed = atol + rtol * right.abs() + 2 * own + usual
        difference = (ours.double() - right).abs()
        wrong = ~((difference <= allowed) | (ours.double() == theirs.double()))
        wrong &= ~(ours.isnan() & theirs.isnan())
        if wrong.any():
            worst = difference.where(wrong, difference.new_zeros(())).nan_to_num(0).max().item()
            place = tuple(wrong.nonzero()[0].tolist())
            raise AssertionError(
                f"{name} is wrong in {int(wrong.sum())} of {wrong.numel()} elements, by up to "
                f"{worst:.3g}; at {place} it is {ours[place].item():.6g}, "
                f"and should be {right[place].item():.6g}"
            )


_TOLERANCES = {
    torch.float64: (1e-7, 1e-7),
    torch.float32: (1.3e-6, 1e-5),
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
}
"""Those of ``torch.testing.assert_close``: relative, absolute."""
