"""Whether object code is well formed, before the linker sees it (it ends the process if not).

Input -> Output: the bytes of a relocatable ELF object -> nothing, or ``CorruptEngine``.
Guarantees: headers, sections, names, symbols and relocations lie inside the file and inside each
other; only sections that our code generator makes exist (no initialisers, no unwinding).
Not here: what the machine code does: run engines only of people whose programs you would run.
Source: System V ABI, chapters 4 and 5 (object files), and the supplements of x86-64 and AArch64.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from tilewright.core.errors import CorruptEngine

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_IDENT = b"\x7fELF\x02\x01\x01"  # 64 bits, little endian, version 1
_RELOCATABLE = 1
_NULL, _PROGBITS, _SYMTAB, _STRTAB, _RELA, _NOBITS = 0, 1, 2, 3, 4, 8
_UNDEFINED, _ABSOLUTE = 0, 0xFFF1
_MAX_SECTIONS = 4096
_MAX_BSS_BYTES = 1 << 24
_MAX_ALIGNMENT = 4096
_PREFIXES = (".text", ".rodata", ".data", ".bss", ".note.GNU-stack", ".comment", ".llvm_addrsig")
# Machine -> bytes that each allowed type of relocation changes.
_WIDTHS: dict[int, dict[int, int]] = {
    62: {1: 8, 2: 4, 4: 4, 9: 4, 10: 4, 11: 4, 24: 8, 41: 4, 42: 4},
    183: dict.fromkeys((258, 261, 275, 277, 278, 282, 283, 284, 285, 286, 299, 311, 312), 4)
    | {257: 8, 260: 8},
}


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    kind: int
    offset: int
    size: int
    link: int
    info: int
    entry: int


def check_object(code: bytes) -> None:
    """Checks an object.

    Raises:
        CorruptEngine: something contradicts the format.
    """
    if len(code) < _HEADER.size or not code.startswith(_IDENT):
        _refuse("it has no ELF header")
    header = _HEADER.unpack_from(code)
    kind, machine, start = header[1], header[2], header[6]
    entry, count, names = header[11:14]
    if kind != _RELOCATABLE or machine not in _WIDTHS:
        _refuse(f"type {kind} for machine {machine}")
    if entry != _SECTION.size or not 0 < count <= _MAX_SECTIONS:
        _refuse(f"{count} sections")
    if start + count * _SECTION.size > len(code):
        _refuse("the sections lie outside of the file")
    rows = [_SECTION.unpack_from(code, start + k * _SECTION.size) for k in range(count)]
    texts = _names(code, rows, names)
    sections = [_section(code, row, texts) for row in rows]
    if sections[0].kind != _NULL or sum(part.kind == _SYMTAB for part in sections) > 1:
        _refuse("the tables are not as they should be")
    for section in sections:
        if section.kind == _SYMTAB:
            _check_symbols(code, section, sections)
        elif section.kind == _RELA:
            _check_relocations(code, section, sections, _WIDTHS[machine])


def _names(code: bytes, rows: Sequence[tuple[int, ...]], place: int) -> bytes:
    if place >= len(rows) or rows[place][1] != _STRTAB:
        _refuse("the names of sections are missing")
    return _text(code, rows[place][4], rows[place][5])


def _text(code: bytes, offset: int, size: int) -> bytes:
    """A table of strings; the last one ends."""
    found = code[offset : offset + size]
    if not size or len(found) != size or found[-1]:
        _refuse("a table of names is cut off")
    return found


def _section(code: bytes, row: tuple[int, ...], texts: bytes) -> _Section:
    place, kind, _, address, offset, size, link, info, alignment, entry = row
    if place >= len(texts):
        _refuse("a section has no name")
    name = texts[place : texts.index(b"\0", place)].decode("ascii", "replace")
    if kind not in (_NULL, _PROGBITS, _SYMTAB, _STRTAB, _RELA, _NOBITS) and name != ".llvm_addrsig":
        _refuse(f"section {name!r} is of type {kind}")
    if kind in (_PROGBITS, _NOBITS) and not name.startswith(_PREFIXES):
        _refuse(f"section {name!r} is unknown")
    if kind == _NOBITS:
        inside = size <= _MAX_BSS_BYTES
    else:
        inside = kind == _NULL or offset + size <= len(code)
    if not inside or address or (kind == _NULL and size):
        _refuse(f"section {name!r} lies outside of the file")
    if alignment > _MAX_ALIGNMENT or alignment & (alignment - 1):
        _refuse(f"section {name!r} is aligned to {alignment}")
    return _Section(name, kind, offset, size, link, info, entry)


def _entries(code: bytes, section: _Section, shape: struct.Struct) -> list[tuple[int, ...]]:
    if section.entry != shape.size or section.size % shape.size:
        _refuse(f"section {section.name!r} has entries of {section.entry} bytes")
    return list(shape.iter_unpack(code[section.offset : section.offset + section.size]))


def _linked(section: _Section, sections: Sequence[_Section], kind: int) -> _Section:
    if section.link >= len(sections) or sections[section.link].kind != kind:
        _refuse(f"section {section.name!r} refers to section {section.link}")
    return sections[section.link]


def _check_symbols(code: bytes, table: _Section, sections: Sequence[_Section]) -> None:
    strings = _linked(table, sections, _STRTAB)
    texts = _text(code, strings.offset, strings.size)
    entries = _entries(code, table, _SYMBOL)
    if not entries or any(entries[0]) or table.info > len(entries):
        _refuse("the symbols do not begin with the empty one")
    for name, _, _, home, value, size in entries:
        if name >= len(texts):
            _refuse("a symbol's name lies outside of the names")
        if home in (_UNDEFINED, _ABSOLUTE):
            continue
        if home >= len(sections):
            _refuse(f"a symbol lies in section {home}")
        if value + size > sections[home].size:
            _refuse("a symbol lies outside of its section")


def _check_relocations(
    code: bytes, table: _Section, sections: Sequence[_Section], widths: dict[int, int]
) -> None:
    symbols = _linked(table, sections, _SYMTAB)
    if table.info >= len(sections) or sections[table.info].kind != _PROGBITS:
        _refuse(f"section {table.name!r} changes section {table.info}")
    target = sections[table.info]
    count = symbols.size // _SYMBOL.size
    for place, what, _ in _entries(code, table, _RELOCATION):
        width = widths.get(what & 0xFFFFFFFF)
        if width is None or what >> 32 >= count or place + width > target.size:
            _refuse(f"a relocation of section {target.name!r} is out of bounds")


def _refuse(reason: str) -> NoReturn:
    raise CorruptEngine(
        f"object code is damaged: {reason}", remedy="build the engine on this machine"
    )
