"""Chains row by row: the same values with less memory, and only where it is memory that they wait
for.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import onnx
import pytest

import tilewright as tw
from tilewright.codegen.cpu.waves import find_wave
from tilewright.core.shape import product
from tilewright.lower import row_bands
from tilewright.runtime.program import Segment
from unit.graph.models import model_of, node, tensor_info

RNG = np.random.default_rng(4)
Layer = tuple[int, int, int, bool]  # taps, stride, channels, depthwise


def _network(
    shape: list[int | str], layers: list[Layer], outputs: tuple[str, ...] = ("y",)
) -> onnx.ModelProto:
    weights: dict[str, Any] = {}
    nodes: list[onnx.NodeProto] = []
    channels, value = int(shape[1]), "x"
    for number, (taps, stride, count, is_depthwise) in enumerate(layers):
        group = channels if is_depthwise else 1
        sizes = (count, channels // group, taps, taps)
        scale = np.sqrt(np.prod(sizes[1:]))
        weights[f"w{number}"] = (RNG.standard_normal(sizes) / scale).astype(np.float32)
        half = taps // 2
        pads = [half, half, taps - 1 - half, taps - 1 - half]
        nodes.append(
            node("Conv", [value, f"w{number}"], [f"c{number}"], group=group, pads=pads,
                 strides=[stride, stride], name=f"conv{number}")
        )  # fmt: skip
        nodes.append(node("Relu", [f"c{number}"], [f"r{number}"]))
        channels, value = count, f"r{number}"
    nodes.append(node("Identity", [value], ["y"]))
    inputs = [tensor_info("x", shape)]
    return model_of(nodes, inputs=inputs, outputs=[*outputs], weights=weights, opset=21)


def _bands(engine: Any) -> list[str]:
    """What was decided of rows; whether images go one by one is another question."""
    found = [d.chosen for d in engine.decisions if d.stage == "bands"]
    return [chosen for chosen in found if chosen != "all images at once"]


def _same(model: onnx.ModelProto, x: Any, threads: int) -> list[str]:
    """Compares with whole values, bit by bit; the decisions."""
    options: dict[str, Any] = {"verify": False, "cache": None, "threads": threads}
    engine = tw.compile(model, **options)
    _same_values(engine, model, x)
    return _bands(engine)


def _same_values(engine: Any, model: onnx.ModelProto, x: Any) -> None:
    whole = tw.compile(model, verify=False, cache=None, disable=["bands"])
    assert _bands(whole) == []
    want = whole.run({"x": x})["y"]
    for _ in range(2):  # rings then hold what the first run left
        np.testing.assert_array_equal(engine.run({"x": x})["y"], want)


EXPANDED: list[Layer] = [(1, 1, 96, False), (3, 1, 96, True), (1, 1, 16, False)]
CHAINS: dict[str, list[Layer]] = {
    "inverted residual": EXPANDED,
    "with stride": [(1, 1, 96, False), (3, 2, 96, True), (1, 1, 16, False)],
    "five taps": [(1, 1, 64, False), (5, 1, 64, True), (1, 1, 16, False)],
    "seven taps, stride 3": [
        (1, 1, 64, False),
        (7, 3, 64, True),
        (3, 1, 64, True),
        (1, 1, 16, False),
    ],
    "even taps": [(1, 1, 64, False), (2, 1, 64, True), (4, 2, 64, True), (1, 1, 32, False)],
    "from the image": [(3, 2, 32, False), (3, 1, 32, True), (1, 1, 16, False)],
}


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize(("height", "threads"), [(97, 2), (75, 3)])
def test_the_same_values(
    name: str, height: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the last rows, whose border lies where other rows were, and the threads' first ones."""
    monkeypatch.setattr(row_bands, "_LARGE_BYTES", 1 << 19)
    monkeypatch.setattr(row_bands, "_CACHE_BYTES", 1 << 18)
    monkeypatch.setattr(row_bands, "_MOST_WORK", 10**9)
    channels, width = (3, 500) if name == "from the image" else (16, 130)
    shape = [1, channels, height, width]
    model = _network([*shape], CHAINS[name])
    bands = _same(model, RNG.standard_normal(shape).astype(np.float32), threads)
    assert any("in turns" in chosen for chosen in bands), bands


def test_several_images() -> None:
    shape = [2, 16, 60, 130]
    x = RNG.standard_normal(shape).astype(np.float32)
    assert any("in turns" in chosen for chosen in _same(_network([*shape], EXPANDED), x, 2))


def test_a_copy_with_a_border_lies_in_a_ring() -> None:
    shape = [1, 3, 600, 640]
    x = RNG.standard_normal(shape).astype(np.float32)
    bands = _same(_network([*shape], [(3, 2, 32, False)]), x, 2)
    assert "2 kernels, row by row" in bands


def test_rings_take_less_memory() -> None:
    model = _network([1, 16, 160, 160], EXPANDED)
    engine, whole = (
        tw.compile(model, verify=False, cache=None, disable=disable) for disable in ([], ["bands"])
    )
    sizes = [_arena_bytes(one) for one in (engine, whole)]
    assert sizes[0] < sizes[1] / 3


def _arena_bytes(engine: Any) -> int:
    (segment,) = (step for step in engine.program.steps if isinstance(step, Segment))
    return sum(product(spec.shape or ()).const for spec in segment.internal)


def test_what_others_read_stays_whole() -> None:
    shape = [1, 16, 160, 160]
    x = RNG.standard_normal(shape).astype(np.float32)
    bands = _same(_network([*shape], EXPANDED, ("y", "r0")), x, 1)
    assert not any("in turns" in chosen for chosen in bands)


@pytest.mark.parametrize(
    ("shape", "layers"),
    [
        ([1, 16, 40, 40], EXPANDED),  # small
        ([1, 64, 160, 160], [(1, 1, 128, False), (1, 1, 64, False)]),  # much work for each value
        ([1, 16, "h", 160], EXPANDED),  # sizes not known
    ],
)
def test_separate_kernels(shape: list[int | str], layers: list[Layer]) -> None:
    assert _bands(tw.compile(_network(shape, layers), verify=False, cache=None)) == []


def test_refusals_have_reasons() -> None:
    """A result of another layout is not computed row by row."""
    shape = [1, 16, 150, 130]
    model = _network([*shape], EXPANDED[:2])
    engine = tw.compile(model, verify=False, cache=None)
    refused = [d.rejected for d in engine.decisions if d.chosen == "stages one after another"]
    assert [option for ((option, _),) in refused] == ["in turns"]
    _same_values(engine, model, RNG.standard_normal(shape).astype(np.float32))


def test_bands_cover_all_rows() -> None:
    wave = find_wave(_joined_kernel())
    assert wave is not None
    for number, (starts, ends) in enumerate(wave.bounds()):
        assert ends[0] == 0
        assert ends[-1] >= wave.counts[number]
        assert all(low <= high for low, high in pairwise(ends))
        assert all(start <= end for start, end in zip(starts, ends, strict=False))


@pytest.mark.parametrize("height", [120, 160, 240])
def test_threads_get_equal_parts(height: int) -> None:
    wave = find_wave(_joined_kernel(height))
    assert wave is not None
    assert wave.num_spans in (8, 16)
    assert wave.num_bands % 2 == 0


def _joined_kernel(height: int = 160) -> Any:
    found: list[Any] = []
    real = row_bands._joined

    def spy(*args: Any) -> Any:
        found.append(real(*args))
        return found[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_bands, "_joined", spy)
        tw.compile(_network([1, 16, height, 160], EXPANDED), verify=False, cache=None)
    return found[0]
