"""Step 11: annotations become parameters.

``bt.Tensor`` as an annotation says what a parameter is. A function whose parameters are all
annotated can be lowered before there is any tensor. It is called with boxes or with torch's
tensors, and a tensor that does not fit its annotation is refused.
"""

import torch

import babytriton as bt
from babytriton import Tensor


@bt.jit(target="cpu")
def add(a: Tensor(shape=(2, 3), dtype="float32"), b: Tensor(shape=(2, 3), dtype="float32")):
    return a + b


print(add.lower().as_text())

a = Tensor(shape=(2, 3), dtype="float32")
b = Tensor(shape=(2, 3), dtype="float32")
a.data = torch.ones(size=(2, 3), dtype=torch.float32)
b.data = torch.ones(size=(2, 3), dtype=torch.float32)
print("boxes:")
print(add(a, b))

print("tensors:")
print(add(torch.ones(2, 3), torch.ones(2, 3)))

try:
    add(torch.ones(2, 3), torch.ones(3, 2))
except ValueError as error:
    print("ValueError:", error)
