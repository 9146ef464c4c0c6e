"""Functions of torch in JAX: called, differentiated and vectorized, and compared with JAX's own.

It needs `pip install .[jax]`.
"""

import jax
import jax.numpy as jnp
import torch

import babytriton as bt


@bt.jit
def product(a, b):
    return a * b * (a + b)


@bt.jit
def rms_norm(x, weight, eps=1e-6):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def product_in_jax(a, b):
    return a * b * (a + b)


def rms_norm_in_jax(x, weight, eps=1e-6):
    return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + eps) * weight


def difference(ours, theirs):
    pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs))
    return max(float(jnp.abs(one - other).max() / jnp.abs(other).max()) for one, other in pairs)


def main() -> None:
    print(f"jax {jax.__version__}, this run is on: {jax.default_backend()}\n")
    keys = jax.random.split(jax.random.key(0), 4)
    functions = {
        "a * b * (a + b)": (
            product.as_jax(),
            product_in_jax,
            (jax.random.normal(keys[0], (256, 512)), jax.random.normal(keys[1], (256, 512))),
        ),
        "RMSNorm": (
            rms_norm.as_jax(),
            rms_norm_in_jax,
            (jax.random.normal(keys[2], (256, 512)), jax.random.normal(keys[3], (512,))),
        ),
    }
    for name, (ours, theirs, args) in functions.items():
        print(f"{name}, largest difference from JAX, of the largest number:")
        found, expected = jax.jit(ours)(*args), theirs(*args)
        print(f"  the function itself   {difference(found, expected):.1e}")

        def gradients(f):
            return jax.jit(jax.grad(lambda a, b: jnp.sin(f(a, b)).sum(), argnums=(0, 1)))

        found, expected = gradients(ours)(*args), gradients(theirs)(*args)
        print(f"  gradients of both     {difference(found, expected):.1e}")

        def second(f):
            return jax.grad(lambda a, b: jnp.square(gradients(f)(a, b)[0]).sum(), argnums=(0, 1))

        found, expected = second(ours)(*args), second(theirs)(*args)
        print(f"  gradients of these    {difference(found, expected):.1e}\n")

    x, weight = args
    step = jax.jit(jax.grad(lambda x, weight: rms_norm.as_jax()(x, weight).sum()))
    print("The way forward and back of RMSNorm are a call each of what XLA runs:\n")
    for line in step.lower(x, weight).as_text().splitlines():
        if "custom_call @babytriton" in line:
            print("  " + line.split(" {")[0].strip())


if __name__ == "__main__":
    main()
