"""New tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from tvm import relax, runtime, tirx

from babytriton.ops.mutation import Cloned
from babytriton.ops.refusals import RANDOM, IllTyped, Unsupported
from babytriton.ops.site import Site
from babytriton.ops.sizes import as_number, int64, is_symbolic
from babytriton.ops.table import Op, stops
from babytriton.ops.value import Value, values_in
from babytriton.types import dtype_of

T = torch.Tensor


def _filled(site: Site, value: Any) -> Any:
    """A tensor of the result's shape with one value everywhere, a Python number or a value."""
    if not isinstance(value, Value) and not is_symbolic(value):
        value = _as_stored(value, site.dtype)
    number = site.expr(value, site.dtype)
    return relax.op.full([int64(n) for n in site.shape], number, dtype_of(site.dtype).name)


def _as_stored(number: Any, dtype: torch.dtype) -> Any:
    """A number as a tensor holds it: for uint8, -1 is 255."""
    try:
        return torch.empty((), dtype=dtype, device="cpu").fill_(number).item()
    except (RuntimeError, TypeError) as error:
        raise IllTyped(str(error)) from error


def _zeros(site: Site, *_: Any, **__: Any) -> Any:
    return _filled(site, 0)


def _ones(site: Site, *_: Any, **__: Any) -> Any:
    return _filled(site, 1)


def _full(site: Site, size: Any, fill_value: Any, **_: Any) -> Any:
    return _filled(site, fill_value)


def _full_like(site: Site, input: Value, fill_value: Any, **_: Any) -> Any:
    return _filled(site, fill_value)


def _new_full(site: Site, input: Value, size: Any, fill_value: Any, **_: Any) -> Any:
    return _filled(site, fill_value)


def _fill(site: Site, input: Value, value: Any) -> Any:
    return _filled(site, value)


def _arange(site: Site, *bounds: Any, **named: Any) -> Any:
    """Start plus a multiple of the step, in int64 or float64 as torch computes it."""
    starts = len(bounds) > 1 or "end" in named
    start = bounds[0] if bounds and starts else named.get("start", 0)
    step = bounds[2] if len(bounds) > 2 else named.get("step", 1)
    whole = not site.dtype.is_floating_point
    wide = "int64" if whole else "float64"
    convert = int if whole else float
    first, by = (as_number(x if is_symbolic(x) else convert(x), wide) for x in (start, step))

    def body(_: Any, i: Any) -> Any:
        return (first + by * i.astype(wide)).astype(dtype_of(site.dtype).name)

    found = site.compute("arange", site.shape, body)
    if whole and not is_symbolic(start) and not is_symbolic(step) and (start, step) == (0, 1):
        site.builder.counted.add(found)
    return found


def _eye(site: Site, *_: Any, **__: Any) -> Any:
    name = dtype_of(site.dtype).name
    one, zero = tirx.const(1, name), tirx.const(0, name)
    return site.compute("eye", site.shape, lambda _, i, j: tirx.Select(tirx.EQ(i, j), one, zero))


def constant(tensor: torch.Tensor) -> relax.Expr:
    """A tensor that is known while compiling."""
    held = tensor.detach().cpu().contiguous()
    if held.dtype == torch.bool:
        return relax.const(held.numpy(), "bool")
    return relax.const(runtime.from_dlpack(held))


