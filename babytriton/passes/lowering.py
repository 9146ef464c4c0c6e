"""How TVM lowers scheduled kernels for us: its own passes, with our math and memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import IRModule
from tvm.tirx.compilation_pipeline import get_tir_pipeline, register_tir_pipeline

from babytriton.passes import indices, launch_names
from babytriton.passes.addresses import by_address
from babytriton.passes.bfloat16 import in_integers
from babytriton.passes.bounded_sums import as_signed
from babytriton.passes.cpu import vector_math
from babytriton.passes.cpu.memory import in_vectors, on_the_stack
from babytriton.passes.cpu.remainders import own_remainders
from babytriton.passes.cpu.streaming import store_past_caches
from babytriton.passes.cpu.work import tell_work
from babytriton.passes.cpu.zeros import define_zeros
from babytriton.passes.divisions import towards_zero
from babytriton.passes.gpu.memory import from_torch
from babytriton.passes.gpu.parameters import in_order, names_of_parameters
from babytriton.passes.gpu.portable import choices_of_one_type
from babytriton.passes.gpu.values import named_values
from babytriton.passes.gpu.writing import without_mentions


def as_pass(change: Callable[[IRModule], IRModule]) -> tvm.transform.Pass:
    """A pass of TVM's that changes a program so."""
    return tvm.transform.module_pass(
        lambda mod, _: change(mod), opt_level=0, name=f"babytriton.{change.__name__}"
    )


LOWERING = "babytriton"
"""The name TVM knows its own lowering of scheduled kernels by, with our math and memory."""


def _lowering() -> tuple[Any, ...]:
    whole, finish_host, finish_device = get_tir_pipeline("default")
    lower = in_integers(whole)

    def begin(mod: IRModule) -> IRModule:
        names = names_of_parameters(mod)
        # The guard of a call has checked shapes and dtypes: to ask again in every kernel would be
        # much of the code to compile.
        lowered = tirx.transform.SkipAssert()(lower(indices.as_they_stand(as_signed(mod))))
        return by_address(in_order(lowered, names))

    def finish() -> tvm.transform.Pass:
        host = tvm.transform.Sequential(
            [
                *map(as_pass, (launch_names.launching, from_torch)),
                *(on_the_stack(), in_vectors(), as_pass(towards_zero), finish_host()),
            ]
        )
        own = (
            *(vector_math.lower_intrinsics(host), store_past_caches()),
            *(as_pass(own_remainders), as_pass(define_zeros), tell_work()),
        )
        return tvm.transform.Sequential(own)

    def of_device() -> tvm.transform.Pass:
        own = (launch_names.of_launches, without_mentions, indices.in_short, towards_zero)
        after = (indices.of_one_width, indices.of_whole_vectors, named_values, choices_of_one_type)
        return tvm.transform.Sequential([*map(as_pass, own), finish_device(), *map(as_pass, after)])

    return begin, finish, of_device


register_tir_pipeline(LOWERING, _lowering)
