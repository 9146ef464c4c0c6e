"""What is known of a value before it exists: dtypes and tensor types. Pure data, no IR."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class DType:
    """One element type: its name (TVM's and torch's agree), torch's object, and bits an element."""

    name: str
    torch: torch.dtype
    short: str
    bits: int

    @property
    def is_half(self) -> bool:
        """Whether arithmetic on it is done in float32, as torch does."""
        return self.torch in (torch.float16, torch.bfloat16)


DTYPES: tuple[DType, ...] = (
    DType("float64", torch.float64, "f64", 64),
    DType("float32", torch.float32, "f32", 32),
    DType("float16", torch.float16, "f16", 16),
    DType("bfloat16", torch.bfloat16, "bf16", 16),
    DType("int64", torch.int64, "i64", 64),
    DType("int32", torch.int32, "i32", 32),
    DType("int16", torch.int16, "i16", 16),
    DType("int8", torch.int8, "i8", 8),
    DType("uint8", torch.uint8, "u8", 8),
    DType("bool", torch.bool, "bool", 8),
)

_BY_TORCH = {dtype.torch: dtype for dtype in DTYPES}
_BY_NAME = {name: dtype for dtype in DTYPES for name in (dtype.name, dtype.short)}
_BY_NAME |= {"float": _BY_NAME["float32"], "double": _BY_NAME["float64"]}
_BY_NAME |= {"half": _BY_NAME["float16"], "int": _BY_NAME["int32"], "long": _BY_NAME["int64"]}


def find_dtype(dtype: torch.dtype | str) -> DType | None:
    """The row for a torch dtype or a dtype's name; ``None`` for what kernels cannot hold."""
    if isinstance(dtype, torch.dtype):
        return _BY_TORCH.get(dtype)
    return _BY_NAME.get(dtype.removeprefix("torch."))


def dtype_of(dtype: torch.dtype) -> DType:
    """The row for a torch dtype that is known to be supported."""
    return _BY_TORCH[dtype]


@dataclass(frozen=True)
class TensorType:
    """Shape and dtype of a tensor, written ``f32[8, 4]``."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorType:
        """The type of a real or meta tensor."""
        return cls(tuple(tensor.shape), tensor.dtype)

    def meta(self) -> torch.Tensor:
        """A contiguous tensor of this type that has no storage."""
        return torch.empty(self.shape, dtype=self.dtype, device="meta")

    def __str__(self) -> str:
        known = find_dtype(self.dtype)
        name = known.short if known else str(self.dtype).removeprefix("torch.")
        return f"{name}[{', '.join(map(str, self.shape))}]"
