"""What a compiled function reports while it runs: prints, assertions, warnings and logs."""

from __future__ import annotations

import functools
import logging
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import babytriton as bt

X = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
N = torch.arange(7)
Capture = pytest.CaptureFixture[str]


def printed(capsys: Capture, fn: Callable[..., Any], *args: Any) -> str:
    """What ``fn`` prints; compiled it prints the same at each call."""
    capsys.readouterr()
    expected = fn(*args)
    text = capsys.readouterr().out
    compiled = bt.jit("cpu")(fn)
    for _ in range(2):
        torch.testing.assert_close(compiled(*args), expected)
        assert capsys.readouterr().out == text
    return text


class Pair(NamedTuple):
    left: Any
    right: Any


def shout(x, *, name):
    print(name, "=", x)
    return x * 2


def test_print_shows_values_in_program_order(capsys: Capture) -> None:
    def f(x, n):
        print("start")
        y = x.exp() + 1
        print(y, y.sum(), n, sep=" | ", end="!\n")
        z = y * 2
        print()
        print(y.shape, z.dtype, None, 3.5)
        z = shout(z, name="z")
        print({"pair": Pair(z, [n])}, (x > 0, x.half(), x.bool()))
        return z + 1, n

    text = printed(capsys, f, X, N)
    assert text.startswith("start\ntensor([[")


def test_what_is_printed_and_not_used_is_computed(capsys: Capture) -> None:
    def f(x):
        print(x.sum(0))
        print((x @ x.T).softmax(-1))
        return x

    assert printed(capsys, f, X).count("tensor(") == 2


@pytest.mark.parametrize(
    "show",
    [
        lambda x, n: f"{x} and {n!r} of {x.shape}",
        lambda x, n: f"{x.sum():.3f} {n[0]:>5} {n.max()!s:>8}",
        lambda x, n: f"{x.sum():{'>'}{10 + 2}.4f}",
        lambda x, n: "a {} b {one:.2f}".format(x, one=x.mean()),  # noqa: UP032
        lambda x, n: "%s %.3f" % (x, x.sum()),  # noqa: UP031
        lambda x, n: str(x) + " " + repr(n) + "." + format(x.sum(), ".1e"),
        lambda x, n: ", ".join([f"{n.sum()}", "b", str(n)]),
        lambda x, n: f"{[n, x]} {f'{x.min()}'}",
    ],
)
def test_strings_of_tensors(capsys: Capture, show: Callable[..., Any]) -> None:
    def f(x, n):
        text = show(x, n)
        text += "."
        print(text)
        print("<" + text)
        return x

    printed(capsys, f, X, N)


def test_a_float_argument_prints_as_a_number(capsys: Capture) -> None:
    def f(x, scale):
        print(scale, f"{scale:.2f}", scale * 2)
        return x * scale

    assert printed(capsys, f, X, 1.25) == "1.25 1.25 2.5\n"
    compiled = bt.jit("cpu")(f)
    compiled(X, 0.5)
    newest = compiled._specializations.newest
    compiled(X, 0.75)
    assert compiled._specializations.newest is newest, "a number that is only shown stays variable"
    assert capsys.readouterr().out.endswith("0.75 0.75 1.5\n")


def test_a_list_prints_as_it_was(capsys: Capture) -> None:
    def f(x):
        items = [x]
        print(items)
        items.append(x + 1)
        print(items)
        return items[1]

    printed(capsys, f, N)


