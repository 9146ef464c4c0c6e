"""Edited source whose kernel has its parameters in another order."""

import torch

import babytriton as bt


@bt.jit(bt.Target("cuda", arch="sm_80"))
def f(x, b):
    return x - b


def run():
    x = torch.ones(3)
    compiled = f.lower(x, x).compile()
    source = compiled.source()
    head = source[source.index("f_kernel(") : source.index(") {")]
    first, *others = head.removeprefix("f_kernel(").split(", ")
    compiled.with_source(source.replace(head, f"f_kernel({', '.join([*others, first])}"))
