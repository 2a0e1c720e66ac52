"""Our own linker: what it makes of memory, what it refuses, and that LLVM stays away."""

from __future__ import annotations

import ctypes
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tilewright.codegen.cpu.emit import DOUBLE, PTR, Module, Value
from tilewright.codegen.cpu.objects import compile_module
from tilewright.codegen.cpu.target import host_target
from tilewright.core.errors import CorruptEngine
from tilewright.runtime.cpu.elf import read_object
from tilewright.runtime.cpu.link import link
from unit.compiler.models import compiled, feeds_of, network

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or host_target().architecture != "x86_64",
    reason="the linker is for x86-64 and Linux",
)
PC32, PLT32, ABS32 = 2, 4, 10


def calling(name: str) -> bytes:
    module = Module(host_target())
    b = module.function("f", [("x", DOUBLE)], result=DOUBLE)
    b.ret(b.call(name, DOUBLE, [b.params["x"]]))
    return compile_module(module.text(), module.target)


def with_kind(code: bytes, old: int, new: int) -> bytes:
    """The object with its relocations of one type made another."""
    relocations = struct.Struct("<QQq")
    changed = bytearray(code)
    for section in read_object(code).sections:
        if section.name.startswith(".rela"):
            for offset in range(section.offset, section.offset + section.size, relocations.size):
                place, what, addend = relocations.unpack_from(code, offset)
                if what & 0xFFFFFFFF == old:
                    relocations.pack_into(changed, offset, place, what - old + new, addend)
    return bytes(changed)


def rights(address: int) -> str:
    for line in Path("/proc/self/maps").read_text(encoding="ascii").splitlines():
        span, allowed = line.split()[:2]
        first, end = (int(part, 16) for part in span.split("-"))
        if first <= address < end:
            return allowed
    raise AssertionError("not mapped")


def test_code_can_be_executed_and_not_written() -> None:
    linked = link(read_object(calling("cbrt")), ("f",), {})
    assert ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(linked.addresses["f"])(
        27.0
    ) == pytest.approx(3.0)
    assert rights(linked.addresses["f"]) == "r-xp"


def test_an_import_goes_before_the_libraries() -> None:
    def plus_one(value: float) -> float:
        return value + 1

    mine = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(plus_one)
    address = ctypes.cast(mine, ctypes.c_void_p).value
    assert address is not None
    linked = link(read_object(calling("cbrt")), ("f",), {"cbrt": address})
    assert ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(linked.addresses["f"])(27.0) == 28.0


def test_addresses_that_are_read_from_slots() -> None:
    module = Module(host_target())
    b = module.function("f", [("x", DOUBLE)], result=DOUBLE)
    b.ret(b.params["x"])
    for name in ("f", "cbrt"):
        b = module.function(f"where_{name}", [("place", PTR)])
        b.store(Value(PTR, f"@{name}"), b.params["place"])
    text = module.text() + "\ndeclare double @cbrt(double)\n"
    code = read_object(compile_module(text, module.target))
    assert sum(int(np.isin(table.kinds, (9, 41, 42)).sum()) for table in code.relocations) == 2
    linked = link(code, ("f", "where_f", "where_cbrt"), {})
    found = ctypes.c_uint64()
    for name in ("f", "cbrt"):
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(linked.addresses[f"where_{name}"])(
            ctypes.addressof(found)
        )
        function = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(found.value)
        assert function(27.0) == pytest.approx({"f": 27.0, "cbrt": 3.0}[name])
    assert linked.addresses["f"] != found.value


@pytest.mark.parametrize(
    ("code", "exports", "reason"),
    [
        (calling("tw_nothing"), ("f",), "there is no tw_nothing here"),
        (calling("cbrt"), ("g",), "it has no g"),
        (with_kind(calling("cbrt"), PLT32, PC32), ("f",), "cbrt cannot be reached"),
        (with_kind(calling("cbrt"), PLT32, ABS32), ("f",), "of a type that our code has not"),
    ],
)
def test_what_cannot_be_linked_is_refused(
    code: bytes, exports: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(CorruptEngine, match=reason):
        link(read_object(code), exports, {})


def test_an_engine_runs_without_llvm(tmp_path: Path) -> None:
    compiled(network(), threads=2).save(tmp_path / "e.tw")
    np.savez(tmp_path / "x.npz", allow_pickle=False, **feeds_of())
    code = (
        "import sys, numpy as np, tilewright as tw;"
        f"tw.load({str(tmp_path / 'e.tw')!r}).run(dict(np.load({str(tmp_path / 'x.npz')!r})));"
        "print([m for m in ('llvmlite', 'onnx', 'onnx_ir') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
