"""CUDA C++ as TVM writes it -> CUDA C++ for people: the same program, in fewer signs."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import chain, count

from babytriton.ops.cuda_definitions import blocks, closing, parts
from babytriton.runtime.text.declarations import declared_late
from babytriton.runtime.text.expressions import NotAnExpressionError, assigned, simplified
from babytriton.runtime.text.lines import within

# Brackets, and what stands in them.
_GROUP = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"

# Kernels that are found by their names; what stands before these may be in any order, and the
# language may be that of a block.
_KERNEL = re.compile(
    rf"(?://.*\n)*((?:(?:extern\s+\"C\"|__global__\b|void\b|"
    rf"__(?:launch_bounds|maxnreg|cluster_dims|block_size)__\s*{_GROUP})\s*)+)(\w+)\s*\("
)
_LANGUAGE = re.compile(r"\bextern\s+\"C\"")
_BOUNDS = re.compile(r"__launch_bounds__\s*\(\s*(\d+)\s*[,)]")
_ARRAY = re.compile(r"^\s*(?:__shared__ )?alignas\(64\) [\w ]+ (\w+)\[(\d+)\];$", re.M)
# What TVM adds to the names of buffers, and we to those of values, which may be words of C++.
_SUFFIX = re.compile(r"(?:_ptr|__local)(_\d+)?$")
_VALUE, _VALUES_END = "__local", "_value"
_CHOICE = re.compile(r"condval(_\d+)?")
# Names that are not those of members, nor of parts of numbers.
_WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w*")

# Floats of 64 bits by their bits: TVM would write them in too few digits.
_BITS = re.compile(r"__longlong_as_double\(\(int64_t\)(-?\d+)L*\)")

_FROM, _BFLOAT16 = "(__CUDA_ARCH__ >= ", "#include <cuda_bf16.h>"

# The indices of threads: TVM casts them wherever they stand.
_INDICES = {
    f"((int){kind}Idx.{axis})": (f"{name}{suffix}", f"{kind}Idx.{axis}")
    for kind, name in (("block", "block"), ("thread", "thread"))
    for axis, suffix in (("x", ""), ("y", "_y"), ("z", "_z"))
}

# A name that TVM has numbered, since another loop has it.
_NUMBERED = re.compile(r"(\w+?)_\d+")

_STATEMENT = re.compile(r"^(\s*)(.*?);$", re.S)
_DECLARATION = re.compile(r"^((?:const )?(?:[a-z]\w* )+\*?)(\w+) = (.*)$", re.S)
_LOOP = re.compile(r"^(\s*)for \((\w+) (\w+) = (.*?); (.*?); (.*?)\) \{$")
# What declares an integer, or several at places.
_INTEGER = re.compile(r"\b(int|int64_t)(?:\* __restrict__)? (\w+)\b")
_CONDITION = re.compile(r"^(\s*)(if|while|\} else if) \((.*)\) \{$")


# Of a loop that the writer of kernels has named so.
_BOOLS = re.compile(
    r"^( *)#pragma unroll\n *for \(int (of_bools\w*) = 0; \2 < (\d+); \+\+\2\) \{\n"
    r" *(\w+)\[(?:\((.*) \+ \2\)|\2)\] = (\w+)\[(?:\((.*) \+ \2\)|\2)\];\n *\}\n",
    re.M,
)
_BYTES = {"2": "ushort", "4": "uint", "8": "uint2", "16": "uint4"}

# What TVM calls four halves, and a move of these.
_FOUR = r"(?:half4|nv_bfloat164)\b"
_FOUR_HALVES = re.compile(rf"(\*\()({_FOUR})(\*\)[^;=]* = \*\((?:const )?)\2(\*\)[^;=]*;)")


@dataclass(frozen=True)
class Listing:
    """CUDA C++ in two parts.

    Attributes:
        preamble: what TVM needs before any kernel: headers, types and helpers.
        kernels: each kernel's text by its name, in order.
    """

    preamble: str
    kernels: dict[str, str]

    @classmethod
    def of(cls, source: str) -> Listing:
        """Of a text with any preamble, or with none."""
        starts = [found for found in _KERNEL.finditer(source) if _is_kernel(source, found)]
        preamble = source[: starts[0].start()] if starts else source
        kernels = {}
        for start, following in zip(starts, [*starts[1:], None]):
            text = source[start.start() : None if following is None else following.start()]
            if "{" in text:  # not a declaration
                kernels[start[2]] = text.strip() + "\n"
        return cls(preamble, kernels)

    def parameters(self, kernel: str) -> list[tuple[str, str]]:
        """The types of a kernel's parameters, without what only tells the compiler more; names."""
        text = self.kernels[kernel]
        head = re.search(rf"\b{kernel}\s*\(", text)
        assert head is not None
        found = []
        for each in parts(text[head.end() : closing(text, head.end() - 1) - 1]):
            plain = re.sub(r"\b(?:const|volatile|__restrict__|__restrict)\b", "", each)
            plain = re.sub(r"\[\[[^\]]*\]\]|=.*", "", plain)
            words = re.findall(r"\w+|\*", re.sub(r"(\w+)\s*\[\s*\]", r"* \1", plain))
            if words:
                found.append((" ".join(words[:-1]), words[-1]))
        return found

    def threads(self, kernel: str) -> int | None:
        """How many threads of a block a kernel is compiled for, at most, if it says so."""
        bounds = _BOUNDS.search(self.kernels[kernel].partition("{")[0])
        return None if bounds is None else int(bounds[1])


