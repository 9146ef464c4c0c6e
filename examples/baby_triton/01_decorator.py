"""Step 1: a decorator takes the function over.

``@bt.jit`` puts a ``JitFunction`` in the function's place. The plain function is kept as ``fn``.
Calling the name no longer runs the body: it compiles it, once, and runs what was compiled. A
``print`` in it is compiled as well, so it still happens at each call.
"""

import babytriton as bt


@bt.jit(target="cpu")
def add():
    print("add")


print("the name `add` now holds:", add)
print("the plain function is", type(add.fn).__name__)

print("first call:")
add()
print("second call:")
add()
print("the plain function, called twice:")
add.fn()
add.fn()
