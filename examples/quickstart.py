"""Decorate a function, print its CUDA source, run it on tensors, compare it with torch.

Without a GPU the CUDA source is still generated; the function then runs on the CPU.
"""

import torch

import babytriton as bt


@bt.jit
def gelu_bias(x, b):
    y = x + b
    return torch.sigmoid(1.702 * y) * y


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(f"torch {torch.__version__}, this run is on: {device}\n")

    print("1. The function as it compiles for a GPU. These are its kernels in CUDA C++:\n")
    specs = bt.Tensor(shape=(1000, 1024)), bt.Tensor(shape=(1024,))
    for_gpu = bt.jit("gpu")(gelu_bias).lower(*specs).compile()
    print(for_gpu.source(), "\n")
    print(f"   kernels: {', '.join(for_gpu.kernels)}")
    print(f"   calls that run through torch instead: {len(for_gpu.fallbacks)}\n")

    print(f"2. The same function called on two tensors on the {device}:\n")
    x = torch.randn(1000, 1024, device=device)
    b = torch.randn(1024, device=device)
    out = gelu_bias(x, b)
    print(f"   out = gelu_bias(x, b)  ->  {out.dtype}, shape {tuple(out.shape)}\n")

    print("3. The plain Python function is still there. It is torch, and the two must agree:\n")
    expected = gelu_bias.fn(x, b)
    torch.testing.assert_close(out, expected)
    difference = (out - expected).abs().max().item()
    print(f"   largest difference from torch: {difference:.1e}\n")
    print("The compiled function matches torch.")


if __name__ == "__main__":
    main()