def _is_kernel(source: str, found: re.Match[str]) -> bool:
    """Whether the head of a function is that of a kernel in C."""
    if re.search(r"\b__global__\b", found[1]) is None:
        return False
    if _LANGUAGE.search(found[1]) is not None:
        return True
    return any(_LANGUAGE.search(block) is not None for block in blocks(source[: found.start()]))


@dataclass(frozen=True)
class Types:
    """What a kernel is given, as a line of its heading.

    Attributes:
        each: a name, and a type, in the order of the parameters.
    """

    each: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return ", ".join(f"{name}: {type}" for name, type in self.each)

    def of(self, parameters: Sequence[str]) -> Types:
        """With the names that parameters have in the text, where these are their names at all."""
        if len(parameters) < len(self.each):
            return self
        pairs = list(zip(self.each, parameters))
        if not all(own == name or _with_ending(own, name) for (own, _), name in pairs):
            return self
        return Types(tuple((name, type) for (_, type), name in pairs))


def _with_ending(name: str, other: str) -> bool:
    """Whether a name is another one, and what tells it from others."""
    return re.fullmatch(rf"{re.escape(name)}(?:_ptr)?(?:_\d+)?", other) is not None


Comments = Mapping[str, Sequence[str | Types]]
"""Lines that head kernels, by their names."""


def readable(source: str, comments: Comments, streamed: Mapping[str, Set[str]]) -> str:
    """The text with its kernels made readable. What is not understood stays as it is.

    Args:
        source: as TVM writes it.
        comments: lines that head each kernel, in the order that these are to have.
        streamed: by the kernel's name, the parameters whose loads are to leave nothing in caches.
    """
    # Of dot products of bytes, which no kernel computes; not every toolkit has them at hand.
    source = source.replace("#include <sm_61_intrinsics.h>\n", "")
    # CUDA has bfloat16 for older GPUs as well.
    listing = Listing.of(source.replace(f"{_FROM}800)\n{_BFLOAT16}", f"{_FROM}530)\n{_BFLOAT16}"))
    kernels = [
        _headed(_kernel(listing.kernels[name], streamed.get(name, frozenset())), name, comments)
        for name in dict.fromkeys([*comments, *listing.kernels])
        if name in listing.kernels
    ]
    return listing.preamble + "\n".join(kernels)


def _headed(text: str, name: str, comments: Comments) -> str:
    """A kernel behind the lines that head it."""
    own = Listing("", {name: text})
    parameters = [parameter for _, parameter in own.parameters(name)]
    lines = [x.of(parameters) if isinstance(x, Types) else x for x in comments.get(name, ())]
    return "".join(f"// {line}\n" for line in lines) + text


def fitted(text: str) -> str:
    """Kernels with parameters and statements on several lines where they are too long for one."""
    kernels = Listing.of(text).kernels
    for kernel in kernels.values():
        head, brace, body = _with_short_head(kernel).partition(" {\n")
        lines = [within(line, _WIDTH) for line in body.split("\n")]
        text = text.replace(kernel, head + brace + "\n".join(lines))
    return text


def _kernel(text: str, streamed: Set[str]) -> str:
    text = text.replace("(uint)4294967295", "0xffffffff")
    text = _BITS.sub(lambda bits: _float(int(bits[1])), text)
    text = _with_names(_with_bools_together(text))
    head, _, body = text.partition("{\n")
    types = _types(text)
    lines = [_line(line, types) for line in body.splitlines()]
    lines = _with_short_loops(_without_moves(lines))
    lines = [head + "{", *declared_late(lines, set(_WORD.findall(head))), ""]
    return _with_streams(_with_words(_with_constants("\n".join(lines))), streamed)


def _float(bits: int) -> str:
    """A finite float of 64 bits in the fewest digits that are this one."""
    (value,) = struct.unpack("<d", struct.pack("<q", bits))
    return f"({value!r})" if value < 0 else repr(value)


