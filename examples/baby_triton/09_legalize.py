"""Step 9: what is inside an add.

A pass takes an IRModule and returns another. ``LegalizeOps`` writes each Relax operator out as
a TensorIR function: loops over buffers. ``R.add`` becomes a call of a function that adds.
It is one of the passes in ``babytriton/passes/pipeline.py``; here it runs alone.
"""

from tvm import relax

import babytriton as bt


@bt.jit(target="cpu")
def add(a, b):
    return a + b


number = bt.Tensor(shape=(), dtype="float32")
lowered = add.lower(number, number)
print("before the pass:")
print(lowered.as_text())

legalized = relax.transform.LegalizeOps()(lowered.lowering.mod)
print("after the pass:")
print(legalized.script())
