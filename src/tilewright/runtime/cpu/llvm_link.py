"""LLVM's linker, for processors and formats that ``link`` does not know.

Input -> Output: the bytes of an object, names of its functions -> their addresses, and what keeps
them valid.
Guarantees: linking is safe from several threads.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from itertools import count
from threading import Lock

import llvmlite.binding as llvm

from tilewright.core.errors import CorruptEngine
from tilewright.core.forks import renew_in_child

_lock = Lock()
renew_in_child(sys.modules[__name__], "_lock")
_numbers = count()


def llvm_link(
    code: bytes, exports: tuple[str, ...], imports: Mapping[str, int]
) -> tuple[dict[str, int], object]:
    """Links against the C and maths libraries and ``imports``.

    Raises:
        CorruptEngine: a symbol is missing.
    """
    builder = llvm.JITLibraryBuilder().add_object_img(code).add_current_process()
    for name, address in imports.items():
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
    return {name: int(tracker[name]) for name in exports}, tracker


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