def _with_bools_together(text: str) -> str:
    """With one move of several bools in the place of a loop that moves each."""

    def moved(loop: re.Match[str]) -> str:
        indent, _, width, *places = loop.groups()
        kinds = [re.search(rf"\bbool(?:\* __restrict__)? {name}\b", text) for name in places[::2]]
        if width not in _BYTES or None in kinds:
            return loop[0]
        to, source = (
            f"*({_BYTES[width]}*)({name} + {place or '0'})"
            for name, place in zip(places[::2], places[1::2])
        )
        return f"{indent}{to} = {source};\n"

    return _BOOLS.sub(moved, text)


def _without_moves(lines: list[str]) -> list[str]:
    """The lines without values that are moved to where they are, and without loops of these."""
    done: list[str] = []
    for line in lines:
        place, equals, value = line.strip().removesuffix(";").partition(" = ")
        if equals and place == value:
            continue
        done.append(line)
        while line.strip() == "}" and _LOOP.match(done[-2]):
            del done[-2:]
            if done[-1].strip() == "#pragma unroll":
                done.pop()
            line = ""
    return done


def _with_short_loops(lines: list[str]) -> list[str]:
    """The lines with loops one after the other over variables of one name."""
    done = list(lines)
    for start, line in enumerate(lines):
        loop = _LOOP.match(line)
        if loop is None or (numbered := _NUMBERED.fullmatch(loop[3])) is None:
            continue
        indent, name, short = loop[1], loop[3], numbered[1]
        end = next(n for n in range(start, len(lines)) if lines[n] == f"{indent}}}")
        if not any(re.search(rf"\b{short}\b", inside) for inside in done[start : end + 1]):
            for n in range(start, end + 1):
                done[n] = re.sub(rf"\b{name}\b", short, done[n])
    return done


def _with_names(text: str) -> str:
    """Without suffixes and casts: registers of one number, and indices of threads, have names."""
    head, _, body = text.partition("{\n")
    words = set(_WORD.findall(text))
    names: dict[str, str] = {}
    for word in sorted(word for word in words if _SUFFIX.search(word)):
        short = _SUFFIX.sub(r"\1", word)
        taken = {*words, *names.values()}
        if short and short not in taken and not _RESERVED.fullmatch(short):
            names[word] = short
        elif short and _VALUE in word:
            names[word] = _free(f"{short}{_VALUES_END}", taken)
    # What branches choose, as TVM calls it, and as expressions that choose are called.
    choices = [word for word in words if _CHOICE.fullmatch(word)]
    for word in sorted(choices, key=lambda word: (len(word), word)):
        names[word] = _free("chosen", {*words, *names.values()})
    for name, size in _ARRAY.findall(body):
        # A single number that no address is taken of is a variable.
        uses = len(re.findall(rf"\b{name}\b", body))
        is_single = uses == len(re.findall(rf"\b{name}\[[01]\]", body)) and name in names
        if size == "1" and is_single and not re.search(rf"__shared__ .* {name}\[", body):
            body = re.sub(rf"alignas\(64\) ([\w ]+) {name}\[1\];", rf"\1 {name};", body)
            body = re.sub(rf"\b{name}\[0\]", name, body)
    body = body.replace("alignas(64) ", "alignas(16) ")
    declared = []
    for cast, (name, index) in _INDICES.items():
        if cast in body:
            name = _free(name, {*words, *names.values()}, "_index")
            body = body.replace(cast, name)
            declared.append(f"  const int {name} = {index};\n")
    text = head + "{\n" + "".join(declared) + body
    return _WORD.sub(lambda match: names.get(match[0], match[0]), text)


def _with_constants(text: str) -> str:
    """With `const` for the parameters that the kernel does nothing to but read them."""
    head, _, body = text.partition("{\n")
    for type_, name in _POINTER.findall(head):
        if type_.startswith("const"):
            continue
        cast = rf"\*\(([\w ]+)\*\)(\(?{name}\b)"
        uses = len(re.findall(rf"(?<![\w.]){name}\b", body))
        reads = len(re.findall(rf"(?:(?<![&\w.]){name}\[|{cast})", body))
        is_written = re.search(rf"^ *(?:{name}\[|{cast})[^;]*? [-+*/|&^%]?= ", body, re.M)
        if uses == reads and not is_written:
            head = re.sub(rf"{type_}\* ((?:__restrict__ )?{name}\b)", rf"const {type_}* \1", head)
            body = re.sub(cast, r"*(const \1*)\2", body)
    return head + "{\n" + body


def _with_words(text: str) -> str:
    """With moves of four halves as such of words: CUDA has no type of four, nor loads of it."""
    return _FOUR_HALVES.sub(r"\1uint2\3uint2\4", text)