def test_print_to_a_file(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log:

        def f(x):
            print(x, file=log, flush=True)
            return x

        bt.jit("cpu")(f)(N)
    assert (tmp_path / "log").read_text() == f"{N}\n"


def test_writing_to_a_file_happens_at_each_call(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log:

        def f(x):
            log.write(f"{x.sum()}\n")
            log.flush()
            return x

        compiled = bt.jit("cpu")(f)
        compiled(torch.ones(2))
        compiled(torch.ones(2) * 2)
    assert (tmp_path / "log").read_text() == "2.0\n4.0\n"


def test_print_leaves_fusion_alone_elsewhere() -> None:
    def f(x):
        y = (x + 1) * 2
        print(y)
        return (y - 1).exp()

    assert len(bt.jit("cpu")(f).lower(X).compile().kernels) == 2


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: f"{x}" == "a",
        lambda x: {f"{x}": 1},
        lambda x: f"{x}".upper(),
        lambda x: len(f"{x}"),
        lambda x: f"{x}"[0],
        lambda x: "a" in f"{x}",
        lambda x: f"{x}" * 2,
        lambda x: f"{x}",
        lambda x: sorted([f"{x}", "a"]),
        lambda x: list(map(print, [x])),
    ],
)
def test_the_text_of_a_tensor_is_not_known_while_compiling(fn: Callable[..., Any]) -> None:
    with pytest.raises(bt.CompileError, match="BT006"):
        bt.jit("cpu")(fn)(X)


def test_the_text_of_a_float_is_a_constant_where_it_must_be() -> None:
    compiled = bt.jit("cpu")(lambda x, scale: x * len(f"{scale}"))
    torch.testing.assert_close(compiled(X, 1.5), X * 3)
    torch.testing.assert_close(compiled(X, 1.125), X * 5)


# ------------------------------------------------------------ assertions


def test_assertions_about_tensors() -> None:
    def f(x, n):
        assert (x > -10).all(), "not so small"
        assert n[-1] == 6
        return x + 1

    compiled = bt.jit("cpu")(f)
    torch.testing.assert_close(compiled(X, N), X + 1)
    with pytest.raises(AssertionError, match="not so small"):
        compiled(X - 100, N)
    with pytest.raises(AssertionError, match="assert n\\[-1\\] == 6"):
        compiled(X, N + 1)
    torch.testing.assert_close(compiled(X, N), X + 1)


def test_prints_in_branches_and_loops(capsys: Capture) -> None:
    def f(x):
        if x.sum() > 0:
            print("positive", x.sum())
            x = x * 2
        elif x.min() < -1:
            print("very negative")
        for i in range(3):
            print("step", i)
            x = x + i
        for i in range(40):
            if i == 38:
                print("late", x[0])
            x = x + 1
        while x.sum() < 500:
            print("grows to", x.sum())
            x = x + x.abs()
        if x[0] > 1000:
            print("nothing else in this branch")
        return x

    for start in (1.0, -0.5, -2.0, 5000.0):
        printed(capsys, f, torch.full((3,), start))


def test_assertions_in_branches(capsys: Capture) -> None:
    def f(x):
        if x.sum() > 0:
            assert x[0] > 1, f"first is {x[0]}"
        return x + 1

    compiled = bt.jit("cpu")(f)
    for good in (-torch.ones(2), torch.full((2,), 2.0)):
        torch.testing.assert_close(compiled(good), good + 1)
    with pytest.raises(AssertionError, match=r"first is 0.5"):
        compiled(torch.full((2,), 0.5))


def test_an_assertion_about_several_elements_is_refused() -> None:
    def f(x):
        assert x > 0
        return x

    with pytest.raises(bt.CompileError, match="BT005"):
        bt.jit("cpu")(f)(X)


def test_what_stands_before_a_failed_assertion_was_printed(capsys: Capture) -> None:
    def f(x):
        print("before")
        assert x.sum() > 0, x.sum()
        print("after")
        return x

    with pytest.raises(AssertionError, match=r"tensor\(-3.\)"):
        bt.jit("cpu")(f)(-torch.ones(3))
    assert capsys.readouterr().out == "before\n"


# ------------------------------------------------------------ warnings and logs


