"""Inputs that convolutions guard are copied with a border of zeros; others are left alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from unit.compiler.models import compiled, normal
from unit.graph.models import model_of, node, tensor_info

PADS = [1, 1, 1, 1]


def stem(shape: tuple[Any, ...], *, group: int = 1, **attributes: Any) -> onnx.ModelProto:
    """A first convolution, and another that reads its output."""
    return model_of(
        [
            node("Conv", ["x", "w"], ["c"], name="stem", group=group, **attributes),
            node("Relu", ["c"], ["r"], name="relu"),
            node("Conv", ["r", "v"], ["y"], name="next", pads=PADS),
        ],
        inputs=[tensor_info("x", shape)],
        outputs=["y"],
        weights={"w": normal(16, shape[1] // group, 3, 3) / 5, "v": normal(16, 16, 3, 3) / 12},
        opset=21,
    )


def copies(model: onnx.ModelProto, **options: Any) -> list[str]:
    """Of a verified engine, the copied inputs."""
    engine = compiled(model, **options)
    return [d.subject for d in engine.decisions if d.chosen.startswith("a copy of ")]


@pytest.mark.parametrize(
    "attributes",
    [
        {"pads": PADS},
        {"pads": [1, 1, 1, 1], "strides": [2, 2]},
        {"pads": [0, 2, 1, 0]},
        {"pads": [2, 2, 2, 2], "dilations": [2, 2]},
        {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
    ],
)
def test_a_guarded_input_is_copied(attributes: dict[str, Any]) -> None:
    assert copies(stem((1, 3, 17, 23), **attributes)) == ["x/bordered"]


@pytest.mark.parametrize("channels", [1, 3, 16, 32])
def test_of_any_number_of_channels(channels: int) -> None:
    assert copies(stem((2, channels, 9, 9), pads=PADS)) == ["x/bordered"]


def test_sizes_may_be_symbolic() -> None:
    assert copies(stem(("n", 3, "h", "w"), pads=PADS)) == ["x/bordered"]


def test_without_padding_or_layouts_nothing_is_copied() -> None:
    assert copies(stem((1, 3, 17, 23))) == []
    assert copies(stem((1, 3, 17, 23), pads=PADS), disable=["layout"]) == []


@pytest.mark.parametrize(("filters", "expected"), [(4, []), (8, ["x/bordered"])])
def test_for_few_output_channels_a_copy_is_not_worth_it(filters: int, expected: list[str]) -> None:
    model = model_of(
        [node("Conv", ["x", "w"], ["y"], name="narrow", pads=PADS)],
        inputs=[tensor_info("x", (1, 3, 11, 12))],
        outputs=["y"],
        weights={"w": normal(filters, 3, 3, 3)},
        opset=21,
    )
    assert copies(model) == expected


def test_the_copy_is_explained() -> None:
    explanation = compiled(stem((1, 3, 17, 23), pads=PADS), verify=False).explain(runs=0)
    border = next(kernel for kernel in explanation.kernels if kernel.name == "Border")
    assert border.nodes
    assert border.num_bytes == 4 * 3 * (17 * 23 + 19 * 25)  # read, and written with the border


def test_two_convolutions_share_a_copy_and_other_readers_keep_the_input() -> None:
    model = model_of(
        [
            node("Conv", ["x", "w"], ["a"], name="narrow", pads=PADS),
            node("Conv", ["x", "v"], ["b"], name="wide", pads=[2, 2, 2, 2]),
            node("Exp", ["x"], ["e"], name="exp"),
        ],
        inputs=[tensor_info("x", (1, 3, 11, 12))],
        outputs=["a", "b", "e"],
        weights={"w": normal(16, 3, 3, 3), "v": normal(24, 3, 5, 5)},
        opset=21,
    )
    engine = compiled(model)
    borders = [call for step in engine.program.steps for call in getattr(step, "calls", ())]
    assert [call.name for call in borders].count("Border") == 1
    x = normal(1, 3, 11, 12)
    np.testing.assert_allclose(engine(x=x)["e"], np.exp(x), rtol=1e-5)


def test_what_is_no_convolution_is_left_alone() -> None:
    model = model_of(
        [node("AveragePool", ["x"], ["y"], name="pool", kernel_shape=[3, 3], pads=PADS)],
        inputs=[tensor_info("x", (1, 3, 11, 12))],
        outputs=["y"],
        opset=21,
    )
    assert copies(model) == []
