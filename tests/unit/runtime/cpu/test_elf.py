"""What the check of object code accepts and refuses."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache

import pytest

from tilewright.codegen.cpu.generate import generate
from tilewright.codegen.cpu.objects import compile_module
from tilewright.codegen.cpu.pool import pool_module
from tilewright.codegen.cpu.target import named_target
from tilewright.core.errors import CorruptEngine
from tilewright.runtime.cpu.elf import read_object
from unit.codegen.cpu.kernels import KERNELS

_SECTION = struct.Struct("<IIQQQQIIQQ")


@cache
def made(name: str = "softmax", processor: str = "haswell") -> bytes:
    target = named_target(processor)
    text = pool_module(target) if name == "pool" else generate(KERNELS[name](), target).text
    return compile_module(text, target)


def sections(code: bytes) -> tuple[int, list[tuple[int, ...]]]:
    """Where the section headers begin, and what they say."""
    (start,) = struct.unpack_from("<Q", code, 40)
    (count,) = struct.unpack_from("<H", code, 60)
    return start, [_SECTION.unpack_from(code, start + k * _SECTION.size) for k in range(count)]


def with_section(code: bytes, kind: int, place: int, value: int) -> bytes:
    """The object with one field of the first section of a type changed."""
    start, rows = sections(code)
    number = next(k for k, row in enumerate(rows) if row[1] == kind and row[5])
    row = list(rows[number])
    row[place] = value
    changed = bytearray(code)
    _SECTION.pack_into(changed, start + number * _SECTION.size, *row)
    return bytes(changed)


def with_sections_over_all(code: bytes) -> bytes:
    """The object with every section of code and of constants as large as the file."""
    start, rows = sections(code)
    changed = bytearray(code)
    for number, row in enumerate(rows):
        if row[1] == PROGBITS:
            whole = (*row[:4], 0, len(code), *row[6:])
            _SECTION.pack_into(changed, start + number * _SECTION.size, *whole)
    return bytes(changed)


def with_entry(code: bytes, kind: int, offset: int, layout: str, value: int) -> bytes:
    """The object with one field of the second entry of a table changed."""
    row = next(row for row in sections(code)[1] if row[1] == kind and row[5])
    changed = bytearray(code)
    struct.pack_into(layout, changed, row[4] + 24 + offset, value)
    return bytes(changed)


@pytest.mark.parametrize("processor", ["haswell", "znver4", "neoverse-v1"])
@pytest.mark.parametrize("name", [*KERNELS, "pool"])
def test_what_we_generate_is_accepted(name: str, processor: str) -> None:
    read_object(made(name, processor))


def test_no_part_may_be_missing() -> None:
    code = made()
    for length in range(0, len(code), 7):
        with pytest.raises(CorruptEngine):
            read_object(code[:length])


PROGBITS, SYMTAB, STRTAB, RELA = 1, 2, 3, 4
DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "another format": lambda c: b"\x7fELF\x01" + c[5:],
    "an executable": lambda c: c[:16] + b"\x02" + c[17:],
    "another machine": lambda c: c[:18] + b"\x03" + c[19:],
    "no sections": lambda c: c[:60] + b"\0\0" + c[62:],
    "sections elsewhere": lambda c: c[:40] + b"\xff" * 8 + c[48:],
    "names elsewhere": lambda c: c[:62] + b"\xff\0" + c[64:],
    "code beyond the end": lambda c: with_section(c, PROGBITS, 5, 2**40),
    "sections that lie over each other": with_sections_over_all,
    "code that starts beyond the end": lambda c: with_section(c, PROGBITS, 4, 2**62),
    "a foreign type": lambda c: with_section(c, PROGBITS, 1, 14),
    "an odd alignment": lambda c: with_section(c, PROGBITS, 8, 3),
    "an address": lambda c: with_section(c, PROGBITS, 3, 64),
    "a name beyond the names": lambda c: with_section(c, PROGBITS, 0, 2**31),
    "symbols of another size": lambda c: with_section(c, SYMTAB, 9, 16),
    "symbols without names": lambda c: with_section(c, SYMTAB, 6, 0),
    "half a symbol": lambda c: with_section(c, SYMTAB, 5, 25),
    "a symbol with a name elsewhere": lambda c: with_entry(c, SYMTAB, 0, "<I", 2**31),
    "a symbol in no section": lambda c: with_entry(c, SYMTAB, 6, "<H", 999),
    "relocations of nothing": lambda c: with_section(c, RELA, 7, 0),
    "relocations of no symbols": lambda c: with_section(c, RELA, 6, 1),
    "a relocation outside": lambda c: with_entry(c, RELA, 0, "<Q", 2**40),
    "a relocation of an unknown type": lambda c: with_entry(c, RELA, 8, "<I", 77),
    "a relocation by no symbol": lambda c: with_entry(c, RELA, 12, "<I", 9999),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_refused(name: str) -> None:
    with pytest.raises(CorruptEngine, match="object code is damaged"):
        read_object(DAMAGE[name](made()))
