"""Exercise 1: multiplication.

An operator is one row of a table: the torch callables that mean it, and how Relax computes it.
``*`` is ``operator.mul`` to the table, so that ``a * b``, ``torch.mul(a, b)`` and ``a.mul(b)`` are
one row. Here the row is looked at, and then another is registered in its place for one function.
"""

import operator

import torch
from tvm import relax

import babytriton as bt
from babytriton import Tensor
from babytriton.ops import TABLE


@bt.jit(target="cpu")
def multiply(a: Tensor(shape=(2, 3), dtype="float32"), b: Tensor(shape=(2, 3), dtype="float32")):
    return a * b


@bt.jit(target="cpu")
def scaled(a: Tensor(shape=(2, 3), dtype="float32"), b: Tensor(shape=(2, 3), dtype="float32")):
    return (a * b + 1) * 2


row = TABLE[operator.mul]
print("the row:", row.name)
print("one row for all spellings:", TABLE[torch.mul] is TABLE[torch.Tensor.mul] is row)
print(multiply.lower().as_text())

print("with an add and a second multiplication, still one kernel:")
print(scaled.lower().schedule().kernels)


@multiply.register(operator.mul)
def sum_of_logarithms(site, a, b):
    """Another multiplication, of positive numbers: exp(log(a) + log(b))."""
    return relax.op.exp(relax.op.add(relax.op.log(a.expr), relax.op.log(b.expr)))


print("with a row of our own:")
print(multiply.lower().as_text())

a, b = torch.rand(2, 3) + 0.5, torch.rand(2, 3) + 0.5
torch.testing.assert_close(multiply(a, b), a * b)
torch.testing.assert_close(scaled(a, b), scaled.fn(a, b))
print("both give what torch gives")
