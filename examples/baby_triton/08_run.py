"""Step 8: compile it and run it.

``lower``, ``schedule`` and ``compile`` are the three stages; each is an object that can be
looked at. The last one can be called: TVM's virtual machine runs it. Calling the decorated
function does all of this once, and keeps the result for the next call.
"""

import torch

import babytriton as bt


@bt.jit(target="cpu")
def add():
    return 1 + 1


@bt.jit(target="cpu")
def add_tensors():
    one = torch.ones((), dtype=torch.float32)
    return one + one


for function in (add, add_tensors):
    lowered = function.lower()
    scheduled = lowered.schedule()
    compiled = scheduled.compile()
    print(" -> ".join(type(stage).__name__ for stage in (lowered, scheduled, compiled)))
    print("compiled()   :", repr(compiled()))
    print("the function :", repr(function()))
