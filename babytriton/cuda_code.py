"""``cuda_function`` and ``cuda_kernel``: CUDA C++ of one's own inside compiled functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import update_wrapper
from typing import Any

from babytriton import errors
from babytriton.jit import register
from babytriton.ops import cuda_code
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
    16-bit floats are passed and returned as ``float``, and numbers passed as they are. Elsewhere,
    and called from Python, ``cpu`` runs.

    Args:
        source: CUDA C++ that defines ``__device__ T name(...)``, and perhaps what it needs.
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
    if not cuda_code.is_device_function(source, name):
        raise errors.NotInSource(None, name, "__device__ function").error()
    own = cuda_code.defined(source, name)
    operator = _operator(name, cpu)

    def build(site: Any, *args: Any) -> Any:
        return cuda_code.build_function(site, own, args)

    register(operator, build=build, gradient=gradient or _torchs)
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

    Its parameters are the call's arguments, tensors as pointers to contiguous elements and numbers
    as they are, and then a pointer for each result. It is launched on torch's current stream.

    Args:
        source: CUDA C++ that defines ``__global__ void name(...)``, and perhaps what it needs.
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
        ValueError: the source does not define the kernel.
    """
    _check(source, name, cpu)
    if out is not None and not callable(out):
        raise TypeError(f"out must be a function, not {type(out).__name__}")
    function = cuda_code.kernel_as_function(source, name)
    if function is None:
        raise errors.NotInSource(None, name, "__global__ kernel").error()
    own = cuda_code.defined(function, name)
    operator = _operator(name, cpu)

    def build(site: Any, *args: Any) -> Any:
        return cuda_code.build_kernel(site, own, args, grid, block)

    register(operator, build=build, meta=out, gradient=gradient or _torchs)
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


def _operator(name: str, cpu: Callable[..., Any]) -> Callable[..., Any]:
    def operator(*args: Any) -> Any:
        return cpu(*args)

    update_wrapper(operator, cpu)
    operator.__name__ = operator.__qualname__ = name
    # What inspect reads; the types of functions do not have it.
    operator.__signature__ = inspect.signature(cpu)  # type: ignore[attr-defined]
    return operator
