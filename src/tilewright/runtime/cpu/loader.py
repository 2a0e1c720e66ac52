"""Object code into executable memory.

Input -> Output: the bytes of an object, names of its functions -> their addresses.
Guarantees: a loaded object keeps its code alive; loading is safe from several threads.
Requires: the object was made for this machine (the engine checks that before it loads).
Not here: code generation, calling conventions (executor).
"""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Callable, Mapping
from typing import Any

from tilewright.core.errors import CorruptEngine
from tilewright.runtime.cpu import link
from tilewright.runtime.cpu.elf import read_object

_ELF_MACHINES = {62: "x86_64", 183: "aarch64"}
_MACH_CPUS = {0x01000007: "x86_64", 0x0100000C: "aarch64"}


class LoadedObject:
    """Functions in memory; they stay valid as long as this object exists.

    Attributes:
        exports: names of the functions that can be called.
    """

    def __init__(self, addresses: Mapping[str, int], code: object) -> None:
        self._addresses = addresses
        self._code = code
        self.exports = tuple(addresses)

    def address(self, name: str) -> int:
        """The address of a function.

        Raises:
            KeyError: it was not asked for when the object was loaded.
        """
        return self._addresses[name]

    def function(self, name: str, result: type | None, *arguments: type) -> Callable[..., Any]:
        """The function as a ctypes callable; it keeps the code alive and releases the GIL."""
        made = ctypes.CFUNCTYPE(result, *arguments)(self._addresses[name])
        made.keeps = self  # type: ignore[attr-defined]
        return made


def load_object(
    code: bytes, exports: tuple[str, ...], imports: Mapping[str, int] | None = None
) -> LoadedObject:
    """Links object code against the C and maths libraries and ``imports``.

    Args:
        code: a relocatable object.
        exports: names of functions that the object defines.
        imports: addresses of further functions that the object calls.

    Raises:
        CorruptEngine: the bytes are no object for this machine, or a symbol is missing.
        OutOfMemory: the system gives no memory for it.
    """
    _check_architecture(code)
    if sys.platform == "linux":
        found = read_object(code)
        if found.machine == link.MACHINE:
            linked = link.link(found, exports, imports or {})
            return LoadedObject(linked.addresses, linked)
    from tilewright.runtime.cpu.llvm_link import llvm_link

    return LoadedObject(*llvm_link(code, exports, imports or {}))


def _check_architecture(code: bytes) -> None:
    """The linker trusts the header's processor; code of another one must not get that far."""
    mine = {"amd64": "x86_64", "arm64": "aarch64"}.get(
        platform.machine().lower(), platform.machine().lower()
    )
    found = None
    if len(code) >= 64 and code[:6] == b"\x7fELF\x02\x01":
        found = _ELF_MACHINES.get(int.from_bytes(code[18:20], "little"))
    elif len(code) >= 32 and code[:4] == b"\xcf\xfa\xed\xfe":
        found = _MACH_CPUS.get(int.from_bytes(code[4:8], "little"))
    if found != mine:
        raise CorruptEngine(
            f"object code for {found or 'no known processor'} on {mine}",
            remedy="build the engine for this machine",
        )
