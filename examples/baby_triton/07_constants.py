"""Step 7: constants, the symbol table, and names.

``1 + 1`` is known while compiling, so Python computes it and no code is left for it. Where
the numbers are tensors, each becomes a binding in Relax and ``+`` becomes ``R.add``. The symbol
table maps Python's names to bindings, and the bindings keep the names: look for ``one`` and
``two`` below.
"""

import torch

import babytriton as bt


@bt.jit(target="cpu")
def add():
    one = 1
    return one + one


@bt.jit(target="cpu")
def add_tensors():
    one = torch.ones((), dtype=torch.float32)
    two = one + one
    return one, two


print("Python numbers: nothing is left to compute")
print(add.lower().as_text())
print("tensors: two bindings and an add")
print(add_tensors.lower().as_text())
