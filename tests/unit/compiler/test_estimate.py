"""Estimates: the same work as in the engine, nothing built, every device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tilewright.compiler import object_cache
from tilewright.compiler.estimate import estimate
from tilewright.core.errors import BadOption, BadTarget, ShapeMismatch
from tilewright.hw.tables.boards import BOARDS
from tilewright.runtime.explain.collect import _unknown_roofs
from unit.compiler.models import compiled, feeds_of, network


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_work_is_that_of_the_engine() -> None:
    found = estimate(network(), sizes={"batch": 2, "height": 6})
    built = compiled(network(), verify=False, disable=["layout", "pack", "winograd"])
    engine = built.explain(feeds_of(), runs=1)
    assert [(k.nodes, k.flops, k.num_bytes) for k in found.kernels] == [
        (k.nodes, k.flops, k.num_bytes) for k in engine.kernels
    ]
    assert found.memory.weight_bytes == engine.memory.weight_bytes
    assert found.memory.live_bytes_formula == engine.memory.live_bytes_formula
    assert [p.node for p in found.placements] == [p.node for p in engine.placements]


def test_a_gpu_has_to_start_the_kernels_too() -> None:
    (said,) = [text for text in estimate(network(), board="L40S").warnings if "starting" in text]
    count = len(estimate(network()).kernels)
    assert f"{count} kernels would add about {count * 0.9 / 1e3:.3f} ms" in said
    assert not any("starting" in text for text in estimate(network()).warnings)


def test_nothing_is_built(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("something was compiled")

    monkeypatch.setattr(object_cache, "compile_module", refuse)
    found = estimate(network())
    assert not found.is_built
    assert found.end_to_end_us is None
    assert all(k.time_us is None and k.tactic == "" for k in found.kernels)
    assert not cache.exists()


def test_sizes_that_nobody_gave_are_named() -> None:
    found = estimate(network(), sizes={"batch": 4})
    assert found.sizes["batch"] == 4
    assert found.assumed == ("height",)
    assert "assumed: height" in found.text()
    with pytest.raises(BadOption, match="no input has a dim"):
        estimate(network(), sizes={"depth": 1})


def test_memory_is_a_formula_of_the_dims() -> None:
    formula = estimate(network()).memory.live_bytes_formula
    assert "batch" in formula
    assert "height" in formula


def test_every_device_of_the_tables_has_a_floor() -> None:
    found = estimate(network(), sizes={"batch": 8, "height": 64})
    assert [device.device for device in found.devices] == [board.name for board in BOARDS]
    assert all(device.floor_us > 0 and device.limit for device in found.devices)
    floors = {device.device: device.floor_us for device in found.devices}
    assert floors["H200"] < floors["T4"]


def test_a_board_can_be_the_device() -> None:
    found = estimate(network(), board="L40S")
    assert found.roofs is not None
    assert found.roofs.device == "L40S"
    total = next(device for device in found.devices if device.device == "L40S")
    assert found.floor_us == pytest.approx(total.floor_us)
    with pytest.raises(BadTarget):
        estimate(network(), board="B2000")


def test_sizes_come_from_the_shapes_of_inputs() -> None:
    found = estimate(network(), shapes={"x": (2, 3, 6, 8)})
    assert dict(found.sizes) == {"batch": 2, "height": 6}
    assert found.assumed == ()
    with pytest.raises(ShapeMismatch):
        estimate(network(), shapes={"x": (2, 3, 6, 9)})
    with pytest.raises(ShapeMismatch):
        estimate(network(), shapes={"x": (2, 3, 6, 8)}, sizes={"batch": 3})
    with pytest.raises(BadOption, match="no input is called"):
        estimate(network(), shapes={"z": (2,)})


def test_an_estimate_always_has_roofs_and_limits() -> None:
    found = estimate(network())
    assert found.roofs is not None
    assert all(kernel.floor_us and kernel.limit for kernel in found.kernels)


def test_an_estimate_for_a_gpu_is_headed_by_it() -> None:
    found = estimate(network(), board="H200")
    assert found.facts == {"device": "H200", "precision": "fp32"}
    assert "cpu" not in found.text().splitlines()[0]


def test_roofs_of_absent_machines_have_a_remedy_that_helps() -> None:
    assert "--on BOARD" in _unknown_roofs({"archs": ("sm_90",), "cpu": "sm_90"})
    assert "of haswell: explain the engine where it runs" in _unknown_roofs({"cpu": "haswell"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sizes": 5}, "sizes is 5"),
        ({"sizes": {"batch": "a"}}, r"sizes\['batch'\] is 'a'"),
        ({"shapes": 5}, "shapes is 5"),
        ({"shapes": {"x": 5}}, r"shapes\['x'\] is 5"),
        ({"shapes": {"x": (2, "a")}}, r"shapes\['x'\] is 'a'"),
        ({"shapes": {"x": (2**62, 2**62)}}, r"shapes\['x'\]"),
        ({"shapes": {"x": (1,) * 99}}, r"shapes\['x'\]"),
        ({"board": 5}, "board is 5"),
        ({"threads": "2"}, "threads is '2'"),
        ({"example_inputs": ()}, "example_inputs is for a torch"),
    ],
)
def test_options_of_wrong_types_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadOption, match=message) as caught:
        estimate(network(), **options)
    assert caught.value.remedy
