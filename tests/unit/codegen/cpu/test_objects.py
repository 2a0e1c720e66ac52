"""Object code: the same bytes for the same text, and errors that say what is wrong."""

from __future__ import annotations

import dataclasses
import re

import pytest

from tilewright.codegen.cpu.emit import FLOAT, I64, PTR, Module
from tilewright.codegen.cpu.objects import (
    assembly,
    compile_module,
    llvm_version,
    module_key,
    optimised_ir,
)
from tilewright.codegen.cpu.target import CpuTarget, host_target, named_target
from tilewright.core.errors import BadTarget, InternalError


def _add_arrays(target: CpuTarget) -> str:
    module = Module(target)
    kind = FLOAT.with_lanes(target.lanes(32))
    b = module.function("f", [("x", PTR), ("n", I64)])
    with b.loop(0, b.params["n"], kind.lanes) as i:
        address = b.gep(b.params["x"], i, 4)
        value = b.load(kind, address)
        b.store(b.fma(value, value, value), address)
    return module.text()


def test_equal_text_gives_equal_bytes() -> None:
    target = host_target()
    assert compile_module(_add_arrays(target), target) == compile_module(
        _add_arrays(target), target
    )


@pytest.mark.parametrize(
    ("name", "instruction"),
    [
        ("znver4", r"%zmm"),
        ("haswell", r"vfmadd\d+ps.*%ymm"),
        ("neoverse-v1", r"fmla\tv"),
        ("apple-m1", r"fmla"),
    ],
)
def test_code_uses_the_target(name: str, instruction: str) -> None:
    target = named_target(name)
    assert re.search(instruction, assembly(_add_arrays(target), target))


def test_nothing_is_unrolled() -> None:
    target = named_target("haswell")
    assert optimised_ir(_add_arrays(target), target).count("call <8 x float> @llvm.fma") == 1


def test_invalid_text_is_an_internal_error() -> None:
    with pytest.raises(InternalError, match="expected"):
        compile_module("define void @f( {", host_target())
    undefined = "define i64 @f() {\n  ret i64 %nothing\n}\n"
    with pytest.raises(InternalError, match="nothing"):
        compile_module(undefined, host_target())


def test_unknown_triple_is_a_bad_target() -> None:
    target = dataclasses.replace(host_target(), triple="pdp11-unknown-none")
    with pytest.raises(BadTarget, match="pdp11"):
        compile_module(_add_arrays(host_target()), target)


def test_key_depends_on_all_inputs() -> None:
    target = host_target()
    keys = {
        module_key("a", target),
        module_key("b", target),
        module_key("a", dataclasses.replace(target, features="+nothing")),
        module_key("a", named_target("haswell")),
    }
    assert len(keys) == 4
    assert all(len(key) == 64 for key in keys)
    assert module_key("a", target) in keys
    assert llvm_version().count(".") == 2
