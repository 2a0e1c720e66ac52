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
from functools import cache
from itertools import count
from threading import Lock
from typing import Any

import llvmlite.binding as llvm

from tilewright.core.errors import CorruptEngine
from tilewright.core.forks import renew_in_child
from tilewright.runtime.cpu.elf import check_object

_ELF_MACHINES = {62: "x86_64", 183: "aarch64"}
_MACH_CPUS = {0x01000007: "x86_64", 0x0100000C: "aarch64"}
_lock = Lock()
renew_in_child(sys.modules[__name__], "_lock")
_numbers = count()


class LoadedObject:
    """Functions in memory; they stay valid as long as this object exists.

    Attributes:
        exports: names of the functions that can be called.
    """

    def __init__(self, tracker: llvm.ResourceTracker, exports: tuple[str, ...]) -> None:
        self._tracker = tracker
        self._addresses = {name: int(tracker[name]) for name in exports}
        self.exports = exports

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
    """
    _check_architecture(code)
    if sys.platform == "linux":
        check_object(code)
    builder = llvm.JITLibraryBuilder().add_object_img(code).add_current_process()
    for name, address in (imports or {}).items():
        builder.import_symbol(name, address)
    for name in exports:
        builder.export_symbol(name)
    with _lock:
        try:
            tracker = builder.link(_jit(), f"tilewright.{next(_numbers)}")
        except RuntimeError as error:
            raise CorruptEngine(
                f"object code cannot be loaded: {error}", remedy="build the engine on this machine"
            ) from error
    return LoadedObject(tracker, exports)


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


@cache
def _jit() -> llvm.LLJIT:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    if sys.platform == "linux":  # elsewhere the C library contains the maths library
        llvm.load_library_permanently("libm.so.6")
    machine = llvm.Target.from_default_triple().create_target_machine(
        reloc="pic", codemodel="small", jit=True
    )
    return llvm.create_lljit_compiler(machine, suppress_errors=True)
