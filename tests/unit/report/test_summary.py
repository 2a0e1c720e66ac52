"""The summary of a build says what is known, and what is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.report.summary import BuildSummary, readable_bytes

BUILT = BuildSummary(
    file=Path("net.tw"),
    num_bytes=2048,
    model="net.onnx",
    inputs=["x float32[n]"],
    outputs=["y float32[n]"],
    target="cpu",
    cpu="haswell",
    threads=2,
    precision="fp32",
    ranges={"n": (1, None)},
    kernels_before_fusion=5,
    kernels=3,
    arena_bytes=None,
    arena_sizes={},
    max_error=None,
    verification="skipped on request",
    interpreted=[("n1", "Unique", "its result's size depends on the data")],
    num_decisions=9,
    seconds={"import": 0.25, "lower": 0.001},
    total_seconds=0.3,
)


def test_each_fact_has_a_line() -> None:
    lines = dict(BUILT.lines())
    assert lines["engine"] == "net.tw (2.0 KiB)"
    assert lines["range"] == "n: 1.."
    assert lines["target"] == "cpu haswell, 2 threads, fp32"
    assert lines["kernels"] == "3 after fusion, 5 before"
    assert lines["arena"] == "known when it runs"
    assert lines["error"] == "skipped on request"
    assert lines["interpreted"] == "n1 (Unique): its result's size depends on the data"
    assert lines["seconds"] == "0.30 (import 0.25)"


def test_a_range_of_one_size_fixes_nothing() -> None:
    lines = dict(replace(BUILT, ranges={"n": (4, 4)}).lines())
    assert lines["range"] == "n: 4, checked in each run; it fixes no size in the kernels"


def test_a_gpu_is_named_once() -> None:
    built = replace(BUILT, target="sm_90", cpu="sm_90")
    assert dict(built.lines())["target"] == "sm_90, 2 threads, fp32"


def test_the_arena_is_stated_with_its_sizes() -> None:
    built = replace(BUILT, arena_bytes=100, arena_sizes={"n": 2, "m": 3}, interpreted=[])
    lines = dict(built.lines())
    assert lines["arena"] == "100 bytes at n = 2, m = 3"
    assert lines["interpreted"].startswith("nothing")


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1024, "1.0 KiB"), (5 << 30, "5.0 GiB")],
)
def test_readable_bytes(num_bytes: int, text: str) -> None:
    assert readable_bytes(num_bytes) == text
