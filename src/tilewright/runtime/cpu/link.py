"""A linker for the object code of our own code generator on x86-64.

Input -> Output: ``ObjectFile``, addresses of foreign functions -> memory with the code in it, and
the addresses of its functions.
Guarantees: memory is never writable and executable at once; a symbol that is missing, or
cannot be reached, is a ``CorruptEngine``.
Not here: other processors and formats (llvm_link). LLVM's linker does this as well; but to load it
takes an engine longer than all else, and more memory than a small network.
Source: System V ABI, AMD64 supplement, 4.4 (relocation).
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import numpy.typing as npt

from tilewright.core.errors import CorruptEngine, OutOfMemory
from tilewright.runtime.cpu.elf import ObjectFile

MACHINE = 62
_ABS64, _PC32, _PLT32, _PC64 = 1, 2, 4, 24
_GOT = (9, 41, 42)  # an address that is read from a slot


def _among(*kinds: int) -> npt.NDArray[np.bool_]:
    found = np.zeros(64, bool)
    found[list(kinds)] = True
    return found


_IS_GOT = _among(*_GOT)
_IS_WIDE = _among(_ABS64, _PC64)
_IS_NARROW = _among(_PC32, _PLT32, *_GOT)
_IS_DIRECT = _among(_ABS64, _PC64, _PC32)  # by no stub
_JUMP = bytes.fromhex("ff2502000000cccc")  # jmp *[rip + 2]; the address follows
_STUB_BYTES = 16
_SLOT = 8  # of the address in a stub
_REMEDY = "build the engine on this machine"


@dataclass(frozen=True, slots=True)
class Linked:
    """Code that can be run as long as this object exists."""

    memory: mmap.mmap
    addresses: dict[str, int]


@dataclass(slots=True)
class _Image:
    """Memory while it is filled: sections, then stubs.

    Attributes:
        base: the address of its first byte.
        homes: where each section lies, by number.
        stubs: where the stub of a symbol lies, by the symbol's number.
    """

    code: ObjectFile
    memory: mmap.mmap
    base: int
    homes: dict[int, int]
    stubs: dict[int, int] = field(default_factory=dict)

    def home(self, number: int) -> int:
        """Where a symbol of this object lies; -1 if in no section of the memory."""
        symbol = self.code.symbols[number]
        return self.homes[symbol.home] + symbol.value if symbol.home in self.homes else -1


def link(code: ObjectFile, exports: tuple[str, ...], imports: Mapping[str, int]) -> Linked:
    """Links against the C and maths libraries and ``imports``.

    Args:
        code: an object for x86-64.
        exports: names of functions that it defines.
        imports: addresses of further functions that it calls.

    Raises:
        CorruptEngine: a symbol is missing or cannot be reached.
        OutOfMemory: the system gives no memory.
    """
    image, num_fixed = _laid_out(code, imports)
    for number, section in enumerate(code.sections):
        if number in image.homes and not section.is_zero:
            home = image.homes[number]
            piece = code.code[section.offset : section.offset + section.size]
            image.memory[home : home + section.size] = piece
    _relocate(image)
    addresses = {
        symbol.name: image.base + image.homes[symbol.home] + symbol.value
        for symbol in code.symbols
        if symbol.home in image.homes and symbol.name in exports
    }
    lacking = sorted(set(exports) - set(addresses))
    if lacking:
        raise _refused(f"it has no {lacking[0]}")
    _protect(image.base, num_fixed)
    return Linked(image.memory, addresses)


def _laid_out(code: ObjectFile, imports: Mapping[str, int]) -> tuple[_Image, int]:
    """Memory with a place for each section; what may be written begins at the number returned."""
    homes: dict[int, int] = {}

    def place(numbers: list[int], end: int) -> int:
        for number in numbers:
            homes[number] = _up(end, code.sections[number].alignment)
            end = homes[number] + code.sections[number].size
        return end

    loaded = [k for k, section in enumerate(code.sections) if section.in_memory]
    indirect = {k for k, symbol in enumerate(code.symbols) if symbol.is_foreign}
    for table in code.relocations:
        indirect.update(table.symbols[_IS_GOT[table.kinds]].tolist())
    first_stub = _up(place([k for k in loaded if not code.sections[k].is_written], 0), _STUB_BYTES)
    num_fixed = _up(first_stub + len(indirect) * _STUB_BYTES, mmap.PAGESIZE)
    end = place([k for k in loaded if code.sections[k].is_written], num_fixed)
    try:
        memory = mmap.mmap(-1, max(end, mmap.PAGESIZE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise OutOfMemory(
            f"no memory for {end} bytes of code: {error}", remedy="free some memory"
        ) from error
    image = _Image(code, memory, ctypes.addressof(ctypes.c_char.from_buffer(memory)), homes)
    for count, number in enumerate(sorted(indirect)):
        home = image.stubs[number] = first_stub + count * _STUB_BYTES
        symbol = code.symbols[number]
        own = image.base + image.home(number)
        address = _foreign_address(symbol.name, imports) if symbol.is_foreign else own
        memory[home : home + _STUB_BYTES] = _JUMP + address.to_bytes(8, "little")
    return image, num_fixed


def _relocate(image: _Image) -> None:
    """Fills the places that depend on addresses; all at once, as an engine has thousands."""
    symbols = image.code.symbols
    foreign = np.array([symbol.is_foreign for symbol in symbols], bool)
    stubs = np.array([image.stubs.get(k, -1) for k in range(len(symbols))], np.int64)
    direct = np.where(foreign, stubs, [image.home(k) for k in range(len(symbols))])
    memory = np.frombuffer(image.memory, np.uint8)
    for table in image.code.relocations:
        if table.section not in image.homes:
            continue
        through = _IS_GOT[table.kinds]
        found = np.where(through, stubs[table.symbols] + _SLOT, direct[table.symbols])
        unreachable = (found < 0) | (foreign[table.symbols] & _IS_DIRECT[table.kinds])
        if unreachable.any():
            name = symbols[int(table.symbols[unreachable][0])].name
            raise _refused(f"{name or 'a place'} cannot be reached")
        places = table.places + image.homes[table.section]
        values = found + table.addends - np.where(table.kinds == _ABS64, -image.base, places)
        wide = _IS_WIDE[table.kinds]
        if not (wide | _IS_NARROW[table.kinds]).all():
            raise _refused("a relocation of a type that our code has not")
        for chosen, dtype in ((wide, "<i8"), (~wide, "<i4")):
            width = np.dtype(dtype).itemsize
            raw = values[chosen].astype(dtype).view(np.uint8).reshape(-1, width)
            memory[places[chosen, None] + np.arange(width)] = raw


def _foreign_address(name: str, imports: Mapping[str, int]) -> int:
    if name in imports:
        return imports[name]
    for library in _libraries():
        function = getattr(library, name, None)
        if function is not None:
            return ctypes.cast(function, ctypes.c_void_p).value or 0
    raise _refused(f"there is no {name} here")


@cache
def _libraries() -> tuple[ctypes.CDLL, ...]:
    return ctypes.CDLL(None, use_errno=True), ctypes.CDLL("libm.so.6")


def _protect(base: int, num_bytes: int) -> None:
    protect = _libraries()[0].mprotect
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    if protect(base, num_bytes, mmap.PROT_READ | mmap.PROT_EXEC) != 0:
        reason = os.strerror(ctypes.get_errno())
        raise OutOfMemory(
            f"the system does not let memory be executed: {reason}",
            remedy="allow it for this program (SELinux calls it execmem)",
        )


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _refused(reason: str) -> CorruptEngine:
    return CorruptEngine(f"object code cannot be loaded: {reason}", remedy=_REMEDY)
