"""An architecture that the compiler at hand does not know."""

import ctypes

import torch

import babytriton as bt
from babytriton.runtime import cuda


@bt.jit(bt.Target("cuda", arch="sm_30"))
def f(x):
    return x + 1


class Nvrtc:
    """NVRTC 13.0, as far as it says what it knows."""

    known = (80, 90)

    def nvrtcVersion(self, major, minor):
        major._obj.value, minor._obj.value = 13, 0

    def nvrtcGetNumSupportedArchs(self, count):
        count._obj.value = len(self.known)

    def nvrtcGetSupportedArchs(self, archs):
        archs[:] = self.known


def run():
    compiled = f.lower(torch.ones(3)).compile()
    before = cuda._nvrtc_libraries, ctypes.CDLL
    cuda._nvrtc_libraries, ctypes.CDLL = lambda: ["libnvrtc.so.13"], lambda path: Nvrtc()
    try:
        compiled.source("ptx")
    finally:
        cuda._nvrtc_libraries, ctypes.CDLL = before
