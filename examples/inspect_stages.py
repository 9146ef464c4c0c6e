"""One function at every stage, from its syntax tree to machine code.

The function is compiled twice: for the CPU and for a GPU, which need not be there.
"""

import torch

import babytriton as bt


@bt.jit
def gate(x, b):
    y = x + b
    return torch.sigmoid(y) * y, torch.linalg.det(y)


def heading(text: str) -> None:
    print(f"\n{'=' * 8} {text} {'=' * 8}\n")


def excerpt(text: str, start: str = "", lines: int = 24) -> str:
    """The first lines of a text, from the first occurrence of ``start`` on."""
    found = text[max(text.find(start), 0) :].strip().splitlines()
    more = [] if len(found) <= lines else [f"... ({len(found) - lines} more lines)"]
    return "\n".join([*found[:lines], *more])


def show(compiled: bt.Compiled, kind: str, start: str = "") -> None:
    """Print one kind of source, or the message that says which tool is missing."""
    try:
        print(excerpt(compiled.source(kind), start))
    except RuntimeError as missing:
        print(" ".join(str(missing).split()))


def main() -> None:
    x = torch.linspace(-1, 1, 16 * 16).reshape(16, 16)
    b = torch.linspace(0, 1, 16)

    cpu = bt.jit("cpu")(gate).lower(x, b).compile()
    heading("ast: the syntax tree")
    show(cpu, "ast")
    heading("python: the tree as Python again")
    show(cpu, "python")
    heading("relax: the operators, nothing fused yet")
    show(cpu, "relax", "@I.ir_module")
    heading("tir: fused kernels with their loops, for the CPU")
    show(cpu, "tir", "@I.ir_module")
    heading("llvm: LLVM IR of the first kernel")
    show(cpu, "llvm", f"define internal fastcc void @{cpu.kernels[0]}")
    heading("asm: assembly of the first kernel")
    show(cpu, "asm", f"\n{cpu.kernels[0]}_compute_:")

    gpu = bt.jit("gpu")(gate).lower(x, b).compile()
    heading("tir: fused kernels with their threads, for a GPU")
    show(gpu, "tir", "@I.ir_module")
    heading("cuda: CUDA C++")
    show(gpu, "cuda", 'extern "C"')
    heading("ptx: NVIDIA's virtual machine code")
    show(gpu, "ptx", ".visible")
    heading("sass: NVIDIA's machine code")
    show(gpu, "sass", ".section\t.text")

    heading("kernels: the TensorIR functions that the operators became")
    print(", ".join(cpu.kernels))
    heading("fallbacks: what runs through torch, and why")
    for fallback in cpu.fallbacks:
        print(f"line {fallback.span.line}: {fallback.name}: {fallback.reason}")

    for ours, theirs in zip(cpu(x, b), gate.fn(x, b)):
        torch.testing.assert_close(ours, theirs)


if __name__ == "__main__":
    main()
