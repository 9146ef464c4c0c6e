"""Step 6: a function that does nothing returns nothing.

Every Relax function returns something. Ours returns a tuple of the tensors that the program
computes; here there are none. What Python returns is put together from it: here, ``None``.
"""

import babytriton as bt


@bt.jit(target="cpu")
def add():
    pass


print(add.lower().as_text())
print("add() returns", add())
