"""CUDA source that does not define what it is said to."""

import babytriton as bt


def run():
    bt.cuda_function("__device__ float g(float x) { return x; }", name="f", cpu=abs)
