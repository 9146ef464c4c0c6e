"""A CUDA function that is not called by its name alone."""

import babytriton as bt


def run():
    source = "namespace mine { __device__ float f(float x) { return x; } }"
    bt.cuda_function(source, name="f", cpu=abs)
