"""Loading object code: results, imports, lifetime, threads, and damaged bytes."""

from __future__ import annotations

import ctypes
import gc
import math
from concurrent.futures import ThreadPoolExecutor

import pytest

from tilewright.codegen.cpu.emit import DOUBLE, I64, Module
from tilewright.codegen.cpu.objects import compile_module
from tilewright.codegen.cpu.target import host_target, named_target
from tilewright.core.errors import CorruptEngine
from tilewright.runtime.cpu.loader import load_object


def _square() -> bytes:
    module = Module(host_target())
    b = module.function("square", [("x", I64)], result=I64)
    b.ret(b.mul(b.params["x"], b.params["x"]))
    return compile_module(module.text(), module.target)


def test_functions_are_found_and_run() -> None:
    loaded = load_object(_square(), ("square",))
    assert loaded.exports == ("square",)
    assert loaded.address("square") != 0
    assert loaded.function("square", ctypes.c_int64, ctypes.c_int64)(12) == 144
    with pytest.raises(KeyError):
        loaded.address("cube")


def test_a_function_keeps_its_code_alive() -> None:
    call = load_object(_square(), ("square",)).function("square", ctypes.c_int64, ctypes.c_int64)
    gc.collect()
    others = [load_object(_square(), ("square",)) for _ in range(20)]
    assert call(9) == 81
    assert len({other.address("square") for other in others}) == 20


def test_the_maths_library_is_linked() -> None:
    module = Module(host_target())
    b = module.function("f", [("x", DOUBLE)], result=DOUBLE)
    b.ret(b.call("tgamma", DOUBLE, [b.call("cbrt", DOUBLE, [b.params["x"]])]))
    loaded = load_object(compile_module(module.text(), module.target), ("f",))
    call = loaded.function("f", ctypes.c_double, ctypes.c_double)
    assert call(125.0) == pytest.approx(math.gamma(5), rel=1e-14)


def test_imports_are_linked() -> None:
    square = load_object(_square(), ("square",))
    module = Module(host_target())
    b = module.function("f", [("x", I64)], result=I64)
    b.ret(b.add(b.call("square", I64, [b.params["x"]]), b.params["x"]))
    code = compile_module(module.text(), module.target)
    loaded = load_object(code, ("f",), {"square": square.address("square")})
    assert loaded.function("f", ctypes.c_int64, ctypes.c_int64)(5) == 30


def test_a_missing_symbol_is_an_error() -> None:
    module = Module(host_target())
    b = module.function("f", [("x", I64)], result=I64)
    b.ret(b.call("tw_no_such_function", I64, [b.params["x"]]))
    code = compile_module(module.text(), module.target)
    with pytest.raises(CorruptEngine, match="cannot be loaded"):
        load_object(code, ("f",))
    with pytest.raises(CorruptEngine, match="cube"):
        load_object(_square(), ("cube",))


@pytest.mark.parametrize("code", [b"", b"not an object", b"\x7fELF" + bytes(60)])
def test_damaged_bytes_are_refused(code: bytes) -> None:
    with pytest.raises(CorruptEngine):
        load_object(code, ("square",))


@pytest.mark.parametrize("kept", [0.2, 0.5, 0.9])
def test_truncated_object_is_refused(kept: float) -> None:
    code = _square()
    with pytest.raises(CorruptEngine):
        load_object(code[: int(len(code) * kept)], ("square",))


def test_code_of_another_architecture_is_refused() -> None:
    name = "neoverse-v1" if host_target().architecture == "x86_64" else "haswell"
    module = Module(named_target(name))
    b = module.function("square", [("x", I64)], result=I64)
    b.ret(b.mul(b.params["x"], b.params["x"]))
    with pytest.raises(CorruptEngine, match="aarch64"):
        load_object(compile_module(module.text(), module.target), ("square",))


def test_loading_from_several_threads() -> None:
    code = _square()

    def load_and_call(number: int) -> int:
        loaded = load_object(code, ("square",))
        return int(loaded.function("square", ctypes.c_int64, ctypes.c_int64)(number))

    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(load_and_call, range(200)))
    assert results == [number * number for number in range(200)]
