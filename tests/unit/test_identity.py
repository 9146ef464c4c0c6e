"""``is`` between tensors: the program depends on which arguments are one object."""

from __future__ import annotations

import pytest
import torch

import babytriton as bt

OUTSIDE = torch.ones(3)


def projected(q, k, v):
    if q is k:
        return q * 2 + v
    return q * 3 - v if v is not k else q * 5


def among(q, ks):
    return q * sum(k is q for k in ks)


def of_dict(tensors):
    return tensors["x"] + (1 if tensors["x"] is tensors["y"] else 2)


def with_itself(q):
    first = q
    made = q * 2
    return first is q, made is q, made is not q


def tensors(count: int, **options):
    return [torch.full((4,), float(n + 1), **options) for n in range(count)]


@pytest.mark.parametrize("dynamic", [None, True, False])
def test_each_pattern_of_arguments_has_its_program(dynamic: bool | None) -> None:
    jitted = bt.jit("cpu", dynamic=dynamic)(projected)
    a, b, c = tensors(3)
    for _ in range(5):
        for args in ((a, b, c), (a, a, b), (a, b, b), (a, a, a), (b, c, a), (c, b, b)):
            assert torch.equal(jitted(*args), projected(*args))
    assert len(jitted.specializations()) <= 5


def test_specs() -> None:
    spec = bt.Tensor((4,), torch.float32)
    a, b, c = tensors(3)
    compiled = bt.jit("cpu")(projected).lower(spec, bt.Tensor((4,), torch.float32), c).compile()
    assert torch.equal(compiled(a, b, c), projected(a, b, c))
    compiled = bt.jit("cpu")(projected).lower(spec, spec, c).compile()
    assert torch.equal(compiled(a, a, c), projected(a, a, c))


def test_what_gives_the_tensor_itself() -> None:
    def same(x):
        y = x + 1
        z = y.contiguous()
        z.mul_(2)
        return z is y, y.float() is y, y.clone() is y, y, z

    for ours, theirs in zip(bt.jit("cpu")(same)(torch.ones(3)), same(torch.ones(3))):
        assert torch.equal(ours, theirs) if isinstance(ours, torch.Tensor) else ours is theirs


def test_in_containers() -> None:
    a, b = tensors(2)
    jitted = bt.jit("cpu")(among)
    for ks in ([a, b], [a, a], [b, b], (b, a)):
        assert torch.equal(jitted(a, ks), among(a, ks))
    jitted = bt.jit("cpu")(of_dict)
    for given in ({"x": a, "y": b}, {"x": a, "y": a}, {"x": b, "y": b}):
        assert torch.equal(jitted(given), of_dict(given))


def test_what_the_function_makes_is_something_else() -> None:
    (a,) = tensors(1)
    assert bt.jit("cpu")(with_itself)(a) == (True, False, True)


def test_with_gradients() -> None:
    a, b = tensors(2, requires_grad=True)
    jitted = bt.jit("cpu")(projected)
    for args in ((a, a, b), (a, b, b), (a, a, b)):
        found = torch.autograd.grad(jitted(*args).sum(), args[0])
        assert torch.equal(found[0], torch.autograd.grad(projected(*args).sum(), args[0])[0])


def test_a_compiled_program_refuses_another_pattern() -> None:
    a, b = tensors(2)
    compiled = bt.jit("cpu")(projected).lower(a, a, b).compile()
    assert torch.equal(compiled(b, b, a), projected(b, b, a))
    with pytest.raises(ValueError, match=r"BT1.*`k`"):
        compiled(a, b, b)


def test_tensors_from_outside() -> None:
    with pytest.raises(bt.CompileError, match="BT040"):
        bt.jit("cpu")(lambda q: q * 2 if q is OUTSIDE else q * 3)(OUTSIDE)
    assert torch.equal(
        bt.jit("cpu")(lambda q: q if OUTSIDE is None else q * 3)(OUTSIDE), OUTSIDE * 3
    )
