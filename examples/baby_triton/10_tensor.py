"""Step 10: a tensor in a box.

What a compiler must know of a tensor is its shape and its dtype: that is ``bt.Tensor``. The
numbers can be put in later. They come from torch without a copy, here and at every call: torch
and TVM share memory by DLPack.
"""

import torch

import babytriton as bt

a = bt.Tensor(shape=(2, 3), dtype="float32")
print("the box:", a, "holds", a.data)

ones = torch.ones(size=(2, 3), dtype=torch.float32)
a.data = ones
print("the box:", a, "holds")
print(a.data)
print("the same memory:", a.data.data_ptr() == ones.data_ptr())

# What does not fit is refused.
for other in (torch.ones(3, 2), torch.ones(2, 3, dtype=torch.float64)):
    try:
        a.data = other
    except (TypeError, ValueError) as error:
        print(f"{type(error).__name__}: {error}")
