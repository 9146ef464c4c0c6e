"""Kernels for GPUs without CUDA as TVM writes them -> texts for people, that compilers take."""

from __future__ import annotations

import re
from collections.abc import Iterable

from babytriton.runtime.text.cuda_kernels import Comments

# What TVM writes above each kernel.
_FUNCTION = re.compile(r"// Function: (\w+)\n(?:-*\n|//-+\n(?:// Function: .*\n//-+\n)?)?")

_PROTOTYPE = re.compile(r"^__kernel void \w+\([^)]*\);\n", re.M)

# The least integers: in these languages a minus sign stands before a number that is too large.
_LEAST = re.compile(r"-(2147483648|9223372036854775808)(\w*)")

_WGSL = {
    "infinity": """\
fn infinity() -> f32 {
  var bits : u32 = 0x7f800000u;
  return bitcast<f32>(bits);
}
""",
    "not_a_number": """\
fn not_a_number() -> f32 {
  var bits : u32 = 0x7fc00000u;
  return bitcast<f32>(bits);
}
""",
}
"""Of numbers that WebGPU has no constants for: it computes what is no variable beforehand."""

_KERNEL_OF_AMD = re.compile(r"^(?:; .*\n)*define (?:\w+ )*amdgpu_kernel void @(\w+)\(", re.M)
_FUNCTION_OF_LLVM = re.compile(
    r"^(?:; [^\n]*\n)*define [^\n@]*@(\w+)\([^\n]*\{\n.*?^\}\n+", re.M | re.S
)


def in_language(source: str, headings: Comments) -> str:
    """The kernels of a program in the language of their kind, in the order of the program.

    Args:
        source: as TVM writes it.
        headings: lines that head each kernel, by its name, in that order.
    """
    places = list(_FUNCTION.finditer(source))
    ends = [place.start() for place in places[1:]] + [len(source)]
    texts = {
        place[1]: _kernel(source[place.end() : end], headings.get(place[1], ()))
        for place, end in zip(places, ends)
    }
    before = source[: places[0].start()] if places else source
    ordered = dict.fromkeys([*headings, *texts])
    return before + "\n\n\n".join(texts[name].strip() for name in ordered if name in texts)


def _kernel(text: str, heading: Iterable[object]) -> str:
    text = _LEAST.sub(_least, _PROTOTYPE.sub("", text))
    # Of the numbers of thread blocks the last one is one less than there are.
    text = text.replace("> podArgs.packGridDimX", ">= podArgs.packGridDimX")
    own = [code for name, code in _WGSL.items() if f"{name}()" in text]
    return "".join([*(f"// {line}\n" for line in heading), "\n".join([text.strip(), *own])])


def _least(number: re.Match[str]) -> str:
    value, suffix = int(number[1]) - 1, number[2]
    return f"(-{value}{suffix} - 1{suffix})"


def for_amd(source: str, headings: Comments) -> str:
    """The LLVM IR of a program's kernels, without functions that none of them calls.

    Args:
        source: as TVM writes it.
        headings: lines that head each kernel, by its name.
    """
    for function in list(_FUNCTION_OF_LLVM.finditer(source)):
        if function[1] not in headings and len(re.findall(rf"@{function[1]}\b", source)) == 1:
            source = source.replace(function[0], "")

    def headed(kernel: re.Match[str]) -> str:
        return "".join(f"; {line}\n" for line in headings.get(kernel[1], ())) + kernel[0]

    return _KERNEL_OF_AMD.sub(headed, source)
