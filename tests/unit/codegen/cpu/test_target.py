"""Targets: known names, what they imply, and a name that is refused."""

from __future__ import annotations

import pytest

from tilewright.codegen.cpu.objects import compile_module
from tilewright.codegen.cpu.pool import pool_module
from tilewright.codegen.cpu.target import host_target, known_targets, named_target
from tilewright.core.errors import BadTarget


@pytest.mark.parametrize(
    ("name", "vector_bytes", "architecture"),
    [
        ("x86-64-v2", 16, "x86_64"),
        ("x86-64-v3", 32, "x86_64"),
        ("haswell", 32, "x86_64"),
        ("znver4", 64, "x86_64"),
        ("sapphirerapids", 64, "x86_64"),
        ("neoverse-v1", 16, "aarch64"),
        ("apple-m1", 16, "aarch64"),
    ],
)
def test_name_implies_registers(name: str, vector_bytes: int, architecture: str) -> None:
    target = named_target(name)
    assert target.vector_bytes == vector_bytes
    assert target.architecture == architecture
    assert target.lanes(32) == vector_bytes // 4
    assert target.lanes(8) == vector_bytes


def test_features_follow_the_name() -> None:
    assert named_target("haswell").has_f16c
    assert not named_target("haswell").has_masks
    assert named_target("sapphirerapids").has_amx_int8
    assert named_target("znver4").has_bf16
    assert not named_target("znver4").has_fp16
    assert not named_target("x86-64-v2").has_fma


def test_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BadTarget, match="haswell.*znver4"):
        named_target("z80")


def test_host_is_itself() -> None:
    assert named_target("host") is host_target()
    assert host_target().vector_bytes in (16, 32, 64)


@pytest.mark.parametrize("name", known_targets())
def test_every_target_compiles(name: str) -> None:
    target = named_target(name)
    assert len(compile_module(pool_module(target), target)) > 1000