def _evaluated(fn: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """A row for a tensor of Python numbers alone: torch makes it once, while compiling."""

    def build(site: Site, *args: Any, **kwargs: Any) -> Any:
        if values_in((args, kwargs)):
            raise Unsupported("made from the values of tensors")
        kwargs = {k: v for k, v in kwargs.items() if k not in ("device", "pin_memory")}
        with torch.device("cpu"):
            return constant(fn(*args, **kwargs))

    return build


def _tensor(site: Site, data: Any, **_: Any) -> Any:
    """A tensor of Python numbers, or of one float that is known only at run time."""
    if isinstance(data, Value):
        return site.expr(data, site.dtype)
    if values_in(data):
        raise Unsupported("made from the values of tensors")
    try:
        made = torch.tensor(data, dtype=site.dtype, device="cpu")
    except (ValueError, TypeError, RuntimeError) as error:  # lists of several lengths
        raise IllTyped(str(error)) from error
    return relax.const(made.item(), _name(site)) if site.shape == () else constant(made)


def _type_of_array(array: Any) -> torch.Tensor:
    """What ``torch.from_numpy`` makes, which takes no device, as a meta tensor."""
    return torch.from_numpy(array).to("meta")


def _by_class(site: Site, *given: Any, **_: Any) -> Any:
    """What a class of tensors makes of numbers, or of sizes: then torch leaves the values open."""
    return _tensor(site, *given) if _are_numbers(given) else _zeros(site)


def _type_by_class(dtype: torch.dtype | None) -> Callable[..., torch.Tensor]:
    """The same as a meta tensor."""

    def made(*given: Any, device: Any = None) -> torch.Tensor:
        own = dtype or torch.get_default_dtype()
        if given and isinstance(given[0], (torch.Tensor, float)):
            raise TypeError(
                "it takes sizes, or a list of numbers; of a tensor use that, or its .to()"
            )
        if _are_numbers(given):
            return torch.tensor(given[0], dtype=own)
        return torch.empty(*given or (0,), dtype=own)

    return made


def _are_numbers(given: Sequence[Any]) -> bool:
    return len(given) == 1 and not isinstance(given[0], (int, torch.Size))


def _scalar_tensor(site: Site, s: Any, **_: Any) -> Any:
    return _tensor(site, s)


def _new_tensor(site: Site, input: Value, data: Any, **_: Any) -> Any:
    return _tensor(site, data)


def _name(site: Site) -> str:
    return dtype_of(site.dtype).name


def _of_fill(grad: Any, result: Any, input: Any, value: Any) -> Any:
    return torch.zeros_like(input), grad


_CLASSES: dict[Any, torch.dtype | None] = {
    torch.Tensor: None,
    torch.FloatTensor: torch.float32,
    torch.DoubleTensor: torch.float64,
    torch.HalfTensor: torch.float16,
    torch.BFloat16Tensor: torch.bfloat16,
    torch.LongTensor: torch.int64,
    torch.IntTensor: torch.int32,
    torch.ShortTensor: torch.int16,
    torch.CharTensor: torch.int8,
    torch.ByteTensor: torch.uint8,
    torch.BoolTensor: torch.bool,
}

_FILLING = (
    T.cauchy_,
    T.exponential_,
    T.geometric_,
    T.log_normal_,
    T.normal_,
    T.random_,
    T.uniform_,
)
"""What draws numbers for the places of a tensor."""

ROWS: tuple[Op, ...] = (
    Op("zeros", (torch.zeros,), _zeros),
    Op("ones", (torch.ones,), _ones),
    Op("full", (torch.full,), _full, scalars=True),
    # torch leaves the values of empty tensors open.
    Op("empty", (torch.empty, torch.empty_like, T.new_empty), _zeros, gradient=stops),
    Op("zeros_like", (torch.zeros_like, T.new_zeros), _zeros, gradient=stops),
    Op("ones_like", (torch.ones_like, T.new_ones), _ones, gradient=stops),
    Op("full_like", (torch.full_like,), _full_like, scalars=True, gradient=stops),
    Op("new_full", (T.new_full,), _new_full, scalars=True, gradient=stops),
    Op("fill", (torch.fill,), _fill, scalars=True, gradient=_of_fill),
    Op("arange", (torch.arange,), _arange),
    Op("eye", (torch.eye,), _eye),
    Op("linspace", (torch.linspace,), _evaluated(torch.linspace)),
    Op("logspace", (torch.logspace,), _evaluated(torch.logspace)),
    Op("tril_indices", (torch.tril_indices,), _evaluated(torch.tril_indices)),
    Op("triu_indices", (torch.triu_indices,), _evaluated(torch.triu_indices)),
    Op(
        "tensor",
        (torch.tensor, torch.as_tensor, torch.asarray),
        _tensor,
        scalars=True,
        gradient=stops,
    ),
    Op("from_numpy", (torch.from_numpy,), _tensor, meta=_type_of_array, gradient=stops),
    *(
        Op(cls.__name__, (cls,), _by_class, meta=_type_by_class(dtype), gradient=stops)
        for cls, dtype in _CLASSES.items()
    ),
    Op("scalar_tensor", (torch.scalar_tensor,), _scalar_tensor, scalars=True, gradient=stops),
    Op("new_tensor", (T.new_tensor,), _new_tensor, scalars=True, gradient=stops),
    Op("rand", (torch.rand, torch.rand_like), why=RANDOM, gradient=stops),
    Op("randn", (torch.randn, torch.randn_like), why=RANDOM, gradient=stops),
    Op("randint", (torch.randint, torch.randint_like), why=RANDOM, gradient=stops),
    Op("randperm", (torch.randperm,), why=RANDOM),
    Op("normal", (torch.normal,), why=RANDOM, gradient=stops),
    Op("bernoulli", (torch.bernoulli, T.bernoulli), why=RANDOM, gradient=stops),
    Op("multinomial", (torch.multinomial, T.multinomial), why=RANDOM, gradient=stops),
    Op("poisson", (torch.poisson,), why=RANDOM, gradient=stops),
    Op("filled_at_random", tuple(Cloned(fn) for fn in _FILLING), why=RANDOM, gradient=stops),
)
