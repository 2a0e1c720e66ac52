"""Object code, read and checked before a linker works on it.

Input -> Output: the bytes of a relocatable ELF object -> ``ObjectFile``, or ``CorruptEngine``.
Guarantees: headers, sections, names, symbols and relocations lie inside the file and inside each
other; only sections that our code generator makes exist (no initialisers, no unwinding).
Not here: linking (link), what the code does: run engines only of people whose programs you would
run.
Source: System V ABI, chapters 4 and 5 (object files), and the supplements of x86-64 and AArch64.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from tilewright.core.errors import CorruptEngine

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = np.dtype([("place", "<i8"), ("kind", "<u4"), ("symbol", "<u4"), ("addend", "<i8")])
Integers = npt.NDArray[np.int64]
_IDENT = b"\x7fELF\x02\x01\x01"  # 64 bits, little endian, version 1
_RELOCATABLE = 1
_NULL, _PROGBITS, _SYMTAB, _STRTAB, _RELA, _NOBITS = 0, 1, 2, 3, 4, 8
_UNDEFINED, _ABSOLUTE = 0, 0xFFF1
_MAX_SECTIONS = 4096
_MAX_BSS_BYTES = 1 << 24
_MAX_ALIGNMENT = 4096
_PREFIXES = (".text", ".rodata", ".data", ".bss", ".note.GNU-stack", ".comment", ".llvm_addrsig")


def _widths(by_bytes: dict[int, tuple[int, ...]]) -> Integers:
    """Bytes that each type of relocation changes, by its number; 0 for those that we never make."""
    found = np.zeros(max(max(kinds) for kinds in by_bytes.values()) + 2, np.int64)
    for num_bytes, kinds in by_bytes.items():
        found[list(kinds)] = num_bytes
    return found


_ARM_KINDS = (258, 261, 275, 277, 278, 282, 283, 284, 285, 286, 299, 311, 312)
_WIDTHS = {  # by machine
    62: _widths({8: (1, 24), 4: (2, 4, 9, 10, 11, 41, 42)}),
    183: _widths({8: (257, 260), 4: _ARM_KINDS}),
}


@dataclass(frozen=True, slots=True)
class Section:
    """A part of an object."""

    name: str
    kind: int
    offset: int
    size: int
    link: int
    info: int
    entry: int
    alignment: int

    @property
    def in_memory(self) -> bool:
        """Whether the running code needs it."""
        kept = (".text", ".rodata", ".data", ".bss")
        return self.kind in (_PROGBITS, _NOBITS) and self.name.startswith(kept)

    @property
    def is_zero(self) -> bool:
        """Whether the file has no bytes of it."""
        return self.kind == _NOBITS

    @property
    def is_written(self) -> bool:
        """Whether the code changes it."""
        return self.name.startswith((".data", ".bss")) and not self.name.startswith(".data.rel.ro")


@dataclass(frozen=True, slots=True)
class Symbol:
    """A place of the section ``home`` that a name stands for."""

    name: str
    home: int
    value: int

    @property
    def is_foreign(self) -> bool:
        """Whether the object only uses it."""
        return self.home == _UNDEFINED and bool(self.name)


@dataclass(frozen=True, slots=True)
class Relocations:
    """Places of a section that depend on addresses of symbols; equally long arrays of int64."""

    section: int
    places: Integers
    kinds: Integers
    symbols: Integers
    addends: Integers


@dataclass(frozen=True, slots=True)
class ObjectFile:
    """An object that is well formed."""

    code: bytes
    machine: int
    sections: tuple[Section, ...]
    symbols: tuple[Symbol, ...]
    relocations: tuple[Relocations, ...]


def read_object(code: bytes) -> ObjectFile:
    """Reads and checks an object.

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
    _check_sizes(code, sections)
    symbols: list[Symbol] = []
    relocations: list[Relocations] = []
    for section in sections:
        if section.kind == _SYMTAB:
            symbols += _symbols(code, section, sections)
        elif section.kind == _RELA:
            relocations.append(_relocations(code, section, sections, _WIDTHS[machine]))
    return ObjectFile(code, machine, tuple(sections), tuple(symbols), tuple(relocations))


def _check_sizes(code: bytes, sections: Sequence[Section]) -> None:
    """Sections may lie over each other in the file; in memory each takes its own bytes."""
    sizes = {True: 0, False: 0}
    for section in sections:
        if section.in_memory:
            sizes[section.is_zero] += section.size
    if sizes[False] > len(code) or sizes[True] > _MAX_BSS_BYTES:
        _refuse(f"its sections take {sizes[False]} and {sizes[True]} bytes")


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


def _section(code: bytes, row: tuple[int, ...], texts: bytes) -> Section:
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
    return Section(name, kind, offset, size, link, info, entry, max(1, alignment))


def _entries(code: bytes, section: Section, shape: struct.Struct) -> list[tuple[int, ...]]:
    _check_entries(section, shape.size)
    return list(shape.iter_unpack(code[section.offset : section.offset + section.size]))


def _check_entries(section: Section, size: int) -> None:
    if section.entry != size or section.size % size:
        _refuse(f"section {section.name!r} has entries of {section.entry} bytes")


def _linked(section: Section, sections: Sequence[Section], kind: int) -> Section:
    if section.link >= len(sections) or sections[section.link].kind != kind:
        _refuse(f"section {section.name!r} refers to section {section.link}")
    return sections[section.link]


def _symbols(code: bytes, table: Section, sections: Sequence[Section]) -> Iterator[Symbol]:
    strings = _linked(table, sections, _STRTAB)
    texts = _text(code, strings.offset, strings.size)
    entries = _entries(code, table, _SYMBOL)
    if not entries or any(entries[0]) or table.info > len(entries):
        _refuse("the symbols do not begin with the empty one")
    for name, _, _, home, value, size in entries:
        if name >= len(texts):
            _refuse("a symbol's name lies outside of the names")
        if home not in (_UNDEFINED, _ABSOLUTE):
            if home >= len(sections):
                _refuse(f"a symbol lies in section {home}")
            if value + size > sections[home].size:
                _refuse("a symbol lies outside of its section")
        text = texts[name : texts.index(b"\0", name)].decode("ascii", "replace")
        yield Symbol(text, home, value)


def _relocations(
    code: bytes, table: Section, sections: Sequence[Section], widths: Integers
) -> Relocations:
    symbols = _linked(table, sections, _SYMTAB)
    if table.info >= len(sections) or sections[table.info].kind != _PROGBITS:
        _refuse(f"section {table.name!r} changes section {table.info}")
    target = sections[table.info]
    _check_entries(table, _RELOCATION.itemsize)
    found = np.frombuffer(code[table.offset : table.offset + table.size], _RELOCATION)
    kinds = np.minimum(found["kind"], len(widths) - 1).astype(np.int64)
    width = widths[kinds]
    inside = (found["place"] >= 0) & (found["place"] <= target.size - width)
    if not ((width > 0) & inside & (found["symbol"] < symbols.size // _SYMBOL.size)).all():
        _refuse(f"a relocation of section {target.name!r} is out of bounds")
    numbers = found["symbol"].astype(np.int64)
    return Relocations(table.info, found["place"], kinds, numbers, found["addend"])


def _refuse(reason: str) -> NoReturn:
    raise CorruptEngine(
        f"object code is damaged: {reason}", remedy="build the engine on this machine"
    )
