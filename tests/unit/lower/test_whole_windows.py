"""Convolutions whose windows cover an image sum over its pixels; values are the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from tilewright.core.record import DecisionLog
from tilewright.graph.facade import Model, reference
from tilewright.runtime.program import Segment, all_steps
from unit.compiler.models import compiled, normal
from unit.graph.models import model_of, node, tensor_info

CHANNELS = 24
WIDE = [2, 2, 2, 2]


def _model(
    height: int | str,
    width: int = 19,
    taps: tuple[int, int] = (5, 5),
    group: int = CHANNELS,
    **attributes: Any,
) -> onnx.ModelProto:
    """1x1, the convolution, 1x1."""
    return model_of(
        [
            node("Conv", ["x", "first"], ["a"]),
            node("HardSwish", ["a"], ["h"]),
            node("Conv", ["h", "w", "b"], ["c"], name="windows", group=group, **attributes),
            node("Relu", ["c"], ["r"]),
            node("Conv", ["r", "last"], ["y"]),
        ],
        inputs=[tensor_info("x", (1, 3, height, width))],
        outputs=["y"],
        weights={
            "first": normal(CHANNELS, 3, 1, 1, seed=1),
            "w": normal(CHANNELS, CHANNELS // group, *taps, seed=2) / 5,
            "b": normal(CHANNELS, seed=3),
            "last": normal(8, CHANNELS, 1, 1, seed=4) / 5,
        },
        opset=21,
    )


def _covers(model: onnx.ModelProto, **options: Any) -> bool:
    engine = compiled(model, verify=False, **options)
    return any(d.chosen.startswith("sums over positions") for d in engine.decisions)


@pytest.mark.parametrize(
    ("model", "covers"),
    [
        (_model(3, pads=WIDE), True),
        (_model(2, pads=WIDE), True),
        (_model(1, pads=WIDE), True),
        (_model(3, pads=WIDE, strides=[2, 1]), True),
        (_model(2, 2, pads=WIDE), True),
        (_model(2, pads=WIDE, group=1), True),
        (_model(2, taps=(3, 3), pads=[1, 1, 1, 1]), True),
        (_model(4, pads=WIDE), False),  # the first row's window ends before the last row
        (_model(3, pads=[3, 2, 1, 2]), False),
        (_model(3, pads=WIDE, strides=[1, 2]), True),
        (_model(2, taps=(3, 3), pads=[2, 2, 2, 2], dilations=[2, 2]), False),  # taps skip rows
        (_model("height", pads=WIDE), False),
    ],
)
def test_which_windows_cover_an_image(model: onnx.ModelProto, covers: bool) -> None:
    assert _covers(model) == covers


def test_it_is_part_of_layouts() -> None:
    assert not _covers(_model(2, pads=WIDE), disable=["layout"])


@pytest.mark.parametrize("group", [CHANNELS, 1, 2])
@pytest.mark.parametrize(
    ("height", "width", "attributes"),
    [
        (3, 19, {"pads": WIDE}),
        (2, 19, {"pads": WIDE}),
        (1, 19, {"pads": WIDE}),
        (3, 19, {"pads": WIDE, "strides": [2, 1]}),
        (3, 19, {"pads": WIDE, "strides": [1, 2]}),
        (2, 2, {"pads": WIDE}),
    ],
)
def test_values_are_the_same(
    height: int, width: int, group: int, attributes: dict[str, Any]
) -> None:
    model = _model(height, width, group=group, **attributes)
    engine = compiled(model, verify=False)
    feeds = {"x": normal(1, 3, height, width, seed=5)}
    want = reference(Model.load(model, DecisionLog()).original, feeds)["y"]
    assert np.abs(engine.run(feeds)["y"] - want).max() <= 1e-5 * np.abs(want).max()


def test_no_border_is_written_along_a_covered_dim() -> None:
    program = compiled(_model(2, pads=WIDE), verify=False).program
    segments = [step for step in all_steps(program) if isinstance(step, Segment)]
    stored = [spec.stored for segment in segments for spec in segment.internal]
    borders = [one.border for one in stored if one is not None]
    assert ((3, 2, 2),) in borders  # of the data that the windows read: left and right
    assert all(dim == 3 for border in borders for dim, *_ in border)
