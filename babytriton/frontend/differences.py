"""Why a call needs a program of its own, in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from babytriton.frontend.captures import Guard, Place, described
from babytriton.frontend.signature import (
    DictSpec,
    FloatSpec,
    SequenceSpec,
    Signature,
    Spec,
    TensorSpec,
)
from babytriton.ops import autocast


def differences(now: Signature, before: Signature, covered: Signature) -> list[str]:
    """How the arguments of a call, and what autocast is set to, differ from those of another.

    Args:
        now: the arguments.
        before: those of the other call.
        covered: what was compiled for the other call; it does not matter how sizes differ that
            are symbolic in it.
    """
    specs = zip(now.names, now.specs, before.specs, covered.specs)
    found = [text for name, *each in specs for text in _differ(name, *each)]
    if [each.path for each in now.known] == [each.path for each in before.known]:
        pairs = [(is_now, was) for is_now, was in zip(now.known, before.known) if is_now != was]
        found += [
            f"argument {is_now.path}: {is_now.differs_from(was)}, before {was.differs_from(is_now)}"
            for is_now, was in pairs
        ]
    if now.autocast != before.autocast:
        is_now, was = (autocast.text(each.autocast) for each in (now, before))
        found.append(f"torch.autocast: {is_now}, before {was}")
    return found


def changes(guards: Iterable[Guard]) -> list[str]:
    """What has changed outside the function."""
    failed = {guard.place.path: guard for guard in guards if not guard()}
    return [
        f"captured {path}: {_found(guard.place)}, before {guard.before}"
        for path, guard in failed.items()
    ]


def _found(place: Place) -> str:
    try:
        return described(place.read())
    except Exception:  # whatever a user's property raises
        return "nothing"


def _lying(spec: TensorSpec) -> str:
    return "in memory as contiguous tensors are" if spec.format is None else str(spec.format)


def _recording(spec: TensorSpec) -> str:
    return "with its gradient recorded" if spec.requires_grad else "without"


def _differ(path: str, now: Spec, before: Spec, covered: Spec) -> Iterator[str]:
    if isinstance(now, TensorSpec) and isinstance(before, TensorSpec):
        if not (isinstance(covered, TensorSpec) and covered.type.covers(now.type)):
            yield f"argument {path}: {now}, before {before}"
        elif now.format != before.format:
            yield f"argument {path}: {_lying(now)}, before {_lying(before)}"
        if now.device != before.device:
            yield f"argument {path}: on {now.device}, before on {before.device}"
        if now.requires_grad != before.requires_grad:
            yield f"argument {path}: {_recording(now)}, before {_recording(before)}"
    elif isinstance(now, SequenceSpec) and isinstance(before, SequenceSpec):
        if now.kind is not before.kind or len(now.items) != len(before.items):
            yield f"argument {path}: {now}, before {before}"
            return
        assert isinstance(covered, SequenceSpec)
        for i, trio in enumerate(zip(now.items, before.items, covered.items)):
            yield from _differ(f"{path}[{i}]", *trio)
    elif isinstance(now, DictSpec) and isinstance(before, DictSpec):
        if now.kind != before.kind or now.keys != before.keys:
            yield f"argument {path}: {now}, before {before}"
            return
        assert isinstance(covered, DictSpec)
        for key, trio in zip(now.keys, zip(now.items, before.items, covered.items)):
            yield from _differ(f"{path}[{key!r}]", *trio)
    elif not (isinstance(now, FloatSpec) and isinstance(before, FloatSpec)) and now != before:
        yield f"argument {path}: {now}, before {before}"
