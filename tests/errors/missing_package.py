"""JAX's functions without JAX."""

import sys

import babytriton as bt


@bt.jit
def f(x):
    return x + 1


def run():
    ours = [name for name in sys.modules if name in ("babytriton.integrations.jax", "jax")]
    loaded = {name: sys.modules.pop(name) for name in ours}
    sys.modules["jax"] = None
    try:
        f.as_jax()
    finally:
        del sys.modules["jax"]
        sys.modules.update(loaded)
