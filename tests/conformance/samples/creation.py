"""Samples of ops/creation.py."""

from typing import Any

import numpy as np
import torch

from tests.conformance.sample import ALL, FLOATS, NUMBERS, Sample, t

F32 = (torch.float32,)
ARRAY = np.array([[1.5, 2.0, 3.0]], dtype=np.float32)
EACH = (torch.float32, torch.bfloat16, torch.int32, torch.bool)


# What is random must only have torch's shape and dtype: the sample returns no value of it.
def _shape_of(x: torch.Tensor) -> torch.Tensor:
    return torch.isfinite(x.float()) | True


def _of_class(cls: Any) -> Any:
    return lambda x: (x + 1, cls([[1, 0, 1], [0, 0, 1]]))


SAMPLES = (
    Sample("zeros", lambda x: x + torch.zeros(3, 7), (t(3, 7),), EACH),
    Sample("zeros", lambda x: (x, torch.zeros((2, 1000), dtype=torch.int64)), (t(1),), F32),
    Sample("ones", lambda x: x * torch.ones(7, dtype=x.dtype, device=x.device), (t(3, 7),), ALL),
    Sample("full", lambda x: x + torch.full((3, 1), 2.5), (t(3, 7),), EACH),
    Sample("full", lambda x: (x, torch.full((7,), True), torch.full((2,), 3)), (t(1),), F32),
    Sample("full", lambda s: torch.full((3, 7), s), (0.25,), F32),
    Sample("empty", lambda x: (torch.empty_like(x) == 0) | (x == x), (t(3, 7),), F32),
    Sample("zeros_like", lambda x: torch.zeros_like(x), (t(3, 7),), ALL),
    Sample("zeros_like", lambda x: x.new_zeros(2, 3), (t(3, 7),), EACH),
    Sample("ones_like", lambda x: torch.ones_like(x, dtype=torch.float16), (t(3, 7),), ALL),
    Sample("ones_like", lambda x: x.new_ones((2, 3)), (t(3, 7),), EACH),
    Sample("full_like", lambda x: torch.full_like(x, 3), (t(3, 7),), ALL),
    Sample("full_like", lambda x, s: torch.full_like(x, s), (t(3, 7), 1.5), FLOATS),
    Sample("new_full", lambda x: x.new_full((2, 5), 2), (t(3, 7),), EACH),
    Sample("fill", lambda x, y: torch.fill(x, y), (t(3, 7), t()), EACH),
    Sample("arange", lambda x: x + torch.arange(7), (t(3, 7),), NUMBERS),
    Sample("arange", lambda x: (x, torch.arange(3, 1000, 7)), (t(1),), F32),
    Sample("arange", lambda x: (x, torch.arange(1, 0, -0.01)), (t(1),), F32),
    Sample("arange", lambda x: (x, torch.arange(0.5, end=9)), (t(1),), F32),
    Sample("arange", lambda x: torch.arange(0, 20, 2, dtype=x.dtype) + x, (t(1),), NUMBERS),
    Sample("eye", lambda x: x * torch.eye(7), (t(7, 7),), F32),
    Sample("eye", lambda x: (x, torch.eye(3, m=5, dtype=x.dtype)), (t(1),), ALL),
    Sample("linspace", lambda x: x + torch.linspace(-1, 1, 7), (t(3, 7),), FLOATS),
    Sample("linspace", lambda x: (x, torch.linspace(0, 5, 1003, dtype=x.dtype)), (t(1),), FLOATS),
    Sample("logspace", lambda x: x + torch.logspace(0, 2, 7, base=2), (t(3, 7),), FLOATS),
    Sample("tril_indices", lambda x: (x, torch.tril_indices(3, 4, 1)), (t(1),), F32),
    Sample("triu_indices", lambda x: (x, torch.triu_indices(5, 4, offset=-1)), (t(1),), F32),
    Sample("tensor", lambda x: x * torch.tensor([[1, 2, 3], [4, 5, 6]]), (t(2, 3),), ALL),
    Sample("tensor", lambda x: x + torch.as_tensor(2.5), (t(2, 3),), EACH),
    Sample("from_numpy", lambda x: x * torch.from_numpy(ARRAY), (t(2, 3),), FLOATS),
    Sample("tensor", lambda x: (x, torch.tensor([True, False])), (t(1),), F32),
    Sample("tensor", lambda x, s: x * torch.tensor(s), (t(2, 3), 0.3), FLOATS),
    Sample("Tensor", lambda x: x * torch.Tensor([1.5, 2.0, 3.0]), (t(2, 3),), FLOATS),
    Sample("Tensor", lambda x: torch.cat([x, torch.Tensor([1e10])]), (t(3),), F32),
    Sample("Tensor", lambda x: x + torch.Tensor(3).zero_(), (t(3),), F32),
    *(
        Sample(cls.__name__, _of_class(cls), (t(3),), F32)
        for cls in (
            *(torch.FloatTensor, torch.DoubleTensor, torch.HalfTensor, torch.BFloat16Tensor),
            *(torch.LongTensor, torch.IntTensor, torch.ShortTensor, torch.CharTensor),
            *(torch.ByteTensor, torch.BoolTensor),
        )
    ),
    Sample("scalar_tensor", lambda x: x + torch.scalar_tensor(2), (t(3),), EACH),
    Sample("new_tensor", lambda x: x + x.new_tensor([1, 0, 1]), (t(2, 3),), ALL),
    Sample("rand", lambda x: _shape_of(torch.rand(3, 7) + torch.rand_like(x)), (t(3, 7),)),
    Sample("randn", lambda x: _shape_of(torch.randn_like(x)), (t(3, 7),)),
    Sample("randint", lambda x: (x, torch.randint(5, (3, 7)) < 5), (t(1),), F32),
    Sample("randperm", lambda x: (x, torch.randperm(7) < 7), (t(1),), F32),
    Sample("normal", lambda x: _shape_of(torch.normal(x, 1.0)), (t(3, 7),), F32),
    Sample("bernoulli", lambda x: _shape_of(torch.bernoulli(x)), (t(3, 7, low=0, high=1),)),
    Sample("multinomial", lambda x: torch.multinomial(x, 2) < 7, (t(3, 7, low=0.1),), F32),
    Sample("filled_at_random", lambda x: _shape_of(x.clone().exponential_()), (t(3, 7),)),
    Sample("filled_at_random", lambda x: torch.empty_like(x).uniform_(2, 3) > 1, (t(3, 7),)),
    Sample("poisson", lambda x: _shape_of(torch.poisson(x)), (t(3, 7, low=0),), F32),
)
