"""What another precision would be worth: floors at other bytes and peaks, and what stays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import tilewright as tw
from tilewright.core.errors import BadOption
from tilewright.hw.roofs import Level, Roofs, store_measured
from tilewright.report.explanation import Explanation
from tilewright.report.what_if import WhatIf
from unit.compiler.models import compiled, normal
from unit.graph.models import model_of, node, tensor_info

PEAKS = {"float32": 1e9, "int8": 8e9, "bfloat16": 2e9}


def roofs(bytes_per_s: float, peaks: dict[str, float] = PEAKS) -> Roofs:
    return Roofs(
        device="a processor",
        threads=2,
        peaks_flops=peaks,
        levels=tuple(Level(name=n, bytes_per_s=bytes_per_s) for n in ("L1", "L2", "L3", "DRAM")),
        source="measured on a day of the test",
    )


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def engine() -> tw.Engine:
    nodes = [
        node("MatMul", ["x", "w"], ["m"], name="product"),
        node("Softmax", ["m"], ["y"], name="softmax"),
    ]
    model = model_of(
        nodes, inputs=[tensor_info("x", (64, 64))], weights={"w": normal(64, 64)}, opset=21
    )
    return compiled(model, verify=False)


def explained(engine: tw.Engine, found: Roofs, name: str, **more: Any) -> Explanation:
    store_measured([found])
    return engine.explain(what_if=name, **more)


def answer(engine: tw.Engine, found: Roofs, name: str, **more: Any) -> WhatIf:
    given = explained(engine, found, name, **more).what_if
    assert given is not None
    return given


def ratios(found: WhatIf) -> Sequence[float]:
    return [one.floor_us / one.then_floor_us for one in found.kernels]


def test_products_run_at_the_peak_of_the_narrow_type(engine: tw.Engine) -> None:
    """Where arithmetic is the limit; softmax has no int8 form, and bf16 gains it no arithmetic."""
    assert ratios(answer(engine, roofs(1e15), "int8", runs=0)) == pytest.approx([8.0, 1.0])
    assert ratios(answer(engine, roofs(1e15), "bf16", runs=0)) == pytest.approx([2.0, 1.0])


def test_bytes_shrink_with_the_type(engine: tw.Engine) -> None:
    """Where memory is the limit."""
    slow = roofs(1e6)
    assert ratios(answer(engine, slow, "int8", runs=0)) == pytest.approx([4.0, 1.0])
    assert ratios(answer(engine, slow, "bf16", runs=0)) == pytest.approx([2.0, 2.0])


def test_what_stays_says_why(engine: tw.Engine) -> None:
    found = answer(engine, roofs(1e15), "int8", runs=0)
    product, softmax = found.kernels
    assert (product.reason, softmax.reason) == ("", "no int8 form of Softmax")
    text = explained(engine, roofs(1e15), "int8", runs=0).text()
    assert "What if int8: 1 of 2 kernels would change" in text
    assert "no int8 form of Softmax" in text


def test_measured_times_scale_with_the_floors(engine: tw.Engine) -> None:
    found = answer(engine, roofs(1e15, {name: peak * 1e4 for name, peak in PEAKS.items()}), "int8")
    assert found.time_us is not None
    assert found.then_us is not None
    for one in found.kernels:
        assert one.time_us is not None
        expected = one.time_us * one.then_floor_us / one.floor_us
        assert one.then_us == pytest.approx(expected)
    assert found.then_us < found.time_us
    assert "at today's distance" in "\n".join(found.text)


def test_a_precision_must_be_known_and_have_a_peak(engine: tw.Engine) -> None:
    store_measured([roofs(1e12)])
    with pytest.raises(BadOption, match="unknown what_if 'int3'"):
        engine.explain(what_if="int3")
    with pytest.raises(BadOption, match="no known peak of float16"):
        engine.explain(what_if="fp16", runs=0)


def test_it_is_in_the_json(engine: tw.Engine) -> None:
    found = explained(engine, roofs(1e12), "int8", runs=0).json()["what_if"]
    assert found["precision"] == "int8"
    assert len(found["kernels"]) == 2
    store_measured([roofs(1e12)])
    assert engine.explain(runs=0).json()["what_if"] is None
