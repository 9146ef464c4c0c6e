"""A kernel whose launch would have to tell how much memory its threads share."""

import babytriton as bt


def run():
    source = "__global__ void f(const float* x, float* y) { extern __shared__ float s[]; }"
    bt.cuda_kernel(source, name="f", grid=1, block=32, cpu=abs)