def test_warnings_come_from_the_users_line() -> None:
    def f(x):
        warnings.warn(f"the sum is {x.sum()}", UserWarning, stacklevel=1)
        return x

    compiled = bt.jit("cpu")(f)
    for _ in range(2):
        with pytest.warns(UserWarning, match="the sum is 3.0") as caught:
            compiled(torch.ones(3))
        [warning] = caught
        assert warning.filename == __file__
        assert warning.lineno == f.__code__.co_firstlineno + 1
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        compiled(torch.ones(3))
        compiled(torch.ones(3))
    assert len(shown) == 1, "the default is once a place and text"


def test_logs_come_from_the_users_line(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("mine")

    def f(x):
        logger.info("sum %s of %d", x.sum(), x.numel())
        logging.warning("here")
        logger.debug("not shown")
        return x

    caplog.set_level(logging.INFO)
    compiled = bt.jit("cpu")(f)
    for _ in range(2):
        caplog.clear()
        compiled(torch.ones(3))
        assert [r.getMessage() for r in caplog.records] == ["sum tensor(3.) of 3", "here"]
        assert {r.pathname for r in caplog.records} == {__file__}
        assert caplog.records[0].lineno == f.__code__.co_firstlineno + 1


def test_partial_print(capsys: Capture) -> None:
    show = functools.partial(print, "x:", end=";")

    def f(x):
        show(x)
        return x

    assert printed(capsys, f, N) == f"x: {N};"


# ------------------------------------------------------------ without compiling

INTERPRETED = """
import sys
import torch
import babytriton as bt

stops = []

def stop():
    frame = sys._getframe(1)
    stops.append((frame.f_code.co_name, dict(frame.f_locals)))

sys.breakpointhook = stop

def helper(x):
    breakpoint()
    return x + 1

@bt.jit("gpu")
def f(x, values):
    print("in f", x, id(x) == MARK)
    values.append(1)
    y = helper(x)
    try:
        return y
    finally:
        breakpoint()

class Model(torch.nn.Module):
    @bt.jit
    def forward(self, x):
        self.seen = x
        return x * 2

x, seen = torch.ones(2), []
MARK = id(x)
print(f(x, seen), seen, [(name, sorted(names)) for name, names in stops])
model = Model()
print(model(x), model.seen is x, bt.jit(torch.nn.ReLU())(-x))
"""


def test_interpret_runs_the_python(tmp_path: Path) -> None:
    script = tmp_path / "interpreted.py"
    script.write_text(textwrap.dedent(INTERPRETED))
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        check=False,
        env={"BABYTRITON_INTERPRET": "1", "PYTHONPATH": str(Path(bt.__file__).parents[1])},
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "in f tensor([1., 1.]) True"
    assert lines[1] == "tensor([2., 2.]) [1] [('helper', ['x']), ('f', ['values', 'x', 'y'])]"
    assert lines[2] == "tensor([2., 2.]) True tensor([0., 0.])"


SEEDED = torch.Generator()


def from_a_seed(x, n):
    made = torch.Generator().manual_seed(n)
    outs = [x + torch.randn(3, generator=made)]
    for _ in range(40):
        outs.append(x + torch.rand(3, generator=made))
    return torch.stack(outs), torch.randperm(5, generator=torch.Generator())


def seeded_again(x, n):
    SEEDED.manual_seed(n)
    first = torch.randn(3, generator=SEEDED)
    return x + first, torch.randn(3, generator=SEEDED)


@pytest.mark.parametrize("fn", [from_a_seed, seeded_again])
def test_generators_begin_anew_in_each_run(fn) -> None:
    compiled = bt.jit("cpu")(fn)
    for seed in (0, 1, 0, 0):
        torch.testing.assert_close(compiled(torch.zeros(3), seed), fn(torch.zeros(3), seed))


def test_how_a_generator_stands_is_not_asked() -> None:
    def f(x):
        return x + SEEDED.get_state()[0]

    with pytest.raises(bt.CompileError, match="get_state"):
        bt.jit("cpu")(f)(torch.zeros(3))
