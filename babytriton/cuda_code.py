"""``cuda_function`` and ``cuda_kernel``: CUDA C++ of one's own inside compiled functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import update_wrapper
from typing import Any

from babytriton import errors
from babytriton.jit import REGISTRY
from babytriton.ops import cuda_code
from babytriton.ops.cuda_definitions import functions, never_launched, read
from babytriton.ops.refusals import Unsupported

Sizes = int | tuple[int, ...] | Callable[..., int | tuple[int, ...]]
"""Along x, y and z; or a function of a call's arguments, tensors among them as meta tensors."""


def cuda_function(
    source: str,
    *,
    name: str,
    cpu: Callable[..., Any],
    gradient: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """A device function of one's own, as an elementwise operator that fuses with others.

    In a function that is compiled for a GPU, it is called for each element; tensors are broadcast,
    16-bit floats are passed and returned as ``float``, and numbers passed as they are: floats as
    ``double`` where the parameter or a tensor is. What a parameter would cut is refused: other
    numbers than its type has, and tensors that may hold such; floats are rounded. Elsewhere, and
    called from Python, ``cpu`` runs, whose names and defaults a call may use.

    Args:
        source: CUDA C++ that defines ``__device__ T name(...)``, outside of named namespaces and
            classes, and perhaps what it needs; other code of a program may define the same names
            and macros.
        name: of the function.
        cpu: the same with torch, for tensors. It also tells the result's shape and dtype.
        gradient: as :func:`babytriton.register` takes it; by default torch's own of ``cpu``.

    Returns:
        A function that compiled functions may call.

    Raises:
        TypeError: ``cpu`` is no function.
        ValueError: the source does not define the function.
    """
    _check(source, name, cpu)
    found = cuda_code.device_function(source, name)
    if found is None:
        where = _where(source, name)
        raise errors.NotInSource(None, name, "__device__ function", where).error()
    own = cuda_code.defined(source, name, found)
    operator, given = _operator(name, cpu)

    def build(site: Any, *args: Any, **kwargs: Any) -> Any:
        return cuda_code.build_function(site, own, given(*args, **kwargs))

    REGISTRY.introduce(operator, build, None, gradient or _torchs)
    return operator


def cuda_kernel(
    source: str,
    *,
    name: str,
    grid: Sizes,
    block: Sizes,
    cpu: Callable[..., Any],
    out: Callable[..., Any] | None = None,
    gradient: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """A CUDA kernel of one's own, as an operator.

    Its parameters are the call's arguments, tensors as ``const`` pointers to contiguous elements,
    or to vectors of these, and numbers as they are, and then a pointer for each result. It is
    launched on torch's current stream, with the ``__launch_bounds__`` that it has, if they are
    numbers, and no shared memory but what it declares.

    Args:
        source: CUDA C++ that defines ``__global__ void name(...)``, and perhaps what it needs;
            other code of a program may define the same names and macros.
        name: of the kernel.
        grid: thread blocks, or a function of the arguments that gives them.
        block: threads of each, likewise.
        cpu: the same with torch. It runs where the program is not compiled for a GPU, where sizes
            are symbolic, and where the operator is called from Python.
        out: gives the results as meta tensors, from the arguments; by default ``cpu`` does.
        gradient: as :func:`babytriton.register` takes it; by default torch's own of ``cpu``.

    Returns:
        A function that compiled functions may call.

    Raises:
        TypeError: ``cpu`` or ``out`` is no function.
        ValueError: the source does not define the kernel, or it needs a launch of another kind.
    """
    _check(source, name, cpu)
    if out is not None and not callable(out):
        raise TypeError(f"out must be a function, not {type(out).__name__}")
    found = cuda_code.kernel(source, name)
    if found is None:
        where = _where(source, name)
        raise errors.NotInSource(None, name, "single __global__ kernel", where).error()
    why = never_launched(read(source))
    if why is not None:
        raise errors.NoSuchLaunch(None, name, why).error()
    own = cuda_code.defined(source, name, found)
    operator, given = _operator(name, cpu)

    def build(site: Any, *args: Any, **kwargs: Any) -> Any:
        return cuda_code.build_kernel(site, own, given(*args, **kwargs), grid, block)

    REGISTRY.introduce(operator, build, out, gradient or _torchs)
    return operator


def _torchs(*_: Any) -> Any:
    raise Unsupported("torch's own gradient is taken")


def _check(source: Any, name: Any, cpu: Any) -> None:
    for what, value in (("source", source), ("name", name)):
        if not isinstance(value, str):
            raise TypeError(f"{what} must be a text, not {type(value).__name__}")
    if not name.isidentifier():
        raise ValueError(f"name must be that of a function, not {name!r}")
    if not callable(cpu):
        raise TypeError(f"cpu must be a function, not {type(cpu).__name__}")


def _where(source: str, name: str) -> str:
    """What is to be said of where a function is that is not called by its name alone."""
    scope = next((one.scope for one in functions(source, name) if one.scope is not None), None)
    return "" if scope is None else f", and not in `{scope}` alone"


def _operator(
    name: str, cpu: Callable[..., Any]
) -> tuple[Callable[..., Any], Callable[..., cuda_code.Given]]:
    """What users call, and what gives a call's arguments in the order that code takes them."""
    signature = inspect.signature(cpu)
    ordered = [
        own
        for own, parameter in signature.parameters.items()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]

    def operator(*args: Any, **kwargs: Any) -> Any:
        return cpu(*args, **kwargs)

    def given(*args: Any, **kwargs: Any) -> cuda_code.Given:
        bound = signature.bind(*args, **kwargs)
        asked = [n + 1 for n, own in enumerate(ordered) if own in bound.arguments]
        least = max(len(bound.args), *asked) if asked else len(bound.args)
        bound.apply_defaults()
        return cuda_code.Given(bound.args, least, bound.kwargs)

    update_wrapper(operator, cpu)
    operator.__name__ = operator.__qualname__ = name
    # What inspect reads; the types of functions do not have it.
    operator.__signature__ = signature  # type: ignore[attr-defined]
    return operator, given
