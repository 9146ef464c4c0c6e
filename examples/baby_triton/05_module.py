"""Step 5: the function becomes an IRModule.

The intermediate code is Relax, the graph language of Apache TVM. A program in it is an IRModule,
built frame inside frame: a module holds functions, a function holds bindings.
``as_text`` prints it in TVM's own notation, which is Python again.
"""

import babytriton as bt


@bt.jit(target="cpu")
def add():
    pass


lowered = add.lower()
print(type(lowered).__name__, "of", lowered.name, "for", lowered.target)
print(lowered.as_text())
