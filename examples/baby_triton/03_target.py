"""Step 3: the target says what to compile for.

A target is a value: ``"cpu"``, ``"gpu"``, or a ``bt.Target`` that also names the processor.
Without one, the device of the arguments decides at each call.
"""

import babytriton as bt


@bt.jit(target="cpu")
def on_cpu():
    pass


@bt.jit(target="gpu")
def on_gpu():
    pass


@bt.jit(target=bt.Target("cuda", arch="sm_90"))
def on_hopper():
    pass


@bt.jit
def anywhere():
    pass


for function in (on_cpu, on_gpu, on_hopper, anywhere):
    print(function)

try:
    bt.jit(target="tpu")
except ValueError as error:
    print("ValueError:", error)
