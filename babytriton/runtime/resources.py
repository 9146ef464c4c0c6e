"""What a kernel's machine code takes of a GPU, read from the ELF file that it is in."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

# Kinds of entries in the sections ".nv.info": a value for a symbol.
_VALUE = 0x04
_FRAME = 0x11
_REGISTERS = 0x2F

# What the sections of memory that a block's threads share are called, before the kernel's name;
# and that of what CUDA has for itself at the beginning of it, on GPUs from compute capability 9.0.
_SHARED = ".nv.shared."
_RESERVED, _RESERVED_BYTES = ".nv.shared.reserved.0", 1024


@dataclass(frozen=True)
class Resources:
    """Of a kernel.

    Attributes:
        registers: of a thread.
        spilled: bytes of a thread's stack frame, where arrays and registers go that do not fit.
        shared: bytes that the threads of a block share.
    """

    registers: int
    spilled: int
    shared: int


def resources(cubin: bytes) -> dict[str, Resources]:
    """What each kernel takes, by its name.

    The entries are those that ``cuobjdump --dump-resource-usage`` reads; NVIDIA documents the tool
    and not the format.

    Args:
        cubin: machine code, as an ELF file.
    """
    all_sections = list(_sections(cubin))
    sections = {name: content for name, content, _ in all_sections}
    sizes = {name: size for name, _, size in all_sections}
    reserved = _RESERVED_BYTES if _RESERVED in sizes else 0
    symbols = _symbols(sections)
    found: dict[int, dict[int, int]] = {}
    for kind, symbol, value in _entries(sections.get(".nv.info", b"")):
        found.setdefault(symbol, {})[kind] = value
    return {
        symbols[symbol]: Resources(
            values[_REGISTERS],
            values.get(_FRAME, 0),
            sizes.get(f"{_SHARED}{symbols[symbol]}", reserved) - reserved,
        )
        for symbol, values in found.items()
        if _REGISTERS in values and symbol < len(symbols)
    }


def _sections(file: bytes) -> Iterator[tuple[str, bytes, int]]:
    """The sections of a 64-bit ELF file: names, contents if they have any, and sizes."""
    (start,) = struct.unpack_from("<Q", file, 0x28)
    size, count, names = struct.unpack_from("<HHH", file, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", file, start + n * size) for n in range(count)]
    texts = file[headers[names][4] :]
    for name, kind, _, _, offset, length in headers:
        text = texts[name : texts.index(b"\0", name)].decode()
        yield text, b"" if kind == 8 else file[offset : offset + length], length


def _symbols(sections: dict[str, bytes]) -> list[str]:
    table, texts = sections.get(".symtab", b""), sections.get(".strtab", b"")
    starts = [struct.unpack_from("<I", table, place)[0] for place in range(0, len(table), 24)]
    return [texts[start : texts.index(b"\0", start)].decode() for start in starts]


def _entries(section: bytes) -> Iterator[tuple[int, int, int]]:
    """Kind, symbol and value of the entries that have these."""
    place = 0
    while place + 4 <= len(section):
        form, kind, size = struct.unpack_from("<BBH", section, place)
        place += 4
        if form == _VALUE:
            if size == 8:
                symbol, value = struct.unpack_from("<II", section, place)
                yield kind, symbol, value
            place += size