def _with_streams(text: str, names: Set[str]) -> str:
    """With loads by which nothing stays in caches, of parameters that are only read."""
    head, brace, body = text.partition("{\n")
    for type_, name in _POINTER.findall(head):
        if name in names and type_.startswith("const"):
            vector = rf"\*(\(const (?!{_FOUR})\w+\*\)(?:{name}\b(?!\[)|(?=\({name}\b){_GROUP}))"
            # An index of other signs might not add up with the name as it stands.
            number = rf"(?<![\w.]){name}\[([\w +*/%()-]*)\]"
            body = re.sub(vector, r"__ldcs(\1)", body)
            body = re.sub(number, rf"__ldcs({name} + \1)", body)
    return head + brace + body


def _with_short_head(text: str) -> str:
    """With the parameters on lines of their own, if they do not fit on that of the name."""
    head, brace, body = text.partition(" {\n")
    if len(head.splitlines()[-1]) <= _WIDTH:
        return text
    start = head.rindex("(") + 1
    lines = [head[:start], "   "]
    for parameter in head[start:].split(", "):
        if len(lines[-1]) + len(parameter) > _WIDTH - 2:
            lines.append("   ")
        lines[-1] += f" {parameter},"
    return "\n".join(lines).removesuffix(",") + brace + body


def _free(name: str, taken: Set[str], ending: str = "") -> str:
    """A name like the given one, with the ending and a number if need be."""
    others = (f"{name}{ending}{f'_{n}' if n else ''}" for n in count(0 if ending else 1))
    return next(each for each in chain([name], others) if each not in taken)


# Letters of a line, at most, but where a statement has nothing to break it at.
_WIDTH = 100

_POINTER = re.compile(r"(\w[\w ]*)\* (?:__restrict__ )?(\w+)(?=[,)])")

# Names that a variable of a kernel may not take: words of C++, and macros and functions of the C
# library, of compilers and of CUDA.
_RESERVED = re.compile(
    "alignas|alignof|and|and_eq|asm|auto|bitand|bitor|bool|break|case|catch|char|char8_t|char16_t|"
    "char32_t|class|compl|concept|const|consteval|constexpr|constinit|const_cast|continue|co_await|"
    "co_return|co_yield|decltype|default|delete|do|double|dynamic_cast|else|enum|explicit|export|"
    "extern|false|float|for|friend|goto|half|if|inline|int|long|mutable|namespace|new|noexcept|not|"
    "not_eq|nullptr|operator|or|or_eq|private|protected|public|register|reinterpret_cast|requires|"
    "restrict|return|short|signed|sizeof|static|static_assert|static_cast|struct|switch|template|"
    "this|thread_local|throw|true|try|typedef|typeid|typename|typeof|union|unsigned|using|virtual|"
    "void|volatile|wchar_t|while|xor|xor_eq|"
    "NULL|NAN|INFINITY|HUGE_VALF?|EOF|assert|errno|stdin|stdout|stderr|unix|linux|i386|M_\\w+|"
    "\\w+_(?:MAX|MIN|BIT|EPSILON|DIG)|"
    "__\\w+|uint|uchar|ushort|ulong|block|thread|main|printf|"
    "abs|fabs|min|max|sqrt|rsqrt|exp|log|sin|cos|tan|tanh|pow|floor|ceil|round|trunc|erf|fmod"
)


def _types(text: str) -> dict[str, str]:
    """The types of integers, by name; not of those of which there are two of other types."""
    found: dict[str, set[str]] = {}
    for type_, name in _INTEGER.findall(text):
        found.setdefault(name, set()).add(type_)
    return {name: types.pop() for name, types in found.items() if len(types) == 1}


def _line(line: str, types: Mapping[str, str]) -> str:
    try:
        return _statement(line, types)
    except NotAnExpressionError:
        return line


def _statement(line: str, types: Mapping[str, str]) -> str:
    if loop := _LOOP.match(line):
        indent, type_, name, start, test, step = loop.groups()
        first, test = simplified(start, types), simplified(test, types)
        return f"{indent}for ({type_} {name} = {first}; {test}; {step}) {{"
    if condition := _CONDITION.match(line):
        indent, word, test = condition.groups()
        return f"{indent}{word} ({simplified(test, types)}) {{"
    statement = _STATEMENT.match(line)
    if statement is None:
        return line
    indent, text = statement.groups()
    if declaration := _DECLARATION.match(text):
        type_, name, value = declaration.groups()
        return f"{indent}{type_}{name} = {simplified(value, types)};"
    left, equals, right = text.partition(" = ")
    if equals:
        return f"{indent}{assigned(left, right, types)};"
    return f"{indent}{simplified(text, types)};" if "(" in text else line
